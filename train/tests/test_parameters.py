# SPDX-License-Identifier: Apache-2.0
"""What a run trains, first values, and the flags of fit.py that say so."""

import copy
import json
import math

import pytest
import torch

from train.checkpoint import save_model
from train.config import parse_config, shipped
from train.finite import NotFinite
from train.fit import fit, make_optimizers, parse_arguments
from train.init import Init, new_tensors, read_init
from train.model.layers import Norm, Tensors
from train.model.linear_mixer import LinearMixer
from train.model.model import Model
from train.parameters import keep_in_range
from train.schedule import Schedule


@pytest.fixture
def run(tmp_path, raw_config):
    """run(config, *flags): trains 10 steps on random tokens; the tensors after them."""
    ids = torch.randint(0, 300, (2000,), generator=torch.Generator().manual_seed(0))
    ids.numpy().astype("uint16").tofile(tmp_path / "train.u16")

    def run_it(raw, *flags):
        (tmp_path / "config.json").write_text(json.dumps(raw))
        fit(
            parse_arguments(
                [
                    *("--config", str(tmp_path / "config.json"), "--threads=1", "--log-every=1"),
                    *("--data", str(tmp_path / "train.u16"), "--run", str(tmp_path / "run")),
                    *("--steps=10", "--warmup=2", "--batch=2", "--window=32", *flags),
                ]
            )
        )
        state = tmp_path / "run" / "state.pt"
        return torch.load(state)["model"] if state.exists() else None

    return run_it


