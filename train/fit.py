# SPDX-License-Identifier: Apache-2.0
"""The training loop: windows of a token file, Muon and AdamW, a schedule of the rate.

The rate is a function of the step alone, so a run is reproducible and can be resumed. A file named
`decay-now` in the run's folder starts a linear decay to 0 at once (its text, if any, is the number
of steps it takes): a run can be ended early, properly. With `--seconds` the run plans its end anew
at every line of the log, by the pace since the line before.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import train
from train.checkpoint import load_tensors, read_state
from train.config import of_file, read_config
from train.files import read_object, read_text, told, words
from train.finite import NotFinite, explain
from train.init import new_tensors, read_init, read_shapes
from train.model.model import Model
from train.muon import Muon
from train.parameters import (
    KERPLE_R,
    factors_of,
    fixed_by_papers,
    freeze,
    keep_in_range,
    read_rates,
    tie,
)
from train.schedule import SCHEDULES, Schedule
from train.windows import Windows, check_tokens


# Parts whose tensors with two dimensions are no matrices: spe's gates, T5's buckets; taps.
NO_MATRICES = (".position.", ".conv.")


def kind_of(name, parameter, optimizer):
    """Which of the optimizers' groups a parameter is in."""
    if "embeddings" in name or name == "head":
        return "embedding"
    if parameter.dim() == 2 and not any(part in name for part in NO_MATRICES):
        return "muon" if optimizer == "muon" else "matrix"
    return "small"


def make_optimizers(model, args, rates=None):
    """Muon for the hidden matrices; AdamW for the embeddings and everything small. rates: factors of
    the rate by regular expressions (parameters.py)."""
    decay = {"embedding": 0.0, "small": 0.0, "matrix": args.weight_decay, "muon": args.muon_decay}
    groups, factors = {}, factors_of(model, rates or {})
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = kind_of(name, parameter, args.optimizer), factors[name]
            groups.setdefault(key, []).append(parameter)

    def made(*kinds):
        return [
            {
                "params": parameters,
                "lr": factor * (args.muon_lr if kind == "muon" else args.lr),
                "weight_decay": decay[kind],
            }
            for wanted in kinds
            for (kind, factor), parameters in groups.items()
            if kind == wanted
        ]

    adam, muon = made("embedding", "small", "matrix"), made("muon")
    optimizers = [torch.optim.AdamW(adam, betas=tuple(args.betas), eps=1e-10)] if adam else []
    if muon:
        dtype = torch.bfloat16 if args.bf16 else torch.float32
        optimizers.append(Muon(muon, lr=args.muon_lr, dtype=dtype))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


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
    """Puts a saved state into the model and the optimizers, whose rates stay as they are. The schedule
    becomes the saved one; where that had other --steps, the given one goes on from it. Returns the
    steps that are done, and what is to be said."""
    state = read_state(path, model.embeddings.device)
    try:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            given = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            for group, flags in zip(optimizer.param_groups, given):
                group.update(flags)
    except (RuntimeError, ValueError, KeyError) as error:
        said = words(error)[:200]
        raise ValueError(f"{path}: expected a run of this --config and --optimizer, got: {said}") from None
    return state["step"], schedule.resume(state["step"], state["schedule"])


def check_compiled(model, loss_of, parts):
    """Compiled code may be wrong: that of PyTorch 2.11 for CPUs has given bfloat16 gradients a
    thousand times too large."""
    for ids in parts:
        norms = []
        for function in (window_loss, loss_of):
            function(model, ids).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norms.append(float(nn.utils.get_total_norm(gradients)))
            model.zero_grad(set_to_none=True)
        plain, compiled = norms
        if np.isfinite(plain) and not plain / 2 <= compiled <= plain * 2:
            raise ValueError(f"--compile: a gradient of norm {compiled:.4g}, without it {plain:.4g}")


def train_step(model, loss_of, optimizers, ids, args, step, fraction):
    """One optimizer step on the batch, in parts of equal size; returns the loss and the norm of the
    gradient before it is clipped, as tensors. With `--check step` raises NotFinite before a tensor
    has changed."""
    losses = []
    for part in ids.chunk(args.parts):
        loss = loss_of(model, part) / args.parts
        loss.backward()
        losses.append(loss.detach())
    total = torch.stack(losses).double().sum()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norm = nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
    if args.check == "step" and not (total.isfinite() and norm.isfinite()):
        raise NotFinite(explain(model, ids[:, :-1], step, float(total)))
    if args.clip:
        nn.utils.clip_grads_with_norm_(trained, args.clip, norm)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * fraction
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    keep_in_range(model)
    return total, norm


