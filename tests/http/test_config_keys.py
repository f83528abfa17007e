# SPDX-License-Identifier: Apache-2.0
"""Every row of engine/model/config-keys.tsv is what it says: followed, refused by name, harmless, a
default of requests, or warned of. And what the libraries forgive in a model's files, the loader does."""

import copy
import json
import re
import shutil

import numpy as np
import pytest

from harness import ROOT
from reference_models import (
    FAMILIES,
    PROMPT,
    NeoX,
    expected,
    write_model,
    write_tensors,
)
from test_lifecycle import regla

pytestmark = [pytest.mark.builds("dev"), pytest.mark.long]  # the fuzzers read configurations under ASan

SAID = (ROOT / "engine" / "model" / "config-keys.tsv").read_text()
GENERATION = "generation_config.json"
OF = [GENERATION, *FAMILIES]
ALL = "gpt_neox, gla, llama"  # what is said of all families is tried with these


def read_rows(text):
    """[(key, families, what is said of it, its values)] of the table: `a` `b`: `1` `2`; `c`: `3`."""
    for line in text.splitlines()[1:]:
        cells = line.split("\t")
        families = re.sub(r"\ball\b", ALL, cells[1]).split(", ")
        for keys, values in re.findall(r"((?:`[\w.]+` ?)+)(?:: ((?:`[^`]+` ?)+))?", cells[0]):
            for key in re.findall(r"[\w.]+", keys):
                yield key, families, cells[3].split(";")[0].strip(), re.findall("`([^`]+)`", values)


ROWS = list(read_rows(SAID))
TRIED = [(key, of, here, value) for key, families, here, values in ROWS for of in families
         for value in values]


def changed(config, key, value):
    """A copy with the value at a key such as rope_scaling.type."""
    config = copy.deepcopy(config)
    inside = config
    *parents, last = key.split(".")
    for parent in parents:
        inside = inside.setdefault(parent, {})
    inside[last] = value
    return config


class Check:
    """Models to be checked by one `regla check`; what it says of each."""

    def __init__(self, folder):
        self.folder = folder
        self.models = []

    def add(self, name, config, tensors, answers, **files):
        path = self.folder / re.sub(r"\W", "_", f"{len(self.models)}-{name}")[:80]
        self.models.append(path)
        return write_model(path, config, tensors, answers, **files)

    def run(self):
        """[(passed, its line, its warnings and errors)], model by model."""
        result = regla("check", *self.models)
        assert result.returncode in (0, 1), result.stderr
        lines = [line for line in result.stdout.splitlines() if line[:4] in ("PASS", "FAIL")]
        assert len(lines) == len(self.models), result.stdout
        errors = iter(re.findall(r"^regla check: .*", result.stderr, re.MULTILINE))
        said = []
        for path, line in zip(self.models, lines):
            words = [w for w in result.stderr.splitlines() if f"warning: {path}/" in w]
            if line.endswith("cannot be run"):
                words.append(next(errors))
            said.append((line.startswith("PASS"), line, "\n".join(words)))
        return said


@pytest.fixture
def check(tmp_path):
    return Check(tmp_path)


@pytest.fixture(scope="module")
def bases():
    """name -> (config, tensors, answers) of the model in which one key is changed at a time."""
    def base(family):
        config = {**family.config}
        tensors = family.tensors(config)
        return config, tensors, expected(family.logits(config, tensors, PROMPT))
    return {name: base(family) for name, family in FAMILIES.items()}


def add_with(check, base, of, key, value):
    config, tensors, answers = base
    if of == GENERATION:
        generation = changed({"eos_token_id": 0}, key, value)
        return check.add(f"{of} {key} {value}", config, tensors, answers, generation=generation)
    return check.add(f"{of} {key} {value}", changed(config, key, value), tensors, answers)


def rows_of(kind):
    """Infinity and NaN are read, as the libraries read them."""
    return [(key, of, json.loads(value)) for key, of, here, value in TRIED if here == kind]


def test_the_table_is_whole():
    assert len(ROWS) > 500 and len(TRIED) > 1300
    for key, families, here, values in ROWS:
        assert here in ("followed", "refused", "harmless", "taken", "warned"), key
        assert set(families) <= set(OF), key
        assert values or here == "followed", key


def test_a_row_without_values_has_a_test():
    said = (ROOT / "tests" / "unit" / "test_config.c").read_text()
    said += (ROOT / "tests" / "http" / "test_config_keys.py").read_text()
    for key, _, _, values in ROWS:
        last = key.rsplit(".")[-1]
        assert values or re.search(rf'"{last}\\?"', said), key


def test_refused(check, bases):
    rows = rows_of("refused")
    for key, of, value in rows:
        add_with(check, bases.get(of, bases["gpt_neox"]), of, key, value)
    for (key, of, value), (passed, line, said) in zip(rows, check.run()):
        named = key.split(".")[0 if key.endswith("type") else -1]  # of a type, the object
        assert not passed and line.endswith("cannot be run"), (key, value, line)
        file = GENERATION if of == GENERATION else "config.json"
        assert f"{file}: " in said and re.search(rf"\b{named}\b", said), (key, value, said)