def lines(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def kerple(raw, kind):
    raw = copy.deepcopy(raw)
    raw["mixers"]["b"]["position"]["type"] = kind
    raw["layer_types"] = ["b", "b"]
    return raw


def r_of(tensors, layer, r):
    return tensors[f"layers.{layer}.attn.position.{r}"]


def test_kerple_is_one_for_all_layers_unless_it_is_not_tied(run, raw_config):
    raw = kerple(raw_config, "kerple_log")
    tied = run(raw)
    assert torch.equal(r_of(tied, 0, "r1"), r_of(tied, 1, "r1"))
    free = run(raw, "--tie", "")
    assert not torch.equal(r_of(free, 0, "r1"), r_of(free, 1, "r1"))


def test_tie_takes_any_tensors(run, raw_config):
    raw = kerple(raw_config, "kerple_log")
    tied = run(raw, "--tie", r"attn\.q_proj\.weight")
    assert torch.equal(tied["layers.0.attn.q_proj.weight"], tied["layers.1.attn.q_proj.weight"])
    assert not torch.equal(r_of(tied, 0, "r1"), r_of(tied, 1, "r1"))
    with pytest.raises(ValueError, match="--tie nothing: expected tensors of several layers"):
        run(raw, "--tie", "nothing")


def test_tie_refuses_a_checkpoint_whose_layers_differ(run, raw_config, tmp_path):
    raw = kerple(raw_config, "kerple_log")
    config = parse_config(shipped(raw))
    tensors = new_tensors(config, raw["shapes"])
    tensors["model.layers.1.attn.position.r2"] += 0.5
    save_model(tmp_path / "start", Model(config, tensors), shipped(raw), "f32")
    with pytest.raises(ValueError, match=r"layers\.1\.attn\.position\.r2 differs from"):
        run(raw, "--start", str(tmp_path / "start"))
    run(raw, "--start", str(tmp_path / "start"), "--tie", "")


def test_freeze(run, raw_config):
    before = new_tensors(
        parse_config(shipped(raw_config)), raw_config["shapes"], 0, read_init(raw_config)
    )
    after = run(raw_config, "--freeze", r"mlp\.|embeddings")
    assert torch.equal(after["embeddings"], before["model.embeddings.weight"])
    name = "layers.1.mlp.up_proj.weight"
    assert torch.equal(after[name], before[f"model.{name}"])
    name = "layers.1.attn.q_proj.weight"
    assert not torch.equal(after[name], before[f"model.{name}"])
    with pytest.raises(ValueError, match="--freeze q_prod: expected a tensor of that name"):
        run(raw_config, "--freeze", "q_prod")


@pytest.mark.parametrize("kind", ("lrpe_unitary", "lrpe_orthogonal"))
def test_learned_angles_begin_as_the_default_ones(run, raw_config, kind):
    for mixer in raw_config["mixers"].values():
        mixer["position"] = {"type": kind}
    config = parse_config(shipped(raw_config))
    default = Model(config, new_tensors(config, raw_config["shapes"]))
    learned = Model(
        config, new_tensors(config, raw_config["shapes"], init=Init(learned_theta=True))
    )
    ids = torch.arange(40)[None]
    assert torch.allclose(default(ids), learned(ids), atol=1e-4)
    first = learned.layers[0].attn.position.lrpe.theta.detach()
    name = "layers.0.attn.position.lrpe.theta"
    assert name not in run(raw_config)
    assert not torch.equal(run({**raw_config, "init": {"learned_theta": True}})[name], first)


KERPLE = {  # the most that each r may begin with; exponents
    "kerple_log": ({"r1": 2, "r2": 1}, ()),
    "kerple_power": ({"r1": 1, "r2": 2}, ("r2",)),
    "kerple_3para_log": ({"r1": 2, "r2": 1, "r3": 2}, ("r3",)),
    "kerple_bias_wht": ({"r1": 1, "r2": 2, "r3": 1, "r4": 2}, ("r2", "r4")),
}


@pytest.mark.parametrize("kind", KERPLE)
def test_kerple_begins_and_stays_in_its_ranges(raw_config, kind):
    raw = kerple(raw_config, kind)
    ranges, exponents = KERPLE[kind]
    raw.update(num_attention_heads=200, hidden_size=400)
    config = parse_config(shipped(raw))
    model = Model(config, new_tensors(config, {"head_dim": 2, "value_dim": 2}))
    position = model.layers[1].attn.position
    for r, most in ranges.items():
        value = getattr(position, r)
        assert 0.01 <= value.min() < 0.1 * most and 0.9 * most < value.max() <= most
        value.data[0], value.data[1] = 3, -1
    keep_in_range(model)
    for r in ranges:
        value = getattr(position, r)
        assert value[0] == (2 if r in exponents else 3) and value[1] == torch.tensor(0.01)


def test_init_says_other_first_values(raw_config):
    raw = {**raw_config, "init": {"kerple": {"r1": [1, 2]}, "gate_bias": [-6, 6]}}
    tensors = new_tensors(parse_config(shipped(raw)), raw["shapes"], 0, read_init(raw))
    assert tensors["model.layers.1.attn.position.r1"].tolist() == [1, 2]
    bias = tensors["model.layers.0.attn.g_proj.bias"]
    assert torch.equal(bias, torch.linspace(-6, 6, 8).repeat(2))
    for wrong in ({"gate": 1}, {"kerple": {"r5": [1, 2]}}):
        with pytest.raises(ValueError, match="init.*unknown key"):
            read_init({"init": wrong})


def test_products_of_fast_decay_may_begin_where_reglas_gate_does(raw_config):
    def first_gates(gate, **init):
        raw_config["mixers"]["a"] = {"kind": "linear", "gate": gate, "output_norm": "rmsnorm"}
        raw = {**raw_config, "init": init}
        tensors = new_tensors(parse_config(shipped(raw)), {"head_dim": 6, "value_dim": 8}, 0,
                              read_init(raw))
        return [tensors[f"model.layers.0.attn.{name}_proj.bias"].double().sigmoid().view(2, -1)
                for name in (("g", "r") if gate == "refined" else ("z", "f"))]

    g, r = first_gates("refined")
    assert (r == 0.5).all()  # F = g
    z, f = first_gates("fast_decay", gate_product=True)
    assert torch.allclose(z[:, :, None] * f[:, None], g[:, :, None].expand(2, 8, 6), atol=1e-6)
    assert z.max() < 0.995 and 0.99 < f.max() < 0.995  # both can learn
    z, f = first_gates("fast_decay")
    assert torch.equal(z, g) and f.min() == g.min() and f.max() == g.max()


def test_rates_are_of_the_tensors_that_they_name(run, raw_config):
    """The first AdamW step is as long as the rate, whatever the gradient."""
    def moved(rates, *flags):
        raw = {**raw_config, "rates": rates}
        before = new_tensors(parse_config(shipped(raw)), raw["shapes"])
        after = run(raw, "--steps=1", "--warmup=1", "--decay=0", "--optimizer=adamw", "--lr=1e-3",
                    "--weight-decay=0", *flags)
        return {name: float((tensor - before[f"model.{name}"]).abs().max())
                for name, tensor in after.items() if f"model.{name}" in before}

    plain, faster = moved({}), moved({r"\.position\.": 10, "g_proj": 0.5})
    for name, distance in faster.items():
        factor = 10 if ".position." in name else 0.5 if "g_proj" in name else 1
        assert distance == pytest.approx(factor * plain[name], rel=1e-3), name
    assert any(".position." in name for name in faster) and any("g_proj" in name for name in faster)


@pytest.mark.parametrize("rates, said", [
    ({"nothing": 2}, "rates.nothing: expected a trained tensor, found none"),
    ({r"\.position\.": 2, r"\.r1$": 3}, r"rates: expected one for .*\.position\.r1, got"),
    ({"(": 2}, "rates.\\(: expected a regular expression, got"),
    ({"a": 0}, "rates.a: expected more than 0, at most 1000, got 0"),
    ({"a": 1e9}, "rates.a: expected more than 0"), ({"a": True}, "rates.a: expected more than 0"),
    ({"a": "2"}, "rates.a: expected more than 0"), ([1], "rates: expected an object")])
def test_rates_that_cannot_be(run, raw_config, rates, said):
    with pytest.raises(ValueError, match=said):
        run({**raw_config, "rates": rates})


def test_both_optimizers_have_rates(raw_config):
    config = parse_config(shipped(raw_config))
    model = Model(config, new_tensors(config, raw_config["shapes"]))
    args = parse_arguments(["--config=c", "--data=d", "--run=r", "--steps=1"])
    adam, muon = make_optimizers(model, args, {"mlp": 3})
    assert [group["peak_lr"] for group in muon.param_groups] == [args.muon_lr, 3 * args.muon_lr]
    assert {group["peak_lr"] for group in adam.param_groups} == {args.lr, 3 * args.lr}


def test_rows_of_performers_matrix_are_orthogonal(raw_config):
    raw_config["mixers"]["a"] = {"kind": "linear", "feature_map": "favor"}
    config = parse_config(shipped(raw_config))
    weight = new_tensors(config, {"head_dim": 8, "value_dim": 8, "features": 20})
    weight = weight["model.layers.0.attn.features.weight"].double()
    assert weight.shape == (2, 20, 8)
    for block in (weight[:, :8], weight[:, 8:16], weight[:, 16:]):
        gram = block @ block.transpose(-1, -2)
        lengths = gram.diagonal(dim1=-2, dim2=-1)
        assert (gram - torch.diag_embed(lengths)).abs().max() < 1e-5
        assert lengths.std() > 0.5  # not all the same: those of Gaussian vectors


def test_permuteformer_is_as_its_authors_compute_it(raw_config):
    """Chen 2021, as LRPE's authors released it: features permuted t times, r^t and r^-t on q and k,
    r_h = sigma(2 + 3h/H), weights divided by their sum."""
    raw_config["mixers"]["a"] = {
        "kind": "linear",
        "feature_map": "elu+1",
        "gate": "scalar",
        "sum_norm": True,
        "position": {"type": "lrpe_permutation"},
    }
    raw_config["layer_types"] = ["a", "a"]
    config = parse_config(shipped(raw_config))
    tensors = new_tensors(config, raw_config["shapes"])
    part = {
        name.removeprefix("model.layers.0.attn."): tensor.double()
        if tensor.is_floating_point()
        else tensor
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.attn.")
    }
    mixer = LinearMixer(config.mixers["a"], config, Tensors(part))
    x = torch.randn((1, 30, 16), generator=torch.Generator().manual_seed(1)).double()
    q, k, v = (
        (x @ part[f"{name}_proj.weight"].T).unflatten(-1, (2, 8)).transpose(1, 2)
        for name in ("q", "k", "v")
    )
    powers = [torch.arange(8)]
    for _ in range(29):
        powers.append(part["position.permutation"].long()[powers[-1]])
    powers = torch.stack(powers).expand(1, 2, 30, 8)
    q, k = (torch.nn.functional.elu(z.gather(-1, powers)) + 1 for z in (q, k))
    decay = torch.sigmoid(2 + 3 * torch.arange(2).double() / 2)[:, None, None]
    times = torch.arange(30).double()[:, None]
    weights = ((q * decay**times) @ (k * decay**-times).transpose(-1, -2)).tril()
    h = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6) @ v
    want = h.transpose(1, 2).flatten(-2) @ part["o_proj.weight"].T
    assert torch.allclose(mixer(x), want, rtol=1e-9, atol=1e-12)


