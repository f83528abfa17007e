/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_library.h"
#include "engine/model/family.h"

#include "tests/unit/config_changes.h"

#include <math.h>

/* Of tests/golden/hybrid_regla, whose mixers are r (linear) and s (softmax, rope). */
static const struct change native_changes[] = {
    {"model_type", "\"mamba3\"",
     "config.json: model_type: unknown model_type \"mamba3\" (known: regla, gpt_neox, gla, "
     "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, smollm3, granite, olmo2, olmo3, olmoe, "
     "gemma2, gemma3_text, gemma4, gemma4_text, gpt_oss, phi3, qwen3_next, qwen3_5, qwen3_5_text, "
     "qwen3_5_moe, "
     "qwen3_5_moe_text, olmo_hybrid, gated_deltanet, delta_net, retnet, hgrn2, kda, rwkv7, mamba2, "
     "bamba, "
     "granitemoehybrid, falcon_h1, nemotron_h, lfm2, lfm2_moe, lfm3)"},
    {"model_type", "\"kimi_linear\"",
     "config.json: model_type: \"kimi_linear\" has latent attention (MLA) (not supported)"},
    {"model_type", "\"jamba\"", "config.json: model_type: \"jamba\" has Mamba-1 (not supported)"},
    {"model_type", "\"mamba\"", "config.json: model_type: \"mamba\" has Mamba-1 (not supported)"},
    {"model_type", "\"falcon_mamba\"",
     "config.json: model_type: \"falcon_mamba\" has Mamba-1 (not supported)"},
    {"model_type", "\"zamba2\"",
     "config.json: model_type: \"zamba2\" has blocks of attention that layers share, with low-rank "
     "changes of each (not supported)"},
    {"model_type", "\"xlstm\"",
     "config.json: model_type: \"xlstm\" has mLSTM, a gate whose maximum the state keeps (not "
     "supported)"},
    {"model_type", "\"recurrent_gemma\"",
     "config.json: model_type: \"recurrent_gemma\" has RG-LRU, a recurrence without heads (not "
     "supported)"},
    {"model_type", "\"gsa\"",
     "config.json: model_type: \"gsa\" has slots: a softmax between two recurrences (not "
     "supported)"},
    {"model_type", "\"lightnet\"",
     "config.json: model_type: \"lightnet\" has a softmax over the positions before (not "
     "supported)"},
    {"model_type", NULL, "config.json: model_type: expected a string, got nothing"},
    {"model_type", "3", "config.json: model_type: expected a string, got 3"},
    {"vocab_size", NULL,
     "config.json: vocab_size: expected an integer in [1, 16777216], got nothing"},
    {"vocab_size", "0", "config.json: vocab_size: expected an integer in [1, 16777216], got 0"},
    {"vocab_size", "275.0",
     "config.json: vocab_size: expected an integer in [1, 16777216], got 275"},
    {"vocab_size", "\"275\"",
     "config.json: vocab_size: expected an integer in [1, 16777216], got \"275\""},
    {"hidden_size", "9223372036854775807",
     "config.json: hidden_size: expected an integer in [1, 262144], got 9223372036854775807"},
    {"hidden_size", "-48", "config.json: hidden_size: expected an integer in [1, 262144], got -48"},
    {"num_hidden_layers", "0",
     "config.json: num_hidden_layers: expected an integer in [1, 4096], got 0"},
    {"num_hidden_layers", "5",
     "config.json: layer_types: expected 5 names (num_hidden_layers), got 4"},
    {"num_attention_heads", "null",
     "config.json: num_attention_heads: expected an integer in [1, 4096], got null"},
    {"intermediate_size", NULL,
     "config.json: intermediate_size: expected an integer in [0, 1048576], got nothing"},
    {"intermediate_size", "0", NULL},
    {"hidden_act", "\"swiglu\"",
     "config.json: hidden_act: unknown hidden_act \"swiglu\" (known: gelu, gelu_new, relu, silu, "
     "relu2, identity)"},
    {"hidden_act", NULL, NULL},
    {"norm_type", NULL, "config.json: norm_type: expected a string, got nothing"},
    {"norm_type", "\"none\"",
     "config.json: norm_type: unknown norm_type \"none\" (known: layernorm, rmsnorm, "
     "simple_rmsnorm)"},
    {"norm_eps", NULL, "config.json: norm_eps: expected a number in [0, 1], got nothing"},
    {"norm_eps", "-1e-5",
     "config.json: norm_eps: expected a number in [0, 1], got -1.0000000000000001e-05"},
    {"norm_eps", "0", NULL},
    {"embedding_scale", "0",
     "config.json: embedding_scale: expected a number in [1e-06, 1e+06], got 0"},
    {"parallel_residual", "1", "config.json: parallel_residual: expected true or false, got 1"},
    {"parallel_residual", NULL, NULL},
    {"tie_word_embeddings", NULL, NULL},
    {"embedding_norm", NULL, NULL},
    {"position_embedding", NULL, NULL},
    {"position_embedding", "\"alibi\"",
     "config.json: position_embedding: unknown position_embedding \"alibi\" (known: none, "
     "sinusoidal, learned)"},
    {"position_embedding", "\"learned\"",
     "config.json: max_position_embeddings: expected an integer in [1, 2147483647], got nothing"},
    {"max_position_embeddings", "8192", NULL},
    {"bos_token_id", NULL, "config.json: bos_token_id: expected an id or null, got nothing"},
    {"bos_token_id", "null", NULL},
    {"bos_token_id", "275", NULL},
    {"bos_token_id", "1.0", "config.json: bos_token_id: expected an integer, got a number"},
    {"eos_token_id", NULL, "config.json: eos_token_id: expected an id or null, got nothing"},
    {"eos_token_id", "[0, 1]", NULL},
    {"eos_token_id", "[0, 275, -1]", NULL},
    {"eos_token_id", "[0, null]", "config.json: eos_token_id: expected an integer, got null"},
    {"layer_types", NULL, "config.json: layer_types: expected a list, got nothing"},
    {"layer_types/3", "\"foo\"",
     "config.json: layer_types[3]: unknown layer \"foo\" (known: r, s)"},
    {"layer_types/1", "7", "config.json: layer_types[1]: expected a string, got a number"},
    {"mixers", NULL, "config.json: mixers: expected an object, got nothing"},
    {"mixers", "{}", "config.json: mixers: expected 1 to 4096 mixers, got 0"},
    {"mixers/r", "[]", "config.json: mixers.r: expected an object, got a list"},
    {"mixers/unused", "{\"kind\": \"softmax\"}", NULL},
    {"sliding_window", "4096",
     "config.json: unknown key \"sliding_window\" (known: model_type, vocab_size, hidden_size, "
     "num_hidden_layers, num_attention_heads, intermediate_size, hidden_act, norm_type, norm_eps, "
     "parallel_residual, tie_word_embeddings, position_embedding, embedding_norm, layer_types, "
     "max_position_embeddings, bos_token_id, eos_token_id, mixers, embedding_scale, logit_scale, "
     "logit_softcap, norm_plus_one, blocks, quantization_config)"},
    {"quantization_config", "{\"quant_method\": \"fp8\"}",
     "config.json: quantization_config.quant_method: unknown quant_method \"fp8\" (known: regla)"},
    {"quantization_config", "{\"quant_method\": \"regla\"}",
     "config.json: quantization_config.format: expected a string, got nothing"},
    {"quantization_config", "[]",
     "config.json: quantization_config: expected an object, got a list"},
    {"quantization_config", "{\"quant_method\": \"regla\", \"format\": \"q4_1\"}", NULL},
    {"shapes", "{}",
     "config.json: shapes: belongs to a preset, a config without tensors; a checkpoint's tensors "
     "say their shapes themselves"},
    {"mixers/r/kind", "\"mamba\"",
     "config.json: mixers.r.kind: unknown kind \"mamba\" (known: linear, softmax, conv, pair)"},
    {"mixers/r/kind", NULL, "config.json: mixers.r.kind: expected a string, got nothing"},
    {"mixers/r/kernel", "1",
     "config.json: mixers.r: unknown key \"kernel\" (known: kind, feature_map, gate, sum_norm, "
     "query_scale, dpfp_nu, gate_logit_normalizer, position, output_norm, output_norm_scope, "
     "output_norm_eps, output_gate, output_gate_scope, num_heads, qk_projection, value_activation, "
     "chunk_size, conv, num_qk_heads, qk_norm, beta_max, decay_bound, output_gate_first)"},
    {"mixers/r/output_gate_first", "true",
     "config.json: mixers.r: output_gate_first needs an output_gate, of scope hidden"},
    {"mixers/s/feature_map", "\"exp\"",
     "config.json: mixers.s: unknown key \"feature_map\" (known: kind, activation, window, "
     "window_size, position, output_norm, output_norm_scope, output_norm_eps, output_gate, "
     "num_heads, qk_projection, value_activation, score_divisor, segment_length, segment_rank, "
     "num_kv_heads, qk_norm, score_scale, score_softcap, output_gate_scope, values_in_keys)"},
    {"mixers/r/feature_map", "\"softplus\"",
     "config.json: mixers.r.feature_map: unknown feature_map \"softplus\" (known: identity, relu, "
     "elu, elu+1, exp, favor, cos_sin, hedgehog, dpfp, unit_cos_sin, silu)"},
    {"mixers/r/gate", "\"foo\"",
     "config.json: mixers.r.gate: unknown gate \"foo\" (known: none, scalar, fast_decay, refined, "
     "gla, delta, gated_delta, mamba2, rwkv7, fixed, hgrn2, kda)"},
    {"mixers/r/gate", "\"hgrn2\"",
     "config.json: mixers.r: the gate hgrn2 needs feature_map identity, position none, and a "
     "separate qk_projection without qk_norm (it makes k of what k_proj makes)"},
    {"mixers/r/decay_bound", "-5", "config.json: mixers.r: decay_bound is only for the gate kda"},
    {"mixers/r/gate", "\"delta\"",
     "config.json: mixers.r: feature_map exp and favor cannot be combined with the gates delta, "
     "gated_delta and kda (the delta rule does not scale with the running maximum)"},
    {"mixers/r/gate", "\"rwkv7\"",
     "config.json: mixers.r: the gate rwkv7 needs feature_map identity (what it erases is no "
     "feature)"},
    {"mixers/r/num_qk_heads", "2", NULL},
    {"mixers/r/num_qk_heads", "3",
     "config.json: mixers.r.num_qk_heads: expected a divisor of 4 heads, got 3"},
    {"mixers/r/beta_max", "2",
     "config.json: mixers.r: beta_max is only for the gates delta, gated_delta and kda"},
    {"mixers/r/qk_norm", "{\"type\": \"l2\"}", NULL},
    {"mixers/s/qk_norm", "{\"type\": \"l2\", \"scope\": \"hidden\"}", NULL},
    {"mixers/r/qk_norm", "{\"type\": \"l2\", \"plus_one\": true}",
     "config.json: mixers.r.qk_norm.plus_one: l2 has no weights"},
    {"mixers/r/qk_norm", "{\"type\": \"simple_rmsnorm\"}",
     "config.json: mixers.r.qk_norm.type: unknown type \"simple_rmsnorm\" (known: layernorm, "
     "rmsnorm, l2)"},
    {"mixers/r/sum_norm", "true",
     "config.json: mixers.r: sum_norm is only for the gates none, scalar and fixed"},
    {"mixers/r/query_scale", "\"half\"",
     "config.json: mixers.r.query_scale: unknown query_scale \"half\" (known: none, sqrt_dim, "
     "exp_variance)"},
    {"mixers/r/dpfp_nu", "0",
     "config.json: mixers.r.dpfp_nu: expected an integer in [1, 256], got 0"},
    {"mixers/r/gate_logit_normalizer", "0",
     "config.json: mixers.r.gate_logit_normalizer: expected a number in [1e-06, 1e+09], got 0"},
    {"mixers/r/output_norm", "\"groupnorm\"",
     "config.json: mixers.r.output_norm: unknown output_norm \"groupnorm\" (known: none, "
     "layernorm, rmsnorm, simple_rmsnorm, gated_rmsnorm)"},
    {"norm_type", "\"gated_rmsnorm\"",
     "config.json: norm_type: unknown norm_type \"gated_rmsnorm\" (known: layernorm, rmsnorm, "
     "simple_rmsnorm)"},
    {"mixers/r/output_norm_scope", "\"layer\"",
     "config.json: mixers.r.output_norm_scope: unknown output_norm_scope \"layer\" (known: head, "
     "hidden)"},
    {"mixers/r/output_norm_eps", "2",
     "config.json: mixers.r.output_norm_eps: expected a number in [0, 1], got 2"},
    {"mixers/r/output_gate", "\"relu\"",
     "config.json: mixers.r.output_gate: unknown output_gate \"relu\" (known: none, swish, "
     "sigmoid, linear)"},
    {"mixers/r/position", "\"rope\"",
     "config.json: mixers.r.position: expected an object, got \"rope\""},
    {"mixers/r/position", "{}",
     "config.json: mixers.r.position.type: expected a string, got nothing"},
    {"mixers/r/position", "{\"type\": \"none\"}", NULL},
    {"mixers/r/position", "\"none\"", NULL},
    {"mixers/s/position", "\"none\"", NULL},
    {"mixers/r/position", "{\"type\": \"rope\"}",
     "config.json: mixers.r.position.stage: expected a string, got nothing"},
    {"mixers/r/position", "{\"type\": \"rope\", \"stage\": \"after\"}", NULL},
    {"mixers/r/position", "{\"type\": \"rope\", \"stage\": \"between\"}",
     "config.json: mixers.r.position.stage: unknown stage \"between\" (known: before, after)"},
    {"mixers/r/position", "{\"type\": \"alibi\"}",
     "config.json: mixers.r.position.type: alibi needs a softmax mixer (a linear mixer takes none, "
     "rope, lrpe_unitary, lrpe_orthogonal, lrpe_permutation or spe)"},
    {"mixers/r/position", "{\"type\": \"spe\"}", NULL},
    {"mixers/r/position", "{\"type\": \"spe\", \"gated\": 1}",
     "config.json: mixers.r.position.gated: expected true or false, got 1"},
    {"mixers/r/position", "{\"type\": \"spe\", \"base\": 1}",
     "config.json: mixers.r.position: unknown key \"base\" (known: type, gated)"},
    {"mixers/s/position", "{\"type\": \"spe\"}",
     "config.json: mixers.s.position: spe needs a linear mixer"},
    {"mixers/r/position", "{\"type\": \"t5\"}",
     "config.json: mixers.r.position.type: t5 needs a softmax mixer (a linear mixer takes none, "
     "rope, lrpe_unitary, lrpe_orthogonal, lrpe_permutation or spe)"},
    {"mixers/r/position", "{\"type\": \"lrpe_unitary\", \"rotary_pct\": 0.5}",
     "config.json: mixers.r.position: unknown key \"rotary_pct\" (known: type, basis)"},
    {"mixers/r/position", "{\"type\": \"lrpe_orthogonal\", \"rotary_pct\": 0.5}", NULL},
    {"mixers/r/position", "{\"type\": \"lrpe_permutation\", \"basis\": \"dct\"}",
     "config.json: mixers.r.position.basis: unknown basis \"dct\" (known: identity, householder, "
     "odd_even)"},
    {"mixers/s/position", "{\"type\": \"rope\", \"pairing\": \"interleaved\"}",
     "config.json: mixers.s.position.pairing: unknown pairing \"interleaved\" (known: half, "
     "adjacent)"},
    {"mixers/s/position", "{\"type\": \"rope\", \"base\": 0}",
     "config.json: mixers.s.position.base: expected a number in [1, 1e+12], got 0"},
    {"mixers/s/position", "{\"type\": \"rope\", \"rotary_pct\": 1.5}",
     "config.json: mixers.s.position.rotary_pct: expected a number in [0, 1], got 1.5"},
    {"mixers/s/position", "{\"type\": \"rope\", \"theta\": 10000}",
     "config.json: mixers.s.position: unknown key \"theta\" (known: type, base, rotary_pct, "
     "pairing, scaling, stage, distance_bias)"},
    {"mixers/s/position",
     "{\"type\": \"rope\", \"scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
     "\"original_max_position_embeddings\": 32, \"truncate\": false}}",
     NULL},
    {"mixers/s/position",
     "{\"type\": \"rope\", \"scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}",
     "config.json: mixers.s.position.scaling.original_max_position_embeddings: expected an integer "
     "in [1, 2147483647], got nothing"},
    {"mixers/s/position",
     "{\"type\": \"rope\", \"scaling\": {\"rope_type\": \"linear\", \"factor\": 4, "
     "\"rope_theta\": 7}}",
     "config.json: mixers.s.position.scaling: unknown key \"rope_theta\" (known: rope_type, "
     "factor)"},
    {"mixers/s/position", "{\"type\": \"rope\", \"scaling\": {\"rope_type\": \"dynamic\"}}",
     "config.json: mixers.s.position.scaling.rope_type: expected default, linear, llama3, yarn or "
     "proportional, got \"dynamic\" (not supported)"},
    {"mixers/s/position", "{\"type\": \"alibi\", \"base\": 2}",
     "config.json: mixers.s.position: unknown key \"base\" (known: type)"},
    {"mixers/s/activation", "\"sigmoid\"",
     "config.json: mixers.s.activation: unknown activation \"sigmoid\" (known: softmax, relu, "
     "relu2)"},
    {"mixers/s/activation", "\"relu2\"",
     "config.json: mixers.s.score_divisor: expected an integer in [1, 16777216], got nothing"},
    {"mixers/s/score_divisor", "8",
     "config.json: mixers.s: score_divisor is only for the activation relu2"},
    {"mixers/s/num_heads", "0",
     "config.json: mixers.s.num_heads: expected an integer in [1, 4096], got 0"},
    {"mixers/s/qk_projection", "\"tied\"",
     "config.json: mixers.s.qk_projection: unknown qk_projection \"tied\" (known: separate, "
     "shared)"},
    {"mixers/s/value_activation", "\"relu\"",
     "config.json: mixers.s.value_activation: unknown value_activation \"relu\" (known: none, "
     "silu)"},
    {"mixers/c", "{\"kind\": \"conv\", \"conv\": {\"width\": 3}}", NULL},
    {"mixers/c", "{\"kind\": \"conv\"}",
     "config.json: mixers.c.conv: expected an object, got nothing"},
    {"mixers/c", "{\"kind\": \"conv\", \"conv\": {\"width\": 3}, \"num_heads\": 2}",
     "config.json: mixers.c: unknown key \"num_heads\" (known: kind, conv)"},
    {"mixers/r/output_gate_scope", "\"row\"",
     "config.json: mixers.r.output_gate_scope: unknown output_gate_scope \"row\" (known: head, "
     "hidden)"},
    {"mixers/r/conv", "4", "config.json: mixers.r.conv: expected an object, got 4"},
    {"mixers/r/conv", "{\"width\": 9}",
     "config.json: mixers.r.conv.width: expected an integer in [2, 8], got 9"},
    {"mixers/r/conv", "{\"width\": 1}",
     "config.json: mixers.r.conv.width: expected an integer in [2, 8], got 1"},
    {"mixers/r/conv", "{\"activation\": \"silu\"}",
     "config.json: mixers.r.conv.width: expected an integer in [2, 8], got nothing"},
    {"mixers/r/conv", "{\"width\": 4, \"activation\": \"gelu\"}",
     "config.json: mixers.r.conv.activation: unknown activation \"gelu\" (known: none, silu)"},
    {"mixers/r/conv", "{\"width\": 4, \"bias\": true}",
     "config.json: mixers.r.conv: unknown key \"bias\" (known: width, activation)"},
    {"mixers/r/chunk_size", "64",
     "config.json: mixers.r: chunk_size is only for gate none and query_scale none, without "
     "sum_norm "
     "and without feature_map exp or favor"},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\", \"s\"], \"combine\": \"concatenate\"}",
     NULL},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\", \"s\"], \"combine\": \"add\"}", NULL},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\", \"t\"], \"combine\": \"add\"}",
     "config.json: mixers.p.parts[1]: unknown mixer \"t\" (known: r, s, p)"},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\", \"p\"], \"combine\": \"add\"}",
     "config.json: mixers.p.parts[1]: expected a mixer that is no pair"},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\"], \"combine\": \"add\"}",
     "config.json: mixers.p.parts: expected a list of two mixers' names"},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\", 3], \"combine\": \"add\"}",
     "config.json: mixers.p.parts[1]: expected a string, got a number"},
    {"mixers/p", "{\"kind\": \"pair\", \"parts\": [\"r\", \"s\"]}",
     "config.json: mixers.p.combine: expected a string, got nothing"},
    {"mixers/p", "{\"kind\": \"pair\", \"window\": \"full\"}",
     "config.json: mixers.p: unknown key \"window\" (known: kind, parts, combine, output_gate)"},
    {"mixers/s/position", "{\"type\": \"rope\", \"distance_bias\": 0}",
     "config.json: mixers.s.position.distance_bias: expected an integer in [1, 16777216], got 0"},
    {"mixers/r/position", "{\"type\": \"rope\", \"stage\": \"after\", \"distance_bias\": 3}",
     "config.json: mixers.r.position: unknown key \"distance_bias\" (known: type, base, "
     "rotary_pct, pairing, scaling, stage)"},
    {"mixers/s/window", "\"local\"",
     "config.json: mixers.s.window: unknown window \"local\" (known: full, block, sliding, "
     "long_short)"},
    {"mixers/s/window", "\"block\"",
     "config.json: mixers.s.window_size: expected an integer in [1, 16777216], got nothing"},
};

