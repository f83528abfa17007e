/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.ggml.pre: llama.cpp's name for how a model's tokenizer.json cuts a text before BPE. The
 * rows have what those files say, which llama.cpp's own expressions imitate. */
#include "lib/text/gguf_tokenizer.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MAX_PATTERNS = 4 };

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS_AND(numbers) \
    ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BY_CASE(endings, numbers)                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" endings "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*" endings "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

#define LLAMA3                   \
    {                            \
        WORDS_AND("\\p{N}{1,3}") \
    }
#define QWEN2               \
    {                       \
        WORDS_AND("\\p{N}") \
    }
#define GPT2_IS_LAST "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

enum {
    DIGITS = 1, /* each a piece, before all else */
    NFC = 2,
    WHOLE = 4, /* a piece that is a token needs no merges */
    BOS = 8,   /* before each text, unless the file says otherwise */
};

static const struct pre {
    const char *name;
    const char *patterns[MAX_PATTERNS]; /* none: ByteLevel's own */
    unsigned flags;
} pres[] = {
    /* for files without the key, too: no model's own, but what llama.cpp does then */
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_IS_LAST, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
    {"gpt-2", {NULL}, 0},
    {"phi-2", {NULL}, 0},
    {"jais", {NULL}, 0},
    {"mpt", {NULL}, NFC}, /* GPT-NeoX and Pythia */
    {"olmo", {NULL}, NFC},
    {"smollm", {NULL}, DIGITS},
    {"starcoder", {NULL}, DIGITS},
    {"refact", {NULL}, DIGITS},
    {"codeshell", {NULL}, DIGITS},
    {"command-r", {NULL}, DIGITS | NFC},
    {"llama-bpe", LLAMA3, WHOLE | BOS},
    {"llama3", LLAMA3, WHOLE | BOS},
    {"llama-v3", LLAMA3, WHOLE | BOS},
    {"falcon3", LLAMA3, WHOLE | BOS},
    {"falcon-h1", LLAMA3, WHOLE | BOS},
    {"lfm2", LLAMA3, WHOLE | BOS},
    {"dbrx", LLAMA3, 0},
    {"qwen2", QWEN2, NFC},
    {"deepseek-r1-qwen", QWEN2, NFC},
    {"qwen35",
     {ENDINGS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES},
     NFC},
    {"tekken", {BY_CASE("", "\\p{N}")}, WHOLE | BOS},
    {"gpt-4o", {BY_CASE(ENDINGS "?", "\\p{N}{1,3}")}, 0},
};

static json_t *byte_level(bool use_regex)
{
    return json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", use_regex);
}

/* The steps of a row; NULL: no memory. */
static json_t *steps_of(const struct pre *pre)
{
    json_t *steps = json_array();
    if (pre->flags & DIGITS)
        json_array_append_new(steps,
                              json_pack("{ss sb}", "type", "Digits", "individual_digits", 1));
    for (int i = 0; i < MAX_PATTERNS && pre->patterns[i]; i++)
        json_array_append_new(steps,
                              json_pack("{ss s{ss} ss sb}", "type", "Split", "pattern", "Regex",
                                        pre->patterns[i], "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps, byte_level(!pre->patterns[0]));
    return json_pack("{ss so}", "type", "Sequence", "pretokenizers", steps);
}

static const struct pre *find(const struct gguf *gguf, struct warnings *warnings, struct error *err)
{
    static const char key[] = "tokenizer.ggml.pre";
    const char *names[COUNT(pres)];
    struct gguf_text text = {pres[0].name, strlen(pres[0].name)};
    char got[41];
    if (gguf_text(gguf, key, FIELD_OPTIONAL, &text, err) != 0)
        return NULL;
    if (!gguf_find(gguf, key))
        warnings_add(warnings,
                     "%s: %s: there is none: text is cut as llama.cpp does then, which may not be "
                     "as the model was trained",
                     gguf->file, key);
    for (size_t i = 0; i < COUNT(pres); i++) {
        names[i] = pres[i].name;
        if (strlen(names[i]) == text.length && memcmp(names[i], text.bytes, text.length) == 0)
            return &pres[i];
    }
    snprintf(got, sizeof got, "%.*s", (int)(text.length < 40 ? text.length : 40), text.bytes);
    fields_unknown(gguf->file, key, got, names, COUNT(pres), err);
    return NULL;
}

int gguf_split(struct gguf_split *split, const struct gguf *gguf, struct warnings *warnings,
               struct error *err)
{
    const struct pre *pre = find(gguf, warnings, err);
    if (!pre)
        return -1;
    *split = (struct gguf_split){.normalizer =
                                     pre->flags & NFC ? json_pack("{ss}", "type", "NFC") : NULL,
                                 .pre_tokenizer = steps_of(pre),
                                 .ignore_merges = pre->flags & WHOLE,
                                 .add_bos = pre->flags & BOS};
    return 0;
}
