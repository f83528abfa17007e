/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers of GGUF metadata that are wrong, and what is refused by name. test_tokenizer.c
 * compares the ids of right ones. */
#include "lib/base/gguf.h"
#include "lib/text/tokenizer.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a file says; each test changes a part. */
struct said {
    const char *model, *pre; /* NULL: no key */
    const char *tokens[6];   /* up to a NULL; none: no key */
    size_t first_length;     /* of the first token, where it has a NUL; 0: as it is */
    int32_t types[6];
    size_t num_types;
    const char *merges[3];
    float scores[6];
    size_t num_scores;
    int64_t bos;       /* -1: no key */
    int add_bos;       /* -1: no key */
    const char *extra; /* a key below tokenizer.ggml */
};

static const struct said byte_level = {.model = "gpt2",
                                       .pre = "gpt-2",
                                       .tokens = {"<e>", "a", "b", "ab", "[PAD4]"},
                                       .types = {3, 1, 1, 1, 5},
                                       .num_types = 5,
                                       .merges = {"a b"},
                                       .bos = -1,
                                       .add_bos = -1};
static const struct said pieces = {.model = "llama",
                                   .tokens = {"<u>", "<s>", "</s>", "a", "b", "ab"},
                                   .types = {2, 3, 3, 1, 1, 1},
                                   .num_types = 6,
                                   .scores = {0, 0, 0, -3, -2, -1},
                                   .num_scores = 6,
                                   .bos = 1,
                                   .add_bos = -1};

static const struct said merged = {.model = "gemma4",
                                   .tokens = {"<s>", "a", "b", "ab", "\u2581", "<0x0A>"},
                                   .types = {3, 1, 1, 1, 1, 6},
                                   .num_types = 6,
                                   .merges = {"a b"},
                                   .bos = 0,
                                   .add_bos = -1};

struct file {
    unsigned char bytes[8192];
    size_t size;
    uint64_t keys;
};

