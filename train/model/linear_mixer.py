# SPDX-License-Identifier: Apache-2.0
"""Linear mixers: feature maps, gates, and the recurrence between them (model-format.md, "Linear
mixers")."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from train.model.layers import Conv, Linear, Norm, at_least_f32
from train.model.positions import LinearPosition
from train.model.recurrence import chunked, finished_chunks

LOWEST_SUM = 1e-6
MOST_GROWTH = 80.0  # e^80 fits float32, and e^-80, what keys are before, is no subnormal number
FOURIER = ("cos_sin", "unit_cos_sin")


def split_heads(x, heads):
    """[B, T, H*n] -> [B, H, T, n]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def log_refined(g, r):
    """log F of ReGLA eq. 15-18, from the gates' logits: F = (1-r) g^2 + r (1-(1-g)^2) = g (g + 2 r
    (1-g))."""
    g_open = torch.sigmoid(g)
    return F.logsigmoid(g) + torch.log(g_open + 2 * torch.sigmoid(r) * (1 - g_open))


class OffsetScale(nn.Module):
    def __init__(self, size, tensors):
        super().__init__()
        self.weight = tensors.take("weight", (size,))
        self.bias = tensors.take("bias", (size,)) if tensors.has("bias") else None

    def forward(self, z):
        return z * self.weight if self.bias is None else z * self.weight + self.bias


OUTPUT_GATES = {"swish": F.silu, "sigmoid": torch.sigmoid}


class Mixer(nn.Module):
    """What both kinds have in common: from x [B, T, D] to q, k [B, T, H*d] and v [B, T, H*dv], and
    from h [B, H, T, dv] on; with fewer heads of q, k or v these are narrower. A part of a pair ends
    with its norm; `owner` is the pair where that has v_proj, and a qk_proj, for both of its parts."""

    def take_inputs(self, config, width, tensors, owner=None):
        """Returns d and dv."""
        shared = config.qk_projection == "shared"
        if owner is None:
            self.take_sources(config, width, tensors)
        if not shared:
            for name in ("q_proj", "k_proj"):
                setattr(self, name, Linear(tensors.under(name), None, width))
        source = self if owner is None else owner
        size = (source.qk_proj if shared else self.q_proj).weight.shape[0]
        if shared:
            self.q_scale = OffsetScale(size, tensors.under("q_scale"))
            self.k_scale = OffsetScale(size, tensors.under("k_scale"))
        q_heads, k_heads, v_heads = config.head_counts()
        d, value_size = size // q_heads, source.v_proj.weight.shape[0]
        self.conv, self.q_norm, self.k_norm = None, None, None
        if config.conv is not None:
            channels = (q_heads + k_heads) * d + value_size
            self.conv = Conv(config.conv, channels, tensors.under("conv"))
        if config.qk_norm is not None:
            self.q_norm, self.k_norm = (
                self._qk_norm(heads, d, tensors.under(name))
                for name, heads in (("q_norm", q_heads), ("k_norm", k_heads))
            )
        return d, value_size // v_heads

    def _qk_norm(self, heads, d, tensors):
        norm = self.config.qk_norm
        size = d if norm.scope == "head" else heads * d
        return Norm(norm.type, size, norm.eps, tensors, norm.plus_one)

    def take_sources(self, config, width, tensors):
        for name in ("qk_proj",) * (config.qk_projection == "shared") + ("v_proj",):
            setattr(self, name, Linear(tensors.under(name), None, width))

    def sources(self, x, config):
        """z of shared q and k, or None; and v as it is projected."""
        z = F.silu(self.qk_proj(x)) if config.qk_projection == "shared" else None
        return z, self.v_proj(x)

    def inputs(self, x, sources=None):
        z, v = self.sources(x, self.config) if sources is None else sources
        if z is None:
            q, k = self.q_proj(x), self.k_proj(x)
        else:
            q, k = self.q_scale(z), self.k_scale(z)
        if self.conv is not None:
            sizes = [part.shape[-1] for part in (q, k, v)]
            q, k, v = self.conv(torch.cat((q, k, v), -1)).split(sizes, -1)
        if self.config.value_activation == "silu":
            v = F.silu(v)
        if self.q_norm is not None:
            q_heads, k_heads, _ = self.config.head_counts()
            q, k = self._normed_qk(self.q_norm, q, q_heads), self._normed_qk(self.k_norm, k, k_heads)
        return q, k, v

    def _normed_qk(self, norm, z, heads):
        z = at_least_f32(z)
        if self.config.qk_norm.scope == "hidden":
            return norm(z)
        return norm(z.unflatten(-1, (heads, -1))).flatten(-2)

    def take_norm(self, config, heads, dv, tensors):
        self.norm_over_hidden = config.output_norm_scope == "hidden"
        size = heads * dv if self.norm_over_hidden else dv
        self.out_norm = Norm(
            config.output_norm, size, config.output_norm_eps, tensors.under("out_norm")
        )

    def normed(self, h, x):
        """[B, T, H*dv]"""
        h = h.transpose(1, 2)
        if self.config.output_gate_first:
            h = h * self._output_gate(x).unflatten(-1, h.shape[-2:])
        if self.norm_over_hidden:
            return self.out_norm(h.flatten(-2))
        return self.out_norm(h).flatten(-2)

    def take_output(self, config, size, width, tensors):
        self.o_proj = Linear(tensors.under("o_proj"), width, size)
        if config.output_gate != "none":
            gates = config.num_heads if config.output_gate_scope == "head" else size
            self.out_gate_proj = Linear(tensors.under("out_gate_proj"), gates, width)

    def _output_gate(self, x):
        return OUTPUT_GATES[self.config.output_gate](self.out_gate_proj(x))

    def output(self, h, x):
        if self.config.output_gate != "none" and not self.config.output_gate_first:
            gate = self._output_gate(x)
            h = (h.unflatten(-1, (gate.shape[-1], -1)) * gate.unsqueeze(-1)).flatten(-2)
        return self.o_proj(h)

    def forward(self, x):
        return self.output(self.hidden(x), x)


