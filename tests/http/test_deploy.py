# SPDX-License-Identifier: Apache-2.0
"""deploy/Dockerfile by itself, since no image can be pulled where tests run: the runtime has the
libraries that the binary needs, the ignore file lets through what is copied, the health check works."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import BINARY, GOLDEN

pytestmark = pytest.mark.builds("dev")

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
RUNTIME = DOCKERFILE.split("\nFROM ")[-1]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_debian_12():
    release = Path("/etc/os-release")
    return release.exists() and "bookworm" in release.read_text() and shutil.which("readelf")


@pytest.mark.skipif(not is_debian_12(), reason="packages are called otherwise elsewhere")
def test_the_runtime_has_the_libraries():
    installed = re.search(r"apt-get install (?:-\S+ +)*([a-z0-9 .+-]+)", RUNTIME)[1].split()
    needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", BINARY))
    packages = {output("dpkg", "-S", f"*/{library}").split(":")[0] for library in needed
                if not re.match(r"lib[cm]\.so|ld-linux", library)}
    assert packages == set(installed)


def test_what_is_copied_is_not_ignored():
    lines = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = {source for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.M)
              for source in line.split()[:-1]}
    assert copied == kept and "*" in lines
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake here")
def test_what_is_copied_is_enough_to_configure(tmp_path):
    for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            target = tmp_path / source
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, target)
    preset = re.search(r"cmake --preset (\w+)", DOCKERFILE)[1]
    result = subprocess.run(["cmake", "--preset", preset], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_health_check(server_factory):
    server = server_factory(model=GOLDEN / "regla")
    check = json.loads(re.search(r'CMD (\["bash".*\])', RUNTIME)[1])
    environment = os.environ | {"REGLA_PORT": str(server.port)}
    assert subprocess.run(check, env=environment).returncode == 0
    server.stop()
    assert subprocess.run(check, env=environment, stderr=subprocess.DEVNULL).returncode != 0
