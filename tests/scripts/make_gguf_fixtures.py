# SPDX-License-Identifier: Apache-2.0
"""Makes the GGUF files of the tests, with the package that llama.cpp's converter writes with.

    pip install gguf==0.19.0 sentencepiece==0.2.3 tokenizers==0.23.3 numpy
    python tests/scripts/make_gguf_fixtures.py

  tests/golden/CASE/model.gguf   the case's checkpoint: the same numbers, with which `regla check`
                                 must pass and give the same bits as with the folder
  tests/data/gguf/quantized.gguf the case gpt_neox with matrices of many types, and
        quantized.expected       by the package: name, type, and a hash of the numbers as f32
  tests/data/gguf/split-*.gguf   the case gpt_neox_tf4 in three files
  tests/data/gguf/TOKENIZER.gguf no tensors: the tokenizers of tests/data/tokenizer/, and two that
                                 SentencePiece trains on mixed.txt, as Llama 2 has them (spm) and as
                                 Gemma (spm_bare: no space before a text), and one that tokenizers
                                 trains as Gemma 4 has it (gemma4: merges)
        *.expected               of these three: what the library makes of each chunk of mixed.txt:
                                 the number of ids, and a hash of them
  tests/fuzz/corpus/gguf/        some of these, small

The package quantizes to Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0. Blocks of Q4_K, Q5_K and Q6_K are random
bytes with small scales.
"""

import io
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

TESTS = Path(__file__).resolve().parent.parent
OUT = TESTS / "data" / "gguf"
CORPUS = TESTS / "fuzz" / "corpus" / "gguf"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_checkpoint(folder):
    """config, and {name: (array, dtype)}; BF16 as its bits."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        data = raw[8 + length:]
        for name, entry in json.loads(raw[8:8 + length]).items():
            if name == "__metadata__" or entry["dtype"] not in NUMPY:
                continue
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[begin:end], NUMPY[entry["dtype"]])
            tensors[name] = array.reshape(entry["shape"]), entry["dtype"]
    return json.loads((folder / "config.json").read_text()), tensors


def as_f32(array, dtype):
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array.astype(np.float32)


def add_config(writer, config):
    """The keys that llama.cpp's converter writes for GPT-NeoX."""
    rope = config.get("rope_parameters") or {}
    head = config["hidden_size"] // config["num_attention_heads"]
    part = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(int(part * head))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_parallel_residual(config.get("use_parallel_residual", True))
    writer.add_layer_norm_eps(config.get("layer_norm_eps", 1e-5))


def add_bpe(writer, tokenizer, pre, size):
    """A tokenizer.json as that converter writes it; flags of added tokens have no place in GGUF."""
    model = tokenizer["model"]
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    contents = {id_: content for content, id_ in model["vocab"].items()}
    tokens, types = [], []
    for id_ in range(size):
        if id_ in added:
            tokens.append(added[id_]["content"])
            types.append(CONTROL if added[id_]["special"] else USER_DEFINED)
        else:
            tokens.append(contents.get(id_, f"[PAD{id_}]"))
            types.append(NORMAL if id_ in contents else UNUSED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)


def arrange(name, array, config):
    """The converter's order: q of all heads, then k, then v."""
    if "query_key_value" not in name:
        return array
    heads = config["num_attention_heads"]
    return array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)


def random_blocks(shape, kind, generator):
    """Rows of random blocks whose f16 scales, at the given places, are small and finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = generator.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    for at in [208] if kind == Type.Q6_K else [0, 2]:
        scales = generator.uniform(0.5, 2, rows.shape[:2]) * (1e-4 if kind == Type.Q6_K else 3e-4)
        rows[:, :, at:at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return rows.reshape(shape[0], -1)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def writer_of(path, config, **options):
    writer = gguf.GGUFWriter(path, "gptneox", **options)
    add_config(writer, config)
    tokenizer = json.loads((TESTS / "golden" / "gpt_neox" / "tokenizer.json").read_text())
    add_bpe(writer, tokenizer, "gpt-2", config["vocab_size"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    return writer


def names_of(config, tensors):
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPTNEOX, config["num_hidden_layers"])
    return [(name, table.get_name(name, try_suffixes=(".weight", ".bias"))) for name in sorted(tensors)
            if table.get_name(name, try_suffixes=(".weight", ".bias"))]


def make_case(case, path, **options):
    """Matrices in the case's own dtype, all else in F32."""
    config, tensors = read_checkpoint(TESTS / "golden" / case)
    writer = writer_of(path, config, **options)
    for name, gguf_name in names_of(config, tensors):
        array, dtype = tensors[name]
        array = np.ascontiguousarray(arrange(name, array, config))
        if array.ndim == 1 or dtype == "F32":
            writer.add_tensor(gguf_name, as_f32(array, dtype))
        else:
            writer.add_tensor(gguf_name, array.view(np.uint8) if dtype == "BF16" else array,
                              raw_dtype=Type[dtype])
    close(writer)


def make_quantized():
    """The types in turn, where rows have whole blocks."""
    config, tensors = read_checkpoint(TESTS / "golden" / "gpt_neox")
    writer = writer_of(OUT / "quantized.gguf", config)
    generator = np.random.default_rng(42)
    small = [Type.Q4_0, Type.Q8_0, Type.Q5_1, Type.Q4_1, Type.Q5_0, Type.F16, Type.BF16]
    large = [Type.Q4_K, Type.Q5_K, Type.Q6_K]
    lines = []
    for name, gguf_name in names_of(config, tensors):
        array = np.ascontiguousarray(arrange(name, as_f32(*tensors[name]), config))
        kind = Type.F32
        if array.ndim == 2:
            kinds = large if array.shape[1] % 256 == 0 else small
            kind = kinds[0]
            kinds.append(kinds.pop(0))
        if kind in large:
            data = random_blocks(array.shape, kind, generator)
        else:
            data = gguf.quantize(array, kind)
        writer.add_tensor(gguf_name, data, raw_dtype=kind)
        lines.append(f"{gguf_name} {kind.name} {fnv(gguf.dequantize(data, kind).astype('<f4')):016x}")
    close(writer)
    (OUT / "quantized.expected").write_text("\n".join(lines) + "\n")