static void put(struct file *file, const void *bytes, size_t size)
{
    cr_assert(file->size + size <= sizeof file->bytes);
    memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static void put_u32(struct file *file, uint32_t value)
{
    put(file, &value, 4);
}

static void put_text(struct file *file, const char *text, uint64_t length)
{
    put(file, &length, 8);
    put(file, text, (size_t)length);
}

static void put_key(struct file *file, const char *name, enum gguf_type type)
{
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    put_text(file, key, strlen(key));
    put_u32(file, type);
    file->keys++;
}

static void put_array(struct file *file, const char *name, enum gguf_type type, uint64_t count)
{
    put_key(file, name, GGUF_ARRAY);
    put_u32(file, type);
    put(file, &count, 8);
}

static void put_texts(struct file *file, const char *name, const char *const *texts, size_t most,
                      size_t first_length)
{
    size_t count = 0;
    while (count < most && texts[count])
        count++;
    if (count > 0)
        put_array(file, name, GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        put_text(file, texts[i], i == 0 && first_length ? first_length : strlen(texts[i]));
}

static void begin(struct file *file, const char *model)
{
    const uint64_t none = 0;
    *file = (struct file){.size = 0};
    put(file, "GGUF", 4);
    put_u32(file, 3);
    put(file, &none, 8);
    put(file, &none, 8);
    if (model) {
        put_key(file, "model", GGUF_STRING);
        put_text(file, model, strlen(model));
    }
}

static void build(struct file *file, const struct said *said)
{
    begin(file, said->model);
    if (said->pre) {
        put_key(file, "pre", GGUF_STRING);
        put_text(file, said->pre, strlen(said->pre));
    }
    put_texts(file, "tokens", said->tokens, 6, said->first_length);
    put_texts(file, "merges", said->merges, 3, 0);
    if (said->num_types > 0) {
        put_array(file, "token_type", GGUF_I32, said->num_types);
        put(file, said->types, said->num_types * sizeof *said->types);
    }
    if (said->num_scores > 0) {
        put_array(file, "scores", GGUF_F32, said->num_scores);
        put(file, said->scores, said->num_scores * sizeof *said->scores);
    }
    if (said->bos >= 0) {
        put_key(file, "bos_token_id", GGUF_U32);
        put_u32(file, (uint32_t)said->bos);
    }
    if (said->add_bos >= 0) {
        put_key(file, "add_bos_token", GGUF_BOOL);
        put(file, &(unsigned char){(unsigned char)said->add_bos}, 1);
    }
    if (said->extra) {
        put_key(file, said->extra, GGUF_U32);
        put_u32(file, 1);
    }
    memcpy(file->bytes + 16, &file->keys, 8);
}

/* message NULL: it loads, and text becomes ids [up to -1]. */
static void expect(const struct said *said, const char *message, const char *text,
                   const int32_t *expected)
{
    struct file file;
    struct tokenizer *tokenizer;
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    build(&file, said);
    unsigned char *exact = malloc(file.size); /* so that a sanitizer sees reads beyond it */
    memcpy(exact, file.bytes, file.size);
    int result = tokenizer_load_gguf(&tokenizer, exact, file.size, &err);
    free(exact);
    if (message) {
        cr_expect_eq(result, -1, "accepted; expected %s", message);
        cr_expect(strstr(err.message, message), "\n got %s\nwant %s", err.message, message);
        if (result == 0)
            tokenizer_free(tokenizer);
        return;
    }
    cr_assert_eq(result, 0, "%s", err.message);
    cr_assert_eq(tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &err), 0);
    size_t i = 0;
    while (expected[i] >= 0 && i < ids.count && ids.ids[i] == expected[i])
        i++;
    cr_expect(i == ids.count && expected[i] < 0, "%s: other ids from number %zu on", text, i);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}

#define CHANGED(base, ...)       \
    ({                           \
        struct said said = base; \
        __VA_ARGS__;             \
        said;                    \
    })
#define REFUSED(base, message, ...)                   \
    do {                                              \
        struct said one = CHANGED(base, __VA_ARGS__); \
        expect(&one, message, NULL, NULL);            \
    } while (0)

Test(gguf_tokenizer, right_ones)
{
    expect(&byte_level, NULL, "aab<e>ba", (int32_t[]){1, 3, 0, 2, 1, -1});
    struct said with_bos = CHANGED(byte_level, said.add_bos = 1; said.bos = 0);
    expect(&with_bos, NULL, "ab", (int32_t[]){0, 3, -1});
    /* the space before a text, which no token has, is the unknown token */
    expect(&pieces, NULL, "ab", (int32_t[]){1, 0, 5, -1});
    struct said without = CHANGED(pieces, said.add_bos = 0);
    expect(&without, NULL, "ba", (int32_t[]){0, 4, 3, -1});
    /* without a space before it; no unknown token: what has no byte tokens is left out */
    expect(&merged, NULL, "ab ab\nc", (int32_t[]){0, 3, 4, 3, 5, -1});
    struct said denied = CHANGED(merged, said.add_bos = 0);
    expect(&denied, NULL, "a", (int32_t[]){0, 1, -1});
}

/* Its tokens are escaped as Python does with bytes, without the quotes. */
Test(gguf_tokenizer, world)
{
    struct file file;
    struct tokenizer *tokenizer;
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    static char texts[256][8];
    const char *tokens[260] = {"<s>"};
    int32_t types[260] = {3};
    size_t count = 1;
    for (int byte = 0; byte < 256; byte++, count++) {
        snprintf(texts[byte], sizeof texts[byte], byte == '\\' ? "\\\\" : "\\x%02x",
                 (unsigned)byte);
        tokens[count] = texts[byte];
        types[count] = 1;
    }
    tokens[count] = "\\n\\xe4'";
    types[count++] = 1;
    tokens[count] = "[PAD258]";
    types[count++] = 5;
    begin(&file, "rwkv");
    put_texts(&file, "tokens", tokens, count, 0);
    put_array(&file, "token_type", GGUF_I32, count);
    put(&file, types, count * sizeof *types);
    memcpy(file.bytes + 16, &file.keys, 8);
    cr_assert_eq(tokenizer_load_gguf(&tokenizer, file.bytes, file.size, &err), 0, "%s",
                 err.message);
    static const char text[] = "\n\xe4\xb8\xad\\<s>";
    cr_assert_eq(tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &err), 0);
    cr_assert_eq(ids.count, 6);
    cr_expect_arr_eq(ids.ids, ((int32_t[]){'\n' + 1, 0xE4 + 1, 0xB8 + 1, 0xAD + 1, '\\' + 1, 0}),
                     24);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
    REFUSED(byte_level, "tokenizer.ggml.tokens: [1]: expected \\\\", said.model = "rwkv";
            said.tokens[1] = "\\q");
    REFUSED(byte_level, "expected a token for each byte, got none for 0x00", said.model = "rwkv");
}

