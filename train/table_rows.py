# SPDX-License-Identifier: Apache-2.0
"""The papers' tables as data: rows, which are edits of presets, and what the papers claim of them.

A row is named once and may stand in several tables. Lengths are multiples of the training window.
"""

from dataclasses import dataclass, field


@dataclass
class Row:
    """A preset and what differs from it: keys of the config, of mixers by their names, and of the
    shapes (numbers as factors)."""

    system: str
    config: dict = field(default_factory=dict)
    mixers: dict = field(default_factory=dict)
    shapes: dict = field(default_factory=dict)
    layers: object = None  # layers -> the names of their mixers
    inner: float = 1.0  # factor of intermediate_size
    window: float = 1.0  # factor of window_size
    tokens: float = 1.0  # factor of a run's tokens
    donor: str = None  # the row whose checkpoint is linearised
    scores: str = None  # the row whose checkpoint is scored, with this config


def mixer(**keys):
    return {"mixer": keys}


def split(first, second, count):
    """`count` quarters of the layers first, then the others."""
    return lambda layers: [first] * (layers * count // 4) + [second] * (
        layers - layers * count // 4
    )


def in_turn(first, second):
    return lambda layers: [first, second] * (layers // 2)


ELU = {"kind": "linear", "feature_map": "elu+1", "gate": "none", "sum_norm": True}
ROPE_AFTER = {"type": "rope", "stage": "after"}
NO_NORM = {"output_norm": "none"}
LINEAR = ("la_relu", "la_elu", "hedgehog", "fast_decay", "regla")  # ReGLA's table 4
LINEARISED = (*LINEAR, "hybrid_regla")
EPS_5 = {"output_norm_eps": 1e-5}
# Rows whose name ends so have another recipe where a short run may be why a claim is reversed.
MENDED = "-mended"
FASTER = {"rates": {r"\.position\.": 10}}  # what positions learn in 50,000 steps a short run cannot


def early_late(early, late):
    """TransNormer table 3: vanilla attention and 1+elu, sinusoidal positions."""
    return Row(
        "sinusoidal",
        mixers={"vanilla": {"kind": "softmax"}, "elu": ELU},
        layers=split(early, late, 2),
    )


ROWS = {
    # KERPLE
    **{
        name: Row(name)
        for name in (
            "kerple_log",
            "kerple_power",
            "alibi",
            "t5",
            "softmax",
            "sinusoidal",
            "kerple_3para_log",
            "kerple_bias_wht",
        )
    },
    **{
        f"{name}{MENDED}": Row(name, config={**FASTER, "init": {"kerple": {"r1": [1, 6]}}})
        for name in ("kerple_log", "kerple_power", "kerple_3para_log", "kerple_bias_wht")
    },
    f"t5{MENDED}": Row("t5", config=FASTER),
    "kerple_log-windowed": Row("kerple_log", scores="kerple_log", mixers=mixer(window="sliding")),
    # ReGLA, from scratch
    **{name: Row(name) for name in LINEARISED},
    "hedgehog": Row("hedgehog", shapes={"head_dim": 0.5}),  # with as many features as the others
    # Fast decay's products begin where ReGLA's gate does; and ReGLA's where the product of two of
    # fast decay's equal gates does: sigma(0.138) = sigma(1)^2, sigma(3.8) = sigma(4.5)^2.
    f"fast_decay{MENDED}": Row("fast_decay", config={"init": {"gate_product": True}}),
    f"regla{MENDED}": Row("regla", config={"init": {"gate_bias": [0.138, 3.8]}}),
    "regla-no-norm": Row("regla", mixers=mixer(**NO_NORM)),
    "regla-16": Row("regla", shapes={"head_dim": 0.25}),
    "regla-32": Row("regla", shapes={"head_dim": 0.5}),
    "regla-96": Row("regla", shapes={"head_dim": 1.5}),
    "regla-relu": Row("regla", mixers=mixer(feature_map="relu", query_scale="none")),
    "regla-elu": Row("regla", mixers=mixer(feature_map="elu+1", query_scale="none")),
    "regla-sqrt": Row("regla", mixers=mixer(query_scale="sqrt_dim")),
    "regla-sqrt-eps5": Row("regla", mixers=mixer(query_scale="sqrt_dim", **EPS_5)),
    "regla-variance-eps5": Row("regla", mixers=mixer(**EPS_5)),
    # ReGLA, linearised
    "donor": Row("softmax", tokens=4),
    **{
        f"{name}-{when}": Row(name, donor="donor", tokens=tokens)
        for name in LINEARISED
        for when, tokens in (("linearised-tenth", 0.1), ("linearised", 1.0))
    },
    # TransNormer
    **{
        name: Row(name)
        for name in (
            "elu_sinusoidal",
            "transnormer_t1",
            "transnormer_t2",
            "flash",
            "flash_quad",
            "transformer_ls",
        )
    },
    "performer": Row("performer", config={"position_embedding": "sinusoidal"}),
    "elu-no-scaling": Row("elu_sinusoidal", mixers=mixer(sum_norm=False, **NO_NORM)),
    "norm-attention": Row(
        "elu_sinusoidal",
        mixers=mixer(sum_norm=False, output_norm="simple_rmsnorm", output_norm_scope="hidden"),
    ),
    "elu-early": early_late("elu", "vanilla"),
    "vanilla-early": early_late("vanilla", "elu"),
    **{
        f"{name}-{what}": Row(f"transnormer_{name}", **edit)
        for name in ("t1", "t2")
        for what, edit in (
            ("0-12", {"layers": split("block", "linear", 0)}),
            ("3-9", {"layers": split("block", "linear", 1)}),
            ("9-3", {"layers": split("block", "linear", 3)}),
            ("12-0", {"layers": split("block", "linear", 4)}),
            ("swapped", {"layers": split("linear", "block", 2)}),
            ("ffn", {"shapes": {"glu": False}, "config": {"hidden_act": "relu"}, "inner": 1.5}),
            ("block-32", {"window": 0.5}),
            ("block-128", {"window": 2}),
            ("d-n", {"layers": in_turn("block", "linear")}),
            ("n-d", {"layers": in_turn("linear", "block")}),
        )
    },
    **{
        f"{name}-parallel": Row(
            f"transnormer_{name}",
            mixers={"both": {"kind": "pair", "parts": ["block", "linear"],
                             "combine": "concatenate"}},
            layers=lambda layers: ["both"] * layers,
        )
        for name in ("t1", "t2")
    },
    # LRPE
    "elu-rope": Row(
        "elu_sinusoidal",
        config={"position_embedding": "none"},
        mixers=mixer(position=ROPE_AFTER),
    ),
    **{name: Row(name) for name in ("spe", "permuteformer", "lrpe1", "lrpe2", "lrpe3")},
    **{
        f"lrpe{i}-{basis}": Row(
            f"lrpe{i}", mixers=mixer(position={"type": f"lrpe_{kind}", "basis": basis})
        )
        for i, kind in ((1, "unitary"), (2, "orthogonal"), (3, "permutation"))
        for basis in ("identity", "odd_even")
    },
}


@dataclass
class Claim:
    """What a paper's table says: each pair's first row is better than the second by at least
    `ratio` of the perplexity (1: by more than noise). A side is a row, several rows whose mean
    counts, or (row, length). `equal`: the two differ by less than `ratio`; `within`: the first is
    not as far as that behind the second, and may be better by any amount."""

    text: str
    pairs: list
    lengths: tuple = (1,)
    ratio: float = 1.0
    equal: bool = False
    within: bool = False


@dataclass
class Table:
    title: str
    rows: dict  # row -> what the paper's table says (None: nothing)
    reference: str
    claims: list
    lengths: tuple = (1,)
    seeds: int = 1
    note: str = ""


def against(better, *worse):
    """Pairs of a row, or of each of several, with all the others."""
    return [(row, other) for row in ([better] if isinstance(better, str) else better)
            for other in worse]


LENGTHS = (1, 2, 4, 8, 16, 32)


def kerple_claims(end=""):
    """Of tables 3 and 5, that log comes out against another learned position, ALiBi or RoPE; `end`:
    of the names of rows with a position that is learned."""
    log, power, t5, three, both = (
        f"{name}{end}"
        for name in ("kerple_log", "kerple_power", "t5", "kerple_3para_log", "kerple_bias_wht"))
    others = (power, "alibi", t5, "softmax")
    return [
        Claim("table 3: log is better than power at all lengths", against(log, power), LENGTHS),
        Claim("table 3: log is better than ALiBi beyond the training length",
              against(log, "alibi"), LENGTHS[1:]),
        Claim("table 3: log is better than T5 from 8 times the length",
              against(log, t5), LENGTHS[3:]),
        Claim("table 3: RoPE is far worse (1.2 times) from 4 times the length",
              against(log, "softmax"), LENGTHS[2:], 1.2),
        Claim("table 3: at the training length power, ALiBi, T5 and RoPE are within 2 % of log",
              against(others, log), (1,), 1.02, within=True),
        Claim("table 3: log at 32 times the length is better than at the training length",
              [((log, 32), (log, 1))], (1,)),
        Claim("table 5: 3-para-log has no clear advantage: log is within 2 % of it",
              against(log, three), LENGTHS[:5], 1.02, within=True),
        Claim("table 5: log is better than bias+wht", against(log, both), LENGTHS[:5]),
    ]


TABLES = {
    "kerple3": Table(
        "KERPLE, tables 3 and 5, figure 5: trained on short windows, scored on longer ones",
        {
            "kerple_log": "23.9 / 21.4",
            "kerple_power": "23.9 / 21.6",
            "alibi": "23.9 / 22.5",
            "t5": "23.7 / 31.4",
            "softmax": "24.2 / 269",
            "sinusoidal": "33 / 30046",
            "kerple_3para_log": "23.8 / 21.3 (x16)",
            "kerple_bias_wht": "24.1 / 21.4 (x16)",
            "kerple_log-windowed": None,
        },
        "kerple_log",
        [
            *kerple_claims(),
            Claim("table 3: sinusoidal is far worse (1.2 times) from twice the length",
                  against("kerple_log", "sinusoidal"), LENGTHS[1:], 1.2),
            Claim("figure 5: log uses more than its window: it is better than log windowed",
                  against("kerple_log", "kerple_log-windowed"), (32,)),
            Claim("figure 5: log windowed is better than ALiBi",
                  against("kerple_log-windowed", "alibi"), (32,)),
        ],
        LENGTHS,
        3,
        "The paper's column: OpenWebText2 at 512 and 16,384 (1 and 32 times the training length).",
    ),
    f"kerple3{MENDED}": Table(
        "KERPLE, tables 3 and 5, with r1 from 1 to 6 and 10 times the rate for positions",
        {
            **{f"{name}{MENDED}": paper for name, paper in (
                ("kerple_log", "23.9 / 21.4"),
                ("kerple_power", "23.9 / 21.6"),
                ("t5", "23.7 / 31.4"),
                ("kerple_3para_log", "23.8 / 21.3 (x16)"),
                ("kerple_bias_wht", "24.1 / 21.4 (x16)"))},
            "alibi": "23.9 / 22.5",
            "softmax": "24.2 / 269",
        },
        f"kerple_log{MENDED}",
        kerple_claims(MENDED),
        LENGTHS,
        3,
        "ALiBi and RoPE have no parameters.",
    ),
    "regla4": Table(
        "ReGLA, table 4, from scratch",
        {
            "softmax": "18.5",
            "la_relu": "28.5",
            "la_elu": "31.3",
            "hedgehog": "22.4",
            "fast_decay": "20.8",
            "regla": "19.0",
            "hybrid_regla": "17.8",
        },
        "regla",
        [
            Claim("hybrid ReGLA is better than the Transformer",
                  [("hybrid_regla", "softmax")]),
            Claim("all linear attention is behind the Transformer",
                  against("softmax", *LINEAR)),
            Claim("ReGLA is better than every other linear attention",
                  against("regla", *LINEAR[:-1])),
            Claim("gated is better than ungated: fast decay before ReLU, ELU and Hedgehog",
                  against("fast_decay", "la_relu", "la_elu", "hedgehog")),
            Claim("Hedgehog is better than ReLU and ELU",
                  against("hedgehog", "la_relu", "la_elu")),
        ],
        seeds=3,
    ),
    f"regla4{MENDED}": Table(
        "ReGLA, table 4, from scratch, with gates whose products are equal at the start",
        {
            "softmax": "18.5",
            "fast_decay": "20.8",
            f"fast_decay{MENDED}": "20.8",
            "regla": "19.0",
            f"regla{MENDED}": "19.0",
        },
        "regla",
        [
            Claim("ReGLA is better than fast decay, whose products begin where its gate does",
                  [("regla", f"fast_decay{MENDED}")]),
            Claim("ReGLA, whose gate begins where fast decay's products do, is better than fast decay",
                  [(f"regla{MENDED}", "fast_decay")]),
            Claim("fast decay, whose products begin where ReGLA's gate does, is behind the Transformer",
                  [("softmax", f"fast_decay{MENDED}")]),
        ],
        seeds=3,
    ),
    "regla4-pretrained": Table(
        "ReGLA, table 4, linearised: a softmax donor of 4 times the tokens, then training goes on",
        {
            "donor": None,
            "la_relu-linearised": "22.3",
            "la_elu-linearised": "23.5",
            "hedgehog-linearised": "18.4",
            "fast_decay-linearised": "18.2",
            "regla-linearised": "16.4",
            "hybrid_regla-linearised": "14.8",
            **{f"{name}-linearised-tenth": None for name in LINEARISED},
        },
        "regla-linearised",
        [
            Claim("each linearised system is better than its own from scratch",
                  [(f"{name}-linearised", name) for name in LINEARISED]),
            Claim("(the issue's) the same after a tenth of the tokens",
                  [(f"{name}-linearised-tenth", name) for name in LINEARISED]),
            Claim("hybrid ReGLA is the best of them",
                  against("hybrid_regla-linearised", *(f"{name}-linearised" for name in LINEAR))),
            Claim("ReGLA is the best linear one",
                  against("regla-linearised", *(f"{name}-linearised" for name in LINEAR[:-1]))),
        ],
    ),
    "regla2": Table(
        "ReGLA, table 2: with and without the stable norm",
        {"regla": "33.9", "regla-no-norm": "40.6"},
        "regla",
        [Claim("without the stable norm it is worse", [("regla", "regla-no-norm")])],
    ),
    "regla6": Table(
        "ReGLA, table 6: features, feature maps, scale",
        {
            "regla-16": "36.5",
            "regla-32": "24.7",
            "regla": "19.0",
            "regla-96": "18.8",
            "regla-relu": "21.5",
            "regla-elu": "23.7",
            "regla-sqrt": None,
            "regla-sqrt-eps5": "20.7",
            "regla-variance-eps5": "19.0",
        },
        "regla",
        [
            Claim("more features are better: 16, 32, 64, 96 (here a quarter to 1.5 of a head)",
                  [("regla-32", "regla-16"), ("regla", "regla-32"), ("regla-96", "regla")]),
            Claim("exp is better than ReLU and ELU+1",
                  against("regla", "regla-relu", "regla-elu")),
            Claim("ReLU is better than ELU+1", [("regla-relu", "regla-elu")]),
            Claim("the variance factor is better than 1/sqrt d (eps 1e-5, where a factor counts)",
                  [("regla-variance-eps5", "regla-sqrt-eps5")]),
            Claim("(ours) under the preset's eps of 1e-10 the factors tie within 1 %",
                  [("regla", "regla-sqrt")], (1,), 1.01, True),
        ],
    ),
    "transnormer4": Table(
        "TransNormer, table 4",
        {
            "sinusoidal": "29.63",
            "transformer_ls": "32.37",
            "flash_quad": "31.88",
            "flash": "33.18",
            "elu_sinusoidal": "32.63",
            "performer": "75.29",
            "transnormer_t1": "29.89",
            "transnormer_t2": "29.57",
        },
        "transnormer_t2",
        [
            Claim("T2 is better than vanilla attention", [("transnormer_t2", "sinusoidal")]),
            Claim("T1 is within 2 % of vanilla attention",
                  [("transnormer_t1", "sinusoidal")], (1,), 1.02, within=True),
            Claim("T1 and T2 are better than 1+elu and Performer",
                  against(("transnormer_t1", "transnormer_t2"), "elu_sinusoidal", "performer")),
            Claim("T1 and T2 are better than LS, FLASH-quad and FLASH",
                  against(("transnormer_t1", "transnormer_t2"),
                          "transformer_ls", "flash_quad", "flash")),
            Claim("Performer is far worse than 1+elu (1.2 times)",
                  [("elu_sinusoidal", "performer")], (1,), 1.2),
        ],
        seeds=3,
    ),
    "transnormer1": Table(
        "TransNormer, table 1: linear attention with and without its divisor",
        {"elu_sinusoidal": "4.98", "elu-no-scaling": "797.08", "norm-attention": "4.94"},
        "elu_sinusoidal",
        [
            Claim("without the divisor it is far worse (1.2 times)",
                  [("elu_sinusoidal", "elu-no-scaling")], (1,), 1.2),
            Claim("NormAttention is better than 1+elu",
                  [("norm-attention", "elu_sinusoidal")]),
        ],
        seeds=3,
        note="The paper's tables 1, 3 and 8 to 12 are of masked models; these are causal.",
    ),
    "transnormer3": Table(
        "TransNormer, table 3: 1+elu and vanilla attention, early and late",
        {"elu_sinusoidal": "4.98", "elu-early": "3.90", "vanilla-early": "3.76"},
        "elu_sinusoidal",
        [Claim("vanilla early is better than vanilla late, which is better than 1+elu alone",
               [("vanilla-early", "elu-early"), ("elu-early", "elu_sinusoidal")])],
        seeds=3,
    ),
    "transnormer8": Table(
        "TransNormer, table 8: how many layers are DiagAttention",
        {
            "t1-0-12": "4.23",
            "t1-3-9": "4.13",
            "transnormer_t1": "3.82",
            "t1-9-3": "3.87",
            "t1-12-0": "4.75",
            "t2-0-12": "4.48",
            "t2-3-9": "3.83",
            "transnormer_t2": "3.81",
            "t2-9-3": "3.86",
            "t2-12-0": "4.66",
        },
        "transnormer_t2",
        [
            Claim(f"{t.upper()}: half and half is the best",
                  against(f"transnormer_{t}", *(f"{t}-{n}" for n in ("0-12", "3-9", "9-3",
                                                                     "12-0"))))
            for t in ("t1", "t2")
        ],
        seeds=3,
    ),
    "transnormer9": Table(
        "TransNormer, table 9: the order of the two attentions",
        {"t1-swapped": "4.13", "transnormer_t1": "3.82", "t2-swapped": "4.21",
         "transnormer_t2": "3.81"},
        "transnormer_t2",
        [Claim("DiagAttention early is better than late",
               [(f"transnormer_{t}", f"{t}-swapped") for t in ("t1", "t2")])],
        seeds=3,
    ),
    "transnormer10": Table(
        "TransNormer, table 10: FFN or GLU",
        {"t1-ffn": "3.93", "transnormer_t1": "3.82", "t2-ffn": "3.93", "transnormer_t2": "3.81"},
        "transnormer_t2",
        [Claim("GLU is better than FFN",
               [(f"transnormer_{t}", f"{t}-ffn") for t in ("t1", "t2")])],
        seeds=3,
    ),
    "transnormer11": Table(
        "TransNormer, table 11: block sizes (here 1/16, 1/8 and 1/4 of the window, as there)",
        {"t1-block-32": "3.92", "transnormer_t1": "3.82", "t1-block-128": "3.72",
         "t2-block-32": "3.90", "transnormer_t2": "3.81", "t2-block-128": "3.69"},
        "transnormer_t2",
        [Claim("larger blocks are better",
               [pair for t in ("t1", "t2")
                for pair in ((f"transnormer_{t}", f"{t}-block-32"),
                             (f"{t}-block-128", f"transnormer_{t}"))])],
        seeds=3,
    ),
    "transnormer12": Table(
        "TransNormer, table 12: both attentions in turn, or in parallel",
        {"t1-d-n": "4.19", "t1-n-d": "4.11", "t1-parallel": "3.77", "transnormer_t1": "3.82",
         "t2-d-n": "4.23", "t2-n-d": "4.21", "t2-parallel": "3.82", "transnormer_t2": "3.81"},
        "transnormer_t2",
        [
            Claim("in turn is worse than first one, then the other",
                  [(f"transnormer_{t}", f"{t}-{order}") for t in ("t1", "t2")
                   for order in ("d-n", "n-d")]),
            Claim("in parallel is within 2 %",
                  [(f"{t}-parallel", f"transnormer_{t}") for t in ("t1", "t2")], (1,), 1.02,
                  within=True),
        ],
        seeds=3,
    ),
    "lrpe2": Table(
        "LRPE, table 2",
        {"elu_sinusoidal": "33.94", "elu-rope": "33.40", "spe": "43.50", "permuteformer": "32.86",
         "lrpe1": "31.90", "lrpe2": "31.95", "lrpe3": "33.90"},
        "elu_sinusoidal",
        [
            Claim("Types 1 and 2 are better than the base",
                  [("lrpe1", "elu_sinusoidal"), ("lrpe2", "elu_sinusoidal")]),
            Claim("Type 3 is better than the base", [("lrpe3", "elu_sinusoidal")]),
            Claim("Types 1 and 2 are better than RoPE, SPE and PermuteFormer",
                  against(("lrpe1", "lrpe2"), "elu-rope", "spe", "permuteformer")),
            Claim("SPE is far worse than the base (1.2 times)",
                  [("elu_sinusoidal", "spe")], (1,), 1.2),
        ],
        seeds=3,
    ),
    "lrpe5": Table(
        "LRPE, table 5: the basis of the three types",
        {
            "lrpe1": "31.90",
            "lrpe1-identity": "32.04",
            "lrpe1-odd_even": "32.09",
            "lrpe2": "31.95",
            "lrpe2-identity": "31.86",
            "lrpe2-odd_even": "31.59",
            "lrpe3": "33.90",
            "lrpe3-identity": "34.53",
            "lrpe3-odd_even": "34.16",
        },
        "lrpe1",
        [Claim("Householder is the best basis on average",
               [(("lrpe1", "lrpe2", "lrpe3"), tuple(f"lrpe{i}-{basis}" for i in (1, 2, 3)))
                for basis in ("identity", "odd_even")])],
        seeds=3,
    ),
}
