/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_regla.h"

#include "engine/model/config_blocks.h"
#include "engine/model/config_library.h"
#include "engine/model/config_qk.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* The names of config.json, in the order of kinds.h. */
static const char *const act_names[] = {MODEL_ACTS(MODEL_NAME)};
static const char *const norm_names[] = {"none", "layernorm", "rmsnorm", "simple_rmsnorm",
                                         "gated_rmsnorm"};
static const char *const block_norm_names[] = {NULL, "layernorm", "rmsnorm", "simple_rmsnorm"};
static const char *const embedding_names[] = {"none", "sinusoidal", "learned"};
static const char *const kind_names[] = {MODEL_MIXERS(MODEL_NAME) "pair"};
static const char *const combine_names[] = {"add", "concatenate"};
static const char *const feature_names[] = {MODEL_FEATURE_MAPS(MODEL_NAME)};
static const char *const gate_names[] = {MODEL_GATES(MODEL_NAME)};
static const char *const scale_names[] = {"none", "sqrt_dim", "exp_variance"};
static const char *const scope_names[] = {"head", "hidden"};
static const char *const output_gate_names[] = {"none", "swish", "sigmoid", "linear"};
static const char *const activation_names[] = {MODEL_ACTIVATIONS(MODEL_NAME)};
static const char *const qk_projection_names[] = {"separate", "shared"};
static const char *const value_activation_names[] = {"none", "silu"};
static const char *const window_names[] = {MODEL_WINDOWS(MODEL_NAME)};
static const char *const position_names[] = {MODEL_POSITIONS(MODEL_NAME)};
static const char *const stage_names[] = {"before", "after"};
static const char *const pairing_names[] = {"half", "adjacent"};
static const char *const basis_names[] = {"identity", "householder", "odd_even"};

/* An enum is read through an int; the names' order is the enum's. */
#define CHOICE(fields, key, need, names, target)                                  \
    do {                                                                          \
        int choice_ = (int)(target);                                              \
        if (fields_choice(fields, key, need, names, COUNT(names), &choice_, err)) \
            return -1;                                                            \
        (target) = choice_;                                                       \
    } while (0)

static int refuse(const struct fields *place, struct error *err, const char *why)
{
    return error_set(err, ERROR_UNSUPPORTED, "%s: %s", place->place, why);
}

static int64_t heads_of(const struct config *config, const struct mixer *mixer)
{
    return mixer->num_heads > 0 ? mixer->num_heads : config->num_heads;
}

static int64_t kv_heads_of(const struct config *config, const struct mixer *mixer)
{
    return mixer->num_kv_heads > 0 ? mixer->num_kv_heads : heads_of(config, mixer);
}

static int parse_rope(const struct fields *fields, struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"type",    "base",  "rotary_pct",   "pairing",
                                        "scaling", "stage", "distance_bias"};
    struct fields scaling;
    struct position *position = &out->mixer.position;
    const bool linear = mixer_has(&out->mixer, HAS_FEATURES);
    int64_t distances = 0;
    /* a softmax mixer has no feature map to be before or after */
    enum field_need stage = linear ? FIELD_REQUIRED : FIELD_OPTIONAL;
    if (fields_only(fields, known, COUNT(known) - linear, err) != 0 ||
        fields_int(fields, "distance_bias", FIELD_OPTIONAL, 1, CONFIG_MAX_WINDOW, &distances,
                   err) != 0 ||
        fields_double(fields, "base", FIELD_OPTIONAL, 1, 1e12, &out->rope.base, err) != 0 ||
        fields_double(fields, "rotary_pct", FIELD_OPTIONAL, 0, 1, &out->rope.part, err) != 0 ||
        fields_object(fields, "scaling", FIELD_OPTIONAL, &scaling, err) != 0 ||
        (scaling.object && rope_parse_scaling(&out->rope, &scaling, err) != 0))
        return -1;
    position->distances = (int)distances;
    CHOICE(fields, "pairing", FIELD_OPTIONAL, pairing_names, position->pairing);
    CHOICE(fields, "stage", stage, stage_names, position->stage);
    return 0;
}

