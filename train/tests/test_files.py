# SPDX-License-Identifier: Apache-2.0
"""Files as people and other programs have them: read, or an error that names file and line."""

import bz2
import codecs
import gzip
import json
import lzma
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from train import evaluate, export, fit, gpu_session, linearize, make_card, tokenizer
from train.checkpoint import load_model, read_state, read_tensors
from train.config import parse_config, read_config
from train.documents import read_documents, text_files, training_files
from train.files import read_object, read_text
from train.init import read_init, read_shapes
from train.tokenizer import read_tokenizer, train_tokenizer
from train.windows import check_tokens, open_tokens

MARKS = {"utf-8-sig": b"", "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE,
         "utf-32-le": codecs.BOM_UTF32_LE, "utf-32-be": codecs.BOM_UTF32_BE}
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
TEXT = "é 猫 \U0001f408 ਊ\r\nሊ end\n"  # U+0A0A and U+120A have a line feed's byte


def written(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def documents(folder):
    return list(read_documents(text_files(folder)))


@pytest.mark.parametrize("encoding", MARKS)
def test_a_mark_says_the_encoding_and_is_no_text(tmp_path, encoding):
    lines = "".join(json.dumps({"text": TEXT}, ensure_ascii=False) + "\r\n" for _ in range(3))
    for end, compress in PACKED.items():
        kinds = (("txt", TEXT), ("jsonl", lines))
        made = {f"{encoding}/a.{kind}{end}": compress(MARKS[encoding] + said.encode(encoding))
                for kind, said in kinds}
        written(tmp_path, made)
    assert documents(tmp_path / encoding) == [TEXT] * 4 * (1 + 3)


def test_marks_within_are_no_text_either(tmp_path):
    """Files that were joined, and a program that took a file's mark for its text."""
    line = codecs.BOM_UTF8 + json.dumps({"text": "\ufeffone"}).encode() + b"\n"
    assert documents(written(tmp_path, {"a.jsonl": line * 2})) == ["one"] * 2


LINE = b'{"text": "a"}\n'


@pytest.mark.parametrize("name, data, message", (
    ("b.txt", b"one\ntwo caf\xe9\n", "b.txt:2: expected UTF-8, got the byte 0xe9"),
    ("b.txt", codecs.BOM_UTF8 + b"one\ntwo\n\xff", "b.txt:3: expected UTF-8, got the byte 0xff"),
    ("b.txt", codecs.BOM_UTF16_LE + "one\ntwo".encode("utf-16-le") + b"\x00\xd8", "b.txt:2: expected UTF-16"),
    ("b.txt", "one\ntwo".encode("utf-16-le"), "b.txt:1: expected text, got a zero byte"),
    ("b.md", b"one\r\n\x00", "b.md:2: expected text, got a zero byte"),
    ("b.jsonl", LINE + b'{"text": \n', "b.jsonl:2, column 10: expected JSON, got: Expecting value"),
    ("b.jsonl", LINE * 2 + b'{"text": "caf\xe9"}\n', "b.jsonl:3: expected UTF-8"),
    ("b.jsonl", b"\n\n" + LINE + b'["text"]\n', r"b.jsonl:4: expected a JSON object, got \[\"text\"\]"),
    ("b.jsonl", LINE + b'{"body": "x"}\n', 'b.jsonl:2: expected a "text" string'),
    ("b.jsonl", LINE + b'{"text": null}\n', 'b.jsonl:2: expected a "text" string'),
    ("b.jsonl", LINE + b'{"text": "\\ud83d"}\n', r"b.jsonl:2: expected text, got U\+D83D, half"),
    ("b.jsonl", LINE + b'{"text": ' + b"[" * 100000 + b"\n", "b.jsonl:2: expected JSON, got too deep"),
    ("b.jsonl", LINE + b'{"n": ' + b"1" * 5000 + b"}\n", "b.jsonl:2: expected JSON"),
    ("b.jsonl", codecs.BOM_UTF16_LE + (LINE + b"{").decode().encode("utf-16-le"), "b.jsonl:2, column 2"),
    ("b.jsonl.gz", gzip.compress(LINE * 1000)[:-9], "b.jsonl.gz: expected a whole .gz file, got"),
    ("b.jsonl.gz", LINE, "b.jsonl.gz: expected a whole .gz file, got: Not a gzipped"),
    ("b.txt.xz", lzma.compress(LINE)[:-9], "b.txt.xz: expected a whole .xz file, got"),
    ("b.txt.xz", LINE, "b.txt.xz: expected a whole .xz file, got"),
    ("b.jsonl.bz2", bz2.compress(LINE)[:-9], "b.jsonl.bz2: expected a whole .bz2 file, got"),
    ("b.jsonl.bz2", LINE, "b.jsonl.bz2: expected a whole .bz2 file, got"),
    ("b.txt.gz", gzip.compress(b"a\n\xe9"), "b.txt.gz:2: expected UTF-8"),
))
def test_what_cannot_be_read_has_a_place(tmp_path, name, data, message):
    with pytest.raises(ValueError, match=message):
        documents(written(tmp_path, {"a.txt": b"good\n", name: data, "c.txt": b"good\n"}))


def test_a_folder_is_read_with_its_folders(tmp_path, capsys):
    written(tmp_path, {"b.txt": b"b", "a/z.TXT": b"z", "a/.hidden.txt": b"\xff", ".git/x.txt": b"\xff",
                       "a/README.md": b"\xff", "empty.txt": b"", "c.pdf": b"\xff", "d.pdf": b"", "e": b""})
    assert documents(tmp_path) == ["z", "b"]
    assert capsys.readouterr().err == f"# {tmp_path}: 3 texts; left aside as no texts: 2 .pdf, 1 e\n"
    held_out = training_files([tmp_path], [tmp_path / "a"])
    assert [file.name for file in held_out] == ["b.txt", "empty.txt"]
    with pytest.raises(ValueError, match="expected a text that is not held out, found none"):
        training_files([tmp_path], [tmp_path])
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="none: expected a text .*, found none"):
        text_files(tmp_path / "none")
    for path in ("nothing.txt", "nowhere/x"):
        with pytest.raises(FileNotFoundError, match=path):
            text_files(tmp_path / path)


