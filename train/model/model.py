# SPDX-License-Identifier: Apache-2.0
"""The whole model: embedding, blocks of a mixer and an MLP, head."""

import torch
import torch.nn.functional as F
from torch import nn

from train.model.layers import Linear, Norm, Tensors
from train.model.pair import make_mixer
from train.model.positions import rope_angles
from train.model.recurrence import chunked

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "relu2": lambda x: x.relu().square(),
}


class Mlp(nn.Module):
    def __init__(self, config, tensors):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.activation = ACTIVATIONS[config.hidden_act]
        if tensors.has("gate_proj.weight"):
            self.gate_proj = Linear(tensors.under("gate_proj"), inner, width)
        self.up_proj = Linear(tensors.under("up_proj"), inner, width)
        self.down_proj = Linear(tensors.under("down_proj"), width, inner)

    def forward(self, x):
        if hasattr(self, "gate_proj"):
            return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.activation(self.up_proj(x)))


def model_norm(config, tensors):
    """A norm of the residual stream."""
    return Norm(
        config.norm_type, config.hidden_size, config.norm_eps, tensors, config.norm_plus_one
    )


class Block(nn.Module):
    def __init__(self, config, mixer, tensors, recur):
        super().__init__()
        self.parallel = config.parallel_residual
        self.dropout = nn.Dropout(0.0)
        self.attn_norm = model_norm(config, tensors.under("attn_norm"))
        self.attn = make_mixer(mixer, config, tensors.under("attn"), recur)
        self.mlp = None
        if config.intermediate_size > 0:
            self.mlp_norm = model_norm(config, tensors.under("mlp_norm"))
            self.mlp = Mlp(config, tensors.under("mlp"))

    def forward(self, x):
        drop = self.dropout
        if self.mlp is None:
            return x + drop(self.attn(self.attn_norm(x)))
        if self.parallel:
            return x + drop(self.attn(self.attn_norm(x))) + drop(self.mlp(self.mlp_norm(x)))
        x = x + drop(self.attn(self.attn_norm(x)))
        return x + drop(self.mlp(self.mlp_norm(x)))


class Model(nn.Module):
    """ids [B, T] -> logits [B, T, V]. Built from a config and a checkpoint's tensors by their
    names; every tensor must be used.
    """

    def __init__(self, config, tensors, recur=chunked):
        super().__init__()
        source = Tensors(tensors)
        inner = source.under("model")
        self.config = config
        self.dropout = nn.Dropout(0.0)
        self.embeddings = inner.under("embeddings").take(
            "weight", (config.vocab_size, config.hidden_size)
        )
        self.position_embeddings = None
        if config.position_embedding == "learned":
            self.position_embeddings = inner.under("position_embeddings").take(
                "weight", (config.max_position_embeddings, config.hidden_size)
            )
        self.embedding_norm = None
        if config.embedding_norm:
            self.embedding_norm = model_norm(config, inner.under("embedding_norm"))
        self.layers = nn.ModuleList(
            Block(config, config.mixers[name], inner.under(f"layers.{i}"), recur)
            for i, name in enumerate(config.layer_types)
        )
        self.norm = model_norm(config, inner.under("norm"))
        self.head = None
        if not config.tie_word_embeddings:
            self.head = source.under("lm_head").take(
                "weight", (config.vocab_size, config.hidden_size)
            )
        if source.unused():
            raise ValueError(f"unused tensors: {', '.join(source.unused())}")

    def set_dropout(self, share):
        """When training: of the embeddings' sum, and of what each branch adds to it."""
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def hidden(self, ids):
        """The normed last hidden states, [B, T, D]."""
        x = F.embedding(ids, self.embeddings)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        length = ids.shape[-1]
        if self.position_embeddings is not None:
            x = x + self.position_embeddings[:length]
        elif self.config.position_embedding == "sinusoidal":
            x = x + sinusoidal(length, x.shape[-1], x.device).to(x.dtype)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embeddings if self.head is None else self.head)

    def forward(self, ids):
        return self.logits(self.hidden(ids))


def sinusoidal(length, width, device):
    """[T, D]: [sin(t f), cos(t f)], f_i = 10000^(-2i/D)."""
    angles = rope_angles(length, width, 10000, device)
    return torch.cat((angles.sin(), angles.cos()), -1)


def checkpoint_tensors(model):
    """The model's parameters (and permutations) by their names in a checkpoint."""
    return {checkpoint_name(name): tensor for name, tensor in model.state_dict().items()}


def checkpoint_name(name):
    """Of an entry of Model's state_dict."""
    if name == "head":
        return "lm_head.weight"
    if name in ("embeddings", "position_embeddings"):
        return f"model.{name}.weight"
    for part in (".attn.map", ".attn.segments", ".position.lrpe", ".position.spe"):
        name = name.replace(f"{part}.", f"{part.rsplit('.', 1)[0]}.")
    return "model." + name