static int parse_lrpe(const struct fields *fields, struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"type", "basis", "rotary_pct"};
    struct position *position = &out->mixer.position;
    bool partial = position->kind == POSITION_LRPE_ORTHOGONAL;
    if (fields_only(fields, known, COUNT(known) - !partial, err) != 0 ||
        fields_double(fields, "rotary_pct", FIELD_OPTIONAL, 0, 1, &out->rope.part, err) != 0)
        return -1;
    CHOICE(fields, "basis", FIELD_OPTIONAL, basis_names, position->basis);
    if (position_does(position->kind, DOUBLES) && (gate_does(out->mixer.gate) & ERASES_APART))
        return refuse(fields, err,
                      "lrpe_unitary cannot be combined with the gate rwkv7 (it makes two of each "
                      "feature that this erases)");
    return 0;
}

static int parse_spe(const struct fields *fields, struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"type", "gated"};
    struct position *position = &out->mixer.position;
    position->gated = true;
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        fields_bool(fields, "gated", FIELD_OPTIONAL, &position->gated, err) != 0)
        return -1;
    if (!mixer_has(&out->mixer, HAS_FEATURES))
        return refuse(fields, err, "spe needs a linear mixer");
    if (gate_does(out->mixer.gate) & DECAYS_FEATURES)
        return refuse(fields, err,
                      "spe cannot be combined with gates that decay by feature (it mixes the "
                      "features that they decay)");
    return 0;
}

/* The value that is the default may be given by its name alone. */
static bool is_none(const struct fields *fields, const char *key)
{
    const char *text = json_string_value(json_object_get(fields->object, key));
    return text && strcmp(text, "none") == 0;
}

static int parse_position(const struct fields *mixer, struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"type"};
    struct fields fields;
    out->rope = (struct rope){.base = 10000, .part = 1};
    out->mixer.position = (struct position){.base = 10000};
    if (is_none(mixer, "position"))
        return 0;
    if (fields_object(mixer, "position", FIELD_OPTIONAL, &fields, err) != 0)
        return -1;
    if (!fields.object)
        return 0;
    CHOICE(&fields, "type", FIELD_REQUIRED, position_names, out->mixer.position.kind);
    const enum position_kind kind = out->mixer.position.kind;
    if (kind == POSITION_ROPE)
        return parse_rope(&fields, out, err);
    if (position_does(kind, IS_LRPE))
        return parse_lrpe(&fields, out, err);
    if (kind == POSITION_SPE)
        return parse_spe(&fields, out, err);
    if (position_does(kind, BIASES) && mixer_has(&out->mixer, HAS_FEATURES))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s.type: %s needs a softmax mixer (a linear mixer takes none, rope, "
                         "lrpe_unitary, lrpe_orthogonal, lrpe_permutation or spe)",
                         fields.place, position_names[kind]);
    return fields_only(&fields, known, COUNT(known), err);
}

static int parse_output(const struct fields *fields, const struct config *config,
                        struct mixer *mixer, struct error *err)
{
    double eps = (double)config->norm_eps;
    CHOICE(fields, "output_norm", FIELD_OPTIONAL, norm_names, mixer->output_norm.kind);
    CHOICE(fields, "output_norm_scope", FIELD_OPTIONAL, scope_names, mixer->output_norm_scope);
    int gate_scope = 1;
    CHOICE(fields, "output_gate", FIELD_OPTIONAL, output_gate_names, mixer->output_gate);
    CHOICE(fields, "output_gate_scope", FIELD_OPTIONAL, scope_names, gate_scope);
    if (fields_double(fields, "output_norm_eps", FIELD_OPTIONAL, 0, 1, &eps, err) != 0)
        return -1;
    if (fields_has(fields, "output_gate_scope") && mixer->output_gate == OUTPUT_GATE_NONE)
        return refuse(fields, err, "output_gate_scope needs an output_gate");
    mixer->gate_per_head = gate_scope == 0;
    if (mixer->gate_per_head && mixer->output_norm.kind != NORM_NONE &&
        mixer->output_norm_scope == NORM_SCOPE_HIDDEN)
        return refuse(fields, err, "output_gate_scope head takes no output_norm_scope hidden");
    if (mixer->gate_first && (mixer->output_gate == OUTPUT_GATE_NONE || mixer->gate_per_head))
        return refuse(fields, err, "output_gate_first needs an output_gate, of scope hidden");
    mixer->output_norm.eps = (float)eps;
    return 0;
}