Test(config, native_changes)
{
    for (size_t i = 0; i < sizeof native_changes / sizeof *native_changes; i++)
        expect_patched("hybrid_regla", native_changes[i].path, native_changes[i].value,
                       native_changes[i].message);
}

static const struct change segment_changes[] = {
    {"mixers/a/segment_length", NULL,
     "config.json: mixers.a.segment_length: expected an integer in [1, 64], got nothing"},
    {"mixers/a/segment_length", "128",
     "config.json: mixers.a.segment_length: expected an integer in [1, 64], got 128"},
    {"mixers/a/segment_length", "24",
     "config.json: mixers.a.segment_length: expected a divisor of 64, got 24"},
    {"mixers/a/segment_rank", "17",
     "config.json: mixers.a.segment_rank: expected an integer in [1, 16], got 17"},
    {"mixers/a/window", "\"sliding\"",
     "config.json: mixers.a.segment_length: only a window long_short has it"},
    {"mixers/a/activation", "\"relu\"",
     "config.json: mixers.a: a window long_short needs the activation softmax"},
    {"mixers/a/position", "{\"type\": \"rope\"}",
     "config.json: mixers.a: a window long_short takes no position of its own (position_embedding "
     "is what gives the model positions)"},
};

Test(config, segments)
{
    for (size_t i = 0; i < sizeof segment_changes / sizeof *segment_changes; i++)
        expect_patched("transformer_ls", segment_changes[i].path, segment_changes[i].value,
                       segment_changes[i].message);
}