@pytest.mark.parametrize("kind", ["harmless", "taken", "warned"])
def test_no_effect(check, bases, kind):
    rows = rows_of(kind)
    for key, of, value in rows:
        add_with(check, bases.get(of, bases["gpt_neox"]), of, key, value)
    for (key, of, value), (passed, line, said) in zip(rows, check.run()):
        assert passed, (key, of, value, line, said)
        if kind != "warned":
            assert not said, (key, value, said)
        else:
            last = key.rsplit(".")[-1]
            assert re.search(rf"warning: .*\b{last}\b", said), (key, value, said)


def test_followed(check, bases):
    """The reference has the same values for the changed configuration; and the one that is not
    changed has others, or other tensors."""
    rows = rows_of("followed")
    for key, of, value in rows:
        family, (config, tensors, answers) = FAMILIES[of], bases[of]
        config = changed(config, key, value)
        own = family.tensors(config)
        check.add(f"{of} {key} {value}", config, own,
                  expected(family.logits(config, own, PROMPT)))
        check.add(f"{of} {key} {value} not", config, tensors, answers)
    said = check.run()
    for (key, of, value), follows, ignores in zip(rows, said[::2], said[1::2]):
        assert follows[0] and not follows[2], (key, of, value, follows)
        if key != "tie_word_embeddings":  # the other's head, which differs, is used
            assert not ignores[0], (key, of, value, ignores)


# What the libraries forgive

def test_a_spare_head_of_a_tied_model(check):
    for name, family in FAMILIES.items():
        config = {**family.config, "tie_word_embeddings": True}
        tensors = family.tensors(config)
        answers = expected(family.logits(config, tensors, PROMPT))
        for head in {family.head, "lm_head.weight"}:
            check.add(f"{name} copy", config, {**tensors, head: tensors[family.embeddings]}, answers)
        other = {**tensors, family.head: tensors[family.embeddings][::-1].copy()}
        check.add(f"{name} other", config, other, expected(family.logits(config, other, PROMPT)))
    for passed, line, said in check.run():
        assert passed and said.count("warning") == 1 and "tie_word_embeddings" in said, (line, said)


def test_names_without_the_base_prefix(check, bases):
    for name, family in FAMILIES.items():
        config, tensors, answers = bases[name]
        bare = {key.removeprefix(family.root): value for key, value in tensors.items()}
        check.add(name, config, bare, answers)
    for passed, line, said in check.run():
        assert passed and "names do not begin with" in said, (line, said)


def in_shards(folder, tensors, extra, unlisted):
    """tensors in two shards, extra in the first; the index names all but extra and `unlisted`."""
    names = list(tensors)
    files = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for file, named in files.items():
        write_tensors(folder / file, {**{name: tensors[name] for name in named}, **extra})
        extra = {}
    listed = {name: file for file, named in files.items() for name in named if name != unlisted}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": listed}))


def test_what_the_index_does_not_name(check, bases):
    """A buffer or a weight that is in a shard is read as in one file."""
    config, tensors, answers = bases["gpt_neox"]
    buffer = "gpt_neox.layers.0.attention.masked_bias"
    wrong = "gpt_neox.layers.0.attention.rotary"
    value = np.array(-1e9, np.float32)
    for extra, unlisted in (({buffer: value}, None), ({}, list(tensors)[3]), ({wrong: value}, None)):
        in_shards(check.add("shards", config, None, answers), tensors, extra, unlisted)
    with_buffer, with_weight, refused = check.run()
    for passed, line, said in (with_buffer, with_weight):
        assert passed and "is not in the weight_map" in said, (line, said)
    assert not refused[0] and wrong in refused[2]


def test_metadata_may_be_null(check, bases):
    config, tensors, answers = bases["gpt_neox"]
    write_tensors(check.add("null", config, None, answers) / "model.safetensors", tensors, None)
    (passed, line, said), = check.run()
    assert passed and "__metadata__" in said, (line, said)


def test_an_adapter_beside_the_model_is_refused(check, bases):
    (check.add("adapter", *bases["gpt_neox"]) / "adapter_config.json").write_text("{}")
    (passed, _, said), = check.run()
    assert not passed and "adapter_config.json" in said


# Other dtypes

def test_f64(check, bases):
    for config, tensors, answers in bases.values():
        wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        check.add("f64", config, wide, answers)
    wide[next(iter(wide))][3, 3] = 1e300
    check.add("too large", config, wide, answers)
    *fine, (passed, _, said) = check.run()
    assert all(one[0] and not one[2] for one in fine)
    assert not passed and "expected finite numbers" in said