def build(args, seed):
    """The run's model, on its device, with what it does not train frozen and what it shares tied."""
    config, raw = read_config(args.config)
    with of_file(args.config):
        init, shapes = read_init(raw), read_shapes(raw)
    if args.start:
        tensors = load_tensors(args.start)
    else:
        tensors = new_tensors(config, shapes, seed, init)
    model = Model(config, {name: tensor.to(args.device) for name, tensor in tensors.items()})
    if args.tie != "":
        given = args.tie is not None
        tie(model, args.tie if given else KERPLE_R, required=given, equal=args.start is not None)
    freeze(model, fixed_by_papers(config, init.learned_theta), args.freeze)
    model.set_dropout(args.dropout)
    return model


class Log:
    """A line of JSON every `every` steps: means over them, and what the run has come to."""

    def __init__(self, args):
        self.args = args
        self.started = self.shown = time.monotonic()
        self.losses, self.norms = [], []
        self.pace = None  # steps a second, between the last two lines

    def add(self, step, loss, norm, schedule):
        """After the step-th step, with two tensors. Returns whether this wrote a line; only then a
        device is waited for. Raises NotFinite where one of these steps had no finite numbers."""
        self.losses.append(loss)
        self.norms.append(norm)
        if step % self.args.log_every and step != schedule.steps:
            return False
        losses, norms = torch.stack(self.losses).tolist(), torch.stack(self.norms).tolist()
        for at, numbers in enumerate(zip(losses, norms), step - len(losses) + 1):
            if not np.isfinite(numbers).all():
                raise NotFinite("step {}: loss {}, norm of the gradient {}".format(at, *numbers))
        now, tokens = time.monotonic(), self.args.batch * self.args.window
        self.pace = len(losses) / max(now - self.shown, 1e-9)
        line = {
            "step": step,
            "of": schedule.steps,
            "decay": schedule.decay,
            "tokens": step * tokens,
            "loss": round(float(np.mean(losses)), 4),
            "grad_norm": float(f"{np.mean(norms):.4g}"),
            "rate": round(schedule.at(step), 4),
            "tokens_per_s": round(self.pace * tokens),
            "seconds": round(now - self.started),
        }
        print(json.dumps(line), flush=True)
        self.losses, self.norms, self.shown = [], [], now
        return True


def ended_early(run):
    """Whether the run's decay shall begin, and the steps that it takes (None: as planned)."""
    file = run / "decay-now"
    if not file.is_file():
        return False, None
    try:
        length = int(read_text(file).strip() or 0)
        if length < 0:
            raise ValueError
    except ValueError:  # hours of training are worth more than a slip
        say(f"{file}: expected a number of steps, got another thing: the run goes on as planned")
        return False, None
    finally:
        file.unlink()
    return True, length or None


def say(text):
    """A line of the log that is none of its figures."""
    print(f"# {text}", flush=True)


def prepare(args, seed, run):
    """A run's model, optimizers and schedule, and the steps that are done."""
    model = build(args, seed)
    with of_file(args.config):
        optimizers = make_optimizers(model, args, read_rates(read_object(args.config)))
    decay = round(args.steps * args.decay_share) if args.seconds else args.decay
    schedule = Schedule(args.steps, args.warmup, decay, args.schedule)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {vars(args)}", flush=True)
    state_file, step = run / "state.pt", 0
    if state_file.exists() and args.resume:
        step, said = load_state(state_file, model, optimizers, schedule)
        say(f"{state_file}: {said}")
    elif state_file.exists():
        say(f"{state_file}: there is a run; this one begins anew, in its place (not so with --resume)")
    return model, optimizers, schedule, step


def compile_loss(args, model, parts, kind):
    """window_loss, compiled where that works."""
    say("compiles (torch.compile): the first step comes in a minute or so; later ones are faster")
    started = time.monotonic()
    try:
        loss_of = torch.compile(window_loss)
        with torch.autocast(kind, torch.bfloat16, enabled=args.bf16):
            check_compiled(model, loss_of, parts)
    except RuntimeError as error:  # as without g++ or Python.h
        model.zero_grad(set_to_none=True)
        say(f"trains without --compile, which failed: {words(error)[:300]}")
        return window_loss
    say(f"compiled in {time.monotonic() - started:.0f} s")
    return loss_of


