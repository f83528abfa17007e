# SPDX-License-Identifier: Apache-2.0
"""regla quantize: a checkpoint in four bits, rounded by what a text does in the model."""

import json
import os
import re
import shutil
import stat
import subprocess

import numpy as np
import pytest

import harness
from checkpoints import read_tensors, write_tensors
from harness import BINARY, GOLDEN, SLOWNESS
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # processes without a server

SHIPPED = harness.shipped_model()
NEOX = GOLDEN / "gpt_neox"  # rows of 32 numbers
PROMPT = "It was a dark night, and the old man"
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
          "added_tokens.json", "chat_template.jinja", "chat_template.json",
          "additional_chat_templates/tool_use.jinja")


TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}


def load(folder):
    """Its tensors, those of BF16 as their bits."""
    paths = sorted(folder.glob("*.safetensors"))
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])],
                                TYPES[entry["dtype"]]).reshape(entry["shape"])
            for header, data in map(read_tensors, paths)
            for name, entry in header.items() if name != "__metadata__"}


def numbers(tensor):
    return (tensor.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == np.uint16 else tensor


def quantize(model, text, out, *arguments, timeout=120):
    return subprocess.run([str(BINARY), "quantize", *map(str, (model, text, out, *arguments))],
                          capture_output=True, text=True, timeout=timeout * SLOWNESS)


def written(model, text, out, *arguments):
    result = quantize(model, text, out, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((harness.ROOT / "engine/README.md").read_text())
    return path


@pytest.fixture(scope="module")
def rounded(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("rounded") / "model"
    return out, written(NEOX, text, out, "--tokens", "4000", "--context", "256")


def losses(model, documents, weights):
    result = regla("perplexity", model, documents, "--weights", weights, "--json", "--quiet", "--by-document")
    assert result.returncode == 0, result.stderr
    return np.array([each["nll"] for each in json.loads(result.stdout)["by_document"]])


@pytest.mark.long
@pytest.mark.builds("dev")  # it rounds 4 million numbers
def test_it_errs_less_than_by_itself(text, tmp_path):
    """By what it makes of most sentences, thrice: a perplexity may also fall by chance, and one
    rounding is luckier than the next."""
    sentences = (harness.ROOT / "server/README.md").read_text().split(". ")
    documents = tmp_path / "sentences.jsonl"
    documents.write_text("".join(json.dumps({"text": " ".join(each.split())}) + "\n"
                                 for each in sentences if len(each.split()) > 10))
    alone = tmp_path / "alone"  # without the blocks beside it
    shutil.copytree(SHIPPED, alone, ignore=shutil.ignore_patterns("regla.q4"))
    exact, plain = (losses(alone, documents, weights) for weights in ("f32", "q4"))
    ratios = []
    for context in (128, 256, 512):
        out = tmp_path / str(context)
        said = written(SHIPPED, text, out, "--tokens", "8192", "--context", context)
        assert "matrices  48 in four bits, 5.00 bits a number: 4.0 MiB in place of 12.8" in said
        better = losses(out, documents, "q4")
        ratios.append(np.median((better - exact) ** 2) / np.median((plain - exact) ** 2))
    assert len(exact) > 100 and np.mean(np.log(ratios)) < np.log(0.9), ratios


def test_what_is_written(rounded):
    out, said = rounded
    before, after = load(NEOX), load(out)
    assert set(before) == set(after)
    in_blocks = {name for name, tensor in after.items() if tensor.dtype == np.uint8}
    assert in_blocks == {name for name, tensor in before.items() if tensor.ndim == 2 and "layers" in name}
    assert f"matrices  {len(in_blocks)} in four bits, 5.00 bits a number" in said
    assert f"written   {out}" in said and "kept" not in said
    for name, tensor in after.items():
        if name in in_blocks:
            assert tensor.shape == (before[name].shape[0], before[name].shape[1] // 32 * 20)
        else:
            assert tensor.tobytes() == before[name].tobytes()
    config = json.loads((out / "config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "regla", "format": "q4_1"}
    assert config == json.loads((NEOX / "config.json").read_text())
    names = {"config.json", "model.safetensors"}
    for name in COPIED:
        if (NEOX / name).exists():
            assert (out / name).read_bytes() == (NEOX / name).read_bytes()
            names.add(name)
    assert {path.name for path in out.iterdir()} == names and "tokenizer.json" in names


def test_a_server_serves_it(rounded, server_factory):
    """Its blocks are multiplied as they are: auto and q4 differ in the head alone, f32 in nothing."""
    out, _ = rounded
    texts = []
    for weights in ("q4", "auto", "f32"):
        server = server_factory(model=out, weights=weights, kv="f32", activations="f32")
        choice, = server.complete(prompt=PROMPT, max_tokens=24, temperature=0, logprobs=0)["choices"]
        texts.append(choice["text"])
        last = choice["logprobs"]["token_logprobs"]
        if weights == "auto":
            expected = last
        if weights == "f32":
            assert texts[1] == texts[2]
            assert last == pytest.approx(expected, abs=1e-3)


def test_threads_and_passes_change_nothing(rounded, text, tmp_path):
    out, _ = rounded
    for name, *arguments in (("one", "--threads", "1"), ("passes", "--memory", "1K")):
        again = written(NEOX, text, tmp_path / name, "--tokens", "4000", "--context", "256", *arguments)
        assert (tmp_path / name / "model.safetensors").read_bytes() == \
            (out / "model.safetensors").read_bytes(), name
        assert ("computed 12 times" in again) == (name == "passes")


def test_progress(text, tmp_path):
    result = quantize(NEOX, text, tmp_path / "out", "--tokens", "600", "--memory", "1K")
    assert result.stderr.splitlines()[-1] == "12 of 12 matrices are rounded"
    quiet = quantize(NEOX, text, tmp_path / "out2", "--tokens", "600", "--quiet")
    assert quiet.returncode == 0 and quiet.stderr == ""


def computed(said):
    return int(re.search(r"text      (\d+) tokens", said)[1])


@pytest.mark.parametrize("words", [3, 40, 3000])
def test_so_many_tokens_are_computed(words, tmp_path):
    """Of documents of any length: what is asked for, or a window more."""
    path = tmp_path / "text.jsonl"
    documents = range(1) if words > 1000 else range(12000 // words)
    path.write_text("".join(json.dumps({"text": f"{i} " + "word " * words}) + "\n"
                            for i in documents))
    asked = 1000
    got = computed(written(NEOX, path, tmp_path / "out", "--tokens", asked, "--context", "128"))
    assert asked <= got <= asked + 128
    all_of_it = computed(written(NEOX, path, tmp_path / "all", "--tokens", "16000000", "--context", "128"))
    assert all_of_it > 2 * asked


def test_few_tokens_are_told(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("short")
    result = quantize(NEOX, path, tmp_path / "out", "--quiet")
    assert result.returncode == 0 and "tokens are few for matrices of 256 inputs" in result.stderr


@pytest.mark.parametrize("case", [
    "gpt_neox", "gpt_neox_tf5", "gpt_neox_tf4_sequential_sharded", "falcon_h1_norm",
    "sliding_parallel_learned", "delta_olmo_hybrid", "dense_gemma2", "blocks_post_norm",
    "gla_fla_kv_heads_default_mlp"])
def test_each_row_lies_where_it_was(case, text, tmp_path):
    """Of fused and split matrices, rows of heads in turn, shards, files whose names transformers
    changes, and models of few positions: each row's blocks are near its own numbers, and no other's."""
    said = written(GOLDEN / case, text, tmp_path / "out", "--tokens", "2000", "--context", "128")
    before, after = load(GOLDEN / case), load(tmp_path / "out")
    in_blocks = [name for name, tensor in after.items() if tensor.dtype == np.uint8]
    assert f"matrices  {len(in_blocks)} in four bits" in said and in_blocks
    kept = re.search(r"kept      (model|gpt_neox)[.]layers[.]0[.]\S+ and \d+ more: its rows are no whole "
                     "blocks of 32", said)
    assert (kept is None) == (case == "gpt_neox")
    for name in in_blocks:
        blocks, exact = after[name].reshape(-1, 20), numbers(before[name]).astype(np.float32)
        scale, minimum = (blocks[:, i:i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
        quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
        rows = (quants * scale + minimum).reshape(exact.shape)
        nearest = ((rows[:, None] - exact[None]) ** 2).sum(2).argmin(1)
        assert (nearest == np.arange(len(exact))).all(), name
    assert regla("info", tmp_path / "out").returncode == 0


# Beside the model

@pytest.fixture(scope="module")
def beside(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("beside") / "model"
    shutil.copytree(NEOX, folder)
    said = written(folder, text, "--beside", "--tokens", "4000", "--context", "256")
    assert f"written   {folder}/regla.q4" in said
    return folder


def test_blocks_beside_a_model_are_those_of_its_own_folder(beside, rounded, text, tmp_path):
    """q4 takes them, other formats do not."""
    assert {path.name for path in beside.iterdir()} - {path.name for path in NEOX.iterdir()} == {"regla.q4"}
    documents = tmp_path / "text.jsonl"
    documents.write_text(json.dumps({"text": text.read_text()[:3000]}) + "\n")
    of_all = {(folder, weights): losses(folder, documents, weights)[0]
              for folder in (beside, rounded[0], NEOX) for weights in ("q4", "f32")}
    assert of_all[beside, "q4"] == of_all[rounded[0], "q4"] != of_all[NEOX, "q4"]
    assert of_all[beside, "f32"] == of_all[NEOX, "f32"] != of_all[rounded[0], "f32"]
    assert " as q4 of regla.q4 (" in regla("info", beside, "--weights", "q4").stdout
    assert "regla.q4" not in regla("info", beside).stdout + regla("info", NEOX, "--weights", "q4").stdout


def test_a_server_says_that_it_has_them(beside, server_factory):
    server = server_factory(model=beside, weights="q4")
    said = server.complete(prompt=PROMPT, max_tokens=1)["system_fingerprint"]
    assert re.search(r"-q4_[0-9a-f]{4}-", said), said


def test_what_is_beside_already_stays(beside, rounded, text):
    before = (beside / "regla.q4").read_bytes()
    assert "regla.q4: it is there already" in refused(beside, text, "--beside")
    assert (beside / "regla.q4").read_bytes() == before
    assert "the model is quantized already" in refused(rounded[0], text, "--beside")
    assert "config.json: cannot open" in refused(text.parent, text, "--beside")
    for arguments in (("--quiet",), (beside.parent / "out", "--beside")):  # where to, and twice
        assert quantize(NEOX, text, *arguments).returncode == 2


def spoiled(beside, folder, change):
    """`regla info --weights q4` of a copy whose regla.q4 has another header or data."""
    shutil.copytree(beside, folder)
    header, data = read_tensors(folder / "regla.q4")
    write_tensors(folder / "regla.q4", *change(header, bytearray(data)))
    result = regla("info", folder, "--weights", "q4")
    assert result.returncode == 1 and "Sanitizer" not in result.stderr
    return result.stderr


def test_blocks_of_other_weights_are_refused(beside, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(beside, other)
    header, data = read_tensors(other / "model.safetensors")
    write_tensors(other / "model.safetensors", header, b"\0\0\0\0" + data[4:])
    result = regla("info", other, "--weights", "q4")
    assert result.returncode == 1
    assert f"{other}/regla.q4: its blocks are of other weights than those beside it" in result.stderr
    assert regla("info", other).returncode == 0


def test_blocks_beside_that_make_no_sense(beside, tmp_path):
    def renamed(old, new):
        return lambda header, data: ({new if name == old else name: entry
                                      for name, entry in header.items()}, data)

    def name_of(part):
        header, _ = read_tensors(beside / "regla.q4")
        return next(name for name in header if part in name)

    def reshaped(header, data):
        shape = header[name_of("dense_h_to_4h")]["shape"]
        shape[:] = [shape[0] // 2, shape[1] * 2]
        return header, data

    def infinite(header, data):
        begin = header[name_of("dense_h_to_4h")]["data_offsets"][0]
        data[begin:begin + 2] = b"\0\x7c"
        return header, data

    def cut(header, data):
        return header, data[:-20]

    cases = ((renamed("fingerprint", "mark"), '"fingerprint": expected U8 [16], got nothing'),
             (renamed(name_of("dense_h_to_4h"), "more"), '"more": the model has no such matrix'),
             (reshaped, "expected blocks of ["), (infinite, "is not finite"), (cut, "regla.q4: "))
    for number, (change, expected) in enumerate(cases):
        assert expected in spoiled(beside, tmp_path / str(number), change), expected


# What is refused

def refused(*arguments):
    result = quantize(*arguments)
    assert result.returncode == 1 and result.stdout == ""
    assert "Sanitizer" not in result.stderr
    return result.stderr


def test_what_cannot_be_rounded(tmp_path, text, rounded):
    out, there, empty = (tmp_path / name for name in ("out", "there", "empty.txt"))
    there.mkdir()
    empty.write_text("")
    assert "it is there already" in refused(NEOX, text, there)
    assert "got none" in refused(GOLDEN / "mamba2", text, out)  # no rows of whole blocks
    assert "the model is quantized already" in refused(rounded[0], text, out)
    assert "expected text, got none" in refused(NEOX, empty, out)
    assert "cannot open" in refused(NEOX, tmp_path / "missing.txt", out)
    assert "cannot open" in refused(tmp_path / "missing", text, out)
    assert 'a folder to write, got ""' in refused(NEOX, text, "")
    assert "the path is too long" in refused(NEOX, text, "x/" * 3000)
    for place in (tmp_path / "missing" / "out", text / "out"):  # before anything is computed
        assert f"{place}: cannot create: " in refused(NEOX, tmp_path / "missing.txt", place)
    assert sorted(tmp_path.iterdir()) == [empty, there]


def test_a_gguf_file_is_no_folder(tmp_path, text):
    gguf = sorted((harness.ROOT / "tests/data/gguf").glob("*.gguf"))[0]
    assert "folder" in refused(gguf, text, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def edited(folder, change, **config):
    """A copy of NEOX, whose first matrix of a layer (name, entry, bytes) has changed."""
    shutil.copytree(NEOX, folder)
    said = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(said))
    header, data = read_tensors(folder / "model.safetensors")
    name = next(name for name in header if "layers.0.mlp.dense_h_to_4h.weight" in name)
    begin, end = header[name]["data_offsets"]
    new = change(np.frombuffer(data[begin:end], np.float32).reshape(header[name]["shape"]).copy())
    for other in header.values():
        if other.get("data_offsets", [0])[0] >= end:
            other["data_offsets"] = [at - (end - begin) + new.nbytes for at in other["data_offsets"]]
    header[name] |= {"data_offsets": [begin, begin + new.nbytes],
                     "dtype": {8: "F64", 4: "F32", 1: "F8_E4M3"}[new.itemsize]}
    write_tensors(folder / "model.safetensors", header, data[:begin] + new.tobytes() + data[end:])
    return folder


def test_other_numbers(tmp_path, text):
    def far(tensor):
        tensor[5, 7] = 999424
        return tensor

    out = tmp_path / "out"
    wide = edited(tmp_path / "f64", lambda t: t.astype(np.float64))
    assert "expected dtype F32, F16 or BF16, as before a quantization, got F64" in refused(wide, text, out)
    bytes_ = edited(tmp_path / "f8", lambda t: np.full(t.shape, 0x38, np.uint8))
    assert "got F8_E4M3" in refused(bytes_, text, out)
    assert "the model is quantized already" in refused(
        edited(tmp_path / "said", lambda t: t, quantization_config={"quant_method": "fp8"}), text, out)
    said = refused(edited(tmp_path / "far", far), text, out)
    assert "gpt_neox.layers.0.mlp.dense_h_to_4h.weight: " in said and "too large for q4" in said
    assert not out.exists()


def test_a_config_as_python_writes_it(tmp_path, text):
    folder = edited(tmp_path / "model", lambda t: t, time_step_limit=[0.0, float("inf")])
    assert "Infinity" in (folder / "config.json").read_text()
    written(folder, text, tmp_path / "out", "--tokens", "500")
    assert regla("info", tmp_path / "out").returncode == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 275


def test_the_folder_has_the_usual_mode(tmp_path, text):
    before = os.umask(0o027)
    try:
        written(NEOX, text, tmp_path / "out", "--tokens", "500")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750


def test_files_of_limited_size(tmp_path, text):
    result = subprocess.run(
        ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", str(BINARY), "quantize", NEOX, text,
         tmp_path / "out", "--tokens", "500"], capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert result.returncode == 1 and "cannot write: File too large" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_leaves_nothing(tmp_path, text):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64K", "tmpfs", str(disk)]).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        assert "cannot write: No space left on device" in refused(
            NEOX, text, disk / "out", "--tokens", "100")
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Reading it

def changed(rounded, tmp_path, tensor=None, **config):
    out = tmp_path / "model"
    shutil.copytree(rounded[0], out)
    said = json.loads((out / "config.json").read_text())
    said["quantization_config"] |= config
    (out / "config.json").write_text(json.dumps(said))
    if tensor is not None:
        header, data = read_tensors(out / "model.safetensors")
        name, entry = next((name, entry) for name, entry in header.items() if entry.get("dtype") == "U8")
        begin, end = entry["data_offsets"]
        new = tensor(load(out)[name].copy())
        for other in header.values():  # what lies behind it moves
            if other.get("data_offsets", [0])[0] >= end:
                other["data_offsets"] = [at - (end - begin) + new.nbytes for at in other["data_offsets"]]
        entry |= {"shape": new.shape, "data_offsets": [begin, begin + new.nbytes]}
        write_tensors(out / "model.safetensors", header, data[:begin] + new.tobytes() + data[end:])
    result = regla("info", out)
    assert result.returncode == 1 and "Sanitizer" not in result.stderr
    return result.stderr


def test_blocks_that_make_no_sense(rounded, tmp_path):
    def inner(name):
        folder = tmp_path / name
        folder.mkdir()
        return folder
    assert "expected rows of whole blocks of 20 bytes" in changed(
        rounded, inner("cut"), lambda t: np.ascontiguousarray(t[:, :-1]))
    assert "expected rows of whole blocks of 20 bytes" in changed(
        rounded, inner("flat"), lambda t: t.reshape(-1))
    assert "expected shape [64, 64], got [64, 32]" in changed(
        rounded, inner("short"), lambda t: np.ascontiguousarray(t[:, :-20]))

    def not_finite(tensor):
        tensor[3, 20:22] = 0, 0x7c  # the scale is infinite
        return tensor
    assert "expected finite numbers" in changed(rounded, inner("infinite"), not_finite)
    assert "unknown format \"q9\" (known: q4_1)" in changed(rounded, inner("format"), format="q9")
    assert "unknown quant_method \"awq\"" in changed(rounded, inner("method"), quant_method="awq")
    assert "unknown key \"bits\"" in changed(rounded, inner("key"), bits=4)


def test_blocks_of_a_size_beyond_all_numbers(rounded, tmp_path):
    out = tmp_path / "model"
    shutil.copytree(rounded[0], out)
    header, data = read_tensors(out / "model.safetensors")
    header["more"] = {"dtype": "U8", "shape": [0, 9223372036854775800], "data_offsets": [len(data)] * 2}
    write_tensors(out / "model.safetensors", header, data)
    result = regla("info", out)
    assert result.returncode == 1 and 'tensor "more": its shape overflows' in result.stderr


def test_blocks_without_a_word_of_them(rounded, tmp_path):
    out = tmp_path / "model"
    shutil.copytree(rounded[0], out)
    shutil.copy(NEOX / "config.json", out / "config.json")
    assert "expected shape" in regla("info", out).stderr