/* How q, k and v come from x. */
static int parse_inputs(const struct fields *fields, struct mixer *mixer, struct error *err)
{
    int64_t heads = 0; /* the model's */
    int shared = 0;
    if (fields_int(fields, "num_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &heads, err) != 0)
        return -1;
    CHOICE(fields, "qk_projection", FIELD_OPTIONAL, qk_projection_names, shared);
    CHOICE(fields, "value_activation", FIELD_OPTIONAL, value_activation_names,
           mixer->value_activation);
    mixer->shared_qk = shared == 1;
    mixer->num_heads = (int)heads;
    return 0;
}

/* "conv": {"width", "activation"} */
static int parse_conv(const struct fields *mixer, struct convolution *conv, struct error *err)
{
    static const char *const known[] = {"width", "activation"};
    struct fields fields;
    int64_t width = 0;
    if (fields_object(mixer, "conv", FIELD_OPTIONAL, &fields, err) != 0)
        return -1;
    if (!fields.object)
        return 0;
    CHOICE(&fields, "activation", FIELD_OPTIONAL, value_activation_names, conv->activation);
    if (fields_only(&fields, known, COUNT(known), err) != 0 ||
        fields_int(&fields, "width", FIELD_REQUIRED, CONVOLUTION_MIN_WIDTH, CONVOLUTION_MAX_WIDTH,
                   &width, err) != 0)
        return -1;
    conv->width = (int)width;
    return 0;
}

static int parse_linear(const struct fields *fields, const struct config *config,
                        struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"kind",
                                        "feature_map",
                                        "gate",
                                        "sum_norm",
                                        "query_scale",
                                        "dpfp_nu",
                                        "gate_logit_normalizer",
                                        "position",
                                        "output_norm",
                                        "output_norm_scope",
                                        "output_norm_eps",
                                        "output_gate",
                                        "output_gate_scope",
                                        "num_heads",
                                        "qk_projection",
                                        "value_activation",
                                        "chunk_size",
                                        "conv",
                                        "num_qk_heads",
                                        "qk_norm",
                                        "beta_max",
                                        "decay_bound",
                                        "output_gate_first"};
    struct mixer *mixer = &out->mixer;
    int64_t nu = 1, chunk_size = 0;
    double normalizer = 16, bound = 0;
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        fields_bool(fields, "sum_norm", FIELD_OPTIONAL, &mixer->sum_norm, err) != 0 ||
        fields_int(fields, "dpfp_nu", FIELD_OPTIONAL, 1, CONFIG_MAX_DPFP_NU, &nu, err) != 0 ||
        fields_int(fields, "chunk_size", FIELD_OPTIONAL, CONFIG_MIN_CHUNK, CONFIG_MAX_WINDOW,
                   &chunk_size, err) != 0 ||
        fields_double(fields, "gate_logit_normalizer", FIELD_OPTIONAL, 1e-6, 1e9, &normalizer,
                      err) != 0)
        return -1;
    if (parse_conv(fields, &mixer->conv, err) != 0 ||
        fields_double(fields, "decay_bound", FIELD_OPTIONAL, -80, -1e-6, &bound, err) != 0 ||
        fields_bool(fields, "output_gate_first", FIELD_OPTIONAL, &mixer->gate_first, err) != 0)
        return -1;
    mixer->dt_most = INFINITY; /* of mamba2, without limits */
    mixer->dpfp_nu = (int)nu;
    mixer->chunk_size = (int)chunk_size;
    mixer->gate_logit_normalizer = (float)normalizer;
    CHOICE(fields, "feature_map", FIELD_OPTIONAL, feature_names, mixer->feature_map);
    CHOICE(fields, "gate", FIELD_OPTIONAL, gate_names, mixer->gate);
    CHOICE(fields, "query_scale", FIELD_OPTIONAL, scale_names, mixer->query_scale);
    if (config_qk_parse(fields, config, mixer, err) != 0)
        return -1;
    mixer->decay_bound = (float)bound;
    if (bound != 0 && mixer->gate != GATE_KDA)
        return refuse(fields, err, "decay_bound is only for the gate kda");
    const bool exponential =
        mixer->feature_map == FEATURE_EXP || mixer->feature_map == FEATURE_FAVOR;
    if ((gate_does(mixer->gate) & ERASES) && exponential)
        return refuse(
            fields, err,
            "feature_map exp and favor cannot be combined with the gates delta, gated_delta "
            "and kda (the delta rule does not scale with the running maximum)");
    if ((gate_does(mixer->gate) & ERASES_APART) && mixer->feature_map != FEATURE_IDENTITY)
        return refuse(fields, err,
                      "the gate rwkv7 needs feature_map identity (what it erases is no feature)");
    if (mixer->sum_norm && !(gate_does(mixer->gate) & KEEPS_SUM))
        return refuse(fields, err, "sum_norm is only for the gates none, scalar and fixed");
    if (chunk_size > 0 && ((gate_does(mixer->gate) & ~KEEPS_SUM) || mixer->sum_norm ||
                           exponential || mixer->query_scale != QUERY_SCALE_NONE))
        return refuse(fields, err,
                      "chunk_size is only for gate none and query_scale none, without sum_norm and "
                      "without feature_map exp or favor");
    return 0;
}