def e4m3_values():
    """What each byte stands for."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0**(exponent - 7.0))
    return np.where(byte & 127 == 127, np.nan, np.where(byte & 128, -size, size))


E4M3 = e4m3_values()


def quantized(matrix, rows, cols, exponents=False):
    """(bytes, scales [blocks], the numbers that they stand for) in blocks of rows x cols."""
    down, across = -(-matrix.shape[0] // rows), -(-matrix.shape[1] // cols)
    scales = np.ones((down, across), np.float32)
    coded = np.zeros(matrix.shape, np.uint8)
    finite = np.where(np.isnan(E4M3), np.inf, E4M3)
    for i in range(down):
        for j in range(across):
            block = np.s_[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols]
            scale = np.abs(matrix[block]).max() / 448
            scales[i, j] = 2.0**np.ceil(np.log2(scale)) if exponents else scale
            near = np.abs(finite - (matrix[block] / scales[i, j])[..., None])
            coded[block] = near.argmin(-1)
    wide = np.repeat(np.repeat(scales, rows, 0), cols, 1)[:matrix.shape[0], :matrix.shape[1]]
    return coded, scales, (E4M3[coded].astype(np.float32) * wide)


def in_fp8(tensors, rows, cols, suffix="_scale_inv", shape=None, exponents=False, of=".layers."):
    """(the file's tensors, the numbers in them) with matrices, in whose names `of` is, in FP8."""
    file, numbers = {}, {}
    for name, tensor in tensors.items():
        file[name] = numbers[name] = tensor
        if tensor.ndim == 2 and of in name and name.endswith("weight"):
            file[name], scales, numbers[name] = quantized(
                tensor, rows or tensor.shape[0], cols or tensor.shape[1], exponents)
            if exponents:
                scales = (np.log2(scales) + 127).astype(np.uint8).astype(np.int8)
            file[name + suffix] = scales if shape is None else scales.reshape(shape)
    return file, numbers


@pytest.mark.parametrize("name", FAMILIES)
def test_fp8(check, name):
    """quantization_config of fine-grained FP8, weight_block_size and the kinds of scales."""
    family, said = FAMILIES[name], {"quant_method": "fp8", "activation_scheme": "dynamic"}
    tensors = family.tensors(family.config)
    ways = [
        ({"weight_block_size": [16, 8]}, {"rows": 16, "cols": 8}),
        ({"weight_block_size": [20, 24]}, {"rows": 20, "cols": 24}),  # the last block is smaller
        ({}, {"rows": 128, "cols": 128}),
        ({"weight_block_size": None}, {"rows": None, "cols": None, "shape": ()}),
        ({"weight_block_size": None}, {"rows": None, "cols": None, "suffix": "_scale", "shape": (1,)}),
        ({"weight_block_size": None}, {"rows": 1, "cols": None, "suffix": "_scale"}),
        ({"weight_block_size": [16, 16], "scale_fmt": "ue8m0"},
         {"rows": 16, "cols": 16, "exponents": True}),
    ]
    for keys, way in ways:
        file, numbers = in_fp8(tensors, **way)
        if "suffix" in way:  # static scales of activations, which have no effect
            file |= {key.removesuffix("weight_scale") + "input_scale": np.ones((), np.float32)
                     for key in file if key.endswith("weight_scale")}
        config = {**family.config, "dtype": "float32", "quantization_config": {**said, **keys}}
        check.add("fp8", config, file, expected(family.logits(config, numbers, PROMPT)))
    for passed, line, words in check.run():
        assert passed and not words, line


def test_fp8_becomes_the_models_dtype(check):
    config = {**NeoX.config, "quantization_config": {"quant_method": "fp8"}}
    file, numbers = in_fp8(NeoX.tensors(config), 128, 128, of="")
    folder = check.add("bf16", config, file, expected(NeoX.logits(config, numbers, PROMPT)))
    assert "mostly BF16" in regla("info", folder).stdout
    for dtype, name in (("float16", "F16"), ("float32", "F32")):
        (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
        assert f"mostly {name}" in regla("info", folder).stdout


def test_fp8_that_is_refused(check):
    config = {**NeoX.config, "quantization_config": {"quant_method": "fp8"}}
    file, numbers = in_fp8(NeoX.tensors(config), 128, 128)
    answers = expected(NeoX.logits(config, numbers, PROMPT))
    name = next(name for name in file if name.endswith("_scale_inv"))
    broken = file[name.removesuffix("_scale_inv")].copy()
    broken[1, 1] = 127
    wrong = [
        ({**config, "quantization_config": None}, file, "has no use for it"),
        (config, {key: value for key, value in file.items() if key != name}, "its scales"),
        (config, {**file, name: np.ones((5, 7), np.float32)}, "a scale for each block"),
        (config, {**file, name: np.full((1, 1), np.inf, np.float32)}, "finite"),
        (config, {**file, name.removesuffix("_scale_inv"): broken}, "finite"),
        ({**config, "dtype": "float8_e4m3fn"}, file, "unknown dtype"),
    ]
    for changed_config, tensors, _ in wrong:
        check.add("wrong", changed_config, tensors, answers)
    for (_, _, reason), (passed, _, said) in zip(wrong, check.run()):
        assert not passed and reason in said, (reason, said)


def test_the_server_logs_warnings(server_factory, bases, tmp_path):
    config, tensors, answers = bases["gpt_neox"]
    folder = write_model(tmp_path / "model", {**config, "eos_token_id": [0, 999]}, tensors, answers)
    server = server_factory(model=folder)
    assert "eos_token_id: expected an id in [0, 275), got 999" in server.tail()
    shutil.rmtree(folder)
