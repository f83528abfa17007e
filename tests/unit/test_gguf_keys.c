/* SPDX-License-Identifier: Apache-2.0 */
/* Each key of tests/data/gguf/keys.txt, which GGUF files have, against its row in the table: read,
 * without effect at the values that the row names, left aside, or refused by name. */
#include "engine/model/gguf_dense.h"
#include "lib/base/gguf_keys.h"

#include "tests/unit/gguf_models.h"

#include <math.h>

static const char *const files[][2] = {
    {"llama", GOLDEN "dense_llama/model.gguf"},
    {"mamba2", GOLDEN "mamba2/model.gguf"},
};

/* The next key of the list, with the architecture in the place of its %. Returns false at its end.
 */
static bool next_key(char **at, const char *architecture, char key[160])
{
    char name[120];
    int read = 0;
    if (sscanf(*at, "%*s %119s%n", name, &read) != 1)
        return false;
    *at += read;
    if (*name == '%')
        snprintf(key, 160, "%s%s", architecture, name + 1);
    else
        snprintf(key, 160, "%s", name);
    return true;
}

static char *read_list(void)
{
    size_t size;
    char *text = read_whole(DATA "keys.txt", &size);
    text = realloc(text, size + 1);
    text[size] = 0;
    return text;
}

Test(gguf_keys, every_key_has_a_row_and_every_row_a_key)
{
    size_t count, keys = 0;
    const struct gguf_row *rows = gguf_rows(&count);
    bool *used = calloc(count, sizeof *used);
    char *list = read_list(), *at = list, key[160];
    while (next_key(&at, "llama", key)) {
        const struct gguf_row *row = gguf_row_find(key, "llama");
        cr_expect(row, "%s has no row", key);
        if (row)
            used[row - rows] = true;
        keys++;
    }
    cr_expect(keys > 300, "%zu keys", keys);
    /* which are for all that is not listed, or for the names of templates */
    static const char *const others[] = {"tokenizer.ggml.*", "tokenizer.chat_template.tool_use"};
    for (size_t i = 0; i < count; i++) {
        bool other = false;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            other |= strcmp(rows[i].key, others[k]) == 0;
        cr_expect(used[i] != other, "%s: no key has this row", rows[i].key);
    }
    cr_expect_null(gguf_row_find("llama.attention.strange", "llama"));
    cr_expect_null(gguf_row_find("qwen2.vocab_size", "llama"));
    free(list);
    free(used);
}

struct value {
    enum gguf_type type;
    bool array; /* three of it */
    double number;
    const char *text; /* of a STRING */
};

/* Values that a row's word says, in every type that can. Returns how many. */
static size_t values_of(struct value *values, const char *word, size_t length,
                        const struct gguf *gguf, const char *architecture)
{
    static const struct {
        enum gguf_type type;
        bool array;
        double most;
    } types[] = {{GGUF_U32, false, 4294967295},
                 {GGUF_U8, true, 255},
                 {GGUF_I64, true, 9e15},
                 {GGUF_F32, false, 1 << 24}};
    static char text[80];
    size_t count = 0;
    char *end;
    double number = strtod(word, &end);
    if (word[0] == '=' || word[0] == '>') {
        char key[160];
        const size_t sign = strspn(word, ">=");
        snprintf(key, sizeof key, "%s.%.*s", architecture, (int)(length - sign), word + sign);
        const struct gguf_entry *other = gguf_find(gguf, key);
        if (!other || other->array)
            return 0;
        number = gguf_type_is_int(other->type) ? (double)gguf_int_at(other, 0)
                                               : gguf_number_at(other, 0);
        end = (char *)word + length;
    }
    const bool is_true = strncmp(word, "true", length) == 0;
    if (end == word && (is_true || strncmp(word, "false", length) == 0)) {
        values[count++] = (struct value){GGUF_BOOL, false, is_true, NULL};
        values[count++] = (struct value){GGUF_BOOL, true, is_true, NULL};
        return count;
    }
    if (end == word) {
        snprintf(text, sizeof text, "%.*s", (int)length, word);
        values[count++] = (struct value){GGUF_STRING, false, 0, text};
        return count;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const bool is_int = types[i].type != GGUF_F32;
        const bool is_signed = types[i].type == GGUF_I64 || !is_int;
        if (number <= types[i].most && (number >= 0 || is_signed) &&
            (!is_int || number == floor(number)))
            values[count++] = (struct value){types[i].type, types[i].array, number, NULL};
    }
    return count;
}

