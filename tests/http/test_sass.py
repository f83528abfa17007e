# SPDX-License-Identifier: Apache-2.0
"""loadtest/sass.py: what differs between the kernels of two builds, with a cuobjdump that pretends."""

import sys

import pytest

from harness import ROOT

sys.path.append(str(ROOT / "loadtest"))
import sass

pytestmark = pytest.mark.builds("dev")  # the tools of loadtest/, in Python

TILE = "_Z11tile_kernelIL13weight_format4ELb0EEv12product_call"
FOLD = "_ZN45_GLOBAL__N__{hash}_12_attention_cu_{hash}11fold_kernelEi"
SHOWN = """
 Function {name}:
  REG:{registers} STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:760 TEXTURE:0
        Function : {name}
        /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */
                                                             /* 0x000ff00000000800 */
        /*0010*/                   {spill} ;                 /* 0x00000a00ff017b82 */
        /*0020*/              @!P0 BRA 0x10 ;                /* 0x00000a00ff017b82 */
        /*0030*/                   NOP;                      /* 0x00000a00ff017b82 */
"""
CUOBJDUMP = """#!/bin/sh
[ "$2" = sm_90 ] || exit 1
cat "$(dirname "$4")/dump"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    tool = tmp_path / "cuobjdump"
    tool.write_text(CUOBJDUMP)
    tool.chmod(0o755)
    monkeypatch.setenv("CUOBJDUMP", str(tool))

    def build(name, *kernels):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "libregla_cuda.a").touch()
        (folder / "dump").write_text("".join(
            SHOWN.format(name=kernel, registers=registers, spill=spill)
            for kernel, registers, spill in kernels))
        return folder
    return build


def test_kernels_that_differ_are_shown_and_no_others(build, monkeypatch, capsys):
    old = build("old", (TILE, 128, "STL.64 [R1+0x8], R24"),
                (FOLD.format(hash="d60cb9d1"), 40, "MOV R1, R2"))
    new = build("new", (TILE, 96, "@P0 LDL.128 R16, [R1+0x8]"),
                (FOLD.format(hash="0123abcd"), 40, "MOV R1, R2"))
    monkeypatch.setattr(sys, "argv", ["sass.py", str(old), str(new)])
    sass.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["| `tile_kernel<4, false>` | 128 → 96 | 8 → 0 | 0 → 16 | 1,024 | 3 |", "",
                         "sm_90: 2 → 2 kernels, 1 → 0 of them spill; 1 differ"]
    monkeypatch.setattr(sys, "argv", ["sass.py", str(old)])
    sass.main()
    assert "| `fold_kernel` | 40 | 0 | 0 | 1,024 | 3 |" in capsys.readouterr().out


def test_kernels_of_equal_names_keep_their_parameters(build, monkeypatch, capsys):
    """Two of a name were one, and the other was in no count."""
    both = [("_Z4copyIL4kind2EEviPt", 20, "MOV R1, R2"), ("_Z4copyIL4kind2EEvi", 30, "MOV R1, R2")]
    monkeypatch.setattr(sys, "argv", ["sass.py", str(build("both", *both, (TILE, 96, "NOP")))])
    sass.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:-2]] == [
        ["| `copy<2>(int)`", "30"], ["| `copy<2>(int, unsigned short*)`", "20"],
        ["| `tile_kernel<4, false>`", "96"]]
    assert lines[-1] == "sm_90: 3 kernels, 0 of them spill"
    same = build("same", *((FOLD.format(hash=each), 40, "MOV R1, R2") for each in ("12345678", "9abcdef0")))
    with pytest.raises(sass.Failure, match="two kernels have the same name"):
        sass.kernels_of(same, "sm_90")


def test_a_build_without_kernels_and_a_missing_tool_are_said(build, tmp_path, monkeypatch):
    with pytest.raises(sass.Failure, match=r"libregla_cuda.a or \*.cu.o"):
        sass.kernels_of(tmp_path, "sm_90")
    empty = build("empty")
    with pytest.raises(sass.Failure, match="no kernels for sm_90"):
        sass.kernels_of(empty, "sm_90")
    monkeypatch.setenv("CUOBJDUMP", "no_such_tool")
    with pytest.raises(sass.Failure, match="expected cuobjdump on the PATH.*'no_such_tool'"):
        sass.kernels_of(empty, "sm_90")
