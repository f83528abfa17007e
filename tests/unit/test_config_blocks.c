/* SPDX-License-Identifier: Apache-2.0 */
/* What the family regla's config.json may say of blocks, scores and norms. */
#include "tests/unit/config_changes.h"

/* Of tests/golden/blocks_branches, in mixers linear and softmax. */
#define SIDE "config.json: blocks.side_by_side"
static const struct change block_changes[] = {
    {"blocks", NULL,
     "config.json: layer_types[0]: unknown layer \"side_by_side\" (known: linear, softmax)"},
    {"blocks", "[]", "config.json: blocks: expected an object, got a list"},
    {"blocks/softmax", "[{\"branches\": [{\"mlp\": {}}]}]",
     "config.json: blocks.softmax: a mixer has that name"},
    {"blocks/side_by_side", "{}", SIDE ": expected a list, got an object"},
    {"blocks/side_by_side", "[]", SIDE ": expected 1 to 4 blocks, got 0"},
    {"blocks/side_by_side", "[1, 1, 1, 1, 1]", SIDE ": expected 1 to 4 blocks, got 5"},
    {"blocks/side_by_side", "[1]", SIDE "[0]: expected an object, got a number"},
    {"blocks/side_by_side", "[{}]", SIDE "[0].branches: expected a list, got nothing"},
    {"blocks/side_by_side/1/gamma", "1",
     SIDE "[1]: unknown key \"gamma\" (known: branches, input_norm, post_norm, alpha, beta)"},
    {"blocks/side_by_side/0/alpha", "0",
     SIDE "[0].alpha: expected a number in [1e-06, 1e+06], got 0"},
    {"blocks/side_by_side/0/beta", "\"1\"",
     SIDE "[0].beta: expected a number in [1e-06, 1e+06], got \"1\""},
    {"blocks/side_by_side/0/post_norm", "\"gated_rmsnorm\"",
     SIDE "[0].post_norm: unknown post_norm \"gated_rmsnorm\" (known: none, layernorm, rmsnorm, "
          "simple_rmsnorm)"},
    {"blocks/side_by_side/0/input_norm", "true",
     SIDE "[0].input_norm: expected a string, got true"},
    {"blocks/side_by_side/0/branches", "[]", SIDE "[0].branches: expected 1 to 2, got 0"},
    {"blocks/side_by_side/0/branches", "[1, 2, 3]", SIDE "[0].branches: expected 1 to 2, got 3"},
    {"blocks/side_by_side/0/branches/1", "\"softmax\"",
     SIDE "[0].branches[1]: expected an object, got a string"},
    {"blocks/side_by_side/0/branches/1/gate", "1",
     SIDE "[0].branches[1]: unknown key \"gate\" (known: mixer, mlp, name, norm, scale, "
          "token_shift)"},
    {"blocks/side_by_side/0/branches/1/token_shift", "1",
     SIDE "[0].branches[1].token_shift: expected true or false, got 1"},
    {"blocks/side_by_side/0/branches/1", "{}",
     SIDE "[0].branches[1]: expected either a mixer or an mlp"},
    {"blocks/side_by_side/0/branches/1/mlp", "{}",
     SIDE "[0].branches[1]: expected either a mixer or an mlp"},
    {"blocks/side_by_side/0/branches/1/mixer", "\"mamba\"",
     SIDE "[0].branches[1].mixer: unknown mixer \"mamba\" (known: linear, softmax)"},
    {"blocks/side_by_side/0/branches/1/name", "\"\"",
     SIDE "[0].branches[1].name: expected 1 to 23 of a-z, 0-9 and _, got \"\""},
    {"blocks/side_by_side/0/branches/1/name", "\"a.b\"",
     SIDE "[0].branches[1].name: expected 1 to 23 of a-z, 0-9 and _, got \"a.b\""},
    {"blocks/side_by_side/0/branches/1/name", "\"abcdefghijklmnopqrstuvwx\"",
     SIDE "[0].branches[1].name: expected 1 to 23 of a-z, 0-9 and _, got "
          "\"abcdefghijklmnopqrstuvwx\""},
    {"blocks/side_by_side/0/branches/1/name", "null",
     SIDE "[0].branches[1].name: expected a string, got null"},
    {"blocks/side_by_side/0/branches/1/name", "\"left\"",
     SIDE ": expected a name of its own for each tensor, got \"left\" twice"},
    {"blocks/side_by_side/1/branches/0/name", "\"left\"",
     SIDE ": expected a name of its own for each tensor, got \"left\" twice"},
    {"blocks/side_by_side/1/branches/0/name", "\"left_post\"", NULL},
    {"blocks/side_by_side/1/branches/0/name", "\"left_input\"",
     SIDE ": expected a name of its own for each tensor, got \"left_input_norm\" twice"},
    {"blocks/side_by_side/0/branches/1/norm", "\"batchnorm\"",
     SIDE "[0].branches[1].norm: unknown norm \"batchnorm\" (known: none, layernorm, rmsnorm, "
          "simple_rmsnorm)"},
    {"blocks/side_by_side/0/branches/1/scale", "-1",
     SIDE "[0].branches[1].scale: expected a number in [1e-06, 1e+06], got -1"},
    {"blocks/side_by_side/1/branches/0/mlp", "3",
     SIDE "[1].branches[0].mlp: expected an object, got 3"},
    {"blocks/side_by_side/1/branches/0/mlp/bias", "true",
     SIDE "[1].branches[0].mlp: unknown key \"bias\" (known: hidden_act, intermediate_size, "
          "num_experts, num_experts_per_tok, norm_topk_prob)"},
    {"blocks/side_by_side/1/branches/0/mlp/hidden_act", "\"tanh\"",
     SIDE "[1].branches[0].mlp.hidden_act: unknown hidden_act \"tanh\" (known: gelu, gelu_new, "
          "relu, silu, relu2, identity)"},
    {"blocks/side_by_side/1/branches/0/mlp/intermediate_size", "0",
     SIDE "[1].branches[0].mlp.intermediate_size: expected an integer in [1, 1048576], got 0"},
    {"intermediate_size", "0",
     SIDE "[1].branches[0].mlp.intermediate_size: expected a size, as the model's is 0"},
    {"layer_types/3", "\"foo\"",
     "config.json: layer_types[3]: unknown layer \"foo\" (known: linear, softmax, side_by_side, "
     "only_mlp, only_mixer, mlp_first)"},
    {"blocks/unused", "[{\"branches\": [{\"mlp\": {}}]}]", NULL},
};

