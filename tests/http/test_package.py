# SPDX-License-Identifier: Apache-2.0
"""What a package brings besides the program: the manual, completion, the unit, one version."""

import os
import re
import shutil
import subprocess

import pytest

from harness import BINARY, ROOT, shipped_model
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev")

VERSION = re.search(r"project\(regla VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
COMMANDS = re.findall(r"^  ([a-z]+) +\S", regla("--help").stdout, re.M)
HELP = {command: regla(command, "--help").stdout for command in COMMANDS}
# "  --port PORT", "  --no-prefix-cache"; under it "env REGLA_PORT"
FLAGS = {command: re.findall(r"^  (--[a-z0-9-]+)", text, re.M) for command, text in HELP.items()}
CHOICES = {(command, flag): values.replace("[:N]", "").split("|") for command, text in HELP.items()
           for flag, values in re.findall(r"^  (--[a-z0-9-]+) ([a-z0-9]+\|\S+)$", text, re.M)}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "regla"
    path.write_text(regla("help", "--completion", "bash").stdout)
    return path


def completed(script, *words, folder=ROOT):
    """What bash offers for the last word, which is begun. bash itself cuts words at = and :."""
    parts = [part for word in words for part in re.split("(=)", word) if part or word == ""]
    program = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _regla; ' \
              'printf "%s\\n" "${COMPREPLY[@]}"'
    result = subprocess.run(["bash", "--norc", "-c", program, "bash", script, "regla", *parts],
                            cwd=folder, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout.split()


def test_there_are_commands_and_flags():
    assert len(COMMANDS) == 12 and all(FLAGS.values()) and len(FLAGS["serve"]) > 30
    assert ("serve", "--device") in CHOICES


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_completed(script, command):
    assert sorted(completed(script, command, "--")) == sorted(FLAGS[command] + ["--help"])


def test_commands_are_completed(script):
    assert completed(script, "") == COMMANDS + ["help"]
    assert completed(script, "help", "per") == ["perplexity"]
    assert completed(script, "--v") == ["--version"]
    assert completed(script, "help", "--completion", "") == ["bash"]


@pytest.mark.parametrize("command, flag", CHOICES)
def test_every_choice_is_completed(script, command, flag):
    assert completed(script, command, flag, "") == CHOICES[command, flag]
    assert completed(script, command, f"{flag}=") == CHOICES[command, flag]


def test_presets_lists_and_files_are_completed(script, tmp_path):
    presets = re.findall(r"^(\S+)", regla("info", "--presets").stdout, re.M)
    assert set(completed(script, "serve", "--preset", "regla-")) == {"regla-160m", "regla-6l"} <= set(presets)
    assert completed(script, "bench", "--preset", "reg") == completed(script, "serve", "--preset=reg")
    assert completed(script, "bench", "--weights", "f32,b") == ["f32,bf16"]
    assert completed(script, "study", "--systems", "softmax,hyb") == ["softmax,hybrid_regla"]
    (tmp_path / "model").mkdir()
    (tmp_path / "mine.txt").touch()
    assert sorted(completed(script, "serve", "--model", "m", folder=tmp_path)) == ["mine.txt", "model"]
    assert sorted(completed(script, "perplexity", "m", folder=tmp_path)) == ["mine.txt", "model"]
    assert sorted(completed(script, "generate", "m", folder=tmp_path)) == ["mine.txt", "model"]
    assert completed(script, "serve", "--port", "", folder=tmp_path) == []
    assert completed(script, "nothing", "", folder=tmp_path) == []


@pytest.fixture(scope="module")
def manual():
    return regla("help", "--man").stdout


def test_every_flag_is_in_the_manual(manual):
    plain = manual.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
    sections = dict(re.findall(r"^\.SS regla (\w+)\n(.*?)(?=^\.S[SH] )", plain, re.M | re.S))
    assert list(sections) == COMMANDS
    for command in COMMANDS:
        entries = dict(re.findall(r"^\.TP\n(--\S+)(.*?)(?=^\.TP|\Z)", sections[command], re.M | re.S))
        assert list(entries) == FLAGS[command]
        for flag in FLAGS[command]:
            assert f"REGLA_{flag[2:].removeprefix('no-').upper().replace('-', '_')}" in entries[flag]
    assert f'"regla {VERSION}"' in plain


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff here")
@pytest.mark.parametrize("program", ["regla", "regla-plot"])
def test_the_manual_is_clean_troff(program):
    page = regla("help", "--man", program).stdout
    result = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True,
                            text=True, timeout=60)
    assert result.returncode == 0 and result.stderr == "", result.stderr


@pytest.mark.parametrize("arguments, message", [
    (["--man", "nope"], 'expected regla or regla-plot, got "nope"'),
    (["--completion", "zsh"], "expected bash, got zsh"), (["--completion"], "expected bash, got nothing"),
])
def test_help_refuses_what_it_cannot_print(arguments, message):
    result = regla("help", *arguments)
    assert result.returncode == 2 and message in result.stderr and result.stdout == ""


def test_one_version():
    assert regla("--version").stdout == f"regla {VERSION}\n"
    assert '"version": "@PROJECT_VERSION@"' in (ROOT / "api/openapi.json").read_text()
    assert f"\n## [{VERSION}] - " in (ROOT / "CHANGELOG.md").read_text()
    assert set(re.findall(r"regla-(\d+\.\d+\.\d+)", (ROOT / "README.md").read_text())) == {VERSION}


@pytest.mark.skipif(not shutil.which("ldd"), reason="no ldd here")
def test_what_serves_carries_no_drawing_library():
    libraries = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    assert not re.search("X11|cairo|freetype|fontconfig", libraries)
    assert len(libraries.splitlines()) <= 19, libraries


@pytest.mark.skipif(not (BINARY.parent / "CMakeCache.txt").exists(), reason="not in its build's folder")
def test_install(tmp_path):
    result = subprocess.run(["cmake", "--install", BINARY.parent, "--prefix", tmp_path], capture_output=True,
                            text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")
                 if path.is_file()}
    assert {"bin/regla", "bin/regla-plot", "share/man/man1/regla.1.gz", "lib/systemd/system/regla.service",
            "share/bash-completion/completions/regla", "share/regla/grafana/regla.json",
            "share/regla/prometheus/regla_rules.yml", "share/doc/regla/LICENSE",
            "etc/default/regla"} <= installed
    settings = tmp_path / "etc/default/regla"  # which may get a password
    assert settings.stat().st_mode & 0o777 == 0o640
    unit = (tmp_path / "lib/systemd/system/regla.service").stat()
    assert unit.st_mode & 0o777 == 0o644


def test_make_serve_serves_the_shipped_model():
    """Unless MODEL names another."""
    def served(**more):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("MAKE") and name != "MODEL"}
        done = subprocess.run(["make", "--dry-run", "--old-file=build", "serve"], cwd=ROOT,
                              env={**environment, **more}, capture_output=True, text=True, check=True)
        return re.search(r"regla serve --model (\S+)$", done.stdout, re.M)[1]
    assert ROOT / served() == shipped_model()
    assert served(MODEL="elsewhere") == "elsewhere"
