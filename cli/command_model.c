/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/command_model.h"

#include "engine/device.h"
#include "engine/model/model_load.h"
#include "engine/model/preset.h"
#include "engine/ops/sampler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int command_tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    static const char none[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}";
    if (!path)
        return tokenizer_load(out, none, sizeof none - 1, err);
    return tokenizer_open(out, path, err);
}

/* A place in a sentence is below folder, which a slash ends; both "": it is whole. */
static void warn(const struct warnings *warnings, const char *folder, const char *slash)
{
    const char *text;
    for (size_t i = 0; (text = warnings_at(warnings, i)); i++)
        fprintf(stderr, "regla: warning: %s%s%s\n", folder, slash, text);
}

void command_warn(const struct warnings *warnings, const char *folder)
{
    warn(warnings, folder, "/");
}

void command_tokenizer_warn(const struct tokenizer *tokenizer)
{
    warn(tokenizer_warnings(tokenizer), "", "");
}

struct chat_template_source command_template_source(const struct model *model,
                                                    const struct tokenizer *tokenizer)
{
    const int32_t eos = model->eos.count > 0 ? model->eos.ids[0] : -1;
    return (struct chat_template_source){tokenizer, model->bos_token_id, eos};
}

int command_parse_ids(const char *text, size_t length, struct token_list *ids, struct error *err)
{
    static const char separators[] = " ,\t\r\n[]";
    if (memchr(text, 0, length))
        return error_set(err, ERROR_INVALID, "expected token ids, got a NUL byte at byte %zu",
                         strlen(text));
    for (text += strspn(text, separators); *text; text += strspn(text, separators)) {
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || errno != 0 || id < 0 || id > INT32_MAX ||
            (*end && !strchr(separators, *end)))
            return error_set(err, ERROR_INVALID, "expected token ids, got \"%.20s\"", text);
        if (token_list_push(ids, (int32_t)id, err) != 0)
            return -1;
        text = end;
    }
    return 0;
}

int command_model_given(const char *command, const char *directory,
                        const struct command_model_options *options, const char *usage)
{
    if (!directory == !options->preset) {
        fprintf(stderr, "regla %s: expected a model's directory or --preset, got %s; usage: %s\n",
                command,
                !directory                           ? "neither"
                : directory == getenv("REGLA_MODEL") ? "both (REGLA_MODEL is set)"
                                                     : "both",
                usage);
        return 2;
    }
    if (!options->preset || preset_find(options->preset))
        return 0;
    const char *nearest = options_nearest(options->preset, presets, num_presets, sizeof *presets);
    fprintf(stderr, "regla %s: --preset: there is no \"%s\"", command, options->preset);
    if (nearest)
        fprintf(stderr, " (did you mean %s?)", nearest);
    fprintf(stderr, "; `regla info --presets` lists them\n");
    return 2;
}

struct engine_options command_engine_options(const struct command_model_options *options)
{
    struct engine_options engine = {.device = options->device,
                                    .device_memory_bytes = (size_t)options->device_memory,
                                    .threads = (int)options->threads,
                                    .observer = options->observer,
                                    .sharing = options->sharing,
                                    .state_memory_bytes = (size_t)options->state_memory};
    /* the options' tables have no other names */
    weight_format_find(options->weights, &engine.weights);
    kv_format_find(options->kv, &engine.kv);
    activation_format_find(options->activations, &engine.activations);
    products_find(options->products, &engine.products);
    return engine;
}

int command_model_load(struct model **out, const char *directory,
                       const struct command_model_options *options, struct error *err)
{
    if (device_find(options->device, err) != 0)
        return -1;
    return directory ? model_open(out, directory, err) : preset_open(out, options->preset, err);
}

void command_model_warn(const struct model *model)
{
    warn(&model->warnings, model->directory, "/");
}

int command_model_open(struct command_model *model, const char *directory,
                       const struct command_model_options *options, int step_tokens,
                       bool all_logits, struct error *err)
{
    struct engine_options engine = command_engine_options(options);
    engine.max_step_tokens = step_tokens;
    engine.max_step_logits = all_logits ? step_tokens : 0;
    *model = (struct command_model){0};
    struct model *loaded;
    if (command_model_load(&loaded, directory, options, err) == 0 &&
        engine_open_model(&model->engine, loaded, &engine, err) == 0 &&
        command_tokenizer_open(&model->tokenizer, directory, err) == 0 &&
        tokenizer_limit(model->tokenizer, engine_info(model->engine)->vocab_size, err) == 0) {
        command_model_warn(engine_model(model->engine));
        command_tokenizer_warn(model->tokenizer);
        return 0;
    }
    command_model_close(model);
    return -1;
}

void command_model_close(struct command_model *model)
{
    if (model->tokenizer)
        tokenizer_free(model->tokenizer);
    if (model->engine)
        engine_close(model->engine);
    *model = (struct command_model){0};
}

int command_encode_document(const struct command_model *model, const char *text, size_t length,
                            struct token_list *ids, struct error *err)
{
    const int32_t bos = engine_model(model->engine)->bos_token_id;
    struct token_list plain = {0};
    int result = tokenizer_encode(model->tokenizer, text, length, true, &plain, err);
    if (result == 0 && bos >= 0 && (plain.count == 0 || plain.ids[0] != bos))
        result = token_list_push(ids, bos, err);
    for (size_t i = 0; result == 0 && i < plain.count; i++)
        result = token_list_push(ids, plain.ids[i], err);
    token_list_clear(&plain);
    return result;
}

int command_feed(struct engine *engine, struct state *state, const int32_t *tokens, size_t count,
                 struct draw *draw, struct error *err)
{
    size_t most = (size_t)engine_info(engine)->max_step_tokens;
    struct span span = {.state = state};
    for (size_t at = 0; at < count; at += (size_t)span.num_tokens) {
        span.tokens = tokens + at;
        span.num_tokens = (int)(count - at < most ? count - at : most);
        span.draw = at + (size_t)span.num_tokens == count ? draw : NULL;
        if (engine_step(engine, &span, 1, err) != 0)
            return -1;
    }
    return draw ? draw_check(draw, err) : 0;
}

int command_read_stdin(char **text, size_t *length, struct error *err)
{
    size_t capacity = 1 << 16, size = 0;
    char *bytes = malloc(capacity + 1);
    while (bytes) {
        size += fread(bytes + size, 1, capacity - size, stdin);
        if (size < capacity)
            break;
        capacity *= 2;
        char *grown = realloc(bytes, capacity + 1);
        if (!grown)
            free(bytes);
        bytes = grown;
    }
    if (!bytes)
        return error_set(err, ERROR_NO_MEMORY, "standard input: out of memory");
    if (ferror(stdin)) {
        free(bytes);
        return error_set(err, ERROR_IO, "standard input: cannot read: %s", strerror(errno));
    }
    bytes[size] = 0;
    *text = bytes;
    *length = size;
    return 0;
}

int command_failed(const char *command, const struct error *err)
{
    fflush(stdout);
    fprintf(stderr, "regla %s: %s\n", command, err->message);
    return 1;
}

int command_misused(const char *command, const struct error *err)
{
    command_failed(command, err);
    return 2;
}
