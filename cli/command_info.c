/* SPDX-License-Identifier: Apache-2.0 */
/* regla info: what a model is, and what it costs. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "engine/base/clock.h"
#include "engine/model/preset.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

struct info_options {
    struct command_model_options model;
    bool json, presets;
};

static const struct option items[] = {
    {"json", OPTION_FLAG, offsetof(struct info_options, json), NULL, "false", 0, 0, NULL,
     "print one JSON object"},
    {"presets", OPTION_FLAG, offsetof(struct info_options, presets), NULL, "false", 0, 0, NULL,
     "only list the names that --preset takes"},
    COMMAND_PRESET_OPTION(struct info_options),
    COMMAND_MODEL_OPTIONS(struct info_options),
};

const struct options command_info_options = {
    .usage = "regla info (MODEL | --preset NAME) [--json], or regla info --presets",
    .summary = "Describes MODEL, a directory or a GGUF file: layers, parameters, and what each "
               "format of weights\nand KV costs.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

static const char *const features[] = {MODEL_FEATURE_MAPS(MODEL_NAME)};
static const char *const gates[] = {MODEL_GATES(MODEL_NAME)};
static const char *const positions[] = {MODEL_POSITIONS(MODEL_NAME)};
static const char *const norms[] = {MODEL_NORMS(MODEL_NAME)};
static const char *const windows[] = {MODEL_WINDOWS(MODEL_NAME)};
static const char *const activations[] = {MODEL_ACTIVATIONS(MODEL_NAME)};

/* "linear: exp features, refined gate, rope, rmsnorm; 4 heads, d 12, d_v 12, m 12" */
static void describe(const struct mixer *mixer, char *text, size_t size)
{
    char kind[128], heads[32] = "", chunks[32] = "", activation[16] = "";
    if (mixer->chunk_size)
        snprintf(chunks, sizeof chunks, ", chunks of %d tokens", mixer->chunk_size);
    if (mixer->activation != SOFTMAX_ACT_SOFTMAX)
        snprintf(activation, sizeof activation, " (%s)", activations[mixer->activation]);
    if (mixer->kind == MIXER_LINEAR)
        snprintf(kind, sizeof kind, "linear: %s features, gate %s%s%s",
                 features[mixer->feature_map], gates[mixer->gate],
                 mixer->sum_norm ? ", sum_norm" : "", chunks);
    else if (mixer->window == WINDOW_FULL)
        snprintf(kind, sizeof kind, "softmax%s", activation);
    else if (mixer->window == WINDOW_LONG_SHORT)
        snprintf(kind, sizeof kind,
                 "softmax: %s window of %d tokens, segments of %d tokens as %d vectors",
                 windows[mixer->window], mixer->window_size, mixer->segment_length,
                 mixer->segment_rank);
    else
        snprintf(kind, sizeof kind, "softmax%s: %s window of %d tokens", activation,
                 windows[mixer->window], mixer->window_size);
    if (mixer->num_kv_heads != mixer->num_heads)
        snprintf(heads, sizeof heads, " (%d of k and v)", mixer->num_kv_heads);
    snprintf(
        text, size, "%s, position %s%s, output norm %s%s; %d heads%s, d %d, d_v %d, m %d", kind,
        positions[mixer->position.kind], mixer->position.distances ? " and a bias by distance" : "",
        norms[mixer->output_norm.kind], mixer->output_gate ? ", output gate" : "", mixer->num_heads,
        heads, mixer->head_dim, mixer->value_dim, mixer->features_positioned);
}

/* "12.34 MB" of `bytes` into text [16] */
static const char *megabytes(int64_t bytes, char text[16])
{
    const bool few = bytes < 10000, mega = bytes >= 10000000;
    snprintf(text, 16,
             few    ? "%.0f bytes"
             : mega ? "%.2f MB"
                    : "%.2f kB",
             (double)bytes / (few    ? 1
                              : mega ? 1e6
                                     : 1e3));
    return text;
}

static void print_mixer(int layer, const struct mixer *mixer, const char *end)
{
    char text[360];
    if (mixer->second) {
        describe(mixer->second, text, sizeof text);
        printf("  %3d  %-8s %s, %s\n", layer, mixer->name, text,
               mixer->concatenates ? "beside" : "added to");
    }
    describe(mixer, text, sizeof text);
    printf("  %3d  %-8s %s%s\n", layer, mixer->name, text, end);
}

static const struct mlp *mlp_of(const struct layer *layer)
{
    const struct branch *branch;
    for (int i = 0; (branch = layer_branch(layer, i)) != NULL; i++)
        if (branch->mlp)
            return branch->mlp;
    return NULL;
}