/* The segments of a long_short window. A page of 64 tokens holds whole ones. */
static int parse_segments(const struct fields *fields, struct mixer *mixer, struct error *err)
{
    static const char *const keys[] = {"segment_length", "segment_rank"};
    int64_t length = 0, rank = 0;
    if (!window_has(mixer->window, HAS_SEGMENTS)) {
        for (int i = 0; i < COUNT(keys); i++)
            if (fields_has(fields, keys[i]))
                return error_set(err, ERROR_INVALID, "%s.%s: only a window long_short has it",
                                 fields->place, keys[i]);
        return 0;
    }
    if (fields_int(fields, keys[0], FIELD_REQUIRED, 1, CONFIG_MAX_SEGMENT, &length, err) != 0 ||
        fields_int(fields, keys[1], FIELD_REQUIRED, 1, length, &rank, err) != 0)
        return -1;
    if (CONFIG_MAX_SEGMENT % length != 0)
        return error_set(err, ERROR_UNSUPPORTED, "%s.%s: expected a divisor of %d, got %lld",
                         fields->place, keys[0], CONFIG_MAX_SEGMENT, (long long)length);
    if (mixer->activation != SOFTMAX_ACT_SOFTMAX)
        return refuse(fields, err, "a window long_short needs the activation softmax");
    mixer->segment_length = (int)length;
    mixer->segment_rank = (int)rank;
    return 0;
}

