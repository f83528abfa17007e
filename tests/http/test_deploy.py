# SPDX-License-Identifier: Apache-2.0
"""deploy/'s Dockerfiles by themselves, since no image can be pulled where tests run: the runtime has the
libraries that the binary needs, the ignore file lets through what is copied, the health check works, and
an image for GPUs is run as one for CPUs. `make test-stress` builds and starts what they describe
(tests/scripts/images.py, by whose reader of Dockerfiles this reads them)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness import BINARY, GOLDEN

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/scripts"))
import dockerfile  # noqa: E402

pytestmark = pytest.mark.builds("dev")

CPU, CUDA = ROOT / "deploy/Dockerfile", ROOT / "deploy/Dockerfile.cuda"
both = pytest.mark.parametrize("path", [CPU, CUDA], ids=lambda path: path.name)


def steps(path, name=None):
    return [step for step in dockerfile.parse(path) if name in (None, step.name)]


def stage(path, number):
    """The steps of a stage, its FROM left out."""
    stages = []
    for step in steps(path):
        if step.name == "FROM":
            stages.append([])
        else:
            stages[-1].append(step)
    return stages[number]


def runtime(path):
    """The stage that ships, which ends with what the image runs."""
    return next(part for part in (stage(path, number) for number in range(4))
                if any(step.name == "CMD" for step in part))


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_debian_12():
    release = Path("/etc/os-release")
    return release.exists() and "bookworm" in release.read_text() and shutil.which("readelf")


def installed(path):
    run = next(step.text for step in runtime(path) if step.name == "RUN")
    return set(re.search(r"apt-get install (?:-\S+ +)*([a-z0-9 .+-]+)", run)[1].split())


@pytest.mark.skipif(not is_debian_12(), reason="packages are called otherwise elsewhere")
def test_the_runtime_has_the_libraries():
    needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", BINARY))
    packages = {output("dpkg", "-S", f"*/{library}").split(":")[0] for library in needed
                if not re.match(r"lib[cm]\.so|ld-linux", library)}
    assert packages == installed(CPU)
    assert installed(CUDA) - packages == {"libstdc++6"}  # CUDA's runtime is of C++


@both
def test_what_is_copied_is_not_ignored(path):
    context = dockerfile.Context(ROOT, path)
    copied = {source for step in steps(path, "COPY") if not step.flags
              for source in step.text.split()[:-1]}
    assert all(context.kept(source) and (ROOT / source).exists() for source in copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert copied == kept
    ignored = ["models/regla-books-7.7m/model.safetensors", "build/dev/regla", "deploy/Dockerfile",
               ".git/config"]
    assert not any(map(context.kept, ignored))


@pytest.mark.long
@both
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake here")
def test_what_is_copied_is_enough_to_configure(path, tmp_path):
    if path == CUDA and not shutil.which("nvcc"):
        pytest.skip("no nvcc here")
    for step in steps(path, "COPY"):
        for source in step.text.split()[:-1] if not step.flags else []:
            target = tmp_path / source
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, target)
    command = next(found[0] for step in steps(path, "RUN")
                   if (found := re.search(r"cmake --preset [^&]+", step.text)))
    result = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_images_are_run_in_the_same_way():
    cpu, cuda = ([(step.name, step.flags, step.text.split()) for step in runtime(path)
                  if step.name not in ("RUN", "COPY")] for path in (CPU, CUDA))
    of_gpus = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    cuda = [(name, flags, [word for word in words if word not in of_gpus]) for name, flags, words in cuda]
    assert cuda == cpu


def test_the_health_check(server_factory):
    server = server_factory(model=GOLDEN / "regla")
    text = next(step.text for step in runtime(CPU) if step.name == "HEALTHCHECK")
    check = dockerfile.arguments(text.removeprefix("CMD").strip())
    environment = os.environ | {"REGLA_PORT": str(server.port)}
    assert subprocess.run(check, env=environment).returncode == 0
    server.stop()
    assert subprocess.run(check, env=environment, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.parametrize("text", [
    "FROM a\nADD b c", "FROM a\nONBUILD RUN b", "FROM --platform=x a", "FROM a\nRUN --network=none b",
    "FROM a\nCOPY --link b c", "FROM a\nRUN <<EOF\nb\nEOF", "# syntax=docker/dockerfile:1\nFROM a",
    "FROM a\nRUN b \\", "FROM a\nCOPY", "RUN b"])
def test_what_the_reader_does_not_know_is_refused(tmp_path, text):
    (tmp_path / "Dockerfile").write_text(text + "\n")
    with pytest.raises(dockerfile.Fault):
        dockerfile.Builder(tmp_path / "Dockerfile", None, tmp_path, None, None)


def test_the_reader_reads_as_an_engine_does(tmp_path):
    (tmp_path / "Dockerfile").write_text(
        "ARG base=debian\nFROM $base AS one\n# comment\nRUN a && \\\n  # within\n\\\n  b\n"
        'ENV A="x y" B=2\nFROM ${base:-other}\nCMD ["a", "b"]\n')
    read = dockerfile.Builder(tmp_path / "Dockerfile", None, tmp_path, None, None)
    assert [(name, parent) for name, parent, _ in read.stages] == [("one", "debian"), ("1", "debian")]
    run, env = read.stages[0][2]
    assert run.text.split() == ["a", "&&", "b"]
    assert dockerfile.pairs(env.text, {}) == {"A": "x y", "B": "2"}
    assert dockerfile.arguments('["a", "b"]') == ["a", "b"]
    assert dockerfile.arguments("a b") == ["/bin/sh", "-c", "a b"]
    with pytest.raises(dockerfile.Fault):
        dockerfile.expand("$missing", {})


def test_the_ignore_file_is_read_as_an_engine_reads_it(tmp_path):
    (tmp_path / "Dockerfile.dockerignore").write_text("# all\n*\n\n!a/b\na/b/*.o\n!c\nc/**/d\n")
    context = dockerfile.Context(tmp_path, tmp_path / "Dockerfile")
    kept = [path for path in ("a", "a/x", "a/b", "a/b/x.c", "a/b/x.o", "a/b/n/x.o", "c/d", "c/x/y/d/z", "cc")
            if context.kept(path)]
    assert kept == ["a/b", "a/b/x.c", "a/b/n/x.o"]


def test_whoever_stops_a_server_waits_longer_than_it_takes_to_end():
    ends = int(re.search(r"--drain-timeout[^-]*?default (\d+)", output(BINARY, "serve", "--help"), re.S)[1])
    deploy = ROOT / "deploy"
    waits = [(file, seconds) for file, wait in [
        ("compose.yaml", r"stop_grace_period: (\d+)s"),
        ("compose.replicas.yaml", r"stop_grace_period: (\d+)s"),
        ("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("kubernetes/replicas.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("systemd/regla.service.in", r"TimeoutStopSec=(\d+)"),
        ("README.md", r"--stop-timeout (\d+)")]
        for seconds in re.findall(wait, (deploy / file).read_text())]
    assert len({file for file, _ in waits}) == 6
    before = {"kubernetes/replicas.yaml": 5}  # of its preStop
    assert 'command: [sleep, "5"]' in (deploy / "kubernetes/replicas.yaml").read_text()
    assert all(int(seconds) >= ends + before.get(file, 0) + 10 for file, seconds in waits), (ends, waits)


def variables(value):
    """Names and values of REGLA_..., wherever they stand in a manifest."""
    if isinstance(value, dict):
        if str(value.get("name", "")).startswith("REGLA_"):
            yield value["name"], value.get("value")
        for each in value.values():
            yield from variables(each)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, str) and each.startswith("REGLA_"):
                name, _, given = each.partition("=")
                yield name, given or None
            yield from variables(each)


def names_of_a_server(document):
    """By which others of a manifest reach a server that may have no keys."""
    services = document.get("services", {})
    yield from (name for name in services if re.fullmatch(r"regla-\d", name))
    if document.get("kind") == "Service":
        yield document["metadata"]["name"]


def test_the_names_of_services_are_allowed():
    deploy = ROOT / "deploy"
    for path in ("compose.replicas.yaml", "kubernetes.yaml"):
        documents = list(yaml.safe_load_all((deploy / path).read_text()))
        names = {name for document in documents for name in names_of_a_server(document)}
        allowed = {name for document in documents for variable, value in variables(document)
                   if variable == "REGLA_ALLOWED_HOSTS" for name in value.split(",")}
        assert names and names <= allowed, (path, names, allowed)


def test_manifests_set_flags_that_there_are(server_factory):
    """And a server takes their values: all but those that name what only the container has."""
    flags = set(re.findall(r"env (REGLA_\w+)", output(BINARY, "serve", "--help")))
    deploy = ROOT / "deploy"
    found = {}
    for path in [path for pattern in ("compose*.yaml", "kubernetes*.yaml", "kubernetes/*.yaml")
                 for path in deploy.glob(pattern)]:
        for document in yaml.safe_load_all(path.read_text()):
            found.update((name, value) for name, value in variables(document) if value or name not in found)
    assert set(found) <= flags, set(found) - flags
    elsewhere = {"REGLA_STORE", "REGLA_API_KEY_FILE", "REGLA_TLS_CERT", "REGLA_TLS_KEY", "REGLA_DEVICE"}
    assert {"REGLA_STATE_DIR", *elsewhere} <= set(found)
    server_factory(model=GOLDEN / "regla", environment={
        name: value for name, value in found.items() if value and name not in elsewhere})