/* An entry of the value, which is put into data. */
static struct gguf_entry entry_of(const char *key, const struct value *value,
                                  unsigned char data[256])
{
    const size_t one = value_size(value->type);
    const int64_t integer = value->number > 9e15 ? 0 : (int64_t)value->number;
    const float real = (float)value->number;
    if (value->type == GGUF_STRING) {
        const uint64_t length = strlen(value->text);
        memcpy(data, &length, 8);
        memcpy(data + 8, value->text, length);
    }
    for (size_t i = 0; i < 3 && value->type != GGUF_STRING; i++)
        memcpy(data + i * one,
               value->type == GGUF_F32   ? (const void *)&real
               : value->type == GGUF_F64 ? (const void *)&value->number
                                         : (const void *)&integer,
               one);
    return (struct gguf_entry){key, value->type, value->array, value->array ? 3 : 1, data};
}

/* The file with one more key, or with another value of it. */
static int open_with(struct model **model, const struct gguf *gguf, const char *key,
                     const struct value *value, struct error *err)
{
    struct gguf_entry *entries = malloc((gguf->num_entries + 1) * sizeof *entries);
    unsigned char data[256];
    size_t count = 0, size;
    for (size_t i = 0; i < gguf->num_entries; i++)
        if (strcmp(gguf->entries[i].key, key) != 0)
            entries[count++] = gguf->entries[i];
    entries[count++] = entry_of(key, value, data);
    char *bytes = draft_file(gguf, entries, count, &size);
    int result = open_bytes(model, bytes, size, err);
    free(bytes);
    free(entries);
    return result;
}

/* expected: "" without a word; "warned" of the key; "refused" with its name. */
static void expect(const struct gguf *gguf, const char *key, const struct value *value,
                   const char *expected)
{
    struct model *model;
    struct error err = ERROR_INIT;
    const char *got = "refused", *text = err.message;
    if (open_with(&model, gguf, key, value, &err) == 0) {
        text = warnings_at(&model->warnings, 0);
        got = text ? "warned" : "";
    }
    cr_expect(strcmp(got, expected) == 0 && (!text || strstr(text, key)),
              "%s = %g %s, type %d: expected \"%s\", got \"%s\": %s", key, value->number,
              value->text ? value->text : "", value->type, expected, got, text ? text : "");
    if (strcmp(got, "refused") != 0)
        model_close(model);
    error_clear(&err);
}

static bool is_read_by(const struct gguf_names *names, const char *below)
{
    for (; names; names = names->base)
        for (size_t i = 0; i < names->num_keys; i++)
            if (strcmp(names->keys[i].key, below) == 0)
                return true;
    return false;
}

/* Whether the file's own reader knows the key: others have tests of their own. */
static bool is_read(const char *key, const char *architecture, const struct gguf *gguf)
{
    const size_t length = strlen(architecture);
    const bool own = strncmp(key, architecture, length) == 0 && key[length] == '.';
    if (gguf_find(gguf, key))
        return true;
    if (!own)
        return gguf_row_find(key, architecture)->rule == GGUF_READ;
    const char *below = key + length + 1;
    return strcmp(architecture, "llama") == 0
               ? is_read_by(&gguf_dense_paired, below) || strcmp(below, "expert_count") == 0
               : strcmp(below, "context_length") == 0 || strcmp(below, "vocab_size") == 0 ||
                     strcmp(below, "feed_forward_length") == 0 ||
                     strcmp(below, "attention.head_count") == 0;
}

/* Whether the first file's reader knows it. */
static bool is_read_first(const char *key, const char *architecture)
{
    const size_t length = strlen(architecture);
    return strncmp(key, architecture, length) == 0 &&
           is_read_by(&gguf_dense_paired, key + length + 1);
}