/* FLASH's parts, whose h are added, have the same values and z. */
Test(config, pair_changes)
{
    static const char *const unequal =
        "config.json: mixers.flash: the parts of combine add have the same values: expected equal "
        "num_heads, num_kv_heads, qk_projection and value_activation";
    static const struct change changes[] = {
        {"mixers/quad/num_heads", "2", unequal},
        {"mixers/linear/qk_projection", NULL, unequal},
        {"mixers/linear/value_activation", "\"none\"", unequal},
        {"mixers",
         "{\"a\": {\"kind\": \"softmax\", \"num_heads\": 4, \"num_kv_heads\": 2},"
         " \"b\": {\"kind\": \"softmax\", \"num_heads\": 4},"
         " \"flash\": {\"kind\": \"pair\", \"parts\": [\"a\", \"b\"], \"combine\": \"add\"}}",
         unequal},
        {"mixers",
         "{\"a\": {\"kind\": \"softmax\"},"
         " \"b\": {\"kind\": \"conv\", \"conv\": {\"width\": 2}},"
         " \"flash\": {\"kind\": \"pair\", \"parts\": [\"a\", \"b\"], \"combine\": \"add\"}}",
         "config.json: mixers.flash.parts[1]: expected a linear or softmax mixer"},
        {"mixers/quad/output_gate_scope", "\"head\"",
         "config.json: mixers.quad: output_gate_scope needs an output_gate"},
        {"mixers/quad/output_gate_scope", "\"hidden\"",
         "config.json: mixers.quad: output_gate_scope needs an output_gate"},
        {"mixers/quad/output_gate", "\"swish\"",
         "config.json: mixers.flash.parts[0]: expected no output_gate: the pair has it for both"},
        {"mixers/linear/conv", "{\"width\": 4}",
         "config.json: mixers.linear: conv needs a separate qk_projection"},
        {"mixers",
         "{\"a\": {\"kind\": \"softmax\"},"
         " \"b\": {\"kind\": \"linear\", \"conv\": {\"width\": 2}},"
         " \"flash\": {\"kind\": \"pair\", \"parts\": [\"a\", \"b\"], \"combine\": \"add\"}}",
         "config.json: mixers.flash: the parts of combine add have the same values: expected no "
         "conv"},
        {"mixers/linear/chunk_size", "15",
         "config.json: mixers.linear.chunk_size: expected an integer in [16, 16777216], got 15"},
        {"mixers/linear/chunk_size", "16", NULL},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        expect_patched("flash", changes[i].path, changes[i].value, changes[i].message);
}

Test(config, odd_hidden_size_has_no_sinusoidal_positions)
{
    expect_patched("sinusoidal", "hidden_size", "47",
                   "config.json: hidden_size: expected an even number (position_embedding "
                   "sinusoidal), got 47");
}

Test(config, gpt_neox_changes)
{
    static const struct change changes[] = {
        {"some_new_key", "1", NULL},
        {"hidden_act", "\"gelu_fast\"", NULL},
        {"hidden_act", "\"mish\"",
         "config.json: hidden_act: unknown hidden_act \"mish\" (known: gelu, gelu_new, relu, silu, "
         "gelu_pytorch_tanh, gelu_fast, swish, gelu_python, gelu_python_tanh, gelu_accurate, "
         "relu2)"},
        {"num_attention_heads", "3",
         "config.json: hidden_size: expected a multiple of num_attention_heads (3), got 32"},
        {"rope_parameters/rope_type", "\"yarn\"",
         "config.json: rope_parameters.factor: expected a number in [1e-06, 1e+09], got nothing"},
        {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", NULL},
        {"rope_parameters/rope_theta", "\"big\"",
         "config.json: rope_parameters.rope_theta: expected a number in [1, 1e+12], got \"big\""},
        {"layer_norm_eps", "null",
         "config.json: layer_norm_eps: expected a number in [0, 1], got null"},
        {"hidden_size", NULL,
         "config.json: hidden_size: expected an integer in [1, 262144], got nothing"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        expect_patched("gpt_neox_tf5", changes[i].path, changes[i].value, changes[i].message);
}

Test(config, gla_changes)
{
    static const struct change changes[] = {
        {"some_new_key", "1", NULL},
        {"hidden_act", "\"silu\"", NULL},
        {"hidden_act", "\"powlu\"",
         "config.json: hidden_act: unknown hidden_act \"powlu\" (known: swish, silu)"},
        {"feature_map", "\"relu\"", NULL},
        {"feature_map", "\"gelu\"",
         "config.json: feature_map: unknown feature_map \"gelu\" (known: identity, relu)"},
        {"attn", "{\"layers\": [1]}",
         "config.json: attn: expected null, got an object (not supported)"},
        {"clamp_min", "-5", "config.json: clamp_min: expected null, got -5 (not supported)"},
        {"use_short_conv", "true", NULL},
        {"num_kv_heads", "3",
         "config.json: expected num_heads, a multiple of num_kv_heads (3), got 4"},
        {"expand_k", "0.02",
         "config.json: expand_k: expected an integer from 1 on as hidden_size * expand_k, "
         "got 0.95999999999999996"},
        {"expand_k", "0",
         "config.json: expand_k: expected an integer from 1 on as hidden_size * expand_k, got 0"},
        {"num_heads", "5",
         "config.json: expected hidden_size * expand_k, a multiple of num_heads (5), got 48"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        expect_patched("gla_two_kv_heads", changes[i].path, changes[i].value, changes[i].message);
}

Test(config, gla_intermediate_size_by_their_rule)
{
    static const struct {
        const char *hidden, *ratio;
        int64_t expected;
    } cases[] = {{"48", "4", 256}, {"1024", "4", 2816}, {"2048", "null", 5632}, {"384", "1", 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct config config;
        const struct change changes[] = {{"hidden_size", cases[i].hidden, NULL},
                                         {"hidden_ratio", cases[i].ratio, NULL},
                                         {"intermediate_size", "null", NULL}};
        parse_patched(&config, &arena, "gla", changes, 3);
        cr_expect_eq(config.intermediate_size, cases[i].expected);
        arena_clear(&arena);
    }
}

/* As transformers does. */
Test(config, ids_outside_the_vocabulary_are_no_ids)
{
    struct arena arena = {0};
    struct config config;
    static const struct change changes[] = {{"bos_token_id", "-1", NULL},
                                            {"eos_token_id", "[3, 50256, 274]", NULL}};
    parse_patched(&config, &arena, "gpt_neox", changes, 2);
    cr_expect_eq(config.bos_token_id, -1);
    cr_expect(config.num_eos == 2 && config.eos[0] == 3 && config.eos[1] == 274);
    cr_expect_str_eq(warnings_at(&config.warnings, 0),
                     "config.json: bos_token_id: expected an id in [0, 275), got -1: no text has "
                     "that token");
    cr_expect_str_eq(warnings_at(&config.warnings, 1),
                     "config.json: eos_token_id: expected an id in [0, 275), got 50256: no text "
                     "has that token");
    arena_clear(&arena);
}

/* int(d * factor) = 11 of a head's 16: 12 are rotated, by angles t * base^(-2i/11). */
Test(config, odd_rotary_dimensions)
{
    struct arena arena = {0};
    struct config config;
    static const struct change change = {"rope_parameters/partial_rotary_factor", "0.7", NULL};
    parse_patched(&config, &arena, "gpt_neox_tf5", &change, 1);
    const struct position *position = &config.mixers[0].mixer.position;
    cr_assert_eq(position->rotary_dims, 12);
    for (int i = 0; i < 6; i++) {
        double angle = position->frequencies[i], expected = pow(10000, -2.0 * i / 11);
        cr_expect(fabs(angle - expected) < 1e-14, "%d: %g, expected %g", i, angle, expected);
    }
    arena_clear(&arena);
}

Test(config, broken_json)
{
    expect_text("empty", "",
                "config.json: line 1, column 0 (byte 0): '[' or '{' expected near end of file");
    expect_text("a list", "[]", "config.json: expected an object, got a list");
    expect_text("repeated", "{\"a\": 1, \"a\": 2}",
                "config.json: line 1, column 12 (byte 12): duplicate object key near '\"a\"'");
    expect_text("not UTF-8", "{\"a\": \"\xff\"}",
                "config.json: line 1, column 7 (byte 7): unable to decode byte 0xff near '\"'");
    expect_text("trailing", "{} x",
                "config.json: line 1, column 4 (byte 4): end of file expected near 'x'");
    char *deep = calloc(1, 100001);
    memset(deep, '[', 100000);
    struct arena arena = {0};
    struct config config;
    struct error err = ERROR_INIT;
    cr_expect(family_parse(&config, &arena, deep, 100000, &err) == -1);
    cr_expect(strstr(err.message, "maximum parsing depth"), "%s", err.message);
    free(deep);
}

Test(config, generation_config)
{
    struct arena arena = {0};
    struct config config;
    struct error err = ERROR_INIT;
    parse_patched(&config, &arena, "regla", NULL, 0);
    cr_expect(config.num_eos == 1 && config.eos[0] == 0 && config.bos_token_id == 0);

    static const char none[] = "{\"temperature\": 0.7, \"num_beams\": 2, \"eos_token_id\": null}";
    cr_assert(config_library_generation(&config, none, strlen(none), &err) == 0, "%s", err.message);
    cr_expect(config.num_eos == 1 && config.eos[0] == 0, "null leaves config.json's");
    cr_expect_eq(config.warnings.count, 2);
    cr_expect_str_eq(warnings_at(&config.warnings, 0),
                     "generation_config.json: eos_token_id: it gives none, so transformers' "
                     "generate would never end a text; here config.json's does");
    cr_expect_str_eq(warnings_at(&config.warnings, 1),
                     "generation_config.json: num_beams: defaults of transformers' generate, "
                     "which are not applied here: requests say what they want");

    static const char list[] = "{\"eos_token_id\": [5, 7, 5, 5], \"bos_token_id\": 3}";
    cr_assert(config_library_generation(&config, list, strlen(list), &err) == 0, "%s", err.message);
    cr_expect(config.num_eos == 2 && config.eos[0] == 5 && config.eos[1] == 7);
    cr_expect_eq(config.bos_token_id, 3);

    static const char bad[] = "{\"eos_token_id\": \"</s>\"}";
    cr_expect(config_library_generation(&config, bad, strlen(bad), &err) == -1);
    cr_expect_str_eq(err.message,
                     "generation_config.json: eos_token_id: expected an integer, got a "
                     "string");
    arena_clear(&arena);
}
