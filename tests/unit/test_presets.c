/* SPDX-License-Identifier: Apache-2.0 */
/* Presets: systems in two depths, some in a third shape, and the random weights that make models of
 * them. */
#include "engine/engine.h"
#include "engine/model/preset.h"
#include "lib/base/bytes.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const systems[] = {"softmax",
                                      "regla",
                                      "hybrid_regla",
                                      "fast_decay",
                                      "rfa",
                                      "la_relu",
                                      "la_elu",
                                      "hedgehog",
                                      "deltanet",
                                      "performer",
                                      "cosformer",
                                      "transnormer_t1",
                                      "transnormer_t2",
                                      "lrpe1",
                                      "lrpe2",
                                      "lrpe3",
                                      "spe",
                                      "kerple_log",
                                      "kerple_power",
                                      "kerple_3para_log",
                                      "kerple_bias_wht",
                                      "alibi",
                                      "t5",
                                      "sinusoidal",
                                      "transformer_ls",
                                      "flash_quad",
                                      "flash",
                                      "gpt_neox",
                                      "elu_sinusoidal",
                                      "permuteformer",
                                      "gla",
                                      "scalar_gate",
                                      "retnet",
                                      "transnormerllm"};
static const char *const in_small[] = {
    "sinusoidal",    "elu_sinusoidal", "performer", "transnormer_t1", "transnormer_t2",
    "permuteformer", "lrpe1",          "lrpe2",     "lrpe3",          "spe",
    "transformer_ls"};
enum { NUM_SMALL = sizeof in_small / sizeof *in_small };
enum { NUM_SYSTEMS = sizeof systems / sizeof *systems, SMALL_FEATURES = 16, NUM_TOKENS = 300 };

static const struct preset *find(const char *system, const char *depth)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%s", system, depth);
    const struct preset *preset = preset_find(name);
    cr_assert(preset != NULL, "%s", name);
    return preset;
}

static json_t *parse(const char *text)
{
    json_t *json = json_loads(text, 0, NULL);
    cr_assert(json != NULL);
    return json;
}

static json_int_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_integer(value), "%s", key);
    return json_integer_value(value);
}

/* Gated MLPs have two thirds of the width, so as many parameters. */
static void expect_shape(const struct preset *preset, int layers, int heads, int mlp,
                         int vocabulary)
{
    json_t *config = parse(preset->config);
    const json_t *shapes = json_object_get(config, "shapes");
    const bool flash = strncmp(preset->name, "flash", 5) == 0;   /* no MLPs, twice the layers */
    const bool retnet = strncmp(preset->name, "retnet", 6) == 0; /* half the MLP, wide values */
    const int part = json_is_true(json_object_get(shapes, "glu")) ? mlp * 2 / 3 : mlp;
    const int width = flash ? 0 : retnet ? part / 2 : part;
    const int value_dim = flash ? 2 * 64 * heads : retnet ? 128 : 64;
    cr_expect(number(config, "vocab_size") == vocabulary, "%s", preset->name);
    cr_expect(number(config, "hidden_size") == 64 * heads, "%s", preset->name);
    cr_expect(number(config, "num_hidden_layers") == layers * (flash ? 2 : 1), "%s", preset->name);
    cr_expect(number(config, "num_attention_heads") == heads, "%s", preset->name);
    cr_expect(number(config, "intermediate_size") == width, "%s", preset->name);
    cr_expect(number(shapes, "head_dim") == (flash ? 128 : 64), "%s", preset->name);
    cr_expect(number(shapes, "value_dim") == value_dim, "%s", preset->name);
    cr_expect(json_object_size(shapes) == 5, "%s", preset->name);
    json_decref(config);
}

Test(presets, systems_have_the_papers_shapes)
{
    cr_expect(num_presets == 2 * NUM_SYSTEMS + NUM_SMALL + 13 /* released models */);
    for (int i = 0; i < NUM_SYSTEMS; i++) {
        expect_shape(find(systems[i], "160m"), 12, 12, 3072, 50304);
        expect_shape(find(systems[i], "6l"), 6, 12, 3072, 50304);
    }
    for (int i = 0; i < NUM_SMALL; i++)
        expect_shape(find(in_small[i], "6x512"), 6, 8, 2048, 267744);
}

/* The preset with 4 heads of 8, two of its layers and few tokens; its features as far as they are
 * not free follow. Freed by the caller. */