/* What scores are made of, and how many heads of keys there are. */
static int parse_scores(const struct fields *fields, const struct config *config,
                        struct mixer *mixer, struct error *err)
{
    int64_t kv_heads = 0; /* as many as of queries */
    double scale = 0, softcap = 0;
    if (config_qk_norm(fields, config, mixer, err) != 0 ||
        fields_int(fields, "num_kv_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &kv_heads, err) !=
            0 ||
        fields_double(fields, "score_scale", FIELD_OPTIONAL, 1e-6, 1e6, &scale, err) != 0 ||
        fields_double(fields, "score_softcap", FIELD_OPTIONAL, 1e-6, 1e6, &softcap, err) != 0)
        return -1;
    mixer->num_kv_heads = (int)kv_heads;
    mixer->score_scale = (float)scale;
    mixer->score_softcap = (float)softcap;
    return 0;
}

/* What goes with GQA, norms and scales of scores, and what does not. */
static int check_scores(const struct fields *fields, const struct config *config,
                        const struct mixer *mixer, struct error *err)
{
    const int64_t heads = heads_of(config, mixer);
    if (mixer->num_kv_heads > 0 && heads % mixer->num_kv_heads != 0)
        return error_set(err, ERROR_INVALID,
                         "%s.num_kv_heads: expected a divisor of %lld heads, got %d", fields->place,
                         (long long)heads, mixer->num_kv_heads);
    const bool grouped = mixer->num_kv_heads > 0 && mixer->num_kv_heads != heads;
    if (mixer->shared_qk && mixer->conv.width > 0)
        return refuse(fields, err, "conv needs a separate qk_projection");
    if (mixer->shared_qk && (grouped || mixer->q_norm.kind != NORM_NONE))
        return refuse(fields, err, "num_kv_heads and qk_norm need a separate qk_projection");
    if (window_has(mixer->window, HAS_SEGMENTS) && grouped)
        return refuse(fields, err, "a window long_short takes no num_kv_heads");
    if (mixer->activation == SOFTMAX_ACT_RELU2 && mixer->score_scale > 0)
        return refuse(fields, err, "the activation relu2 takes score_divisor, and no score_scale");
    return 0;
}

/* Values that are the first numbers of a key, as it is kept. */
static int check_values_in_keys(const struct fields *fields, const struct mixer *mixer,
                                struct error *err)
{
    if (!mixer->values_in_keys)
        return 0;
    if (!window_has(mixer->window, KEEPS_ALL_KEYS))
        return refuse(fields, err, "values_in_keys needs a window full");
    if (mixer->shared_qk || mixer->value_activation != VALUE_ACTIVATION_NONE)
        return refuse(fields, err,
                      "values_in_keys needs a separate qk_projection and value_activation none");
    if (position_does(mixer->position.kind, IS_LRPE))
        return refuse(fields, err,
                      "values_in_keys takes no lrpe position (it makes other numbers of a key)");
    return 0;
}

static int parse_softmax(const struct fields *fields, const struct config *config,
                         struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"kind",
                                        "activation",
                                        "window",
                                        "window_size",
                                        "position",
                                        "output_norm",
                                        "output_norm_scope",
                                        "output_norm_eps",
                                        "output_gate",
                                        "num_heads",
                                        "qk_projection",
                                        "value_activation",
                                        "score_divisor",
                                        "segment_length",
                                        "segment_rank",
                                        "num_kv_heads",
                                        "qk_norm",
                                        "score_scale",
                                        "score_softcap",
                                        "output_gate_scope",
                                        "values_in_keys"};
    struct mixer *mixer = &out->mixer;
    int64_t window_size = 0, divisor = 0, value_dim = 0;
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        parse_scores(fields, config, mixer, err) != 0)
        return -1;
    CHOICE(fields, "activation", FIELD_OPTIONAL, activation_names, mixer->activation);
    CHOICE(fields, "window", FIELD_OPTIONAL, window_names, mixer->window);
    if (fields_int(fields, "window_size",
                   window_has(mixer->window, KEEPS_ALL_KEYS) ? FIELD_OPTIONAL : FIELD_REQUIRED, 1,
                   CONFIG_MAX_WINDOW, &window_size, err) != 0)
        return -1;
    mixer->window_size = window_has(mixer->window, KEEPS_ALL_KEYS) ? 0 : (int)window_size;
    const bool squares = mixer->activation == SOFTMAX_ACT_RELU2;
    if (fields_int(fields, "score_divisor", squares ? FIELD_REQUIRED : FIELD_OPTIONAL, 1,
                   CONFIG_MAX_WINDOW, &divisor, err) != 0)
        return -1;
    if (divisor != 0 && !squares)
        return refuse(fields, err, "score_divisor is only for the activation relu2");
    mixer->score_divisor = (int)divisor;
    if (fields_int(fields, "values_in_keys", FIELD_OPTIONAL, 1, CONFIG_MAX_HIDDEN, &value_dim,
                   err) != 0)
        return -1;
    mixer->values_in_keys = value_dim > 0;
    mixer->value_dim = (int)value_dim;
    return parse_segments(fields, mixer, err);
}

static int parse_pair(const struct fields *fields, const struct config *config,
                      struct mixer_config *out, struct error *err)
{
    static const char *const known[] = {"kind", "parts", "combine", "output_gate"};
    int combine = 0;
    if (fields_only(fields, known, COUNT(known), err) != 0)
        return -1;
    const json_t *parts = json_object_get(fields->object, "parts");
    if (!json_is_array(parts) || json_array_size(parts) != 2)
        return error_set(err, ERROR_INVALID, "%s.parts: expected a list of two mixers' names",
                         fields->place);
    for (size_t i = 0; i < 2; i++) {
        const json_t *name = json_array_get(parts, i);
        if (!json_is_string(name))
            return error_set(err, ERROR_INVALID, "%s.parts[%zu]: expected a string, got %s",
                             fields->place, i, fields_kind(name));
        out->part_names[i] = arena_string(config->arena, json_string_value(name), err);
        if (!out->part_names[i])
            return -1;
    }
    CHOICE(fields, "combine", FIELD_REQUIRED, combine_names, combine);
    CHOICE(fields, "output_gate", FIELD_OPTIONAL, output_gate_names, out->mixer.output_gate);
    out->mixer.concatenates = combine == 1;
    out->is_pair = true;
    return 0;
}

/* A mixer that is a convolution. It has no heads. */
static int parse_gated_conv(const struct fields *fields, struct mixer *mixer, struct error *err)
{
    static const char *const known[] = {"kind", "conv"};
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        parse_conv(fields, &mixer->conv, err) != 0)
        return -1;
    mixer->num_heads = 1;
    return mixer->conv.width > 0
               ? 0
               : error_set(err, ERROR_INVALID, "%s.conv: expected an object, got nothing",
                           fields->place);
}