@pytest.mark.parametrize("data, message", (
    (b"", ":1, column 1: expected JSON, got: nothing"),
    (b'{\n "a": 1,\n}', ":3, column 1: expected JSON"),
    (b"[1]", r":1: expected a JSON object, got \[1\]"),
    (b'{\n"a": "\xe9"}', ":2: expected UTF-8"),
))
def test_every_reader_of_json_names_the_line(tmp_path, data, message):
    (tmp_path / "config.json").write_bytes(data)
    for read in (read_object, read_config, read_tokenizer):
        with pytest.raises(ValueError, match="config.json" + message):
            read(tmp_path / "config.json")
    with pytest.raises(ValueError, match="config.json" + message):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="config.json" + message):
        linearize.read_donor(tmp_path)


def test_a_config_with_a_mark(tmp_path, raw_config):
    (tmp_path / "config.json").write_text(json.dumps(raw_config), "utf-8-sig")
    assert read_config(tmp_path / "config.json")[1] == raw_config
    (tmp_path / "decay-now").write_bytes(codecs.BOM_UTF16_LE + "600\r\n".encode("utf-16-le"))
    assert read_text(tmp_path / "decay-now").strip() == "600"  # as a shell of Windows echoes it


@pytest.mark.parametrize("change, message", (
    ({"hidden_size": "16"}, "hidden_size: expected int, got '16'"),
    ({"hidden_size": 0}, "hidden_size: expected 1 or more, got 0"),
    ({"vocab_size": True}, "vocab_size: expected int, got True"),
    ({"norm_eps": "1e-6"}, "norm_eps: expected float"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected bool"),
    ({"layer_types": "ab"}, "layer_types: expected list, got 'ab'"),
    ({"layer_types": [["a"], "b"]}, "layer_types: expected list"),
    ({"mixers": []}, "mixers: expected an object"),
))
def test_values_of_other_types_are_refused(tmp_path, raw_config, change, message):
    del raw_config["shapes"]
    with pytest.raises(ValueError, match=message):
        parse_config({**raw_config, **change})
    (tmp_path / "c.json").write_text(json.dumps({**raw_config, **change}))
    with pytest.raises(ValueError, match=f"c.json: {message}"):
        read_config(tmp_path / "c.json")


@pytest.mark.parametrize("read, raw, message", (
    (read_init, {"init": []}, "init: expected an object"),
    (read_init, {"init": {"gate_bias": [1]}}, "init.gate_bias: expected two numbers"),
    (read_init, {"init": {"kerple": {"r1": 2}}}, "init.kerple.r1: expected two numbers, got 2"),
    (read_init, {"init": {"learned_theta": 1}}, "init.learned_theta: expected bool"),
    (read_shapes, {"shapes": {"head_dims": 8}}, "shapes.head_dims: unknown key"),
    (read_shapes, {"shapes": {"head_dim": "8"}}, "shapes.head_dim: expected 1 or more, got '8'"),
    (read_shapes, {"shapes": {"mixers": {"a": {"glu": 3}}}}, "shapes.mixers.a.glu: expected true or false"),
))
def test_first_values_and_shapes_of_other_types_are_refused(read, raw, message):
    with pytest.raises(ValueError, match=message):
        read(raw)


def test_files_of_tensors(tmp_path):
    for name, data in (("a", b""), ("b", b"\xff" * 100), ("c", b"PK\x03\x04" + bytes(100))):
        (tmp_path / name).write_bytes(data)
        for read, expected in ((read_tensors, "safetensors"), (read_state, "the state of a run")):
            with pytest.raises(ValueError, match=f"{name}: expected {expected}, got"):
                read(tmp_path / name)
    torch.save({"step": 1}, tmp_path / "d")
    with pytest.raises(ValueError, match="d: expected the state of a run .*, got another thing"):
        read_state(tmp_path / "d")
    for read in (read_tensors, read_state, open_tokens, read_object, read_tokenizer):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            read(tmp_path / "nowhere")


def test_token_files(tmp_path):
    for data, got in ((b"", "0 bytes"), (b"abc", "3 bytes")):
        (tmp_path / "x.u16").write_bytes(data)
        with pytest.raises(ValueError, match=f"x.u16: expected tokens of two bytes each, got {got}"):
            open_tokens(tmp_path / "x.u16")
    with pytest.raises(ValueError, match="got a folder"):
        open_tokens(tmp_path)


def test_a_tokenizer_and_a_model_of_other_sizes(tmp_path, text):
    tokens = tmp_path / "x.u16"
    np.array([0, 299], np.uint16).tofile(tokens)
    assert check_tokens(tokens, 300, "c.json") is None
    with pytest.raises(ValueError, match="x.u16: expected tokens below c.json's .* of 299, got 299"):
        check_tokens(tokens, 299, "c.json")
    train_tokenizer([text], 290).save(str(tmp_path / "tokenizer.json"))
    np.array([0, 289], np.uint16).tofile(tokens)
    assert check_tokens(tokens, 290, "c.json") is None
    said = check_tokens(tokens, 300, "c.json")
    assert "tokenizer.json has 290 tokens, c.json a vocab_size of 300: 10 of the embeddings" in said
    np.array([0, 100], np.uint16).tofile(tokens)  # also where the larger ids are in no text
    with pytest.raises(ValueError, match="json has 290 tokens, c.json a vocab_size of 280: expected"):
        check_tokens(tokens, 280, "c.json")


def ends(monkeypatch, module, *arguments):
    """What a program ends with."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        module.main()
    return ended.value.code


def test_programs_end_with_one_sentence(tmp_path, monkeypatch, raw_config):
    """Of every program with a user's file: one that is not there, and one that is broken."""
    monkeypatch.setattr(gpu_session.signal, "signal", lambda *_: None)  # of the tests' process
    config, nowhere, broken = tmp_path / "config.json", tmp_path / "nowhere", tmp_path / "broken.txt"
    config.write_text(json.dumps(raw_config))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    for file, said in ((nowhere, "nowhere"), (broken, "broken.txt")):
        broken.write_bytes(b"\xff\n")
        for module, arguments in (
            (tokenizer, (file, "--out", tmp_path / "out")),
            (tokenizer, (config, "--tokenizer", file, "--out", tmp_path / "out")),
            (fit, ("--config", file, "--data", config, "--run", tmp_path / "run", "--steps", 1)),
            (fit, ("--config", config, "--data", file, "--run", tmp_path / "run", "--steps", 1,
                   "--window", 99999)),
            (export, ("--state", file, "--config", config, "--tokenizer", config, "--out", tmp_path / "out")),
            (evaluate, (tmp_path, file)),
            (gpu_session, ("pack", "--data", file, "--folder", tmp_path / "packed")),
            (linearize, (file, "--out", tmp_path / "out")),
            (make_card, (tmp_path, "--valid", config, "--log", file, "--text-tokens", 1, "--data", "x",
                         "--engine", "true")),
        ):
            ended = ends(monkeypatch, module, *arguments)
            assert isinstance(ended, str) and "\n" not in ended, (module.__name__, arguments)
            assert ended.startswith(f"{module.__name__}: ") and said in ended, ended
