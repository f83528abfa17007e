# SPDX-License-Identifier: Apache-2.0
"""Makes the GGUF files of the dense_* cases with llama.cpp's own converter.

    python tests/scripts/make_gguf_dense.py build/peers/source [GOLDEN]

The first folder is the peer's source, which loadtest/llama/build.sh unpacks; the other has the
cases, tests/golden if not given. Needs torch 2.15.0, transformers 5.24.0, safetensors 0.8.0 and
sentencepiece 0.2.3.

  tests/golden/CASE/model.gguf   where the converter says all that the case's config.json does
  tests/data/gguf/CASE.gguf      where it leaves something out, so that llama.cpp computes something
                                 else, too: tests/unit/test_gguf.c compares it with the folder
                                 without that
  tests/fuzz/corpus/gguf/CASE    the first 12 kB or more: all metadata, and some tensors

The converter's tokenizers want released ones; the cases' own is written as make_gguf_fixtures.py
writes it.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]) / "gguf-py")]

import gguf  # noqa: E402
import make_gguf_fixtures as fixtures  # noqa: E402
from conversion import get_model_class  # noqa: E402
from conversion.base import ModelBase  # noqa: E402

# What is not in their files: windows of qwen2, mistral and which layers have one; which layers of
# smollm3 turn; query_pre_attn_scalar.
LOSSY = ("dense_qwen2", "dense_mistral", "dense_smollm3", "dense_gemma2", "dense_gemma3_text")
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


def convert(case, path):
    config = ModelBase.load_hparams(case, False)
    tokenizer = padded_tokenizer(case, config["vocab_size"])

    def set_vocab(self):
        fixtures.add_bpe(self.gguf_writer, tokenizer, "gpt-2", config["vocab_size"])
        self.gguf_writer.add_bos_token_id(0)
        self.gguf_writer.add_eos_token_id(0)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "case"
        shutil.copytree(case, folder)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        chosen = get_model_class(config["architectures"][0])
        model = type(chosen.__name__, (chosen,), {"set_vocab": set_vocab,
                                                  "model_arch": chosen.model_arch})
        instance = model(folder, FTYPES[config.get("dtype", config.get("torch_dtype"))], path,
                         model_name=case.name)
        instance.write()


def main():
    golden = Path(sys.argv[2]) if sys.argv[2:] else fixtures.TESTS / "golden"
    for case in sorted(golden.glob("dense_*")):
        if case.name.endswith("_tf4"):
            continue
        whole = case.name not in LOSSY
        path = case / "model.gguf" if whole else fixtures.OUT / f"{case.name}.gguf"
        convert(case, path)
        shutil.copyfile(path, fixtures.CORPUS / case.name)
        print(f"{case.name}: {path.stat().st_size} bytes")



if __name__ == "__main__":
    main()
