# SPDX-License-Identifier: Apache-2.0
"""The recurrence of all linear mixers, one step after the other and in chunks.

Per row i of the state S [dv, m]:  s <- a_i (f * s);  s <- s + (b_i - c (s.k)) k;  h_i = s.q with a
[.., T, dv or 1], f [.., T, m or 1] in (0, 1] given as logarithms (None: 1), b = v [.., T, dv] the
written values and c [.., T, 1] the delta rule's rate (None: 0). q, k [.., T, m]. Returns h [.., T,
dv]; the state starts at zero.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F

CHUNK = 16
# With decays of their own for rows or features, the chunked form divides by products of up to CHUNK
# of them: e^(16 * 5) still fits float32. So such a decay below e^-5 = 0.0067 counts as that when
# training; step_by_step and the engine take it as it is.
LOWEST_LOG_DECAY = -5.0
# Where a head has one decay, nothing is divided, and chunks may be longer.
HEAD_CHUNK = 64


def step_by_step(q, k, v, log_a=None, log_f=None, rate=None, erase=None, write=None):
    """The definition, in T steps. With erase and write [.., T, m] what the state has for `erase`
    before its decay goes, by `write` (RWKV-7)."""
    state = q.new_zeros(*v.shape[:-1][:-1], v.shape[-1], k.shape[-1])
    outputs = []
    for t in range(q.shape[-2]):
        erased = None if erase is None else state @ erase[..., t, :, None]
        if log_a is not None:
            state = state * log_a[..., t, :].exp().unsqueeze(-1)
        if log_f is not None:
            state = state * log_f[..., t, :].exp().unsqueeze(-2)
        added = v[..., t, :]
        if rate is not None:
            added = added - rate[..., t, :] * (state @ k[..., t, :, None]).squeeze(-1)
        state = state + added.unsqueeze(-1) * k[..., t, None, :]
        if erase is not None:
            state = state - erased * write[..., t, None, :]
        outputs.append((state @ q[..., t, :, None]).squeeze(-1))
    return torch.stack(outputs, -2)


def chunked(q, k, v, log_a=None, log_f=None, rate=None, chunk=None, **apart):
    """The same in chunks: matrix products inside a chunk, one state per chunk between them. Decays
    of rows and features are at least e^LOWEST_LOG_DECAY; those of a head are as they are. What is
    erased apart is so step by step."""
    if apart:
        return step_by_step(q, k, v, log_a, log_f, rate, **apart)
    one_decay = log_f is None and log_a is not None and log_a.shape[-1] == 1
    per_head = rate is not None or one_decay
    if rate is not None and not one_decay and (log_a is not None or log_f is not None):
        raise ValueError("a delta rule with decays of rows or features has no chunked form")
    if chunk is None:
        chunk = HEAD_CHUNK if per_head else CHUNK
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
    if per_head:
        return _chunked_by_head(q, k, v, split(log_a), rate)[..., :length, :]
    if log_a is not None:
        log_a = split(log_a.clamp(min=LOWEST_LOG_DECAY)).cumsum(-2)
    if log_f is not None:
        log_f = split(log_f.clamp(min=LOWEST_LOG_DECAY)).cumsum(-2)
        q, k_in = q * log_f.exp(), k * (-log_f).exp()
    else:
        k_in = k
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


def _chunked_by_head(q, k, v, log_a, rate):
    """With one decay a head (None: 1), and the delta rule where there is a rate, on chunks [..,
    chunks, C, n]: Gated DeltaNet's form (Yang et al. 2025, section 3.3), without a rate Mamba-2's
    (Dao and Gu 2024, section 6). Decays are taken between two positions, which cannot overflow."""
    size = k.shape[-2]
    past = torch.ones(size, size, dtype=torch.bool, device=k.device).tril()
    if log_a is None:
        between = past.to(k.dtype)
        since_start = until_end = over_chunk = None
    else:
        # In float64, as the difference of two long sums may be small.
        sums = log_a.double().cumsum(-2)
        difference = (sums - sums.transpose(-1, -2)).to(k.dtype)
        between = difference.masked_fill(~past, float("-inf")).exp()
        since_start = sums.to(k.dtype).exp()
        until_end = between[..., -1, :, None]
        over_chunk = since_start[..., -1:, :]
    with without_autocast(k.device.type):  # a state adds up: in float32 at least
        scores = (q @ k.transpose(-1, -2)) * between
        carried = None
        if rate is not None:
            # What a chunk really writes, u - w S, solves a unit lower triangular system.
            system = (rate * (k @ k.transpose(-1, -2)) * between).tril(-1)
            right = torch.cat((v, rate * _times(k, since_start)), -1)
            solved = torch.linalg.solve_triangular(
                system, right, upper=False, unitriangular=True
            )
            v, carried = solved.split((v.shape[-1], k.shape[-1]), -1)
        return _between_chunks(
            _times(q, since_start), _times(k, until_end), v, carried, scores, over_chunk
        )


def without_autocast(device_type):
    """Products as precise as their operands; the device meta has no autocast to end."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _times(x, factor):
    return x if factor is None else x * factor


def _between_chunks(q, k, v, carried, scores, decay):
    """Takes the state [.., m, dv] from chunk to chunk; returns h [.., T, dv]."""
    # Taken apart at once: see _states_before.
    q, k, v, scores = (x.unbind(-3) for x in (q, k, v, scores))
    carried = None if carried is None else carried.unbind(-3)
    decay = None if decay is None else decay.unbind(-3)
    state, outputs = None, []
    for c in range(len(q)):
        written = v[c]
        if state is not None and carried is not None:
            written = written - carried[c] @ state
        h = scores[c] @ written
        outputs.append(h if state is None else h + q[c] @ state)
        update = k[c].transpose(-1, -2) @ written
        if state is not None:
            update = update + (state if decay is None else state * decay[c])
        state = update
    return torch.cat(outputs, -2)