static char *shrink(const struct preset *preset)
{
    json_t *config = parse(preset->config);
    json_t *shapes = json_object_get(config, "shapes");
    json_t *layers = json_object_get(config, "layer_types");
    if (layers) { /* the first and the last are of both kinds, where there are two */
        json_t *both = json_pack("[OO]", json_array_get(layers, 0),
                                 json_array_get(layers, json_array_size(layers) - 1));
        json_object_set_new(config, "layer_types", both);
    }
    const bool flash = number(config, "intermediate_size") == 0;
    json_object_update_new(config,
                           json_pack("{si si si si si}", "hidden_size", 32, "num_attention_heads",
                                     4, "intermediate_size", flash ? 0 : 40, "vocab_size", 101,
                                     "num_hidden_layers", 2));
    json_object_set_new(
        shapes, "features",
        json_integer(flash ? 8 : number(shapes, "features") * SMALL_FEATURES / 128));
    json_object_update_new(shapes, json_pack("{si si}", "head_dim", 8, "value_dim", 8));
    const char *name;
    json_t *mixer;
    json_object_foreach(json_object_get(config, "mixers"), name, mixer)
    {
        json_t *position = json_object_get(mixer, "position");
        if (json_object_get(position, "distance_bias"))
            json_object_set_new(position, "distance_bias", json_integer(16));
    }
    char *text = json_dumps(config, 0);
    cr_assert(text != NULL);
    json_decref(config);
    return text;
}

static struct model *load_small(const struct preset *preset)
{
    struct error err = ERROR_INIT;
    struct model *model;
    char *text = shrink(preset);
    cr_assert(preset_load(&model, preset->name, text, &err) == 0, "%s", err.message);
    free(text);
    return model;
}

/* Feeds NUM_TOKENS tokens; returns the largest |logit|, infinite when one is not a number, and
 * mixes the bits of all into *hash. */
static double run(struct model *model, uint64_t *hash)
{
    struct error err = ERROR_INIT;
    struct engine_options options = {.threads = 1, .state_memory_bytes = 16 << 20};
    struct engine *engine;
    struct state *state;
    double largest = 0;
    cr_assert(engine_open_model(&engine, model, &options, &err) == 0, "%s", err.message);
    cr_assert(state_create(&state, engine, NUM_TOKENS, &err) == 0, "%s", err.message);
    const int32_t vocab_size = engine_info(engine)->vocab_size;
    for (int at = 0; at < NUM_TOKENS; at += 100) {
        int32_t tokens[100];
        for (int i = 0; i < 100; i++)
            tokens[i] = (at + i) * 37 % vocab_size;
        struct span span = {.state = state, .tokens = tokens, .num_tokens = 100, .num_logits = 100};
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        for (int i = 0; i < 100 * vocab_size; i++) {
            const double size = fabs((double)span.logits[i]);
            if (!(size <= largest))
                largest = isnan(size) ? INFINITY : size;
            *hash = (*hash ^ bits_of_float(span.logits[i])) * 0x100000001b3u;
        }
    }
    state_free(state);
    engine_close(engine);
    return largest;
}

/* What `shapes` says of the features is what the model has. */
Test(presets, features_are_what_shapes_says)
{
    for (int i = 0; i < NUM_SYSTEMS; i++) {
        const struct preset *preset = find(systems[i], "160m");
        struct model *model = load_small(preset);
        char *text = shrink(preset);
        json_t *config = parse(text);
        const json_t *shapes = json_object_get(config, "shapes");
        for (int layer = 0; layer < model->num_layers; layer++)
            cr_expect(layer_branch(&model->layers[layer], 0)->mixer->features ==
                          number(shapes, "features"),
                      "%s: layer %d", preset->name, layer);
        const struct branch *mlp = layer_branch(&model->layers[0], 1);
        cr_expect((mlp != NULL && mlp->mlp->gate_proj.rows > 0) ==
                      json_is_true(json_object_get(shapes, "glu")),
                  "%s", preset->name);
        cr_expect_str_eq(model->name, preset->name);
        cr_expect(model->dtype == DTYPE_BF16, "%s", preset->name);
        json_decref(config);
        free(text);
        model_close(model);
    }
}

