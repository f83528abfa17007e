#include "server/command_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int command_tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    char file[4096];
    struct stat status;
    bool directory = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    int length = snprintf(file, sizeof file, "%s%s", path, directory ? "/tokenizer.json" : "");
    if (length < 0 || (size_t)length >= sizeof file)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", path);
    return tokenizer_open(out, file, err);
}

/* The model may have more ids than the tokenizer, but not fewer. */
static int check_vocabulary(const struct command_model *model, const char *directory,
                            struct error *err)
{
    int32_t ids = tokenizer_size(model->tokenizer);
    int32_t vocab_size = engine_info(model->engine)->vocab_size;
    if (ids <= vocab_size)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s/tokenizer.json: expected at most %d ids, the model's vocab_size, got %d",
                     directory, vocab_size, ids);
}

int command_model_open(struct command_model *model, const char *directory,
                       const struct command_model_options *options, int step_tokens,
                       bool all_logits, struct error *err)
{
    struct engine_options engine = {.threads = (int)options->threads,
                                    .state_memory_bytes = (size_t)options->state_memory,
                                    .max_step_tokens = step_tokens,
                                    .max_step_logits = all_logits ? step_tokens : 0};
    *model = (struct command_model){0};
    if (engine_open(&model->engine, directory, &engine, err) == 0 &&
        command_tokenizer_open(&model->tokenizer, directory, err) == 0 &&
        check_vocabulary(model, directory, err) == 0)
        return 0;
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

int command_feed(struct engine *engine, struct state *state, const int32_t *tokens, size_t count,
                 const float **logits, struct error *err)
{
    size_t most = (size_t)engine_info(engine)->max_step_tokens;
    struct span span = {.state = state};
    for (size_t at = 0; at < count; at += (size_t)span.num_tokens) {
        span.tokens = tokens + at;
        span.num_tokens = (int)(count - at < most ? count - at : most);
        span.num_logits = at + (size_t)span.num_tokens == count;
        if (engine_step(engine, &span, 1, err) != 0)
            return -1;
    }
    *logits = span.logits;
    return 0;
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