static void check_row(const struct gguf *gguf, const char *architecture, const char *key)
{
    const struct gguf_row *row = gguf_row_find(key, architecture);
    struct value values[32];
    const struct value other = {GGUF_U32, false, 77, NULL}, negative = {GGUF_I32, false, -77, NULL};
    if (row->rule == GGUF_HARMLESS || row->rule == GGUF_ASIDE) {
        expect(gguf, key, &other, row->rule == GGUF_ASIDE ? "warned" : "");
        return;
    }
    const char *word = row->neutral;
    const bool large = word && strstr(word, ">=");
    expect(gguf, key, large ? &negative : &other, row->rule == GGUF_WARNED ? "warned" : "refused");
    while (word && *word) {
        const size_t length = strcspn(word, "|");
        const size_t count = values_of(values, word, length, gguf, architecture);
        for (size_t i = 0; i < count; i++)
            if (values[i].type != GGUF_F32 || !strstr(key, "nextn_")) /* which is read */
                expect(gguf, key, &values[i], "");
        word += length + (word[length] == '|');
    }
}

/* Of each row that no reader of the file has. */
Test(gguf_keys, a_row_is_what_it_says)
{
    struct error err = ERROR_INIT;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        size_t size, checked = 0;
        struct gguf gguf;
        char *bytes = read_whole(files[f][1], &size), *list = read_list(), *at = list, key[160];
        cr_assert(gguf_read(&gguf, bytes, size, "it", &err) == 0, "%s", err.message);
        while (next_key(&at, files[f][0], key))
            if (strncmp(key, "tokenizer.", 10) != 0 && !is_read(key, files[f][0], &gguf) &&
                (f == 0 || is_read_first(key, files[f][0]))) {
                check_row(&gguf, files[f][0], key);
                checked++;
            }
        cr_expect(checked > (f == 0 ? 200 : 10), "%s: %zu keys", files[f][0], checked);
        gguf_clear(&gguf);
        free(bytes);
        free(list);
    }
}

static bool knows_nothing(const void *context, const char *below)
{
    (void)context;
    (void)below;
    return false;
}

/* The same of a tokenizer's key, by the table alone. */
static void expect_of_tokenizer(const char *key, const struct value *value, const char *expected)
{
    unsigned char data[256];
    struct gguf_entry entry = entry_of(key, value, data);
    const struct gguf gguf = {.file = "x.gguf", .entries = &entry, .num_entries = 1};
    struct warnings warnings = {0};
    struct error err = ERROR_INIT;
    const char *got = "refused", *text = err.message;
    if (gguf_keys_check(&gguf, "llama", true, knows_nothing, NULL, &warnings, &err) == 0) {
        text = warnings_at(&warnings, 0);
        got = text ? "warned" : "";
    }
    cr_expect(strcmp(got, expected) == 0 && (!text || strstr(text, key)),
              "%s: expected \"%s\", got \"%s\": %s", key, expected, got, text ? text : "");
    error_clear(&err);
}

Test(gguf_keys, rows_of_tokenizers_are_what_they_say)
{
    const struct value other = {GGUF_U32, false, 77, NULL}, no = {GGUF_BOOL, false, 0, NULL};
    char *list = read_list(), *at = list, key[160];
    size_t checked = 0;
    while (next_key(&at, "llama", key)) {
        if (strncmp(key, "tokenizer.", 10) != 0)
            continue;
        const struct gguf_row *row = gguf_row_find(key, "llama");
        expect_of_tokenizer(key, &other,
                            row->rule == GGUF_REFUSED  ? "refused"
                            : row->rule == GGUF_WARNED ? "warned"
                                                       : "");
        if (row->neutral) {
            cr_expect_str_eq(row->neutral, "false");
            expect_of_tokenizer(key, &no, "");
        }
        checked++;
    }
    cr_expect(checked > 30, "%zu keys", checked);
    expect_of_tokenizer("tokenizer.ggml.strange", &other, "refused");
    free(list);
}

/* The value as another type of integer, once for each layer. */
static struct gguf_entry by_layer(const struct gguf_entry *entry, enum gguf_type type,
                                  uint64_t layers, unsigned char *data)
{
    for (uint64_t i = 0; i < layers; i++) {
        const int64_t value = entry->type == GGUF_BOOL ? entry->data[entry->array ? i : 0]
                                                       : gguf_int_at(entry, entry->array ? i : 0);
        memcpy(data + i * value_size(type), &value, value_size(type));
    }
    return (struct gguf_entry){entry->key, type, true, layers, data};
}

