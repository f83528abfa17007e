/* SPDX-License-Identifier: Apache-2.0 */
/* regla tokenize: text to token ids and back. */
#include "cli/command.h"

#include "cli/command_model.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct tokenize_options {
    const char *text, *format;
    bool add_special_tokens, skip_special_tokens, decode;
};

#define AT(field) offsetof(struct tokenize_options, field)

static const struct option items[] = {
    {"text", OPTION_TEXT, AT(text), "TEXT", NULL, 0, 0, NULL,
     "what to tokenize; without it, standard input, every byte of it"},
    {"format", OPTION_CHOICE, AT(format), NULL, "pieces", 0, 0, "pieces|ids|json|count",
     "pieces: a line per token, its id and its text; ids: on one line; json: {tokens, count}"},
    {"add-special-tokens", OPTION_FLAG, AT(add_special_tokens), NULL, "true", 0, 0, NULL,
     "apply the tokenizer's template (begin and end tokens)"},
    {"decode", OPTION_FLAG, AT(decode), NULL, "false", 0, 0, NULL,
     "the other way: ids, separated by spaces, commas or newlines, to text"},
    {"skip-special-tokens", OPTION_FLAG, AT(skip_special_tokens), NULL, "false", 0, 0, NULL,
     "with --decode: leave special tokens out of the text"},
};

const struct options command_tokenize_options = {
    .usage = "regla tokenize MODEL [--text TEXT] [options]",
    .summary =
        "Splits a text into the tokens of MODEL, a directory, a GGUF file, a tokenizer.json\n"
        "or RWKV's rwkv_vocab_v20230424.txt.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

/* A token's text on a line of its own: controls, quotes and bytes that are not ASCII escaped. */
static void print_piece(const struct tokenizer *tokenizer, int32_t id)
{
    size_t length = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    json_t *string = bytes ? json_stringn(bytes, length) : NULL;
    printf("%" PRId32 "\t", id);
    if (string) {
        json_dumpf(string, stdout, JSON_ENCODE_ANY);
    } else {
        putchar('"');
        for (size_t i = 0; i < length; i++)
            printf("\\x%02x", (unsigned char)bytes[i]);
        putchar('"');
    }
    if (tokenizer_is_special(tokenizer, id))
        printf("\tspecial");
    putchar('\n');
    json_decref(string);
}

static int print_tokens(const struct tokenizer *tokenizer, const struct token_list *tokens,
                        const char *format, struct error *err)
{
    bool json = strcmp(format, "json") == 0;
    if (strcmp(format, "count") == 0) {
        printf("%zu\n", tokens->count);
    } else if (strcmp(format, "pieces") == 0) {
        for (size_t i = 0; i < tokens->count; i++)
            print_piece(tokenizer, tokens->ids[i]);
    } else {
        printf("%s", json ? "{\"tokens\": [" : "");
        for (size_t i = 0; i < tokens->count; i++)
            printf("%s%" PRId32, i == 0 ? "" : json ? ", " : " ", tokens->ids[i]);
        if (json)
            printf("], \"count\": %zu}", tokens->count);
        putchar('\n');
    }
    if (fflush(stdout) != 0)
        return error_set(err, ERROR_IO, "standard output: cannot write: %s", strerror(errno));
    return 0;
}

static int decode(const struct tokenizer *tokenizer, const struct tokenize_options *options,
                  const char *input, size_t input_length, struct error *err)
{
    struct token_list ids = {0};
    char *text = NULL;
    size_t length;
    int result = command_parse_ids(input, input_length, &ids, err);
    for (size_t i = 0; result == 0 && i < ids.count; i++)
        if (ids.ids[i] >= tokenizer_size(tokenizer))
            result = error_set(err, ERROR_INVALID, "expected token ids under %d, got %d",
                               tokenizer_size(tokenizer), ids.ids[i]);
    if (result == 0)
        result = tokenizer_decode(tokenizer, ids.ids, ids.count, options->skip_special_tokens,
                                  &text, &length, err);
    if (result == 0 && (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0))
        result = error_set(err, ERROR_IO, "standard output: cannot write: %s", strerror(errno));
    free(text);
    token_list_clear(&ids);
    return result;
}

static int encode(const struct tokenizer *tokenizer, const struct tokenize_options *options,
                  const char *input, size_t length, struct error *err)
{
    struct token_list tokens = {0};
    int result =
        tokenizer_encode(tokenizer, input, length, options->add_special_tokens, &tokens, err);
    if (result == 0)
        result = print_tokens(tokenizer, &tokens, options->format, err);
    token_list_clear(&tokens);
    return result;
}

static int run(const char *path, const struct tokenize_options *options, struct error *err)
{
    struct tokenizer *tokenizer = NULL;
    char *input = NULL;
    size_t length = options->text ? strlen(options->text) : 0;
    int result = command_tokenizer_open(&tokenizer, path, err);
    if (result == 0 && !options->text)
        result = command_read_stdin(&input, &length, err);
    if (result == 0)
        command_tokenizer_warn(tokenizer);
    const char *text = options->text ? options->text : input;
    if (result == 0)
        result = options->decode ? decode(tokenizer, options, text, length, err)
                                 : encode(tokenizer, options, text, length, err);
    free(input);
    if (tokenizer)
        tokenizer_free(tokenizer);
    return result;
}

int command_tokenize(int argc, char **argv)
{
    struct tokenize_options options = {0};
    const char *path = NULL;
    struct option_arguments arguments = {.items = &path, .capacity = 1};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_tokenize_options, &options, argc, argv, &arguments, &status) ==
        0) {
        if (!path) {
            fprintf(stderr,
                    "regla tokenize: expected a model's directory, a GGUF file or a "
                    "tokenizer.json; usage: %s\n",
                    command_tokenize_options.usage);
            status = 2;
        } else if (run(path, &options, &err) != 0) {
            status = command_failed(argv[0], &err);
        }
    }
    options_clear(&command_tokenize_options, &options);
    return status;
}
