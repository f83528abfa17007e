# SPDX-License-Identifier: Apache-2.0
"""Model files from outside: truncated, corrupt, lying, huge. `regla serve`, `info` and `check` end
with one line that names the file and what is wrong, never by a signal, and before a socket opens."""

import json
import os
import struct

import pytest

import checkpoints
from harness import SANITIZER
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # nothing that loads runs beside it

EMBEDDINGS = "model.embeddings.weight"


def config(**changes):
    """config.json with some keys changed; a value of ... removes the key."""
    def damage(folder):
        path = folder / "config.json"
        values = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))
    return damage


def mixer(name, **changes):
    def damage(folder):
        path = folder / "config.json"
        values = json.loads(path.read_text())
        values["mixers"][name].update(changes)
        path.write_text(json.dumps(values))
    return damage


def text(name, content):
    """A file with other content: bytes, or a function of the old content."""
    def damage(folder):
        path = folder / name
        path.write_bytes(content(path.read_bytes()) if callable(content) else content)
    return damage


def tensors(change):
    """A safetensors file whose header and data went through change(header, data)."""
    def damage(folder):
        path = folder / "model.safetensors"
        checkpoints.write_tensors(path, *change(*checkpoints.read_tensors(path)))
    return damage


def one_tensor(**changes):
    def change(header, data):
        header[EMBEDDINGS].update(changes)
        return header, data
    return tensors(change)


def renamed(old, new):
    def change(header, data):
        header[new] = header.pop(old)
        return header, data
    return tensors(change)


def tokenizer(change):
    def damage(folder):
        path = folder / "tokenizer.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))
    return damage


FAR = {"id": 9000, "content": "<far>", "special": True, "single_word": False, "lstrip": False,
       "rstrip": False, "normalized": False}


