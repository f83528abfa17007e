# SPDX-License-Identifier: Apache-2.0
"""What transformers computes for a saved model of a dense family: in float64, every cast of its modules
included, or in float32 as it is.

transformers rounds to float32 inside, in whatever format the weights are: in norms, in softmax, in
rope's tables. `exact` gives these places float64, and demands that no other format of floats occurs.
"""

import contextlib
import sys

import torch
import transformers
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig


class OnlyFloat64(TorchDispatchMode):
    """Raises at an operation that makes floats of fewer bits."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if (isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point
                    and leaf.dtype != torch.float64):
                raise SystemExit(f"{operation}: expected float64, got {leaf.dtype}")
        return result


@contextlib.contextmanager
def exact():
    """Inside, float32 means float64: their modules name it when they run."""
    float32, to_float = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = torch.float = float32
        torch.Tensor.float = to_float
        torch.set_default_dtype(float32)


@contextlib.contextmanager
def keys_in_f16(model):
    """Keys and values go through f16 before attention, as the engine's pages hold them."""
    module = sys.modules[type(model).__module__]
    if not hasattr(module, "eager_attention_forward"):  # a model without attention
        yield
        return
    attend = module.eager_attention_forward

    def rounded(layer, query, key, value, *args, **kwargs):
        key, value = (x.to(torch.float16).to(x.dtype) for x in (key, value))
        return attend(layer, query, key, value, *args, **kwargs)

    module.eager_attention_forward = rounded
    try:
        yield
    finally:
        module.eager_attention_forward = attend


def name_in_class(name):
    """transformers renames it when it loads a file, and again when it saves one."""
    return name.replace(".self_attn.gate_proj.", ".self_attn.g_proj.")  # lfm3


def read_tensors(folder):
    return {name_in_class(name): tensor for file in sorted(folder.glob("*.safetensors"))
            for name, tensor in load_file(file).items()}


def as_modules(tensors):
    """Under the names of the library's modules, where it gives others to files: those of OLMo Hybrid."""
    renamed = {}
    for name, tensor in sorted(tensors.items()):  # k, q, v
        for old, new in (("attention_layer_norm", "input_layernorm"),
                         ("feedforward_layer_norm", "post_attention_layernorm")):
            name = name.replace(old, new)
        renamed[name] = tensor
    for name in [n for n in renamed if n.endswith("q_conv1d.weight")]:
        parts = [renamed.pop(name.replace("q_conv1d", f"{part}_conv1d")) for part in "qkv"]
        renamed[name.replace("q_conv1d", "conv1d")] = torch.cat(parts)
    return renamed


def build(config, tensors, dtype):
    model = getattr(transformers, config.architectures[0])._from_config(
        config, dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    if config.model_type == "nemotron_h":  # saved under its old name
        tensors = {n.replace("backbone.", "model.", 1): t for n, t in tensors.items()}
    missing, unknown = model.load_state_dict(
        {n: t.to(dtype) for n, t in as_modules(tensors).items()}, strict=False)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    if missing not in ([], tied) or unknown:
        raise SystemExit(f"{config.model_type}: tensors missing {missing}, unknown {unknown}")
    model.tie_weights()
    return model.eval()


def exact_model(config, tensors):
    with exact():
        return build(config, tensors, torch.float64)


def exact_logits(model, ids):
    """One call without a cache. [len(ids), vocabulary], float64."""
    with torch.no_grad(), exact(), OnlyFloat64():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def exact_logprobs(model, ids):
    return exact_logits(model, ids).log_softmax(-1)


def single_logprobs(config, tensors, ids):
    """The same in transformers' own float32."""
    with torch.no_grad():
        model = build(config, tensors, torch.float32)
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)


def f16_keys_logprobs(model, ids):
    with torch.no_grad(), exact(), keys_in_f16(model):
        return model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)


def read_config(folder):
    return AutoConfig.from_pretrained(folder)