def make_tokenizer(name, pre, **ids):
    tokenizer = json.loads((TESTS / "data" / "tokenizer" / f"{name}.json").read_text())
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "gptneox")
    size = 1 + max([*tokenizer["model"]["vocab"].values(),
                    *(token["id"] for token in tokenizer["added_tokens"])])
    add_bpe(writer, tokenizer, pre, size)
    for key, id_ in ids.items():
        getattr(writer, f"add_{key}")(id_)
    close(writer)


def read_chunks():
    """The chunks of mixed.txt; each line of chunks.txt is the bytes of one."""
    text = (TESTS / "data" / "tokenizer" / "mixed.txt").read_bytes()
    chunks, at = [], 0
    for line in (TESTS / "data" / "tokenizer" / "chunks.txt").read_text().split():
        chunks.append(text[at:at + int(line)].decode())
        at += int(line)
    return chunks


def fnv(array):
    value = 14695981039346656037
    for byte in array.tobytes():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def make_spm(name, prefix, symbols):
    """A tokenizer as those of Llama 2 (prefix) or Gemma, trained with user-defined symbols."""
    chunks = read_chunks()
    trained = io.BytesIO()
    import sentencepiece  # others use this file without it

    sentencepiece.SentencePieceTrainer.train(
        # of every 21 chunks the first four are prose
        sentence_iterator=iter("".join(c for i, c in enumerate(chunks) if i % 21 < 4).split("\n")),
        model_writer=trained, model_type="bpe", vocab_size=1500, byte_fallback=True,
        character_coverage=0.995, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=prefix, user_defined_symbols=symbols, num_threads=1,
        unk_piece="[[unk]]", bos_piece="[[s]]", eos_piece="[[/s]]",  # which no chunk spells out
        max_sentence_length=100000, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    tokens, scores, types = [], [], []
    for id_ in range(processor.get_piece_size()):
        piece = processor.id_to_piece(id_)
        known = (UNKNOWN if processor.is_unknown(id_) else CONTROL if processor.is_control(id_)
                 else BYTE if processor.is_byte(id_) else USER_DEFINED if piece in symbols else NORMAL)
        tokens.append(piece.replace("\u2581", " ") if known == USER_DEFINED else piece)
        scores.append(processor.get_score(id_))
        types.append(known)
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "gptneox")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if not prefix:
        writer.add_add_space_prefix(False)
    close(writer)
    write_ids(name, chunks, processor.encode)


def write_ids(name, chunks, encode):
    lines = []
    for chunk in chunks:
        ids = encode(chunk)
        lines.append(f"{len(ids)} {fnv(np.array(ids, '<i4')):016x}")
    (OUT / f"{name}.expected").write_text("\n".join(lines) + "\n")


def make_gemma4():
    """Gemma 4's tokenizer.json, but trained here and smaller, as llama.cpp's converter writes it."""
    import tokenizers  # others use this file without it
    from tokenizers import normalizers, pre_tokenizers

    chunks = read_chunks()
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    model = tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("\n", "contiguous"),
        pre_tokenizers.Split(tokenizers.Regex("\u2581+"), "merged_with_next")])
    tokenizer.train_from_iterator(
        # of every 21 chunks the first four are prose
        [c for i, c in enumerate(chunks) if i % 21 < 4],
        tokenizers.trainers.BpeTrainer(vocab_size=1800, limit_alphabet=200, special_tokens=special + spelled,
                                       show_progress=False))
    trained = json.loads(tokenizer.to_str())
    trained["added_tokens"] = trained["added_tokens"][:len(special)]
    trained["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "},
                                "behavior": "MergedWithPrevious", "invert": False}
    vocab = sorted(trained["model"]["vocab"].items(), key=lambda item: item[1])
    writer = gguf.GGUFWriter(OUT / "gemma4.gguf", "gemma4")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_scores([-1000.0] * len(vocab))
    writer.add_token_types([CONTROL if token in special else BYTE if token in spelled else NORMAL
                            for token, _ in vocab])
    writer.add_token_merges([" ".join(merge) for merge in trained["model"]["merges"]])
    for id_, kind in enumerate(("pad", "eos", "bos", "unk")):
        getattr(writer, f"add_{kind}_token_id")(id_)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)
    close(writer)
    library = tokenizers.Tokenizer.from_str(json.dumps(trained))
    write_ids("gemma4", chunks, lambda chunk: library.encode(chunk).ids)


def main():
    for folder in (OUT, CORPUS):
        folder.mkdir(parents=True, exist_ok=True)
    for case in ("gpt_neox_tf4", "gpt_neox_tf5", "gpt_neox_tf4_28_buffers"):
        make_case(case, TESTS / "golden" / case / "model.gguf")
    make_case("gpt_neox_tf4", OUT / "split.gguf", split_max_tensors=12)
    make_quantized()
    make_tokenizer("neox", "mpt")
    make_tokenizer("llama3", "llama-bpe", bos_token_id=2803, eos_token_id=2804, eot_token_id=2805)
    make_spm("spm", True, [])
    make_spm("spm_bare", False, ["\u2581" * n for n in range(2, 9)])
    make_gemma4()
    for file in OUT.glob("*.gguf"):
        if file.stat().st_size < 60_000:
            shutil.copyfile(file, CORPUS / file.stem)


if __name__ == "__main__":
    main()