Test(config_blocks, block_changes)
{
    expect_changes("blocks_branches", block_changes, sizeof block_changes / sizeof *block_changes);
}

/* Of tests/golden/blocks_post_norm, whose mixer full has 4 heads, 2 of them of keys. */
#define FULL "config.json: mixers.full"
static const struct change score_changes[] = {
    {"norm_plus_one", "1", "config.json: norm_plus_one: expected true or false, got 1"},
    {"logit_scale", "0", "config.json: logit_scale: expected a number in [1e-06, 1e+06], got 0"},
    {"logit_softcap", "-30",
     "config.json: logit_softcap: expected a number in [1e-06, 1e+06], got -30"},
    {"mixers/full/num_kv_heads", "0",
     FULL ".num_kv_heads: expected an integer in [1, 4096], got 0"},
    {"mixers/full/num_kv_heads", "3", FULL ".num_kv_heads: expected a divisor of 4 heads, got 3"},
    {"mixers/full/num_kv_heads", "8", FULL ".num_kv_heads: expected a divisor of 4 heads, got 8"},
    {"mixers/full/score_scale", "0",
     FULL ".score_scale: expected a number in [1e-06, 1e+06], got 0"},
    {"mixers/full/score_softcap", "0",
     FULL ".score_softcap: expected a number in [1e-06, 1e+06], got 0"},
    {"mixers/full/qk_norm", "\"rmsnorm\"", FULL ".qk_norm: expected an object, got \"rmsnorm\""},
    {"mixers/full/qk_norm/type", NULL, FULL ".qk_norm.type: expected a string, got nothing"},
    {"mixers/full/qk_norm/type", "\"simple_rmsnorm\"",
     FULL ".qk_norm.type: unknown type \"simple_rmsnorm\" (known: layernorm, rmsnorm, l2)"},
    {"mixers/full/qk_norm/scope", "\"row\"",
     FULL ".qk_norm.scope: unknown scope \"row\" (known: head, hidden)"},
    {"mixers/full/qk_norm/eps", "2", FULL ".qk_norm.eps: expected a number in [0, 1], got 2"},
    {"mixers/full/qk_norm/plus_one", "0", FULL ".qk_norm.plus_one: expected true or false, got 0"},
    {"mixers/full/qk_norm/bias", "true",
     FULL ".qk_norm: unknown key \"bias\" (known: type, scope, eps, plus_one)"},
    {"mixers/full/qk_projection", "\"shared\"",
     FULL ": num_kv_heads and qk_norm need a separate qk_projection"},
    {"mixers/full",
     "{\"kind\": \"softmax\", \"window\": \"long_short\", \"window_size\": 8, \"segment_length\": "
     "8, "
     "\"segment_rank\": 1, \"num_kv_heads\": 2}",
     FULL ": a window long_short takes no num_kv_heads"},
    {"mixers/full",
     "{\"kind\": \"softmax\", \"activation\": \"relu2\", \"score_divisor\": 8, \"score_scale\": 2}",
     FULL ": the activation relu2 takes score_divisor, and no score_scale"},
    {"mixers/linear", "{\"kind\": \"linear\", \"num_kv_heads\": 2}",
     "config.json: mixers.linear: unknown key \"num_kv_heads\" (known: kind, feature_map, gate, "
     "sum_norm, query_scale, dpfp_nu, gate_logit_normalizer, position, output_norm, "
     "output_norm_scope, output_norm_eps, output_gate, output_gate_scope, num_heads, "
     "qk_projection, value_activation, chunk_size, conv, num_qk_heads, qk_norm, beta_max, "
     "decay_bound, "
     "output_gate_first)"},
};

Test(config_blocks, score_changes)
{
    expect_changes("blocks_post_norm", score_changes, sizeof score_changes / sizeof *score_changes);
}
