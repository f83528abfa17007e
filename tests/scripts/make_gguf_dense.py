# SPDX-License-Identifier: Apache-2.0
"""Makes GGUF files of some dense_*, delta_* and lfm* cases with llama.cpp's own converter.

    python tests/scripts/make_gguf_dense.py build/peers/source [CASE...]

The folder is the peer's source, which loadtest/llama/build.sh unpacks. Needs torch 2.15.0,
transformers 5.24.0, safetensors 0.8.0 and sentencepiece 0.2.3.

  tests/golden/CASE/model.gguf   where the converter says all that the case's config.json does
  tests/data/gguf/CASE.gguf      where it leaves something out, so that llama.cpp computes something
                                 else, too: tests/unit/test_gguf_dense.c compares it with the folder
                                 without that
  tests/fuzz/corpus/gguf/CASE    the metadata without tokenizers, and the first layer's names

The converter takes released tokenizers only; here make_gguf_fixtures.py writes the case's own.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]) / "gguf-py")]

import gguf  # noqa: E402
import make_gguf_fixtures as fixtures  # noqa: E402
import numpy as np  # noqa: E402
from conversion import get_model_class  # noqa: E402

WHOLE = ("dense_llama", "dense_qwen3", "dense_granite", "dense_olmo3", "lfm2", "delta_qwen3_5_text",
         "dense_phi3", "gemma4_text", "experts_gemma4_text", "rwkv7")
# Not in their files: windows of qwen2, and which layers of gemma3 have one; which layers of smollm3
# turn; query_pre_attn_scalar.
LOSSY = ("dense_qwen2_tf4", "dense_smollm3", "dense_gemma2", "dense_gemma3_text")
FTYPES = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}


def padded_tokenizer(folder, size):
    """So many tokens, since the converter cuts Gemma's embeddings to them."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    known = {*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])}
    vocab = tokenizer["model"]["vocab"]
    for id_ in range(size):
        if id_ not in known:
            vocab[f"<{id_}>"] = id_
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["content"] not in vocab]
    return tokenizer


def convert(case, path, change=None):
    """change: what the converter reads in place of the case's configuration."""
    config = json.loads((case / "config.json").read_text())
    config = change(config) if change else config
    tokenizer = padded_tokenizer(case, config["vocab_size"])

    def set_vocab(self):
        fixtures.add_bpe(self.gguf_writer, tokenizer, "gpt-2", config["vocab_size"])
        self.gguf_writer.add_bos_token_id(0)
        self.gguf_writer.add_eos_token_id(0)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "case"
        shutil.copytree(case, folder)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "config.json").write_text(json.dumps(config))
        chosen = get_model_class(config["architectures"][0])
        model = type(chosen.__name__, (chosen,), {"set_vocab": set_vocab, "no_mtp": True,
                                                  "model_arch": chosen.model_arch})
        instance = model(folder, FTYPES[config.get("dtype", config.get("torch_dtype"))], path,
                         model_name=case.name, **({"hparams": config} if change else {}))
        instance.write()


def make_seed(path, out):
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "tokenizer.")):
            writer.add_key_value(name, field.contents(), field.types[0],
                                 field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if "blk." not in tensor.name or "blk.0." in tensor.name:
            writer.add_tensor(tensor.name, np.ones([2] * len(tensor.shape), np.float32))
    fixtures.close(writer)


def main():
    for name in sys.argv[2:] or (*WHOLE, *LOSSY):
        case = fixtures.TESTS / "golden" / name
        path = case / "model.gguf" if name in WHOLE else fixtures.OUT / f"{name}.gguf"
        convert(case, path)
        make_seed(path, fixtures.CORPUS / name)
        print(f"{name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
