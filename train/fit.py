# SPDX-License-Identifier: Apache-2.0
"""The training loop: windows of a token file, Muon and AdamW, warm-up, a constant rate, then a
linear decay to zero.

The rate is a function of the step alone, so a run is reproducible and can be resumed. A file named
`decay-now` in the run's folder starts the decay at once (its text, if any, is the number of steps
it takes): a run can be ended early, properly.
"""

import argparse
import contextlib
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from train.checkpoint import load_tensors
from train.config import read_config
from train.init import new_tensors
from train.model.model import Model
from train.muon import Muon

# KERPLE's r must stay positive.
LOWEST_R = 1e-2


def make_optimizers(model, args):
    """Muon for the hidden matrices; AdamW for the embeddings and everything small."""
    groups = {"muon": [], "matrix": [], "embedding": [], "small": []}
    for name, parameter in model.named_parameters():
        if "embeddings" in name or name == "head":
            groups["embedding"].append(parameter)
        elif parameter.dim() == 2 and ".position." not in name:  # spe's gates, T5's buckets
            groups["muon" if args.optimizer == "muon" else "matrix"].append(parameter)
        else:
            groups["small"].append(parameter)
    adam = [
        {"params": groups["embedding"], "lr": args.lr, "weight_decay": 0.0},
        {"params": groups["small"], "lr": args.lr, "weight_decay": 0.0},
        {"params": groups["matrix"], "lr": args.lr, "weight_decay": 0.1},
    ]
    optimizers = [torch.optim.AdamW([g for g in adam if g["params"]], betas=(0.9, 0.95), eps=1e-10)]
    if groups["muon"]:
        optimizers.append(
            Muon(
                groups["muon"],
                lr=args.muon_lr,
                weight_decay=args.muon_decay,
                dtype=torch.bfloat16 if args.bf16 else torch.float32,
            )
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


class Schedule:
    """The fraction of the peak rate at a step: warm-up, constant, linear decay to 0 at `steps`."""

    def __init__(self, steps, warmup, decay):
        self.steps, self.warmup, self.decay = steps, warmup, decay

    def at(self, step):
        return min((step + 1) / self.warmup, 1.0, max(self.steps - step, 0) / self.decay)

    def decay_now(self, step, length=None):
        """Begins the decay at this step, if it has not begun."""
        if step < self.steps - self.decay:
            self.decay = length or self.decay
            self.steps = step + self.decay


class Windows:
    """Windows of length+1 tokens of a token file, every one once in a random order, then again in
    another."""

    def __init__(self, path, length, seed):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.length, self.seed = length, seed
        self.count = (len(self.tokens) - 1) // length
        self.epoch, self.order = -1, None
        if self.count < 1:
            raise ValueError(f"{path}: fewer than {length + 1} tokens")

    def batch(self, step, size):
        """The step-th batch: ids [size, length + 1]."""
        rows = []
        for i in range(step * size, (step + 1) * size):
            epoch, index = divmod(i, self.count)
            if epoch != self.epoch:
                self.epoch = epoch
                self.order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
            start = int(self.order[index]) * self.length
            rows.append(self.tokens[start : start + self.length + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))


def window_loss(model, ids):
    """Mean negative log-likelihood (nats a token) of ids[:, 1:]."""
    return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())


def save_state(path, step, model, optimizers, schedule):
    temporary = path.with_suffix(".tmp")
    torch.save(
        {
            "step": step,
            "model": model.state_dict(),
            "optimizers": [o.state_dict() for o in optimizers],
            "schedule": vars(schedule),
        },
        temporary,
    )
    temporary.replace(path)


def load_state(path, model, optimizers, schedule):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"]):
        optimizer.load_state_dict(saved)
    vars(schedule).update(state["schedule"])
    return state["step"]


def train_step(model, loss_of, optimizers, ids, parts, fraction):
    """One optimizer step on the batch, in `parts` of equal size; returns the loss."""
    total = 0.0
    for part in ids.chunk(parts):
        loss = loss_of(model, part) / parts
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * fraction
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rsplit(".", 1)[-1] in ("r1", "r2", "r3", "r4"):
                parameter.clamp_(min=LOWEST_R)
    return total


def fit(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    run = Path(args.run)
    run.mkdir(parents=True, exist_ok=True)
    config, raw = read_config(args.config)
    if args.start:
        tensors = load_tensors(args.start)
    else:
        tensors = new_tensors(config, raw.get("shapes", {}), args.seed)
    model = Model(config, tensors)
    optimizers = make_optimizers(model, args)
    schedule = Schedule(args.steps, args.warmup, args.decay)
    windows = Windows(args.data, args.window, args.seed)
    state_file, step = run / "state.pt", 0
    if args.resume and state_file.exists():
        step = load_state(state_file, model, optimizers, schedule)
    loss_of = torch.compile(window_loss) if args.compile else window_loss
    autocast = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {vars(args)}", flush=True)

    started = saved = shown = time.time()
    losses = []
    while step < schedule.steps:
        ids = windows.batch(step, args.batch)
        with autocast:
            losses.append(
                train_step(model, loss_of, optimizers, ids, args.parts, schedule.at(step))
            )
        step += 1
        now = time.time()
        if step % args.log_every == 0 or step == schedule.steps:
            rate = len(losses) * args.batch * args.window / (now - shown)
            print(
                json.dumps(
                    {
                        "step": step,
                        "of": schedule.steps,
                        "decay": schedule.decay,
                        "tokens": step * args.batch * args.window,
                        "loss": round(float(np.mean(losses)), 4),
                        "rate": round(schedule.at(step), 4),
                        "tokens_per_s": round(rate),
                        "seconds": round(now - started),
                    }
                ),
                flush=True,
            )
            losses, shown = [], now
        if (run / "decay-now").exists():
            text = (run / "decay-now").read_text().strip()
            (run / "decay-now").unlink()
            schedule.decay_now(step, int(text) if text else None)
        if now - saved > args.save_seconds:
            save_state(state_file, step, model, optimizers, schedule)
            saved = now
    save_state(state_file, step, model, optimizers, schedule)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--config", required=True, help='config.json with a "shapes" object')
    parser.add_argument("--start", help="checkpoint to begin with in the place of random tensors")
    parser.add_argument("--data", required=True, help="token file (uint16)")
    parser.add_argument("--run", required=True, help="folder of the run's state")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--decay", type=int, default=500, help="steps of the decay at the end")
    parser.add_argument("--batch", type=int, default=24, help="windows a step")
    parser.add_argument("--parts", type=int, default=1, help="parts a batch is computed in")
    parser.add_argument("--window", type=int, default=256, help="tokens of a window")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--lr", type=float, default=3e-3, help="AdamW's peak rate")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--muon-decay", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--save-seconds", type=float, default=300)
    fit(parser.parse_args())


if __name__ == "__main__":
    main()