/* Their names are those of released models, and so are their sizes. */
Test(presets, dense_models_have_their_shapes)
{
    static const struct {
        const char *name, *family;
        int64_t layers, hidden, heads, kv_heads, head_dim, vocabulary;
    } models[] = {{"smollm2-135m", "llama", 30, 576, 9, 3, 64, 49152},
                  {"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 151936}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct preset *preset = preset_find(models[i].name);
        cr_assert(preset != NULL, "%s", models[i].name);
        json_t *config = parse(preset->config);
        cr_expect_str_eq(json_string_value(json_object_get(config, "model_type")),
                         models[i].family);
        cr_expect_eq(number(config, "num_hidden_layers"), models[i].layers);
        cr_expect_eq(number(config, "hidden_size"), models[i].hidden);
        cr_expect_eq(number(config, "num_attention_heads"), models[i].heads);
        cr_expect_eq(number(config, "num_key_value_heads"), models[i].kv_heads);
        cr_expect_eq(number(config, "head_dim"), models[i].head_dim);
        cr_expect_eq(number(config, "vocab_size"), models[i].vocabulary);
        json_object_update_new(config, json_pack("{si si si si si si si}", "hidden_size", 24,
                                                 "num_attention_heads", 6, "num_key_value_heads", 2,
                                                 "head_dim", 8, "intermediate_size", 40,
                                                 "vocab_size", 101, "num_hidden_layers", 2));
        char *small = json_dumps(config, 0);
        struct error err = ERROR_INIT;
        struct model *model;
        cr_assert(preset_load(&model, preset->name, small, &err) == 0, "%s", err.message);
        const struct mixer *mixer = layer_branch(&model->layers[1], 0)->mixer;
        cr_expect(mixer->head_dim == 8 && mixer->q_proj.rows == 48 && mixer->k_proj.rows == 16);
        cr_expect_eq(mixer->q_norm.kind, i == 0 ? NORM_NONE : NORM_RMSNORM);
        cr_expect(model->tied && layer_branch(&model->layers[1], 1)->mlp->gate_proj.rows == 40);
        model_close(model);
        free(small);
        json_decref(config);
    }
}

Test(presets, qwen3_5_has_its_shape)
{
    const struct preset *preset = preset_find("qwen3.5-0.8b");
    cr_assert(preset != NULL);
    json_t *config = parse(preset->config);
    cr_expect(number(config, "num_hidden_layers") == 24 && number(config, "hidden_size") == 1024);
    cr_expect(number(config, "vocab_size") == 248320 && number(config, "head_dim") == 256);
    cr_expect(number(config, "linear_num_value_heads") == 16);
    json_object_update_new(config, json_pack("{si si si si si si si si si}", "hidden_size", 24,
                                             "head_dim", 16, "intermediate_size", 40, "vocab_size",
                                             101, "num_hidden_layers", 4, "linear_num_key_heads", 2,
                                             "linear_num_value_heads", 4, "linear_key_head_dim", 8,
                                             "linear_value_head_dim", 12));
    char *small = json_dumps(config, 0);
    struct error err = ERROR_INIT;
    struct model *model;
    cr_assert(preset_load(&model, preset->name, small, &err) == 0, "%s", err.message);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(layer_branch(&model->layers[i], 0)->mixer->kind,
                     i == 3 ? MIXER_SOFTMAX : MIXER_LINEAR);
    const struct mixer *linear = layer_branch(&model->layers[0], 0)->mixer;
    const struct mixer *softmax = layer_branch(&model->layers[3], 0)->mixer;
    cr_expect(linear->q_proj.rows == 16 && linear->k_proj.rows == 16 && linear->v_proj.rows == 48);
    cr_expect(linear->out_gate_proj.rows == 48 && linear->conv.width == 4);
    cr_expect(linear->num_heads == 4 && linear->num_qk_heads == 2 && linear->a_proj.rows == 4);
    cr_expect(softmax->q_proj.rows == 128 && softmax->out_gate_proj.rows == 128);
    cr_expect(softmax->position.rotary_dims == 4 && model->tied);
    model_close(model);
    free(small);
    json_decref(config);
}

Test(presets, lfm2_has_its_shape)
{
    const struct preset *preset = preset_find("lfm2-350m");
    cr_assert(preset != NULL);
    json_t *config = parse(preset->config);
    cr_expect(number(config, "num_hidden_layers") == 16 && number(config, "hidden_size") == 1024);
    cr_expect(number(config, "vocab_size") == 65536 && number(config, "num_attention_heads") == 16);
    json_object_update_new(config,
                           json_pack("{si si si si si si}", "hidden_size", 24,
                                     "num_attention_heads", 6, "num_key_value_heads", 2, "head_dim",
                                     8, "vocab_size", 101, "num_hidden_layers", 4));
    char *small = json_dumps(config, 0);
    struct error err = ERROR_INIT;
    struct model *model;
    cr_assert(preset_load(&model, preset->name, small, &err) == 0, "%s", err.message);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(layer_branch(&model->layers[i], 0)->mixer->kind,
                     i == 2 ? MIXER_SOFTMAX : MIXER_CONV);
    const struct mixer *conv = layer_branch(&model->layers[0], 0)->mixer;
    cr_expect(conv->in_proj.rows == 72 && conv->value_dim == 24 && conv->conv.width == 3);
    cr_expect(layer_branch(&model->layers[0], 1)->mlp->up_proj.rows == 4608 && model->tied);
    model_close(model);
    free(small);
    json_decref(config);
}

Test(presets, phi_4_has_its_shape)
{
    const struct preset *preset = preset_find("phi-4-mini");
    cr_assert(preset != NULL);
    json_t *config = parse(preset->config);
    cr_expect(number(config, "num_hidden_layers") == 32 && number(config, "hidden_size") == 3072);
    cr_expect(number(config, "vocab_size") == 200064 &&
              number(config, "num_attention_heads") == 24);
    json_object_update_new(config, json_pack("{si si si si si si si}", "hidden_size", 24,
                                             "num_attention_heads", 6, "num_key_value_heads", 2,
                                             "head_dim", 16, "intermediate_size", 40, "vocab_size",
                                             101, "num_hidden_layers", 2));
    char *small = json_dumps(config, 0);
    struct error err = ERROR_INIT;
    struct model *model;
    cr_assert(preset_load(&model, preset->name, small, &err) == 0, "%s", err.message);
    const struct mixer *mixer = layer_branch(&model->layers[1], 0)->mixer;
    cr_expect(mixer->q_proj.rows == 96 && mixer->k_proj.rows == 32 && mixer->v_proj.rows == 32);
    cr_expect(mixer->position.rotary_dims == 12 && mixer->window == WINDOW_FULL);
    cr_expect(layer_branch(&model->layers[1], 1)->mlp->gate_proj.rows == 40 && model->tied);
    model_close(model);
    free(small);
    json_decref(config);
}

/* The layers that begin and that end the part which has keys and values of its own, and the last.
 */
Test(presets, gemma_4_has_its_shape)
{
    const struct preset *preset = preset_find("gemma-4-e2b");
    cr_assert(preset != NULL);
    json_t *config = parse(preset->config);
    cr_expect(number(config, "num_hidden_layers") == 35 && number(config, "hidden_size") == 1536);
    cr_expect(number(config, "vocab_size") == 262144 && number(config, "head_dim") == 256);
    json_object_update_new(
        config, json_pack("{si si si si si si si}", "hidden_size", 24, "head_dim", 8,
                          "global_head_dim", 16, "intermediate_size", 40, "vocab_size", 101,
                          "vocab_size_per_layer_input", 101, "hidden_size_per_layer_input", 12));
    char *small = json_dumps(config, 0);
    struct error err = ERROR_INIT;
    struct model *model;
    cr_assert(preset_load(&model, preset->name, small, &err) == 0, "%s", err.message);
    static const struct {
        int layer, head, keys_of, width; /* keys_of: from 1; 0: its own */
    } layers[] = {{0, 8, 0, 40}, {14, 16, 0, 40}, {15, 8, 14, 80}, {34, 16, 15, 80}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const struct layer *layer = &model->layers[layers[i].layer];
        const struct mixer *mixer = layer_branch(layer, 0)->mixer;
        cr_expect_eq(mixer->head_dim, layers[i].head, "layer %d", layers[i].layer);
        cr_expect_eq(mixer->keys_of, layers[i].keys_of, "layer %d", layers[i].layer);
        cr_expect_eq(mixer->k_proj.rows, layers[i].keys_of > 0 ? 0 : layers[i].head, "layer %d",
                     layers[i].layer);
        cr_expect_eq(layer_branch(layer, 1)->mlp->up_proj.rows, layers[i].width, "layer %d",
                     layers[i].layer);
        cr_expect_eq(layer_branch(layer, 2)->mlp->up_proj.rows, 12, "layer %d", layers[i].layer);
    }
    cr_expect(model->layer_embeddings.cols == 35 * 12 && model->tied);
    uint64_t hash = 0;
    const double largest = run(model, &hash);
    cr_expect(largest > 0.01 && largest <= 30, "a logit of %g", largest); /* capped */
    free(small);
    json_decref(config);
}

/* Of a released one; state: heads times their size times the state's. */
struct shape {
    const char *name;
    int layers, width, vocabulary;
    int64_t state;
};

/* A recurrent model with two of its layers and few tokens. */
static struct model *load_recurrent(const struct shape *shape, int64_t *state)
{
    const char *name = shape->name;
    const struct preset *preset = preset_find(name);
    struct error err = ERROR_INIT;
    struct model *model;
    cr_assert(preset != NULL, "%s", name);
    json_t *config = parse(preset->config);
    cr_expect_eq(number(config, "num_hidden_layers"), shape->layers, "%s", name);
    cr_expect_eq(number(config, "hidden_size"), shape->width, "%s", name);
    cr_expect_eq(number(config, "vocab_size"), shape->vocabulary, "%s", name);
    if (json_object_get(config, "layer_types"))
        json_object_set_new(config, "layer_types", json_pack("[ss]", "mamba", "attention"));
    json_object_update_new(config, json_pack("{si si}", "vocab_size", 101, "num_hidden_layers", 2));
    char *text = json_dumps(config, 0);
    cr_assert(preset_load(&model, name, text, &err) == 0, "%s", err.message);
    const struct mixer *mixer = layer_branch(&model->layers[0], 0)->mixer;
    *state = (int64_t)mixer->num_heads * mixer->value_dim * mixer->features;
    free(text);
    json_decref(config);
    return model;
}

Test(presets, recurrent_models_have_their_shapes_and_run)
{
    static const struct shape models[] = {
        {"mamba2-130m", 24, 768, 50288, 24 * 64 * 128},
        {"falcon-h1-90m", 24, 512, 32768, 24 * 32 * 64},
        {"granite-4.0-h-350m", 32, 768, 100352, 48 * 32 * 128},
        {"rwkv7-0.1b", 12, 768, 65536, 12 * 64 * 64},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        int64_t state;
        uint64_t first = 0, second = 0;
        const double largest = run(load_recurrent(&models[i], &state), &first);
        cr_expect_eq(state, models[i].state, "%s", models[i].name);
        /* of a tied head: some hundred normal numbers times themselves */
        cr_expect(largest > 0.01 && largest < 1500, "%s: a logit of %g", models[i].name, largest);
        run(load_recurrent(&models[i], &state), &second);
        cr_expect(first == second, "%s: other bits the second time", models[i].name);
    }
}

Test(presets, an_unknown_one_is_told_all_names)
{
    struct model *model;
    struct error err = ERROR_INIT;
    cr_assert(preset_open(&model, "regla", &err) == -1);
    cr_expect(strstr(err.message,
                     "\"regla\"; known: falcon-h1-90m, gemma-4-e2b, granite-4.0-h-350m, "
                     "granite-4.0-h-tiny, lfm2-350m, lfm2-8b-a1b, mamba2-130m, phi-4-mini, "
                     "qwen3-0.6b, qwen3.5-0.8b, qwen3.5-35b-a3b, rwkv7-0.1b, smollm2-135m, and, "
                     "each with -160m or -6l, some with -6x512: alibi, ") != NULL,
              "%s", err.message);
    cr_expect(strstr(err.message, ", transnormer_t2") != NULL, "%s", err.message);
}

/* A logit is the sum of 32 normed activations times weights of deviation 1/sqrt(32): about normal,
 * so that among 30,300 one of 20 deviations says that something else happened. */
Test(presets, every_system_runs_and_its_logits_are_of_a_models_size)
{
    for (int i = 0; i < NUM_SYSTEMS; i++) {
        uint64_t first = 0, second = 0;
        const struct preset *preset = find(systems[i], "160m");
        const double largest = run(load_small(preset), &first);
        cr_expect(largest > 0.5 && largest < 20, "%s: a logit of %g", preset->name, largest);
        run(load_small(preset), &second);
        cr_expect(first == second, "%s: other bits the second time", preset->name);
    }
}

/* Performer's W: each head's rows are orthogonal, and of about the lengths of normal vectors. */
Test(presets, rows_of_performers_matrix_are_orthogonal)
{
    struct model *model = load_small(find("performer", "160m"));
    const struct mixer *mixer = layer_branch(&model->layers[1], 0)->mixer;
    const int rows = mixer->feature_rows, d = mixer->head_dim;
    const float *weight = mixer->feature_q.data;
    double squares = 0;
    cr_assert(rows == d);
    for (int h = 0; h < mixer->num_heads; h++)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j <= i; j++) {
                const float *a = weight + (h * rows + i) * d;
                const float *b = weight + (h * rows + j) * d;
                double product = 0;
                for (int x = 0; x < d; x++)
                    product += (double)a[x] * (double)b[x];
                if (i == j)
                    squares += product;
                else
                    cr_expect(fabs(product) < 1e-5, "head %d: rows %d, %d: %g", h, i, j, product);
            }
    /* 256 squares of mean 1 and deviation sqrt(2): four standard errors are 0.35 */
    cr_expect(fabs(squares / (mixer->num_heads * rows * d) - 1) < 0.35, "%g", squares);
    model_close(model);
}

