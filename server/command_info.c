/* regla info: what a model is, and what it costs. */
#include "server/command.h"

#include "engine/model/model.h"
#include "server/command_model.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

struct info_options {
    struct command_model_options model;
    bool json;
};

static const struct option items[] = {
    {"json", OPTION_FLAG, offsetof(struct info_options, json), NULL, "false", 0, 0, NULL,
     "print one JSON object"},
    COMMAND_MODEL_OPTIONS(struct info_options),
};

static const struct options table = {
    .usage = "regla info MODEL [--json]",
    .summary = "Describes the model in the directory MODEL: layers, parameters, memory.",
    .items = items,
    .count = sizeof items / sizeof *items,
};

static const char *const features[] = {MODEL_FEATURE_MAPS(MODEL_NAME)};
static const char *const gates[] = {MODEL_GATES(MODEL_NAME)};
static const char *const positions[] = {
    "none",  "rope",       "lrpe_unitary", "lrpe_orthogonal",  "lrpe_permutation",
    "alibi", "kerple_log", "kerple_power", "kerple_3para_log", "kerple_bias_wht",
    "t5"};
static const char *const norms[] = {"none", "layernorm", "rmsnorm", "simple_rmsnorm"};
static const char *const windows[] = {"full", "block", "sliding"};

/* "linear: exp features, refined gate, rope, rmsnorm; 4 heads, d 12, d_v 12, m 12" */
static void describe(const struct mixer *mixer, char *text, size_t size)
{
    char kind[96], heads[32] = "";
    if (mixer->kind == MIXER_LINEAR)
        snprintf(kind, sizeof kind, "linear: %s features, gate %s%s", features[mixer->feature_map],
                 gates[mixer->gate], mixer->sum_norm ? ", sum_norm" : "");
    else if (mixer->window == WINDOW_FULL)
        snprintf(kind, sizeof kind, "softmax%s", mixer->activation ? " (relu)" : "");
    else
        snprintf(kind, sizeof kind, "softmax%s: %s window of %d tokens",
                 mixer->activation ? " (relu)" : "", windows[mixer->window], mixer->window_size);
    if (mixer->num_kv_heads != mixer->num_heads)
        snprintf(heads, sizeof heads, " (%d of k and v)", mixer->num_kv_heads);
    snprintf(text, size, "%s, position %s, output norm %s%s; %d heads%s, d %d, d_v %d, m %d", kind,
             positions[mixer->position.kind], norms[mixer->output_norm.kind],
             mixer->output_gate ? ", output gate" : "", mixer->num_heads, heads, mixer->head_dim,
             mixer->value_dim, mixer->features_positioned);
}

/* "12.3 MB" of `bytes` into text [16] */
static const char *megabytes(int64_t bytes, char text[16])
{
    snprintf(text, 16, bytes < 10000 ? "%.0f bytes" : "%.2f MB",
             bytes < 10000 ? (double)bytes : (double)bytes / 1e6);
    return text;
}

static void print_layers(const struct model *model)
{
    printf("layers\n");
    for (int i = 0; i < model->num_layers; i++) {
        char text[320];
        describe(&model->layers[i].mixer, text, sizeof text);
        printf("  %3d  %-8s %s%s\n", i, model->layers[i].mixer.name, text,
               model->layers[i].gate_proj.rows ? "; gated MLP" : "");
    }
}

static void print_text(const struct model *model, const struct engine_info *info)
{
    char a[16];
    printf("model              %s (family %s)\n", model->name, model->family);
    printf("parameters         %" PRId64 ", mostly %s\n", model->parameters,
           dtype_name(model->dtype));
    printf("files              %s\n", megabytes(model->file_bytes, a));
    printf("sizes              vocabulary %d, hidden %d, intermediate %d, %d layers\n",
           model->vocab_size, model->hidden_size, model->intermediate_size, model->num_layers);
    printf("weights in memory  %s (%s, %s)\n", megabytes((int64_t)info->weights_bytes, a),
           info->device, info->instruction_set);
    printf("state per text     %s\n", megabytes((int64_t)info->recurrent_bytes_per_text, a));
    printf("KV per token       %s (in pages of %d tokens)\n",
           megabytes((int64_t)info->kv_bytes_per_token, a), info->kv_page_tokens);
    if (info->max_positions > 0)
        printf("longest text       %" PRId64 " tokens (learned positions)\n", info->max_positions);
    else
        printf("longest text       no limit but memory\n");
    print_layers(model);
}

static json_t *layers_json(const struct model *model)
{
    json_t *layers = json_array();
    for (int i = 0; i < model->num_layers; i++) {
        const struct mixer *mixer = &model->layers[i].mixer;
        bool linear = mixer->kind == MIXER_LINEAR;
        json_array_append_new(layers,
                              json_pack("{ss ss ss* ss* ss ss* si si si si si}", "mixer",
                                        mixer->name, "kind", linear ? "linear" : "softmax",
                                        "feature_map", linear ? features[mixer->feature_map] : NULL,
                                        "gate", linear ? gates[mixer->gate] : NULL, "position",
                                        positions[mixer->position.kind], "window",
                                        linear ? NULL : windows[mixer->window], "heads",
                                        mixer->num_heads, "kv_heads", mixer->num_kv_heads,
                                        "head_dim", mixer->head_dim, "value_dim", mixer->value_dim,
                                        "features", mixer->features_positioned));
    }
    return layers;
}

static int print_json(const struct model *model, const struct engine_info *info, struct error *err)
{
    json_t *json = json_pack(
        "{ss ss sI ss sI si si si sI sI sI si sI so}", "model", model->name, "family",
        model->family, "parameters", (json_int_t)model->parameters, "dtype",
        dtype_name(model->dtype), "file_bytes", (json_int_t)model->file_bytes, "vocab_size",
        (int)model->vocab_size, "hidden_size", model->hidden_size, "intermediate_size",
        model->intermediate_size, "weights_bytes", (json_int_t)info->weights_bytes,
        "state_bytes_per_text", (json_int_t)info->recurrent_bytes_per_text, "kv_bytes_per_token",
        (json_int_t)info->kv_bytes_per_token, "kv_page_tokens", info->kv_page_tokens,
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
    struct engine_options engine_options = {.threads = (int)options->model.threads,
                                            .state_memory_bytes =
                                                (size_t)options->model.state_memory};
    if (engine_open(&engine, directory, &engine_options, err) != 0)
        return -1;
    int result = 0;
    if (options->json)
        result = print_json(engine_model(engine), engine_info(engine), err);
    else
        print_text(engine_model(engine), engine_info(engine));
    engine_close(engine);
    return result;
}

int command_info(int argc, char **argv)
{
    struct info_options options = {0};
    const char *directory = NULL;
    struct option_arguments arguments = {.items = &directory, .capacity = 1};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&table, &options, argc, argv, &arguments, &status) == 0) {
        if (!directory) {
            fprintf(stderr, "regla info: expected a model's directory; usage: %s\n", table.usage);
            status = 2;
        } else if (run(directory, &options, &err) != 0) {
            status = command_failed(argv[0], &err);
        }
    }
    options_clear(&table, &options);
    return status;
}