class FeatureMap(nn.Module):
    def __init__(self, config, heads, d, tensors):
        super().__init__()
        self.kind, self.nu = config.feature_map, config.dpfp_nu
        if self.kind in ("favor", *FOURIER):
            self.features = nn.Module()
            self.features.weight = tensors.take("features.weight", (heads, None, d))
        if self.kind == "hedgehog":
            for name in ("feature_q", "feature_k"):
                module = nn.Module()
                module.weight = tensors.take(f"{name}.weight", (heads, d, d))
                setattr(self, name, module)

    def size(self, d):
        if self.kind == "favor":
            return self.features.weight.shape[1]
        if self.kind in FOURIER:
            return 2 * self.features.weight.shape[1]
        return {"hedgehog": 2 * d, "dpfp": 2 * d * self.nu}.get(self.kind, d)

    def forward(self, q, k):
        """phi(q), phi(k), and the logarithm of a factor of the outputs (None: 0)."""
        if self.kind == "exp":
            return self._exponential(q, k)
        if self.kind == "favor":
            return self._exponential(self._favor(q), self._favor(k))
        if self.kind == "hedgehog":
            return (
                self._hedgehog(q, self.feature_q.weight),
                self._hedgehog(k, self.feature_k.weight),
                None,
            )
        return self._elementwise(q), self._elementwise(k), None

    @staticmethod
    def _exponential(q, k):
        # The running maximum M_t of the definition: all keys share the window's last maximum
        # instead, and the outputs are corrected by exp(M_T - M_t). Neither maximum needs a
        # gradient: the value does not depend on it. Where the maximum grows by more than MOST_GROWTH
        # within a window, what came before has all but vanished beside it: exp would be infinite.
        running = k.detach().amax(-1).cummax(-1).values
        last = running[..., -1:]
        q = (q - q.detach().amax(-1, keepdim=True)).exp()
        correction = (last - running).clamp(max=MOST_GROWTH)
        return q, (k - last.unsqueeze(-1)).exp(), correction.unsqueeze(-1)

    def _favor(self, z):
        d = z.shape[-1]
        return z @ self.features.weight.transpose(-1, -2) / d**0.25 - z.square().sum(
            -1, keepdim=True
        ) / (2 * d**0.5)

    @staticmethod
    def _hedgehog(z, weight):
        y = z @ weight.transpose(-1, -2)
        return torch.cat((y, -y), -1).softmax(-1)

    def _elementwise(self, z):
        if self.kind == "identity":
            return z
        if self.kind == "relu":
            return z.relu()
        if self.kind == "elu":
            return F.elu(z)
        if self.kind == "elu+1":
            return F.elu(z) + 1
        if self.kind in FOURIER:
            z = F.normalize(z, dim=-1) if self.kind == "unit_cos_sin" else z
            y = z @ self.features.weight.transpose(-1, -2)
            return torch.cat((y.cos(), y.sin()), -1) / math.sqrt(y.shape[-1])
        r = torch.cat((z, -z), -1).relu()
        y = torch.cat([r * r.roll(i, -1) for i in range(1, self.nu + 1)], -1)
        return y / (y.sum(-1, keepdim=True) + 1e-6)


