# SPDX-License-Identifier: Apache-2.0
"""The recurrence of all linear mixers, one step after the other and in chunks.

Per row i of the state S [dv, m]:  s <- a_i (f * s);  s <- s + (b_i - c (s.k)) k;  h_i = s.q with a
[.., T, dv or 1], f [.., T, m or 1] in (0, 1] given as logarithms (None: 1), b = v [.., T, dv] the
written values and c [.., T, 1] the delta rule's rate (None: 0). q, k [.., T, m]. Returns h [.., T,
dv]; the state starts at zero.
"""

import torch
import torch.nn.functional as F

CHUNK = 16
# The chunked form divides by products of up to CHUNK decays: e^(16 * 5) still fits float32. So a
# decay below e^-5 = 0.0067 counts as that when training; step_by_step and the engine take it as it
# is.
LOWEST_LOG_DECAY = -5.0


def step_by_step(q, k, v, log_a=None, log_f=None, rate=None):
    """The definition, in T steps."""
    state = q.new_zeros(*v.shape[:-1][:-1], v.shape[-1], k.shape[-1])
    outputs = []
    for t in range(q.shape[-2]):
        if log_a is not None:
            state = state * log_a[..., t, :].exp().unsqueeze(-1)
        if log_f is not None:
            state = state * log_f[..., t, :].exp().unsqueeze(-2)
        write = v[..., t, :]
        if rate is not None:
            write = write - rate[..., t, :] * (state @ k[..., t, :, None]).squeeze(-1)
        state = state + write.unsqueeze(-1) * k[..., t, None, :]
        outputs.append((state @ q[..., t, :, None]).squeeze(-1))
    return torch.stack(outputs, -2)


def chunked(q, k, v, log_a=None, log_f=None, rate=None, chunk=CHUNK):
    """The same in chunks: matrix products inside a chunk, one state per chunk between them. Decays
    are at least e^LOWEST_LOG_DECAY."""
    if log_a is not None and log_f is not None:  # one product of both bounds the sums
        chunk = max(chunk // 2, 1)
    length = q.shape[-2]
    pad = -length % chunk

    def split(x):
        if x is None:
            return None
        x = F.pad(x, (0, 0, 0, pad)) if pad else x
        return x.unflatten(-2, (-1, chunk))

    q, k, v, rate = split(q), split(k), split(v), split(rate)
    if log_a is not None:
        log_a = split(log_a.clamp(min=LOWEST_LOG_DECAY)).cumsum(-2)
    if log_f is not None:
        log_f = split(log_f.clamp(min=LOWEST_LOG_DECAY)).cumsum(-2)
        q, k_in = q * log_f.exp(), k * (-log_f).exp()
    else:
        k_in = k
    if rate is not None:
        return _chunked_delta(q, k, v, rate, length)
    scores = (q @ k_in.transpose(-1, -2)).tril()
    v_in = v if log_a is None else v * (-log_a).exp()
    h = scores @ v_in
    states = _states_before(v_in, k_in, log_a, log_f)
    h = h + q @ states.transpose(-1, -2)
    if log_a is not None:
        h = h * log_a.exp()
    return h.flatten(-3, -2)[..., :length, :]


def finished_chunks(q, k, v, size):
    """FLASH's linear part (Hua et al. 2022): h_t = (1/C) sum of v_s (k_s.q_t) over the s of finished
    chunks of C positions, those before t's own."""
    length = q.shape[-2]

    def split(x):
        return F.pad(x, (0, 0, 0, -length % size)).unflatten(-2, (-1, size))

    q, k, v = split(q), split(k), split(v)
    updates = v.transpose(-1, -2) @ k / size
    states = F.pad(updates.cumsum(-3)[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    return (q @ states.transpose(-1, -2)).flatten(-3, -2)[..., :length, :]


def _states_before(v, k, log_a, log_f):
    """The state before every chunk, [.., chunks, dv, m]."""
    # Taken apart at once: the gradient of an index per chunk would be a whole tensor of zeros each
    # time.
    updates = (v.transpose(-1, -2) @ k).unbind(-3)
    count = len(updates)
    decays = []
    if log_a is not None:
        decays.append(log_a[..., -1, :].exp().unsqueeze(-1).unbind(-3))
    if log_f is not None:
        decays.append(log_f[..., -1, :].exp().unsqueeze(-2).unbind(-3))
    states = [torch.zeros_like(updates[0])]
    for c in range(count - 1):
        state = states[-1] + updates[c] if c else updates[0]
        for decay in decays:
            state = state * decay[c]
        states.append(state)
    return torch.stack(states, -3)


def _chunked_delta(q, k, v, rate, length):
    """The delta rule: the values a chunk really writes solve a unit lower triangular system."""
    system = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device) + (
        rate * (k @ k.transpose(-1, -2))
    ).tril(-1)
    scores = (q @ k.transpose(-1, -2)).tril()
    state = k.new_zeros(*v.shape[:-3], v.shape[-1], k.shape[-1])
    outputs = []
    for c in range(k.shape[-3]):
        q_c, k_c = q[..., c, :, :], k[..., c, :, :]
        right = v[..., c, :, :] - rate[..., c, :, :] * (k_c @ state.transpose(-1, -2))
        written = torch.linalg.solve_triangular(
            system[..., c, :, :], right, upper=False, unitriangular=True
        )
        outputs.append(q_c @ state.transpose(-1, -2) + scores[..., c, :, :] @ written)
        state = state + written.transpose(-1, -2) @ k_c
    return torch.cat(outputs, -2)[..., :length, :]
