# SPDX-License-Identifier: Apache-2.0
"""The exit status of the commands: 2 when the arguments cannot be meant so, whatever the files hold;
1 when what they ask for does not succeed."""

import pytest
from harness import GOLDEN
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # processes without a server

MODEL = GOLDEN / "hybrid_regla"

MISUSED = {
    "": [[], ["nope"], ["--nope"]],
    "serve": [[], [MODEL], ["--nope"], ["--preset", "nope"], ["--model", MODEL, "--preset", "regla-6l"],
              ["--model", MODEL, "--port", "65536"], ["--model", MODEL, "--threads"],
              ["--model", MODEL, "--state-memory", "many"], ["--model", MODEL, "--log-level", "loud"]],
    "generate": [[], [MODEL, "--nope"], [MODEL, MODEL], ["--preset", "nope"], [MODEL, "--preset", "regla-6l"],
                 [MODEL, "--max-tokens", "-1"], [MODEL, "--threads", "x"]],
    "perplexity": [[], [MODEL], [MODEL, MODEL, MODEL], ["--nope"], [MODEL, MODEL, "--threads", "x"]],
    "compare": [[], [MODEL, "f32"], [MODEL, "f32", "q8"], [MODEL, "f32", "q9", "questions"],
                [MODEL, "f32", "q8/4bit", "questions"], [MODEL, "f32", "q8/8bit/f16/f16", "questions"],
                [MODEL, "f32", "q8", MODEL, MODEL], [MODEL, "f32", "q8", "questions", "--repeat", "0"]],
    "tokenize": [[], [MODEL, MODEL], [MODEL, "--nope"]],
    "info": [[], [MODEL, MODEL], ["--preset", "nope"], [MODEL, "--preset", "regla-6l"], [MODEL, "--nope"]],
    "check": [[], ["--nope"], [MODEL, "--threads", "-1"]],
    "bench": [[], [MODEL], ["--preset", "nope"], ["--model", MODEL, "--preset", "regla-6l"],
              ["--model", MODEL, "--pp", "x"], ["--model", MODEL, "--csv", "--json"]],
    "study": [["--systems", "nope"], ["--batch", "0"], ["--lengths", "2,1"], ["--point", "nope"],
              ["--point", "nope:1:1:1"], ["--nope"], ["--out"]],
}
FAILED = {
    "serve": [["--model", "/no/where"]],
    "generate": [["/no/where"]],
    "perplexity": [["/no/where", "/no/where"], [MODEL, "/no/where"]],
    "compare": [["/no/where", "f32", "q8", "questions"], [MODEL, "f32", "q8", "/no/where"],
                [MODEL, "f32", "q8", "--questions", "/no/where"]],
    "tokenize": [["/no/where"]],
    "info": [["/no/where"]],
    "check": [["/no/where"]],
    "bench": [["--model", "/no/where"]],
    "study": [["--out", "/dev/null"]],
}


@pytest.mark.parametrize("status, command, arguments", [
    pytest.param(status, command, arguments, id=f"{status}-{command}-{number}")
    for status, table in ((2, MISUSED), (1, FAILED))
    for command, cases in table.items() for number, arguments in enumerate(cases)])
def test_exit_status(tmp_path, status, command, arguments):
    if command == "study" and "--out" not in arguments:
        arguments = [*arguments, "--out", tmp_path / "study"]
    result = regla(*([command] if command else []), *arguments)
    assert result.returncode == status, result.stderr
    assert result.stderr and (not result.stdout or command == "check")
    assert not (tmp_path / "study").exists()
