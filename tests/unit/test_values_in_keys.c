/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax mixers whose values are the first part of their keys: a text keeps keys alone, and the
 * bits are those of a model that computes the same values by a v_proj of its own. */
#include "engine/engine.h"
#include "engine/model/model_load.h"
#include "engine/state_layout.h"
#include "tests/unit/config_changes.h"
#include "tests/unit/golden_cases.h"

#define CASE "values_in_keys"

enum { TOKENS = 90 /* beyond a page */, DECODED = 6 };

static struct engine *open_model(const char *path, const char *set, enum kv_format kv,
                                 enum weight_format weights)
{
    const struct engine_options options = {.threads = 2,
                                           .instruction_set = set,
                                           .weights = weights,
                                           .kv = kv,
                                           .state_memory_bytes = (size_t)32 << 20,
                                           .max_step_tokens = TOKENS,
                                           .max_step_logits = TOKENS,
                                           .poison = true,
                                           .share_always = true};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s", err.message);
    return engine;
}

/* Layer 0, which has one kv head and no position, gets the first 10 rows of k_proj as its v_proj.
 */
static void write_apart(const char *folder)
{
    json_t *config = golden_config(CASE);
    struct parts parts = golden_parts(CASE);
    json_patch(config, "mixers/one/values_in_keys", NULL);
    json_t *keys = parts_entry(&parts, "model.layers.0.attn.k_proj.weight");
    const json_int_t begin =
        json_integer_value(json_array_get(json_object_get(keys, "data_offsets"), 0));
    const json_int_t width = json_integer_value(json_array_get(json_object_get(keys, "shape"), 1));
    json_object_set_new(parts.header, "model.layers.0.attn.v_proj.weight",
                        json_pack("{ss s[iI] s[II]}", "dtype", "F32", "shape", 10, width,
                                  "data_offsets", begin, begin + 10 * width * 4));
    size_t size;
    char *weights = parts_write(&parts, 0, &size), *text = json_dumps(config, 0);
    write_whole(folder, "model.safetensors", weights, size);
    write_whole(folder, "config.json", text, strlen(text));
    free(text);
    free(weights);
    parts_free(&parts);
    json_decref(config);
}

/* Logits after each of TOKENS tokens: a prompt, then one by one. The caller frees them. */
static float *logits_of(struct engine *engine)
{
    const int32_t vocab = engine_info(engine)->vocab_size;
    float *all = malloc(TOKENS * (size_t)vocab * sizeof *all);
    int32_t tokens[TOKENS];
    struct state *state;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, TOKENS, &err) == 0, "%s", err.message);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = golden_token(3, i, vocab);
    for (int at = 0, count; at < TOKENS; at += count) {
        count = at == 0 ? TOKENS - DECODED : 1;
        struct span span = {
            .state = state, .tokens = tokens + at, .num_tokens = count, .num_logits = count};
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        memcpy(all + at * vocab, span.logits, (size_t)(count * vocab) * sizeof *all);
    }
    state_free(state);
    return all;
}

Test(values_in_keys, a_model_with_the_same_values_in_v_proj_has_the_same_bits)
{
    static const char *const sets[] = {"generic", "avx2", "avx512", "amx_emulated", "neon"};
    char folder[] = "/tmp/regla-values-XXXXXX", command[64];
    cr_assert(mkdtemp(folder) != NULL);
    write_apart(folder);
    int tried = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        for (enum kv_format kv = KV_F32; kv <= KV_BF16 && golden_has_set(sets[i]); kv++) {
            struct engine *in_keys = open_model(GOLDEN CASE, sets[i], kv, WEIGHTS_BF16);
            struct engine *apart = open_model(folder, sets[i], kv, WEIGHTS_BF16);
            float *one = logits_of(in_keys), *other = logits_of(apart);
            const size_t count = TOKENS * (size_t)engine_info(apart)->vocab_size;
            cr_expect(memcmp(one, other, count * sizeof *one) == 0, "%s, kv %d", sets[i], (int)kv);
            free(one);
            free(other);
            engine_close(in_keys);
            engine_close(apart);
            tried++;
        }
    cr_assert(tried >= 6);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert(system(command) == 0);
}