static int parse_mixer(const struct fields *fields, const struct config *config,
                       struct mixer_config *out, struct error *err)
{
    int kind = 0;
    CHOICE(fields, "kind", FIELD_REQUIRED, kind_names, kind);
    if (kind == COUNT(kind_names) - 1)
        return parse_pair(fields, config, out, err);
    out->mixer.kind = kind;
    if (!mixer_has(&out->mixer, HAS_HEADS))
        return parse_gated_conv(fields, &out->mixer, err);
    int result = mixer_has(&out->mixer, HAS_FEATURES) ? parse_linear(fields, config, out, err)
                                                      : parse_softmax(fields, config, out, err);
    if (result != 0 || parse_output(fields, config, &out->mixer, err) != 0 ||
        parse_inputs(fields, &out->mixer, err) != 0 || parse_position(fields, out, err) != 0 ||
        config_qk_check(fields, config, &out->mixer, err) != 0 ||
        check_scores(fields, config, &out->mixer, err) != 0 ||
        check_values_in_keys(fields, &out->mixer, err) != 0)
        return -1;
    if (window_has(out->mixer.window, HAS_SEGMENTS) && out->mixer.position.kind != POSITION_NONE)
        return refuse(fields, err,
                      "a window long_short takes no position of its own (position_embedding is "
                      "what gives the model positions)");
    return 0;
}

/* The parts of a pair, which may stand behind it. */
static int find_parts(const struct config *config, struct mixer_config *pair, struct error *err)
{
    const struct mixer *parts[2];
    char place[160];
    for (int i = 0; i < 2; i++) {
        snprintf(place, sizeof place, "config.json: mixers.%.64s.parts[%d]", pair->mixer.name, i);
        pair->parts[i] = config_find_mixer(config, place, pair->part_names[i], err);
        if (pair->parts[i] < 0)
            return -1;
        parts[i] = &config->mixers[pair->parts[i]].mixer;
        if (config->mixers[pair->parts[i]].is_pair)
            return error_set(err, ERROR_UNSUPPORTED, "%s: expected a mixer that is no pair", place);
        if (!mixer_has(parts[i], HAS_HEADS))
            return error_set(err, ERROR_UNSUPPORTED, "%s: expected a linear or softmax mixer",
                             place);
        if (parts[i]->values_in_keys)
            return error_set(err, ERROR_UNSUPPORTED, "%s: expected no values_in_keys", place);
        if (parts[i]->output_gate != OUTPUT_GATE_NONE)
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s: expected no output_gate: the pair has it for both", place);
    }
    if (!pair->mixer.concatenates && (parts[0]->conv.width > 0 || parts[1]->conv.width > 0))
        return error_set(
            err, ERROR_UNSUPPORTED,
            "config.json: mixers.%.64s: the parts of combine add have the same values: "
            "expected no conv",
            pair->mixer.name);
    if (!pair->mixer.concatenates &&
        (heads_of(config, parts[0]) != heads_of(config, parts[1]) ||
         kv_heads_of(config, parts[0]) != kv_heads_of(config, parts[1]) ||
         parts[0]->shared_qk != parts[1]->shared_qk ||
         parts[0]->value_activation != parts[1]->value_activation))
        return error_set(
            err, ERROR_UNSUPPORTED,
            "config.json: mixers.%.64s: the parts of combine add have the same values: "
            "expected equal num_heads, num_kv_heads, qk_projection and value_activation",
            pair->mixer.name);
    return 0;
}

static int parse_mixers(struct config *config, const struct fields *root, struct error *err)
{
    struct fields mixers, mixer;
    if (fields_object(root, "mixers", FIELD_REQUIRED, &mixers, err) != 0)
        return -1;
    size_t count = json_object_size(mixers.object);
    if (count == 0 || count > CONFIG_MAX_LAYERS)
        return error_set(err, ERROR_INVALID, "%s: expected 1 to %d mixers, got %zu", mixers.place,
                         CONFIG_MAX_LAYERS, count);
    config->mixers = arena_alloc(config->arena, count, sizeof *config->mixers, err);
    if (!config->mixers)
        return -1;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)mixers.object, name, value)
    {
        struct mixer_config *out = &config->mixers[config->num_mixers++];
        out->mixer.name = arena_string(config->arena, name, err);
        if (!out->mixer.name || fields_object(&mixers, name, FIELD_REQUIRED, &mixer, err) != 0 ||
            parse_mixer(&mixer, config, out, err) != 0)
            return -1;
    }
    for (int i = 0; i < config->num_mixers; i++)
        if (config->mixers[i].is_pair && find_parts(config, &config->mixers[i], err) != 0)
            return -1;
    return 0;
}

