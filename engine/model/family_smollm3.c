/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM 3, as `transformers` 4 and 5 save SmolLM3ForCausalLM. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct dense_class smollm3 = {.num_kv_heads = 4,
                                           .longest = 32768,
                                           .rope_theta = 2000000,
                                           .act = ACT_SILU,
                                           .tied = true,
                                           .windows = true,
                                           .attention_bias = true,
                                           .mlp_bias = true};

/* no_rope_layers has 1 for a layer WITH rotary embeddings. Without it every
 * no_rope_layer_interval-th layer has none. */
static int parse_ropes(const struct config *config, const struct fields *root, bool *has_rope,
                       struct error *err)
{
    static const char key[] = "no_rope_layers";
    const json_t *list;
    int64_t interval = 4;
    if (fields_list(root, key, FIELD_OPTIONAL, &list, err) != 0 ||
        fields_int(root, "no_rope_layer_interval", FIELD_NOT_NULL, 1, INT32_MAX, &interval, err) !=
            0)
        return -1;
    if (list && json_array_size(list) < (size_t)config->num_layers)
        return error_set(err, ERROR_INVALID,
                         "%s: %s: expected at least %lld numbers (num_hidden_layers), got %zu",
                         root->place, key, (long long)config->num_layers, json_array_size(list));
    for (int64_t i = 0; i < config->num_layers; i++) {
        const json_t *given = json_array_get(list, (size_t)i);
        if (list && !json_is_integer(given))
            return error_set(err, ERROR_INVALID, "%s: %s[%lld]: expected an integer, got %s",
                             root->place, key, (long long)i, fields_kind(given));
        has_rope[i] = list ? json_integer_value(given) != 0 : (i + 1) % interval != 0;
    }
    return 0;
}

/* Without layer_types. transformers reads use_sliding_window only then. */
struct windows {
    bool use;
    const bool *has_rope;
};

static bool slides(int64_t layer, const void *context)
{
    const struct windows *windows = context;
    return windows->use && !windows->has_rope[layer];
}

static int parse_windows(struct config *config, const struct fields *root, const bool *has_rope,
                         int64_t *window, int **kind_of, struct error *err)
{
    struct windows windows = {.has_rope = has_rope};
    if (fields_bool(root, "use_sliding_window", FIELD_NOT_NULL, &windows.use, err) != 0 ||
        dense_window(window, root, err) != 0)
        return -1;
    windows.use &= *window > 0;
    return dense_sliding(kind_of, config, *window, slides, &windows, "a sliding_window", root, err);
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    int64_t window = 0;
    int *kind_of;
    if (dense_parse(&dense, config, root, &smollm3, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &smollm3, err) != 0)
        return -1;
    bool *has_rope = arena_alloc(config->arena, (size_t)config->num_layers, sizeof *has_rope, err);
    if (!has_rope || parse_ropes(config, root, has_rope, err) != 0 ||
        parse_windows(config, root, has_rope, &window, &kind_of, err) != 0)
        return -1;
    for (int64_t i = 0; i < config->num_layers; i++)
        kind_of[i] += has_rope[i] ? 0 : 2;
    const struct dense_kind kinds[] = {
        {.name = "full_attention", .rope = &rope},
        {.name = "sliding_attention", .window = window, .rope = &rope},
        {.name = "full_attention_without_rope"},
        {.name = "sliding_attention_without_rope", .window = window}};
    return dense_layers(&dense, config, kinds, COUNT(kinds), kind_of, root, err);
}

/* llama.cpp leaves out the rotary embeddings of every fourth layer, whatever the file says. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    (void)source;
    return gguf_config_set(config, "no_rope_layer_interval", json_integer(4), err);
}

static const struct gguf_names gguf = {
    .architecture = "smollm3", .base = &gguf_dense_paired, .complete = complete_gguf};

const struct family family_smollm3 = {
    .name = "smollm3", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};
