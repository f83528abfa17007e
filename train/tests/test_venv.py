# SPDX-License-Identifier: Apache-2.0
"""venv.sh: which PyTorch the venv has, and what is said before a download. A stub is in the place of
Python and apt-get."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
*'version("torch")'*) test -n "$FAKE_TORCH" && echo "$FAKE_TORCH" ;;
*sysconfig*) dirname "$0" ;;
*get_total_norm*) exit "${FAKE_BROKEN:-0}" ;;
*'pip install'*) for last; do :; done; cat "$last" >>"$CALLS" ;;
'-m venv'*) for last; do :; done; mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
esac
"""


@pytest.fixture
def venv(tmp_path):
    """venv(torch, ...): runs venv.sh where the system has that PyTorch; what it said and called."""
    (tmp_path / "train").mkdir()
    for name in ("venv.sh", "requirements.txt"):
        shutil.copy(TRAIN / name, tmp_path / "train")
    stub = tmp_path / "python"
    stub.write_text(PYTHON)
    stub.chmod(0o755)
    (tmp_path / "Python.h").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dpkg-query").write_text("#!/bin/sh\nexit 1\n")  # nothing is got from apt
    (tmp_path / "bin/dpkg-query").chmod(0o755)

    def run(torch, **more):
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {**os.environ, "PYTHON": str(stub), "CALLS": str(calls), "FAKE_TORCH": torch, **more,
                       "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        done = subprocess.run([tmp_path / "train/venv.sh"], env=environment, check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout, calls.read_text()

    return run


@pytest.mark.parametrize("torch", ("2.6", "2.6.0+debian", "2.10.1"))
def test_the_systems_pytorch_is_taken(venv, torch):
    said, calls = venv(torch)
    assert f"takes the system's PyTorch {torch}; downloads the rest" in said
    assert "-m venv --system-site-packages .venv-train" in calls
    assert "tokenizers==" in calls and "setuptools==" in calls
    assert "torch==" not in calls and "numpy==" not in calls
    assert venv(torch)[0] == ""  # is there
    assert f"takes the system's PyTorch {torch}1;" in venv(torch + "1")[0]
    said, calls = venv("")  # was removed
    assert "downloads PyTorch" in said and "torch==" in calls


@pytest.mark.parametrize(
    "torch, more", (("", {}), ("1.13.1", {}), ("2.5.9", {}), ("2.6.0", {"SYSTEM_TORCH": "no"}))
)
def test_else_pytorch_is_downloaded_and_the_size_said_before(venv, torch, more):
    said, calls = venv(torch, **more)
    assert "iB" in said.split("downloads PyTorch and what it needs: ")[1]
    older = f"the system's PyTorch is {torch}, older than 2.6" in said
    assert older == (torch in ("1.13.1", "2.5.9"))
    assert "--system-site-packages" not in calls and (TRAIN / "requirements.txt").read_text() in calls
    assert venv("2.6.0")[0] == ""  # one that is whole is not made anew


def test_a_pytorch_that_does_not_work_is_not_kept(venv):
    said, calls = venv("2.6.0", FAKE_BROKEN="1")
    assert "the system's PyTorch 2.6.0 does not work here" in said and "torch==" in calls