Test(gguf_tokenizer, damages)
{
    REFUSED(byte_level, "memory: tokenizer.ggml.model: expected a STRING, got nothing",
            said.model = NULL);
    REFUSED(byte_level,
            "unknown tokenizer.ggml.model \"bert\" (known: gpt2, llama, gemma4, "
            "rwkv)",
            said.model = "bert");
    REFUSED(byte_level, "unknown tokenizer.ggml.pre \"nope\" (known: default, gpt-2, phi-2,",
            said.pre = "nope");
    REFUSED(byte_level, "memory: tokenizer.ggml.tokens: expected an array of STRING, got nothing",
            said.tokens[0] = NULL);
    REFUSED(byte_level, "tokenizer.ggml.tokens: [2]: \"a\" is token 1, too", said.tokens[2] = "a");
    REFUSED(byte_level, "tokenizer.ggml.tokens: [1]: expected UTF-8", said.tokens[1] = "\xff");
    REFUSED(byte_level, "tokenizer.ggml.tokens: [0]: expected a text without NUL",
            said.tokens[0] = "a\0b";
            said.first_length = 3);
    REFUSED(byte_level, "tokenizer.ggml.token_type: expected 5 values, as tokens, got 4",
            said.num_types = 4);
    REFUSED(byte_level, "tokenizer.ggml.token_type: [1]: expected 1 to 6, got 7",
            said.types[1] = 7);
    REFUSED(byte_level, "tokenizer.ggml.merges: expected an array of STRING, got nothing",
            said.merges[0] = NULL);
    REFUSED(byte_level, "tokenizer.ggml.merges: [1]: expected UTF-8", said.merges[1] = "\xc3 a");
    REFUSED(byte_level,
            "memory, as tokenizer.json: model: merges[0]: \"c\" is not in the vocabulary",
            said.merges[0] = "a c");
    REFUSED(byte_level, "tokenizer.ggml.bos_token_id: expected an id", said.add_bos = 1);
    REFUSED(byte_level, "tokenizer.ggml.bos_token_id: expected an integer in [0, 4], got 5",
            said.add_bos = 1;
            said.bos = 5);
    REFUSED(byte_level, "tokenizer.ggml.precompiled_charsmap: not supported",
            said.extra = "precompiled_charsmap");
    REFUSED(pieces, "tokenizer.ggml.scores: expected an array of F32, got nothing",
            said.num_scores = 0);
    REFUSED(pieces, "tokenizer.ggml.scores: expected 6 values, as tokens, got 5",
            said.num_scores = 5);
    REFUSED(pieces, "tokenizer.ggml.scores: [3]: expected a finite number, got nan",
            said.scores[3] = NAN);
    REFUSED(merged, "tokenizer.ggml.merges: expected an array of STRING, got nothing",
            said.merges[0] = NULL);
    REFUSED(merged, "tokenizer.ggml.bos_token_id: expected an id", said.bos = -1);
    char *long_piece = malloc(600);
    memset(long_piece, 'a', 599);
    long_piece[599] = 0;
    REFUSED(pieces, "expected at most 512 bytes, got 599", said.tokens[5] = long_piece);
    free(long_piece);
}