/* Its decay does not depend on x. */
Test(presets, permuteformer_has_its_decays)
{
    struct model *model = load_small(find("permuteformer", "160m"));
    const struct mixer *mixer = layer_branch(&model->layers[1], 0)->mixer;
    for (int h = 0; h < mixer->num_heads; h++)
        cr_expect(mixer->g_proj.bias[h] == 2 + 0.75f * (float)h);
    for (int64_t i = 0; i < mixer->g_proj.rows * mixer->g_proj.cols; i++)
        cr_expect(((const uint16_t *)mixer->g_proj.data)[i] == 0);
    model_close(model);
}

/* A map's matrices take rows of all heads, here 64 times as wide as the model. */
Test(presets, heads_may_be_wider_than_all_else)
{
    enum { HEAD_DIM = 512, TOKENS = 512 };
    static const char *const with_matrices[] = {"hedgehog", "performer", "rfa"};
    for (size_t i = 0; i < sizeof with_matrices / sizeof *with_matrices; i++) {
        struct error err = ERROR_INIT;
        const struct engine_options options = {.threads = 1, .state_memory_bytes = 64 << 20};
        const struct preset *preset = find(with_matrices[i], "160m");
        struct model *model;
        struct engine *engine;
        struct state *state;
        char *text = shrink(preset);
        json_t *config = parse(text), *shapes = json_object_get(config, "shapes");
        json_object_update_new(
            shapes, json_pack("{si si}", "head_dim", HEAD_DIM, "features",
                              strcmp(with_matrices[i], "hedgehog") == 0 ? 2 * HEAD_DIM : 64));
        free(text);
        text = json_dumps(config, 0);
        cr_assert(preset_load(&model, preset->name, text, &err) == 0, "%s", err.message);
        cr_assert(engine_open_model(&engine, model, &options, &err) == 0, "%s", err.message);
        cr_assert(state_create(&state, engine, TOKENS, &err) == 0, "%s", err.message);
        int32_t tokens[TOKENS] = {0};
        struct span span = {
            .state = state, .tokens = tokens, .num_tokens = TOKENS, .num_logits = 1};
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        cr_expect(isfinite(span.logits[0]), "%s", preset->name);
        state_free(state);
        engine_close(engine);
        json_decref(config);
        free(text);
    }
}