static int parse_sizes(struct config *config, const struct fields *root, struct error *err)
{
    bool learned = config->position_embedding == POSITION_EMBEDDING_LEARNED;
    if (config_sizes(config, root, "num_attention_heads", err) != 0 ||
        fields_int(root, "intermediate_size", FIELD_REQUIRED, 0, CONFIG_MAX_INTERMEDIATE,
                   &config->intermediate_size, err) != 0 ||
        fields_int(root, "max_position_embeddings", learned ? FIELD_REQUIRED : FIELD_OPTIONAL, 1,
                   INT32_MAX, &config->max_position_embeddings, err) != 0)
        return -1;
    if (config->position_embedding == POSITION_EMBEDDING_SINUSOIDAL && config->hidden_size % 2 != 0)
        return error_set(
            err, ERROR_INVALID,
            "%s: hidden_size: expected an even number (position_embedding sinusoidal), "
            "got %lld",
            root->place, (long long)config->hidden_size);
    return 0;
}

/* bos_token_id and eos_token_id are required, though null (there is none) is a value. */
static int parse_token_ids(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; i < COUNT(keys); i++)
        if (!json_object_get(root->object, keys[i]))
            return error_set(err, ERROR_INVALID, "%s: %s: expected an id or null, got nothing",
                             root->place, keys[i]);
    return config_token_ids(config, root, err);
}

int config_regla_parse(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const known[] = {"model_type",
                                        "vocab_size",
                                        "hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "intermediate_size",
                                        "hidden_act",
                                        "norm_type",
                                        "norm_eps",
                                        "parallel_residual",
                                        "tie_word_embeddings",
                                        "position_embedding",
                                        "embedding_norm",
                                        "layer_types",
                                        "max_position_embeddings",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "mixers",
                                        "embedding_scale",
                                        "logit_scale",
                                        "logit_softcap",
                                        "norm_plus_one",
                                        "blocks",
                                        "quantization_config"};
    if (json_object_get(root->object, "shapes"))
        return error_set(err, ERROR_INVALID,
                         "%s: shapes: belongs to a preset, a config without tensors; a "
                         "checkpoint's tensors say their shapes themselves",
                         root->place);
    double eps = 0, scale = 0, logit_scale = 0, softcap = 0;
    if (fields_only(root, known, COUNT(known), err) != 0 ||
        config_library_blocks(config, root, err) != 0)
        return -1;
    CHOICE(root, "hidden_act", FIELD_OPTIONAL, act_names, config->hidden_act);
    CHOICE(root, "norm_type", FIELD_REQUIRED, block_norm_names, config->norm_kind);
    CHOICE(root, "position_embedding", FIELD_OPTIONAL, embedding_names, config->position_embedding);
    if (fields_double(root, "norm_eps", FIELD_REQUIRED, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "parallel_residual", FIELD_OPTIONAL, &config->parallel_residual, err) !=
            0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_OPTIONAL, &config->tied, err) != 0 ||
        fields_bool(root, "embedding_norm", FIELD_OPTIONAL, &config->embedding_norm, err) != 0 ||
        fields_bool(root, "norm_plus_one", FIELD_OPTIONAL, &config->norm_plus_one, err) != 0 ||
        fields_double(root, "embedding_scale", FIELD_OPTIONAL, 1e-6, 1e6, &scale, err) != 0 ||
        fields_double(root, "logit_scale", FIELD_OPTIONAL, 1e-6, 1e6, &logit_scale, err) != 0 ||
        fields_double(root, "logit_softcap", FIELD_OPTIONAL, 1e-6, 1e6, &softcap, err) != 0)
        return -1;
    config->logit_scale = (float)logit_scale;
    config->logit_softcap = (float)softcap;
    config->norm_eps = (float)eps;
    config->embedding_scale = (float)scale;
    config->fp8.scaled = true;
    if (parse_sizes(config, root, err) != 0 || parse_token_ids(config, root, err) != 0 ||
        parse_mixers(config, root, err) != 0)
        return -1;
    return config_blocks_parse(config, root, err);
}