class LinearMixer(Mixer):
    """x [B, T, D] -> [B, T, D]; `recur` is the recurrence to use (train.model.recurrence)."""

    def __init__(self, config, model, tensors, recur=chunked, part=False, owner=None):
        super().__init__()
        heads, width = config.num_heads, model.hidden_size
        self.config, self.heads, self.recur = config, heads, recur
        d, self.dv = self.take_inputs(config, width, tensors, owner)
        self.map = FeatureMap(config, heads, d, tensors)
        self.m = self.map.size(d)
        self.position = LinearPosition(config.position, heads, d, self.m, tensors.under("position"))
        self._take_gates(tensors, width)
        self.take_norm(config, heads, self.dv, tensors)
        if not part:
            self.take_output(config, heads * self.dv, width, tensors)

    def _take_gates(self, tensors, width):
        heads = self.heads
        outputs = {
            "scalar": {"g_proj": heads},
            "fast_decay": {"z_proj": heads * self.dv, "f_proj": heads * self.m},
            "refined": {"g_proj": heads * self.dv, "r_proj": heads * self.dv},
            "delta": {"b_proj": heads},
            "gated_delta": {"b_proj": heads, "a_proj": heads},
            "mamba2": {"dt_proj": heads},
            "rwkv7": dict.fromkeys(("f_proj", "erase_proj", "write_proj"), heads * self.m),
        }
        for name, size in outputs.get(self.config.gate, {}).items():
            setattr(self, name, Linear(tensors.under(name), size, width))
        if self.config.gate in ("gated_delta", "mamba2"):
            self.A_log = tensors.take("A_log", (heads,))
        if self.config.gate == "mamba2":
            self.D = tensors.take("D", (heads,))
        if self.config.gate == "gla":
            first = Linear(tensors.under("gk_proj.0"), None, width)
            second = Linear(tensors.under("gk_proj.1"), heads * self.m, first.weight.shape[0])
            self.gk_proj = nn.Sequential(first, second)

    def hidden(self, x, sources=None):
        config = self.config
        q, k, v = (
            at_least_f32(split_heads(part, heads))
            for part, heads in zip(self.inputs(x, sources), config.head_counts())
        )
        q, k = self.position.before(q), self.position.before(k)
        q, k, log_correction = self.map(q, k)
        q = q * self._query_scale()
        q, k = self.position.after(q, k)
        if q.shape[1] != self.heads:
            q, k, log_correction = (self._of_values(part) for part in (q, k, log_correction))
        if config.sum_norm:
            v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        if config.chunk_size:
            return self.normed(finished_chunks(q, k, v, config.chunk_size), x)
        written, gates = self._gates(x, v)
        if self.position.doubles and "log_f" in gates:
            gates["log_f"] = torch.cat((gates["log_f"], gates["log_f"]), -1)
        h = at_least_f32(self.recur(q, k, written, **gates))
        if log_correction is not None:
            h = h * log_correction.exp()
        if config.sum_norm:
            h = h[..., :-1] / h[..., -1:].clamp(min=LOWEST_SUM)
        if config.gate == "mamba2":
            h = h + self.D[:, None, None] * v
        return self.normed(h, x)

    def _of_values(self, z):
        """Each head of q and k [B, H_qk, T, n] once for every head of v that it serves."""
        return None if z is None else z.repeat_interleave(self.heads // z.shape[1], 1)

    def _heads(self, projection, x):
        return at_least_f32(split_heads(projection(x), self.heads))

    def _query_scale(self):
        if self.config.query_scale == "sqrt_dim":
            return self.m**-0.5
        if self.config.query_scale == "exp_variance":
            return 1 / (math.e * math.sqrt(self.m * (math.e**2 - 1)))
        return 1.0

    def _gates(self, x, v):
        """What is written, and the gates as the recurrence takes them."""
        gate = self.config.gate
        if gate == "none":
            return v, {}
        if gate == "scalar":
            g = self._heads(self.g_proj, x)
            return torch.sigmoid(-g) * v, {"log_a": F.logsigmoid(g)}
        if gate == "fast_decay":
            return v, {
                "log_a": F.logsigmoid(self._heads(self.z_proj, x)),
                "log_f": F.logsigmoid(self._heads(self.f_proj, x)),
            }
        if gate == "refined":
            return v, {
                "log_a": log_refined(self._heads(self.g_proj, x), self._heads(self.r_proj, x))
            }
        if gate == "gla":
            return v, {
                "log_f": F.logsigmoid(self._heads(self.gk_proj, x))
                / self.config.gate_logit_normalizer
            }
        if gate == "mamba2":
            step = self._step(self.dt_proj, x)
            return step * v, {"log_a": self._log_decay(step)}
        if gate == "rwkv7":
            erase = self._heads(self.erase_proj, x)
            erase = erase * (erase.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
            return v, {
                "log_f": -math.exp(-0.5) * torch.sigmoid(self._heads(self.f_proj, x)),
                "erase": erase,
                "write": erase * torch.sigmoid(self._heads(self.write_proj, x)),
            }
        rate = torch.sigmoid(self._heads(self.b_proj, x)) * (self.config.beta_max or 1)
        gates = {"rate": rate}
        if gate == "gated_delta":
            gates["log_a"] = self._log_decay(self._step(self.a_proj, x))
        return rate * v, gates

    def _step(self, projection, x):
        """softplus of a projection, [B, H, T, 1]. It may be as small as 0.001 = softplus(-6.9), so
        the bias is added in float32."""
        step = at_least_f32(F.linear(x, projection.weight))
        if projection.bias is not None:
            step = step + projection.bias
        return F.softplus(split_heads(step, self.heads))

    def _log_decay(self, step):
        return -self.A_log.exp()[:, None, None] * step