def beyond_vocabulary(values):
    """A token that the model has no row for, and that is put before each text."""
    values["added_tokens"].append(FAR)
    values["post_processor"] = {
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<far>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<far>": {"id": "<far>", "ids": [275], "tokens": ["<far>"]}}}


def remove(name):
    return lambda folder: (folder / name).unlink()


def sparse(name, size):
    return lambda folder: os.truncate(folder / name, size)


def replaced_by_folder(name):
    def damage(folder):
        (folder / name).unlink()
        (folder / name).mkdir()
    return damage


def header_length(length):
    return text("model.safetensors", lambda raw: struct.pack("<Q", length) + raw[8:])


# what is wrong, how it is made, what the message must name
CASES = [
    ("no config", remove("config.json"), ["config.json"]),
    ("no weights", remove("model.safetensors"), ["model.safetensors"]),
    ("no tokenizer", remove("tokenizer.json"), ["tokenizer.json"]),
    ("config is a folder", replaced_by_folder("config.json"), ["config.json"]),
    ("weights are a folder", replaced_by_folder("model.safetensors"), ["model.safetensors"]),

    ("empty config", text("config.json", b""), ["config.json"]),
    ("half a config", text("config.json", lambda raw: raw[:200]), ["config.json"]),
    ("config of binary", text("config.json", bytes(range(256))), ["config.json"]),
    ("config is a list", text("config.json", b"[]"), ["config.json"]),
    ("deep config", text("config.json", b'{"a":' + b"[" * 100000), ["config.json"]),
    ("huge config", sparse("config.json", 3 << 30), ["config.json"]),
    ("two equal keys", text("config.json", lambda raw: b'{"vocab_size": 1,' + raw.strip()[1:]),
     ["config.json"]),
    ("unknown family", config(model_type="bloom"), ["config.json", "model_type", "bloom"]),
    ("no family", config(model_type=...), ["config.json", "model_type"]),
    ("unknown key", config(colour="red"), ["config.json", "colour"]),
    ("missing key", config(norm_eps=...), ["config.json", "norm_eps"]),
    ("wrong type", config(hidden_size="48"), ["config.json", "hidden_size"]),
    ("zero size", config(hidden_size=0), ["config.json", "hidden_size"]),
    ("negative size", config(vocab_size=-5), ["config.json", "vocab_size"]),
    ("huge size", config(vocab_size=2 ** 62), ["config.json", "vocab_size"]),
    ("size beyond 64 bits", config(hidden_size=2 ** 80), ["config.json"]),
    ("huge layers", config(num_hidden_layers=2 ** 31 - 1), ["config.json"]),
    ("not a number", text("config.json", lambda raw: raw.replace(b"1e-05", b"NaN")),
     ["config.json"]),
    ("unknown activation", config(hidden_act="swiglu"), ["config.json", "hidden_act", "swiglu"]),
    ("unknown mixer", config(layer_types=["r", "s", "r", "x"]), ["config.json", "layer_types", "x"]),
    ("too few layers named", config(layer_types=["r"]), ["config.json", "layer_types"]),
    ("heads do not divide", config(num_attention_heads=5), ["config.json|model.safetensors"]),
    ("unknown feature map", mixer("r", feature_map="cosine"), ["feature_map", "cosine"]),
    ("unknown gate", mixer("r", gate="forget"), ["gate", "forget"]),
    ("exp with delta", mixer("r", gate="delta"), ["exp", "delta"]),
    ("sum_norm with refined", mixer("r", sum_norm=True), ["sum_norm"]),
    ("no stage of rope", mixer("r", position={"type": "rope"}), ["stage"]),
    ("bad rotary_pct", mixer("s", position={"type": "rope", "rotary_pct": 7}), ["rotary_pct"]),
    ("window without size", mixer("s", window="block"), ["window_size"]),
    ("eos that is a text", config(eos_token_id="</s>"), ["eos_token_id"]),

    ("empty weights", text("model.safetensors", b""), ["model.safetensors"]),
    ("only a length", text("model.safetensors", b"\x08\0\0\0\0\0\0\0"), ["model.safetensors"]),
    ("header of 0", header_length(0), ["model.safetensors"]),
    ("header beyond the file", header_length(1 << 40), ["model.safetensors"]),
    ("header of 2^64-1", header_length(2 ** 64 - 1), ["model.safetensors"]),
    ("half the weights", text("model.safetensors", lambda raw: raw[:len(raw) // 2]),
     ["model.safetensors"]),
    ("one byte short", text("model.safetensors", lambda raw: raw[:-1]), ["model.safetensors"]),
    ("one byte more", text("model.safetensors", lambda raw: raw + b"x"), ["model.safetensors"]),
    ("header is no JSON", tensors(lambda h, d: (b"{" + b"x" * 60, d)), ["model.safetensors"]),
    ("header is a list", tensors(lambda h, d: (b"[1,2,3] ", d)), ["model.safetensors"]),
    ("header of bad UTF-8", tensors(lambda h, d: (b'{"\xff": 1}', d)), ["model.safetensors"]),
    ("deep header", tensors(lambda h, d: (b'{"a":' * 50000, d)), ["model.safetensors"]),
    ("missing tensor", renamed(EMBEDDINGS, "model.embeddings.weights"), [EMBEDDINGS]),
    ("unused tensor", tensors(lambda h, d: ({**h, "extra": {
        "dtype": "F32", "shape": [0], "data_offsets": [len(d), len(d)]}}, d)), ["extra"]),
    ("unknown dtype", one_tensor(dtype="F8_E5M2"), [EMBEDDINGS]),
    ("wrong dtype", one_tensor(dtype="I32"), [EMBEDDINGS]),
    ("shape does not fit", one_tensor(shape=[275, 47]), [EMBEDDINGS]),
    ("transposed", one_tensor(shape=[48, 275]), [EMBEDDINGS]),
    ("negative extent", one_tensor(shape=[-275, 48]), [EMBEDDINGS]),
    ("product overflows", one_tensor(shape=[2 ** 33, 2 ** 33]), [EMBEDDINGS]),
    ("zero times huge", one_tensor(shape=[0, 2 ** 62]), [EMBEDDINGS]),
    ("shape of 9 dimensions", one_tensor(shape=[1] * 8 + [13200]), [EMBEDDINGS]),
    ("shape is no list", one_tensor(shape="275x48"), [EMBEDDINGS]),
    ("offsets backwards", one_tensor(data_offsets=[52800, 0]), [EMBEDDINGS]),
    ("offsets negative", one_tensor(data_offsets=[-52800, 0]), [EMBEDDINGS]),
    ("offsets beyond the file", one_tensor(data_offsets=[2 ** 40, 2 ** 40 + 52800]), [EMBEDDINGS]),
    ("offsets beyond 64 bits", one_tensor(data_offsets=[2 ** 63 - 1, 2 ** 63 + 52799]),
     ["model.safetensors"]),
    ("offsets of three", one_tensor(data_offsets=[0, 1, 2]), [EMBEDDINGS]),
    ("index with a missing shard", lambda folder: (
        (folder / "model.safetensors").unlink(),
        (folder / "model.safetensors.index.json").write_text(json.dumps(
            {"weight_map": {EMBEDDINGS: "model-00001-of-00002.safetensors"}}))),
     ["model-00001-of-00002.safetensors"]),
    ("index that leaves the folder", lambda folder: (
        (folder / "model.safetensors").unlink(),
        (folder / "model.safetensors.index.json").write_text(json.dumps(
            {"weight_map": {EMBEDDINGS: "../../../../etc/passwd"}}))), ["index"]),

    ("empty tokenizer", text("tokenizer.json", b""), ["tokenizer.json"]),
    ("half a tokenizer", text("tokenizer.json", lambda raw: raw[:1000]), ["tokenizer.json"]),
    ("tokenizer is a number", text("tokenizer.json", b"5"), ["tokenizer.json"]),
    ("deep tokenizer", text("tokenizer.json", b'{"model":' * 50000), ["tokenizer.json"]),
    ("huge tokenizer", sparse("tokenizer.json", 3 << 30), ["tokenizer.json"]),
    ("unknown tokenizer", tokenizer(lambda t: t["model"].update(type="WordPiece")),
     ["tokenizer.json", "WordPiece"]),
    ("no model", tokenizer(lambda t: t.pop("model")), ["tokenizer.json", "model"]),
    ("vocab is a list", tokenizer(lambda t: t["model"].update(vocab=["a"])), ["tokenizer.json"]),
    ("negative id", tokenizer(lambda t: t["model"]["vocab"].update(a=-1)), ["tokenizer.json"]),
    ("huge id", tokenizer(lambda t: t["model"]["vocab"].update(zzz=2 ** 40)), ["tokenizer.json"]),
    ("one id twice", tokenizer(lambda t: t["model"]["vocab"].update(zzz=5)), ["tokenizer.json"]),
    ("merge of unknown tokens", tokenizer(lambda t: t["model"]["merges"].append("qqqq wwww")),
     ["tokenizer.json", "merges"]),
    ("merge of one part", tokenizer(lambda t: t["model"]["merges"].append("q")),
     ["tokenizer.json", "merges"]),
    ("merge of a number", tokenizer(lambda t: t["model"]["merges"].append(5)),
     ["tokenizer.json", "merges"]),
    ("unknown pre-tokenizer", tokenizer(lambda t: t.update(pre_tokenizer={"type": "Magic"})),
     ["tokenizer.json", "Magic"]),
    ("unknown normalizer", tokenizer(lambda t: t.update(normalizer={"type": "Magic"})),
     ["tokenizer.json", "Magic"]),
    ("bad pattern", tokenizer(lambda t: t.update(pre_tokenizer={
        "type": "Split", "pattern": {"Regex": "(((("}, "behavior": "Isolated", "invert": False})),
     ["tokenizer.json"]),
    ("added token without id", tokenizer(lambda t: t["added_tokens"].append({"content": "x"})),
     ["tokenizer.json", "added_tokens"]),
    ("a template beyond the model's vocabulary", tokenizer(beyond_vocabulary), ["tokenizer.json", "275"]),
]


def damaged(tmp_path, damage):
    folder = checkpoints.copy_of(tmp_path / "model")
    damage(folder)
    return folder


@pytest.mark.parametrize("damage, names", [case[1:] for case in CASES],
                         ids=[case[0].replace(" ", "-") for case in CASES])
def test_error_names_what_is_wrong(tmp_path, damage, names):
    folder = damaged(tmp_path, damage)
    commands = [["serve", "--model", folder, "--port", 0]]
    if names[0] != "tokenizer.json":  # info and check do without the tokenizer
        commands += [["info", folder], ["check", folder]]
    for command in commands:
        result = regla(*command, timeout=60)
        said = result.stderr.strip().splitlines()
        assert not SANITIZER.search(result.stderr), result.stderr
        assert result.returncode == 1, (command[0], result.returncode, result.stderr[-500:])
        assert said, command[0]
        for name in names:
            assert any(word in said[-1] for word in name.split("|")), (command[0], said[-1])
        assert len(said[-1]) < 700


def test_a_token_beyond_the_vocabulary(tmp_path, server_factory):
    """As in transformers it loads, with a warning; here a text with it is refused."""
    folder = damaged(tmp_path, tokenizer(lambda t: t["added_tokens"].append(FAR)))
    server = server_factory(model=folder)
    assert "the model's vocab_size is 275" in server.tail()
    assert "its id is 275, as in Hugging Face's library, not the 9000 that is stated" in server.tail()
    server.complete(prompt="far", max_tokens=1)
    assert "<far>" in server.refuse(400, prompt="a<far>", max_tokens=1)["message"]


def test_no_such_folder(tmp_path):
    for command in (["serve", "--model", tmp_path / "none"], ["info", tmp_path / "none"]):
        result = regla(*command)
        assert result.returncode == 1 and "none" in result.stderr


def test_every_truncation_of_the_header(tmp_path):
    """Cut anywhere in the first kilobyte and at some places after: an error, never a crash."""
    folder = checkpoints.copy_of(tmp_path / "model")
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    for length in [*range(0, 24), *range(24, 1024, 97), *range(1024, len(raw), len(raw) // 17)]:
        path.write_bytes(raw[:length])
        result = regla("info", folder)
        assert result.returncode == 1, (length, result.stderr)
        assert "model.safetensors" in result.stderr


def test_the_undamaged_copy_is_fine(tmp_path):
    """Else every test above could pass for a reason of its own."""
    folder = checkpoints.copy_of(tmp_path / "model")
    assert regla("info", folder).returncode == 0
    result = regla("check", folder)
    assert result.returncode == 0, result.stderr