def test_the_variance_factor_has_an_effect_with_a_larger_epsilon(raw_config):
    """ReGLA's section 3.1: what model-format.md says of query_scale and output_norm_eps."""

    def differ(eps):
        got = []
        for scale in ("none", "exp_variance"):
            raw_config["mixers"]["a"].update(query_scale=scale, output_norm_eps=eps)
            config = parse_config(shipped(raw_config))
            tensors = new_tensors(config, raw_config["shapes"])
            model = Model(config, {name: tensor.double() for name, tensor in tensors.items()})
            with torch.no_grad():
                got.append(model(torch.arange(60)[None]).log_softmax(-1))
        return float((got[0] - got[1]).abs().max())

    assert differ(1e-10) < 1e-4 and differ(1e-5) > 50 * differ(1e-10)


def test_simple_rmsnorm_has_a_gradient_at_zero():
    norm = Norm("simple_rmsnorm", 4, 1e-3, Tensors({}))
    x = torch.tensor([[0.0, 0, 0, 0], [1, -2, 3, 4]], dtype=torch.float64, requires_grad=True)
    y = norm(x)
    assert torch.allclose(y[1], x[1] / (x[1].square().mean().sqrt() + 1e-3)) and not y[0].any()
    y.sum().backward()
    assert torch.equal(x.grad[0], torch.full((4,), 1e3, dtype=torch.float64))