Test(values_in_keys, a_text_keeps_keys_alone)
{
    struct engine *engine = open_model(GOLDEN CASE, NULL, KV_BF16, WEIGHTS_F32);
    const struct state_layout *layout = engine_state_layout(engine);
    /* keys of 24 numbers, of 1, 2, 2 and 3 heads; layer 2 has values, which take 16 */
    static const int rows[] = {0, 0, 10, 0}, numbers[] = {24, 24, 24 + 16, 24};
    cr_assert(layout->num_parts == 4 && layout->slot_bytes == 0);
    for (int i = 0; i < 4; i++) {
        cr_expect(layout->parts[i].rows == rows[i] && layout->parts[i].features == 24);
        cr_expect(layout->parts[i].head_bytes == (size_t)numbers[i] * 64 * 2);
    }
    cr_expect(engine_info(engine)->kv_bytes_per_token == (24 + 2 * 24 + 2 * 40 + 3 * 24) * 2);
    engine_close(engine);
}

#define ONE "config.json: mixers.one"
static const struct change changes[] = {
    {"mixers/one/values_in_keys", "true",
     ONE ".values_in_keys: expected an integer in [1, 262144], got true"},
    {"mixers/one/values_in_keys", "0",
     ONE ".values_in_keys: expected an integer in [1, 262144], got 0"},
    {"mixers/one/position", "{\"type\": \"alibi\"}", NULL},
    {"mixers/one/position", "{\"type\": \"lrpe_unitary\"}",
     ONE ": values_in_keys takes no lrpe position (it makes other numbers of a key)"},
    {"mixers/one/window", "\"full\"", NULL},
    {"mixers/one",
     "{\"kind\": \"softmax\", \"values_in_keys\": 10, \"window\": \"sliding\", \"window_size\": 8}",
     ONE ": values_in_keys needs a window full"},
    {"mixers/one/value_activation", "\"silu\"",
     ONE ": values_in_keys needs a separate qk_projection and value_activation none"},
    {"mixers/all/qk_projection", "\"shared\"",
     "config.json: mixers.all: values_in_keys needs a separate qk_projection and "
     "value_activation none"},
    {"mixers/pair", "{\"kind\": \"pair\", \"parts\": [\"usual\", \"all\"], \"combine\": \"add\"}",
     "config.json: mixers.pair.parts[1]: expected no values_in_keys"},
};

Test(values_in_keys, config_changes)
{
    expect_changes(CASE, changes, sizeof changes / sizeof *changes);
}

/* weights as they are, `value_dim` values in the keys of layer 0. */
static void expect_refused(const char *value_dim, const char *message)
{
    json_t *config = golden_config(CASE);
    size_t size;
    char *weights = read_whole(GOLDEN CASE "/model.safetensors", &size);
    json_patch(config, "mixers/one/values_in_keys", value_dim);
    char *text = json_dumps(config, 0);
    struct model *model;
    struct error err = ERROR_INIT;
    cr_expect(model_load(&model, text, strlen(text), weights, size, &err) == -1);
    cr_expect_str_eq(err.message, message);
    free(text);
    free(weights);
    json_decref(config);
}

Test(values_in_keys, sizes_that_do_not_fit)
{
    expect_refused("25",
                   "model.safetensors: tensor \"model.layers.0.attn.k_proj.weight\": expected "
                   "at least 25 rows a head (values_in_keys), got 24");
    expect_refused("9", "model.safetensors: tensor \"model.layers.0.attn.o_proj.weight\": expected "
                        "shape [24, 36], got [24, 40]");
    expect_refused(NULL,
                   "model.safetensors: tensor \"model.layers.0.attn.v_proj.weight\": expected "
                   "shape [any, 24], got nothing: the tensor is missing");
}