/* Every machine and every build make the same numbers. */
Test(presets, weights_are_a_fixed_function_of_the_preset)
{
    struct model *model = load_small(find("lrpe3", "160m"));
    const struct matrix *table = &model->embeddings;
    const struct position *position = &layer_branch(&model->layers[1], 0)->mixer->position;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < table->rows * table->cols; i++)
        hash = (hash ^ ((const uint16_t *)table->data)[i]) * 0x100000001b3u;
    for (int i = 0; i < layer_branch(&model->layers[1], 0)->mixer->features; i++)
        hash = (hash ^ (uint64_t)position->permutation[i]) * 0x100000001b3u;
    for (int64_t i = 0; i < layer_branch(&model->layers[1], 1)->mlp->up_proj.rows; i++)
        hash = (hash ^ bits_of_float(layer_branch(&model->layers[1], 1)->mlp->up_proj.bias[i])) *
               0x100000001b3u;
    cr_expect(hash == 0x9beebd9197f4e271u, "%llx", (unsigned long long)hash);
    model_close(model);
}

/* 3,232 numbers of mean 0 and deviation 1: their mean is within 0.07, their variance within 0.1 of
 * it (four standard errors). */
Test(presets, matrices_are_about_normal)
{
    struct model *model = load_small(find("softmax", "160m"));
    const uint16_t *values = model->embeddings.data;
    const int count = (int)(model->embeddings.rows * model->embeddings.cols);
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++) {
        const double value = (double)float_of_bits((uint32_t)values[i] << 16);
        sum += value;
        squares += value * value;
    }
    cr_expect(count == 3232);
    cr_expect(fabs(sum / count) < 0.07, "%g", sum / count);
    cr_expect(fabs(squares / count - 1) < 0.1, "%g", squares / count);
    model_close(model);
}