def fit_seed(args, seed, run):
    """One run, in its folder."""
    torch.manual_seed(seed)
    run.mkdir(parents=True, exist_ok=True)
    windows = Windows(args.data, args.window, seed, args.device)
    model, optimizers, schedule, step = prepare(args, seed, run)
    if step >= schedule.steps:
        return
    state_file, kind, loss_of = run / "state.pt", torch.device(args.device).type, window_loss
    log, saved = Log(args), time.monotonic()
    if args.compile:
        parts = [windows.batch(step + i, args.batch).chunk(args.parts)[0] for i in range(2)]
        loss_of = compile_loss(args, model, parts, kind)
    while step < schedule.steps:
        if args.dropout:
            torch.manual_seed(seed * 2**32 + step)  # so that an interrupted run goes on the same
        ids = windows.batch(step, args.batch)
        with torch.autocast(kind, torch.bfloat16, enabled=args.bf16):
            loss, norm = train_step(
                model, loss_of, optimizers, ids, args, step + 1, schedule.at(step)
            )
        step += 1
        line = log.add(step, loss, norm, schedule)
        if line and args.seconds:
            left = train.STARTED + args.seconds - time.monotonic()
            schedule.replan(step, int(log.pace * left), args.decay_share)
        ended, length = ended_early(run)
        if ended:
            schedule.decay_now(step, length)
        checked = line or args.check == "step"
        if checked and time.monotonic() - saved > args.save_seconds:
            save_state(state_file, step, model, optimizers, schedule)
            saved = time.monotonic()
    save_state(state_file, step, model, optimizers, schedule)


def fit(args):
    torch.set_num_threads(args.threads)
    if args.check is None:
        args.check = "step" if torch.device(args.device).type == "cpu" else "line"
    if args.seconds and (args.schedule != "wsd" or args.decay is not None or len(args.seed) > 1):
        raise ValueError("--seconds: expected --schedule wsd, one seed and no --decay")
    for flag in ("steps", "batch", "parts", "window", "threads", "log_every"):
        if getattr(args, flag) < 1:
            raise ValueError(f"--{flag.replace('_', '-')}: expected 1 or more, got {getattr(args, flag)}")
    if said := check_tokens(args.data, read_config(args.config)[0].vocab_size, args.config):
        say(said)
    for seed in args.seed:
        run = Path(args.run)
        fit_seed(args, seed, run if len(args.seed) == 1 else run / f"seed{seed}")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="train.fit",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--config", required=True, help='config.json with a "shapes" object, as presets are')
    add("--start", help="checkpoint to begin with in the place of random tensors")
    add("--data", required=True, help="token file (uint16), of the tokenizer.json beside it")
    add("--run", required=True, help="folder of the run's state")
    add("--steps", type=int, required=True, help="with --seconds: at most")
    add("--seconds", type=float, help="the run ends so long after the program's start")
    add("--schedule", choices=SCHEDULES, default="wsd", help="wsd: constant, then a decay")
    add("--warmup", type=int, default=50)
    add("--decay", type=int, help="steps of wsd's decay at the end (500)")
    add("--decay-share", type=float, default=0.4, help="with --seconds: decay's share of the steps")
    add("--batch", type=int, default=24, help="windows a step")
    add("--parts", type=int, default=1, help="parts a batch is computed in")
    add("--window", type=int, default=256, help="tokens of a window")
    add("--optimizer", choices=("muon", "adamw"), default="muon")
    add("--lr", type=float, default=3e-3, help="AdamW's peak rate")
    add("--betas", type=float, nargs=2, default=(0.9, 0.95), help="AdamW's")
    add("--weight-decay", type=float, default=0.1, help="AdamW's, of matrices")
    add("--muon-lr", type=float, default=0.02)
    add("--muon-decay", type=float, default=0.02)
    add("--clip", type=float, default=1.0, help="most norm of the gradient; 0: not clipped")
    add("--dropout", type=float, default=0.0, help="of embeddings and of what each branch adds")
    add("--freeze", metavar="REGEX", help="tensors not to train, beside those that papers fix")
    add(
        "--tie",
        metavar="REGEX",
        help=f"tensors to be the same in all layers; '': none (KERPLE's: {KERPLE_R})",
    )
    add("--seed", type=int, nargs="+", default=[0], help="several: a run each, in RUN/seedN")
    add("--device", default="cpu", help="cpu, cuda or cuda:N")
    add(
        "--check",
        choices=("step", "line"),
        help="when to read loss and gradient, which waits for a GPU: each step, before it changes "
        "the model (a CPU's default), or with each line of the log (a GPU's)",
    )
    add("--threads", type=int, default=2)
    add("--bf16", action="store_true", help="bfloat16 autocast")
    add("--compile", action="store_true")
    add(
        "--resume",
        action="store_true",
        help="go on from the state in RUN. With other --steps than before the rate goes to that of a "
        "run of so many steps; where that is higher, it rises as in the warm-up",
    )
    add("--log-every", type=int, default=20)
    add("--save-seconds", type=float, default=300)
    return parser.parse_args(arguments)


def main():
    with told("train.fit", NotFinite):
        fit(parse_arguments())


if __name__ == "__main__":
    main()