static void print_layers(const struct model *model)
{
    printf("layers\n");
    for (int i = 0; i < model->num_layers; i++) {
        const struct branch *branch;
        const struct mlp *mlp = mlp_of(&model->layers[i]);
        const char *end = !mlp ? "; no MLP" : mlp->gate_proj.rows ? "; gated MLP" : "";
        for (int b = 0; (branch = layer_branch(&model->layers[i], b)) != NULL; b++)
            if (branch->mixer)
                print_mixer(i, branch->mixer, end);
    }
}

/* The tables of embeddings stay as in the file, and a token reads one row of them. */
static int64_t table_bytes(const struct model *model)
{
    return (int64_t)(model_matrix_bytes(&model->embeddings) +
                     model_matrix_bytes(&model->position_embeddings));
}

static void print_weights(const struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    char a[16];
    printf("weights in memory  %s as %s (%s, %s), all of it read for a token\n",
           megabytes((int64_t)info->weights_bytes, a), weight_format_name(info->weights),
           info->device, info->instruction_set);
    printf("  by --weights    ");
    for (int format = WEIGHTS_F32; format < WEIGHT_FORMAT_COUNT; format++)
        printf("%s %s %s", format == WEIGHTS_F32 ? "" : ",", weight_format_name(format),
               megabytes((int64_t)engine_info(engine)->weights_bytes_as[format], a));
    printf("\nactivations        multiplied as %s (--activations)\n"
           "products           %s (--products)\n"
           "embeddings         %s, one row of it read for a token\n",
           activation_format_name(info->activations), products_name(info->products),
           megabytes(table_bytes(engine_model(engine)), a));
}

static void print_kv(const struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    char a[16];
    printf("KV per token       %s as %s (in pages of %d tokens)\n",
           megabytes((int64_t)info->kv_bytes_per_token, a), kv_format_name(info->kv),
           info->kv_page_tokens);
    printf("  by --kv         ");
    for (enum kv_format kv = KV_F32; kv <= KV_BF16; kv++)
        printf("%s %s %s", kv == KV_F32 ? "" : ",", kv_format_name(kv),
               megabytes((int64_t)engine_kv_bytes_per_token(engine, kv), a));
    printf("\n");
}

static void print_text(const struct engine *engine, double seconds)
{
    const struct model *model = engine_model(engine);
    const struct engine_info *info = engine_info(engine);
    char a[16];
    printf("model              %s (family %s)\n", model->name, model->family);
    printf("parameters         %" PRId64 ", mostly %s\n", model->parameters,
           dtype_name(model->dtype));
    if (model->file_bytes > 0)
        printf("files              %s\n", megabytes(model->file_bytes, a));
    printf("loaded in          %.2f s by %d threads\n", seconds, info->threads);
    printf("sizes              vocabulary %d, hidden %d, intermediate %d, %d layers\n",
           model->vocab_size, model->hidden_size, model->intermediate_size, model->num_layers);
    print_weights(engine);
    printf("state per text     %s, all of it read and written for a token\n",
           megabytes((int64_t)info->recurrent_bytes_per_text, a));
    print_kv(engine);
    if (info->max_positions > 0)
        printf("longest text       %" PRId64 " tokens (learned positions)\n", info->max_positions);
    else
        printf("longest text       no limit but memory\n");
    print_layers(model);
}

/* NULL, which leaves the key out, where the mixer has no such number. */
static json_t *size_json(int size)
{
    return size > 0 ? json_integer(size) : NULL;
}

/* Its keys of config.json, and sizes (model-format.md). */
static json_t *mixer_json(const struct mixer *mixer)
{
    const bool linear = mixer->kind == MIXER_LINEAR;
    const char *combine = mixer->concatenates ? "concatenate" : "add";
    return json_pack(
        "{ss ss ss* ss* so* ss so* ss* ss* so* so* so* so* ss* si si si si si}", "mixer",
        mixer->name, "kind", linear ? "linear" : "softmax", "feature_map",
        linear ? features[mixer->feature_map] : NULL, "gate", linear ? gates[mixer->gate] : NULL,
        "chunk_size", size_json(mixer->chunk_size), "position", positions[mixer->position.kind],
        "distance_bias", size_json(mixer->position.distances), "activation",
        linear ? NULL : activations[mixer->activation], "window",
        linear ? NULL : windows[mixer->window], "window_size", size_json(mixer->window_size),
        "segment_length", size_json(mixer->segment_length), "segment_rank",
        size_json(mixer->segment_rank), "score_divisor", size_json(mixer->score_divisor), "combine",
        mixer->second ? combine : NULL, "heads", mixer->num_heads, "kv_heads", mixer->num_kv_heads,
        "head_dim", mixer->head_dim, "value_dim", mixer->value_dim, "features",
        mixer->features_positioned);
}

