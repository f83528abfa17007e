# SPDX-License-Identifier: Apache-2.0
"""One model in the formats of both sides: a preset with random weights, as a directory for regla and
as GGUF files for llama.cpp, in f32, bf16 and q8_0. Or a GGUF file that both read.

Every weight is a bf16, so that the f32 and the bf16 of both sides are the same numbers."""

import json
import sys

import numpy as np

import peer_experts
from measure import ROOT, Failure, run
from peer_gguf import GGUF_FORMATS, SEED, add_tokens

# Names as llama.cpp's own converter has them (its folder conversion/): after the prefix of layers,
# and others.
NEOX_LAYERS = {
    "input_layernorm": "attn_norm", "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}
NEOX_OTHERS = {"gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm",
               "embed_out": "output"}
DENSE_LAYERS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
DENSE_OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def head_size(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def neox_shapes(config):
    """Of a layer's matrices, by their names in the Hugging Face layout."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return {"attention.query_key_value": (3 * hidden, hidden), "attention.dense": (hidden, hidden),
            "mlp.dense_h_to_4h": (inner, hidden), "mlp.dense_4h_to_h": (hidden, inner)}


def dense_shapes(config):
    """And of the norms of a head."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], head_size(config)
    rows, kv_rows = (size * config[key] for key in ("num_attention_heads", "num_key_value_heads"))
    return {"self_attn.q_proj": (rows, hidden), "self_attn.k_proj": (kv_rows, hidden),
            "self_attn.v_proj": (kv_rows, hidden), "self_attn.o_proj": (hidden, rows),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner), "self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}


def stacked(name, values, config):
    """Ours: q, k and v of a head, then of the next; theirs: the q of all heads, then the k."""
    if name != "attention.query_key_value":
        return values
    parts = values.reshape(config["num_attention_heads"], 3, -1, *values.shape[1:]).swapaxes(0, 1)
    return parts.reshape(values.shape)


def paired(name, values, config):
    """Ours: both halves of a head one after the other; theirs: pairs of a row of each."""
    if name not in ("self_attn.q_proj", "self_attn.k_proj"):
        return values
    halves = values.reshape(-1, 2, head_size(config) // 2, *values.shape[1:]).swapaxes(1, 2)
    return halves.reshape(values.shape)


def unchanged(_, values, __):
    return values


def add_neox_keys(writer, config):
    writer.add_rope_dimension_count(int(config["rotary_pct"] * head_size(config)))
    writer.add_rope_freq_base(config["rotary_emb_base"])
    writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])


def add_dense_keys(writer, config):
    writer.add_rope_dimension_count(head_size(config))
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


class Family:
    def __init__(self, architecture, prefix, layers, others, shapes, arrange, add_keys, biased=False):
        self.architecture, self.prefix, self.layers, self.others = architecture, prefix, layers, others
        self.shapes, self.arrange, self.add_keys, self.biased = shapes, arrange, add_keys, biased


def dense(architecture, arrange, norms):
    layers = {name: theirs for name, theirs in DENSE_LAYERS.items()
              if norms or not name.endswith(("q_norm", "k_norm"))}
    return Family(architecture, "model.layers", layers, DENSE_OTHERS, dense_shapes, arrange,
                  add_dense_keys)


FAMILIES = {  # by model_type
    "gpt_neox": Family("gptneox", "gpt_neox.layers", NEOX_LAYERS, NEOX_OTHERS, neox_shapes, stacked,
                       add_neox_keys, biased=True),
    "llama": dense("llama", paired, False),
    "qwen3": dense("qwen3", unchanged, True),
}


# Those that the packages of tests/dense and the peer's converter make (peer_library.py).
LIBRARY = ("mamba2", "falcon_h1", "granitemoehybrid", "lfm2", "qwen3_5_text")

READ = tuple(dict.fromkeys((*FAMILIES, *LIBRARY, *peer_experts.FAMILIES)))


def preset_path(name):
    return ROOT / "models" / "presets" / f"{name}.json"


def preset(name):
    config = json.loads(preset_path(name).read_text())
    if config.get("model_type") not in READ:
        raise Failure(f"{name}: expected a preset of model_type {', '.join(READ)}, "
                      f"got {config.get('model_type')}")
    return config


def shapes(config):
    """Of every tensor, by its name in the Hugging Face layout."""
    family = FAMILIES[config["model_type"]]
    embeddings, final_norm, head = family.others
    hidden, table = config["hidden_size"], (config["vocab_size"], config["hidden_size"])
    matrices = family.shapes(config)
    found = {f"{embeddings}.weight": table}
    for layer in range(config["num_hidden_layers"]):
        for name in family.layers:
            shape = matrices.get(name, (hidden,))
            found[f"{family.prefix}.{layer}.{name}.weight"] = shape
            if family.biased:
                found[f"{family.prefix}.{layer}.{name}.bias"] = shape[:1]
    found[f"{final_norm}.weight"] = (hidden,)
    if family.biased:
        found[f"{final_norm}.bias"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        found[f"{head}.weight"] = table
    return found


def nearest_bf16(values):
    """The upper halves of f32s, to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def draw(config):
    """Weights with which attention is neither flat nor a choice of one: q, k of variance 1."""
    generator = np.random.default_rng(SEED)
    embeddings = f"{next(iter(FAMILIES[config['model_type']].others))}.weight"
    tensors = {}
    for name, shape in shapes(config).items():
        values = generator.standard_normal(shape, np.float32)
        if len(shape) == 2 and (name != embeddings or config.get("tie_word_embeddings")):
            values /= np.float32(shape[1]) ** 0.5
        elif len(shape) == 1:
            values = 0.1 * values + (1 if "norm.weight" in name else 0)
        tensors[name] = nearest_bf16(values)
    return tensors


def as_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_directory(folder, config, tensors, weights="bf16"):
    """safetensors: the length of a JSON, that JSON, and then the tensors. weights: bf16 or f32."""
    header, end = {}, 0
    for name, values in tensors.items():
        size = values.size * (4 if weights == "f32" else 2)
        header[name] = {"dtype": weights.upper(), "shape": values.shape,
                        "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write((as_f32(values) if weights == "f32" else values).tobytes())
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def gguf_tensors(config, tensors):
    """(name, f32 values) as llama.cpp wants them."""
    family = FAMILIES[config["model_type"]]
    for name, bits in tensors.items():
        values = as_f32(bits)
        stem, kind = name.rsplit(".", 1)
        if stem in family.others:
            yield f"{family.others[stem]}.{kind}", values
            continue
        layer, stem = stem.removeprefix(f"{family.prefix}.").split(".", 1)
        values = np.ascontiguousarray(family.arrange(stem, values, config))
        yield f"blk.{layer}.{family.layers[stem]}.{kind}", values


def write_gguf(gguf, path, config, tensors, weights):
    """Vectors stay f32, as llama.cpp's own converter leaves them."""
    kind = gguf.GGMLQuantizationType[GGUF_FORMATS[weights]]
    family = FAMILIES[config["model_type"]]
    writer = gguf.GGUFWriter(path, family.architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    family.add_keys(writer, config)
    writer.add_file_type(gguf.LlamaFileType[f"{'MOSTLY_' if weights != 'f32' else 'ALL_'}"
                                            f"{GGUF_FORMATS[weights]}"])
    add_tokens(gguf, writer, config["vocab_size"])
    for name, values in gguf_tensors(config, tensors):
        if values.ndim == 2 and weights != "f32":
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decode(gguf, path, decoded):
    """A GGUF file with the same numbers as F32: with blocks llama.cpp rounds what it multiplies."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(decoded, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(name, field.contents(), field.types[0],
                                 field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def given(path, folder, gguf_package):
    """The same of a GGUF file that is there. llama.cpp reads it as it is, but for f32 decoded."""
    if not path.is_file():
        raise Failure(f"{path}: expected a preset's name or a GGUF file, got neither")
    decoded = folder / f"{path.stem}-decoded.gguf"
    if not decoded.exists() or decoded.stat().st_mtime < path.stat().st_mtime:
        print(f"writing {decoded}", file=sys.stderr)
        sys.path.insert(0, str(gguf_package))
        import gguf  # the peer's own, by build.sh

        folder.mkdir(parents=True, exist_ok=True)
        part = decoded.with_suffix(".part")
        decode(gguf, path, part)
        part.rename(decoded)
    return path, {**dict.fromkeys([*GGUF_FORMATS, "f16"], path), "f32": decoded}


def make_by_library(name, directory, files, source):
    python = ROOT / "tests" / "dense" / ".venv" / "bin" / "python"
    if not python.exists():
        raise Failure(f"{name}: expected {python}: tests/scripts/venv.sh tests/dense")
    run([python, ROOT / "loadtest" / "peer_library.py", preset_path(name), directory, source,
         *(f"{weights}={file}" for weights, file in files.items())])


def make_with_experts(name, folder, config, gguf_package):
    """One file that both read as it is."""
    file = folder / f"{name}-q4_0.gguf"
    if not file.exists():
        print(f"writing {file}", file=sys.stderr)
        sys.path.insert(0, str(gguf_package))
        import gguf  # the peer's own, by build.sh

        folder.mkdir(parents=True, exist_ok=True)
        peer_experts.write(gguf, file, config)
    return file, {"q4": file}


def make(name, folder, gguf_package):
    """(model directory, {format: GGUF file}) of a preset; once written, they stay."""
    directory = folder / name
    files = {weights: folder / f"{name}-{weights}.gguf" for weights in GGUF_FORMATS}
    done = directory / "written"
    if done.exists():
        return directory, files
    config = preset(name)
    if peer_experts.has_experts(config):
        return make_with_experts(name, folder, config, gguf_package)
    print(f"writing {directory} and {', '.join(file.name for file in files.values())}",
          file=sys.stderr)
    if config["model_type"] in LIBRARY:
        make_by_library(name, directory, files, gguf_package.parent)
        done.touch()
        return directory, files
    sys.path.insert(0, str(gguf_package))
    import gguf  # the peer's own, by build.sh

    tensors = draw(config)
    write_directory(directory, config, tensors)
    for weights, file in files.items():
        write_gguf(gguf, file, config, tensors, weights)
    done.touch()
    return directory, files