Test(presets, an_unknown_name_gets_the_list)
{
    struct error err = ERROR_INIT;
    struct engine_options options = {0};
    struct engine *engine;
    cr_assert(engine_open_preset(&engine, "regla-161m", &options, &err) == -1);
    cr_expect(err.code == ERROR_INVALID);
    cr_expect(strstr(err.message, "\"regla-161m\"") != NULL, "%s", err.message);
    for (int i = 0; i < NUM_SYSTEMS; i++)
        cr_expect(strstr(err.message, systems[i]) != NULL, "%s: %s", systems[i], err.message);
}

Test(presets, shapes_are_required_and_checked)
{
    static const struct {
        const char *shapes, *complaint;
    } cases[] = {
        {"{\"head_dim\": 8}", "value_dim"},
        {"{\"head_dim\": 8, \"value_dim\": 8, \"features\": 8, \"glu\": false, \"bias\": 1}",
         "bias"},
        {"{\"head_dim\": 0, \"value_dim\": 8, \"features\": 8, \"glu\": false, \"bias\": true}",
         "head_dim"},
        {"{\"head_dims\": 8}", "head_dims"},
        {"null", "shapes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *small = shrink(find("regla", "160m"));
        json_t *config = parse(small), *shapes = json_loads(cases[i].shapes, JSON_DECODE_ANY, NULL);
        cr_assert(shapes != NULL);
        json_object_set_new(config, "shapes", shapes);
        char *text = json_dumps(config, 0);
        struct error err = ERROR_INIT;
        struct model *model;
        cr_expect(preset_load(&model, "x", text, &err) == -1);
        cr_expect(strstr(err.message, cases[i].complaint) != NULL, "%s", err.message);
        json_decref(config);
        free(text);
        free(small);
    }
}

/* Of a matrix, without the pages at its ends that it shares. */
static bool all_zeros(const struct matrix *matrix)
{
    enum { PAGE = 4096 };
    const unsigned char *bytes = matrix->data;
    size_t size = model_matrix_bytes(matrix);
    cr_assert(size > 4 * PAGE);
    for (size_t i = PAGE; i < size - PAGE; i++)
        if (bytes[i])
            return false;
    return true;
}

/* What is packed is not kept twice; the rows of the embeddings are read where they are. */
Test(presets, packed_matrices_leave_the_memory)
{
    static const char *const some[] = {"regla", "gpt_neox"};
    for (int i = 0; i < 2; i++) {
        char *small = shrink(find(some[i], "160m")), *text;
        json_t *config = parse(small);
        json_object_update_new(config,
                               json_pack("{si si}", "vocab_size", 1009, "intermediate_size", 1000));
        text = json_dumps(config, 0);
        struct error err = ERROR_INIT;
        struct model *kept, *model;
        struct engine *engine;
        cr_assert(preset_load(&kept, "kept", text, &err) == 0, "%s", err.message);
        cr_assert(preset_load(&model, "packed", text, &err) == 0, "%s", err.message);
        const struct engine_options options = {.threads = 1, .state_memory_bytes = 1 << 20};
        cr_expect(!all_zeros(&layer_branch(&model->layers[0], 1)->mlp->up_proj));
        cr_assert(engine_open_model(&engine, model, &options, &err) == 0, "%s", err.message);
        cr_expect(all_zeros(&layer_branch(&model->layers[0], 1)->mlp->up_proj) &&
                  all_zeros(&layer_branch(&model->layers[1], 1)->mlp->down_proj));
        cr_expect(all_zeros(&model->lm_head));
        const struct matrix *rows = &kept->embeddings;
        cr_expect(memcmp(rows->data, model->embeddings.data, model_matrix_bytes(rows)) == 0);
        engine_close(engine);
        model_close(kept);
        json_decref(config);
        free(small);
        free(text);
    }
}