/* All integers of the architecture, and its lists of BOOLs, as lists by layer of the type. */
static struct model *open_by_layer(const char *path, enum gguf_type type)
{
    size_t size, made;
    struct gguf gguf;
    struct model *model;
    struct error err = ERROR_INIT;
    char *bytes = read_whole(path, &size), key[80];
    cr_assert(gguf_read(&gguf, bytes, size, "it", &err) == 0, "%s", err.message);
    struct gguf_text name = {0};
    gguf_text(&gguf, "general.architecture", FIELD_REQUIRED, &name, &err);
    int64_t layers = 0;
    snprintf(key, sizeof key, "%.*s.block_count", (int)name.length, name.bytes);
    gguf_int(&gguf, key, FIELD_REQUIRED, 1, 8, &layers, &err);
    unsigned char(*data)[64] = calloc(gguf.num_entries, sizeof *data);
    for (size_t i = 0; i < gguf.num_entries; i++) {
        struct gguf_entry *entry = &gguf.entries[i];
        const bool flags = entry->array && entry->type == GGUF_BOOL;
        if (strncmp(entry->key, key, name.length + 1) == 0 &&
            !strstr(entry->key, "dimension_sections") && (gguf_type_is_int(entry->type) || flags))
            *entry = by_layer(entry, type, (uint64_t)layers, data[i]);
    }
    char *changed = draft_file(&gguf, gguf.entries, gguf.num_entries, &made);
    cr_assert(open_bytes(&model, changed, made, &err) == 0, "%s: %s", path, err.message);
    free(changed);
    free(data);
    gguf_clear(&gguf);
    free(bytes);
    return model;
}

Test(gguf_keys, integers_are_of_any_type_and_may_be_by_layer)
{
    static const char *const all[] = {
        GOLDEN "dense_llama/model.gguf",
        GOLDEN "dense_qwen3/model.gguf",
        GOLDEN "dense_granite/model.gguf",
        GOLDEN "dense_olmo3/model.gguf",
        GOLDEN "mamba2/model.gguf",
        GOLDEN "granitemoehybrid/model.gguf",
        GOLDEN "nemotron_h/model.gguf",
        GOLDEN "falcon_h1/model.gguf",
        GOLDEN "lfm2/model.gguf",
        GOLDEN "gpt_neox_tf5/model.gguf",
        GOLDEN "delta_qwen3_5_text/model.gguf",
        DATA "dense_gemma2.gguf",
        DATA "dense_gemma3_text.gguf",
    };
    static const enum gguf_type types[] = {GGUF_I64, GGUF_I32, GGUF_U64};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        expect_same_logits(all[i], open_by_layer(all[i], types[i % 3]), open_model(all[i]),
                           WEIGHTS_AUTO);
}

/* The file with some keys renamed, `renames` being pairs that a NULL ends. */
static struct model *open_renamed(const char *path, const char *const (*renames)[2])
{
    size_t size, made;
    struct gguf gguf;
    struct model *model;
    struct error err = ERROR_INIT;
    char *bytes = read_whole(path, &size);
    cr_assert(gguf_read(&gguf, bytes, size, "it", &err) == 0, "%s", err.message);
    for (size_t r = 0; renames[r][0]; r++) {
        bool found = false;
        for (size_t i = 0; i < gguf.num_entries; i++)
            if (strcmp(gguf.entries[i].key, renames[r][0]) == 0) {
                gguf.entries[i].key = renames[r][1];
                found = true;
            }
        cr_assert(found, "%s", renames[r][0]);
    }
    char *changed = draft_file(&gguf, gguf.entries, gguf.num_entries, &made);
    cr_assert(open_bytes(&model, changed, made, &err) == 0, "%s: %s", path, err.message);
    free(changed);
    gguf_clear(&gguf);
    free(bytes);
    return model;
}