def test_a_gradient_that_is_not_finite_stops_the_run(run, raw_config, monkeypatch, tmp_path):
    """TransNormer T1 with the root whose gradient at zero is infinite, as it was."""
    raw_config["norm_type"] = "simple_rmsnorm"
    raw_config["mixers"]["b"] = {
        "kind": "softmax",
        "activation": "relu",
        "window": "block",
        "window_size": 4,
        "output_norm": "simple_rmsnorm",
    }
    raw_config["layer_types"] = ["a", "b"]
    assert run(raw_config) is not None
    (tmp_path / "run" / "state.pt").unlink()

    def rooted(self, x):
        return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)

    monkeypatch.setattr(Norm, "forward", rooted)
    with pytest.raises(
        NotFinite, match=r"^step 1: loss 5.*: the gradient of model\.layers\.1\.attn\."
    ):
        run(raw_config)
    assert not (tmp_path / "run" / "state.pt").exists()


def test_an_output_that_is_not_finite_stops_the_run(run, raw_config, monkeypatch):
    original = LinearMixer.output
    monkeypatch.setattr(LinearMixer, "output", lambda self, h, x: original(self, h, x) * math.inf)
    with pytest.raises(
        NotFinite, match=r"^step 1: loss nan: the output of model\.layers\.0\.attn is not finite$"
    ):
        run(raw_config)


def test_schedules():
    cosine = Schedule(steps=110, warmup=10, kind="cosine")
    assert [round(cosine.at(s), 6) for s in (0, 9, 59, 109)] == [0.1, 1, 0.5, 0]
    root = Schedule(steps=100, warmup=4, kind="inverse_sqrt")
    assert [root.at(s) for s in (0, 3, 15, 63)] == [0.25, 1, 0.5, 0.25]
    root.decay_now(15, 10)
    assert (root.steps, root.at(15), root.at(20)) == (25, 0.5, 0.5 * (4 / 21) ** 0.5 / 0.5 * 0.5)
    with pytest.raises(ValueError, match="--decay: only with --schedule wsd"):
        Schedule(steps=10, warmup=1, decay=5, kind="cosine")


def test_flags_change_the_run(run, raw_config, capsys):
    def losses(*flags):
        decay = () if "--schedule" in str(flags) else ("--decay=5",)
        run(raw_config, "--optimizer=adamw", *decay, *flags)
        return [line["loss"] for line in lines(capsys.readouterr().out)]

    plain = losses()
    assert losses() == plain
    for flags in (
        ("--betas", "0.5", "0.9"),
        ("--weight-decay=10",),
        ("--clip=0.01",),
        ("--dropout=0.5",),
        ("--schedule=cosine",),
        ("--schedule=inverse_sqrt",),
        ("--seed=1",),
    ):
        assert losses(*flags) != plain, flags


def test_the_log_has_the_norm_of_the_gradient_before_it_is_clipped(run, raw_config, capsys):
    run(raw_config, "--clip=0.001")
    clipped = lines(capsys.readouterr().out)
    run(raw_config, "--clip=0")
    free = lines(capsys.readouterr().out)
    assert clipped[0]["grad_norm"] == free[0]["grad_norm"] > 0.1


def test_dropout_goes_on_as_it_was_when_the_run_was_interrupted(run, raw_config, capsys, tmp_path):
    whole = run(raw_config, "--dropout=0.2", "--decay=5")
    (tmp_path / "run" / "state.pt").unlink()
    run(raw_config, "--dropout=0.2", "--decay=5", "--save-seconds=0", "--log-every=100")
    interrupted = torch.load(tmp_path / "run" / "state.pt")
    assert interrupted["step"] == 10
    for name, tensor in whole.items():
        assert torch.equal(tensor, interrupted["model"][name])


def test_several_seeds_are_runs_of_their_own(run, raw_config, tmp_path):
    run(raw_config, "--seed", "3", "4")
    both = [torch.load(tmp_path / "run" / f"seed{seed}" / "state.pt")["model"] for seed in (3, 4)]
    one = run(raw_config, "--seed", "4")
    assert not torch.equal(both[0]["embeddings"], both[1]["embeddings"])
    assert torch.equal(one["embeddings"], both[1]["embeddings"])