/* A layer's mixer, with those beside it as "second". */
static json_t *layer_json(const struct layer *layer)
{
    json_t *first = NULL;
    const struct branch *branch;
    for (int i = 0; (branch = layer_branch(layer, i)) != NULL; i++) {
        if (!branch->mixer)
            continue;
        json_t *own = mixer_json(branch->mixer);
        if (branch->mixer->second)
            json_object_set_new(own, "second", mixer_json(branch->mixer->second));
        if (!first)
            first = own;
        else
            json_object_set_new(first, "second", own);
    }
    return first ? first : json_object();
}

static json_t *layers_json(const struct model *model)
{
    json_t *layers = json_array();
    for (int i = 0; i < model->num_layers; i++)
        json_array_append_new(layers, layer_json(&model->layers[i]));
    return layers;
}

/* {"f32": {"bytes", "bytes_read_per_token"}, ...} */
static json_t *weights_json(const struct engine *engine)
{
    json_t *formats = json_object();
    for (int format = WEIGHTS_F32; format < WEIGHT_FORMAT_COUNT; format++) {
        json_int_t bytes = (json_int_t)engine_info(engine)->weights_bytes_as[format];
        json_object_set_new(formats, weight_format_name(format),
                            json_pack("{sI sI}", "bytes",
                                      bytes + (json_int_t)table_bytes(engine_model(engine)),
                                      "bytes_read_per_token", bytes));
    }
    return formats;
}

static json_t *kv_json(const struct engine *engine)
{
    json_t *formats = json_object();
    for (enum kv_format kv = KV_F32; kv <= KV_BF16; kv++)
        json_object_set_new(formats, kv_format_name(kv),
                            json_integer((json_int_t)engine_kv_bytes_per_token(engine, kv)));
    return formats;
}

static int print_json(const struct engine *engine, struct error *err)
{
    const struct model *model = engine_model(engine);
    const struct engine_info *info = engine_info(engine);
    json_t *json = json_pack(
        "{ss ss sI ss sI si si si sI ss so ss ss sI sI ss so si sI so}", "model", model->name,
        "family", model->family, "parameters", (json_int_t)model->parameters, "dtype",
        dtype_name(model->dtype), "file_bytes", (json_int_t)model->file_bytes, "vocab_size",
        (int)model->vocab_size, "hidden_size", model->hidden_size, "intermediate_size",
        model->intermediate_size, "weights_bytes", (json_int_t)info->weights_bytes, "weights",
        weight_format_name(info->weights), "weights_by_format", weights_json(engine), "activations",
        activation_format_name(info->activations), "products", products_name(info->products),
        "state_bytes_per_text", (json_int_t)info->recurrent_bytes_per_text, "kv_bytes_per_token",
        (json_int_t)info->kv_bytes_per_token, "kv", kv_format_name(info->kv),
        "kv_bytes_per_token_by_format", kv_json(engine), "kv_page_tokens", info->kv_page_tokens,
        "max_positions", (json_int_t)info->max_positions, "layers", layers_json(model));
    if (!json || json_dumpf(json, stdout, JSON_INDENT(2)) != 0)
        return error_set(err, ERROR_NO_MEMORY, "cannot print JSON");
    putchar('\n');
    json_decref(json);
    return 0;
}

static int run(const char *directory, const struct info_options *options, struct error *err)
{
    struct engine *engine;
    struct model *model;
    const double began = clock_seconds();
    const struct engine_options engine_options = command_engine_options(&options->model);
    if (command_model_load(&model, directory, &options->model, err) != 0 ||
        engine_open_model(&engine, model, &engine_options, err) != 0)
        return -1;
    const double seconds = clock_seconds() - began;
    int result = 0;
    command_model_warn(model);
    if (options->json)
        result = print_json(engine, err);
    else
        print_text(engine, seconds);
    engine_close(engine);
    return result;
}

static void list_presets(void)
{
    for (size_t i = 0; i < num_presets; i++)
        printf("%s\n", presets[i].name);
}

int command_info(int argc, char **argv)
{
    struct info_options options = {0};
    const char *directory = NULL;
    struct option_arguments arguments = {.items = &directory, .capacity = 1};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_info_options, &options, argc, argv, &arguments, &status) == 0) {
        if (options.presets && (directory || options.model.preset || options.json)) {
            fprintf(stderr, "regla info: --presets: expected nothing beside it; usage: %s\n",
                    command_info_options.usage);
            status = 2;
        } else if (options.presets)
            list_presets();
        else if ((status = command_model_given(argv[0], directory, &options.model,
                                               command_info_options.usage)))
            ;
        else if (run(directory, &options, &err) != 0)
            status = command_failed(argv[0], &err);
    }
    options_clear(&command_info_options, &options);
    return status;
}