Test(gguf_keys, names_that_ollama_has)
{
    static const char file[] = DATA "dense_gemma3_text.gguf";
    static const char *const renames[][2] = {
        {"gemma3.rope.freq_base", "gemma3.rope.global.freq_base"},
        {"gemma3.rope.freq_base_swa", "gemma3.rope.local.freq_base"},
        {NULL, NULL}};
    expect_same_logits("Ollama's names", open_renamed(file, renames), open_model(file),
                       WEIGHTS_AUTO);
}

/* Tensors of towers and drafts, of four numbers each, behind the model's. */
Test(gguf_keys, towers_and_drafts_are_left_aside)
{
    static const char file[] = GOLDEN "dense_llama/model.gguf";
    static const char *const names[] = {"v.blk.0.attn_q.weight", "mm.0.weight", "a.conv1d.1.bias",
                                        "mtp.norm.weight"};
    enum { MORE = sizeof names / sizeof *names, BYTES = 32 };
    size_t size, made;
    struct gguf gguf;
    struct model *model;
    struct error err = ERROR_INIT;
    char *bytes = read_whole(file, &size);
    cr_assert(gguf_read(&gguf, bytes, size, "it", &err) == 0, "%s", err.message);
    struct gguf more = gguf;
    const size_t before = (gguf.data_bytes + BYTES - 1) / BYTES * BYTES;
    unsigned char *data = calloc(before + MORE * BYTES, 1);
    memcpy(data, gguf.data, gguf.data_bytes);
    more.tensors = calloc(gguf.num_tensors + MORE, sizeof *more.tensors);
    memcpy(more.tensors, gguf.tensors, gguf.num_tensors * sizeof *more.tensors);
    for (size_t i = 0; i < MORE; i++)
        more.tensors[more.num_tensors++] =
            (struct gguf_tensor){names[i], 0, 1, {4}, before + i * BYTES};
    more.data = data;
    more.data_bytes = before + MORE * BYTES;
    char *changed = draft_file(&more, gguf.entries, gguf.num_entries, &made);
    cr_assert(open_bytes(&model, changed, made, &err) == 0, "%s", err.message);
    cr_assert(warnings_at(&model->warnings, 0));
    cr_expect_str_eq(warnings_at(&model->warnings, 0),
                     "x.gguf: tensor \"a.conv1d.1.bias\" and others: of images, sound or "
                     "drafts, which are left aside");
    cr_expect_null(warnings_at(&model->warnings, 1));
    expect_same_logits("a tower", model, open_model(file), WEIGHTS_AUTO);
    free(changed);
    free(more.tensors);
    free(data);
    gguf_clear(&gguf);
    free(bytes);
}

/* As writers say that there is no such token. */
Test(gguf_keys, ids_that_mean_none)
{
    static const char file[] = GOLDEN "dense_llama/model.gguf";
    static const struct value none[] = {{GGUF_U32, false, 4294967295, NULL},
                                        {GGUF_I32, false, -1, NULL},
                                        {GGUF_U64, false, 4294967295, NULL}};
    size_t size;
    struct gguf gguf;
    struct error err = ERROR_INIT;
    char *bytes = read_whole(file, &size);
    cr_assert(gguf_read(&gguf, bytes, size, "it", &err) == 0, "%s", err.message);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct model *model;
        cr_assert(open_with(&model, &gguf, "tokenizer.ggml.bos_token_id", &none[i], &err) == 0,
                  "%s", err.message);
        cr_expect_eq(model->bos_token_id, -1);
        model_close(model);
        cr_assert(open_with(&model, &gguf, "tokenizer.ggml.eot_token_id", &none[i], &err) == 0,
                  "%s", err.message);
        cr_expect_leq(model->eos.count, 1);
        cr_expect_null(warnings_at(&model->warnings, 0));
        model_close(model);
    }
    struct model *model;
    const struct value ends = {GGUF_I32, true, 5, NULL};
    cr_assert(open_with(&model, &gguf, "tokenizer.ggml.eos_token_ids", &ends, &err) == 0);
    cr_assert_gt(model->eos.count, 0);
    cr_expect_eq(model->eos.ids[model->eos.count - 1], 5);
    model_close(model);
    gguf_clear(&gguf);
    free(bytes);
}
