/* SPDX-License-Identifier: Apache-2.0 */
/* regla info: what a model is, and what it costs. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/info_layers.h"
#include "cli/info_program.h"
#include "engine/cost.h"
#include "engine/model/four_bits.h"
#include "engine/model/preset.h"
#include "lib/base/clock.h"
#include "lib/base/size_text.h"

#include <inttypes.h>
#include <jansson.h>

struct info_options {
    struct command_model_options model;
    bool json, program, presets;
};

static const struct option items[] = {
    {"json", OPTION_FLAG, offsetof(struct info_options, json), NULL, "false", 0, 0, NULL,
     "print one JSON object"},
    {"program", OPTION_FLAG, offsetof(struct info_options, program), NULL, "false", 0, 0, NULL,
     "print the operations of a step, a line each, in place of the layers"},
    {"presets", OPTION_FLAG, offsetof(struct info_options, presets), NULL, "false", 0, 0, NULL,
     "only list the names that --preset takes"},
    COMMAND_PRESET_OPTION(struct info_options),
    COMMAND_MODEL_OPTIONS(struct info_options, "auto"),
};

const struct options command_info_options = {
    .usage = "regla info (MODEL | --preset NAME) [--json] [--program], or regla info --presets",
    .summary = "Describes MODEL, a directory or a GGUF file: layers, parameters, and what each "
               "format of weights\nand KV costs.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

/* The tables of embeddings stay as in the file, and a token reads one row of them. */
static int64_t table_bytes(const struct model *model)
{
    return (int64_t)(model_matrix_bytes(&model->embeddings) +
                     model_matrix_bytes(&model->position_embeddings) +
                     model_matrix_bytes(&model->layer_embeddings));
}

static const struct cost_texts ONE = {.batch = 1};

static void print_weights(const struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    const double all = (double)info->weights_bytes;
    const double read = cost_weight_bytes(engine_program(engine), WEIGHTS_AUTO, &ONE);
    char a[SIZE_TEXT], b[SIZE_TEXT];
    printf("weights in memory  %s as %s%s (%s, %s), %s of it read for a token\n", size_text(all, a),
           weight_format_name(info->weights), info->q4_blocks != 0 ? " of " FOUR_BITS_FILE : "",
           info->device, info->instruction_set, read < all ? size_text(read, b) : "all");
    if (info->refused_set != NULL)
        printf("                   %s\n", info->refused_set);
    printf("  by --weights    ");
    for (int format = WEIGHT_FORMAT_FIRST; format < WEIGHT_FORMAT_COUNT; format++)
        if (info->weights_bytes_as[format] > 0)
            printf("%s %s %s", format == WEIGHT_FORMAT_FIRST ? "" : ",", weight_format_name(format),
                   size_text((double)engine_info(engine)->weights_bytes_as[format], a));
    printf("\nactivations        multiplied as %s (--activations), by %s\n"
           "products           %s (--products)\n"
           "embeddings         %s, one row of it read for a token\n",
           activation_format_name(info->activations), info->unit, products_name(info->products),
           size_text((double)table_bytes(engine_model(engine)), a));
}

static void print_kv(const struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    char a[SIZE_TEXT];
    if (info->kv_bytes_per_token == 0) {
        printf("KV per token       none: a text takes the same at any length\n");
        return;
    }
    printf("KV per token       %s as %s (in pages of %d tokens)\n",
           size_text((double)info->kv_bytes_per_token, a), kv_format_name(info->kv),
           info->kv_page_tokens);
    printf("  by --kv         ");
    for (enum kv_format kv = KV_F32; kv <= KV_BF16; kv++)
        printf("%s %s %s", kv == KV_F32 ? "" : ",", kv_format_name(kv),
               size_text((double)engine_kv_bytes_per_token(engine, kv), a));
    printf("\n");
}

static int print_text(const struct engine *engine, bool program, double seconds, struct error *err)
{
    const struct model *model = engine_model(engine);
    const struct engine_info *info = engine_info(engine);
    char a[SIZE_TEXT];
    printf("model              %s (family %s)\n", model->name, model->family);
    printf("parameters         %" PRId64 ", mostly %s\n", model->parameters,
           dtype_name(model->dtype));
    if (model->file_bytes > 0)
        printf("files              %s\n", size_text((double)model->file_bytes, a));
    printf("loaded in          %.2f s by %d threads\n", seconds, info->threads);
    printf("sizes              vocabulary %d, hidden %d, intermediate %d, %d layers\n",
           model->vocab_size, model->hidden_size, model->intermediate_size, model->num_layers);
    print_weights(engine);
    printf("state per text     %s, all of it read and written for a token\n",
           size_text((double)info->recurrent_bytes_per_text, a));
    print_kv(engine);
    if (info->max_positions > 0)
        printf("longest text       %" PRId64 " tokens (learned positions)\n", info->max_positions);
    else
        printf("longest text       no limit but memory\n");
    return program ? info_program_print(engine, err) : info_layers_print(engine, err);
}

/* {"f32": {"bytes", "bytes_read_per_token"}, ...} */
static json_t *weights_json(const struct engine *engine)
{
    json_t *formats = json_object();
    for (int format = WEIGHT_FORMAT_FIRST; format < WEIGHT_FORMAT_COUNT; format++) {
        json_int_t bytes = (json_int_t)engine_info(engine)->weights_bytes_as[format];
        if (bytes == 0)
            continue;
        json_object_set_new(
            formats, weight_format_name(format),
            json_pack("{sI sI}", "bytes", bytes + (json_int_t)table_bytes(engine_model(engine)),
                      "bytes_read_per_token",
                      (json_int_t)cost_weight_bytes(engine_program(engine),
                                                    (enum weight_format)format, &ONE)));
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

static int print_json(const struct engine *engine, bool program, struct error *err)
{
    const struct model *model = engine_model(engine);
    const struct engine_info *info = engine_info(engine);
    json_t *json = json_pack(
        "{ss ss sI ss sI si si si sI ss so ss ss ss ss so sI sI ss so si sI so}", "model",
        model->name, "family", model->family, "parameters", (json_int_t)model->parameters, "dtype",
        dtype_name(model->dtype), "file_bytes", (json_int_t)model->file_bytes, "vocab_size",
        (int)model->vocab_size, "hidden_size", model->hidden_size, "intermediate_size",
        model->intermediate_size, "weights_bytes", (json_int_t)info->weights_bytes, "weights",
        weight_format_name(info->weights), "weights_by_format", weights_json(engine), "activations",
        activation_format_name(info->activations), "products", products_name(info->products),
        "instruction_set", info->instruction_set, "unit", info->unit, "refused_set",
        info->refused_set != NULL ? json_string(info->refused_set) : json_null(),
        "state_bytes_per_text", (json_int_t)info->recurrent_bytes_per_text, "kv_bytes_per_token",
        (json_int_t)info->kv_bytes_per_token, "kv", kv_format_name(info->kv),
        "kv_bytes_per_token_by_format", kv_json(engine), "kv_page_tokens", info->kv_page_tokens,
        "max_positions", (json_int_t)info->max_positions, "layers", info_layers_json(engine));
    if (json && program && json_object_set_new(json, "program", info_program_json(engine)) != 0) {
        json_decref(json);
        json = NULL;
    }
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
        result = print_json(engine, options->program, err);
    else
        result = print_text(engine, options->program, seconds, err);
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
        if (options.presets &&
            (directory || options.model.preset || options.json || options.program)) {
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
