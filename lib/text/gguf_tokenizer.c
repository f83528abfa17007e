/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/gguf_tokenizer.h"

#include "lib/base/gguf_keys.h"
#include "lib/text/vocabulary.h"
#include "lib/text/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define KEY(name) "tokenizer.ggml." name
#define METASPACE "\xE2\x96\x81"

enum token_type { /* as numbered in files */
                  TYPE_NORMAL = 1,
                  TYPE_UNKNOWN,
                  TYPE_CONTROL,
                  TYPE_USER_DEFINED,
                  TYPE_UNUSED,
                  TYPE_BYTE
};

enum kind {
    BYTE_LEVEL, /* BPE of bytes, with merges */
    SCORED,     /* SentencePiece's BPE: scores in the place of merges */
    MERGED,     /* the same with merges */
    WORLD       /* RWKV's: tokens are escaped as Python does with bytes */
};

struct reader {
    const struct gguf *gguf;
    struct warnings *warnings;
    json_t *root; /* being made */
    enum kind kind;
    const struct gguf_entry *types;    /* of the tokens; NULL: all normal */
    size_t count;                      /* of tokens */
    json_t *vocab;                     /* {token: id} */
    struct text_buffer bytes, spelled; /* WORLD: of the token at hand */
};

static int out_of_memory(const struct reader *r, struct error *err)
{
    return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", r->gguf->file);
}

static int set(struct reader *r, json_t *object, const char *key, json_t *value, struct error *err)
{
    return json_object_set_new(object, key, value) == 0 ? 0 : out_of_memory(r, err);
}

/* gguf_knows: what is read is in the table. */
static bool knows(const void *context, const char *below)
{
    (void)context;
    (void)below;
    return false;
}

static int read_model(struct reader *r, struct error *err)
{
    static const char *const known[] = {"gpt2", "llama", "gemma4", "rwkv"}; /* enum kind */
    struct gguf_text name;
    char got[41];
    if (gguf_keys_check(r->gguf, "", true, knows, NULL, r->warnings, err) != 0 ||
        gguf_text(r->gguf, KEY("model"), FIELD_REQUIRED, &name, err) != 0)
        return -1;
    snprintf(got, sizeof got, "%.*s", (int)(name.length < 40 ? name.length : 40), name.bytes);
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(got, known[i]) == 0) {
            r->kind = (enum kind)i;
            return 0;
        }
    return fields_unknown(r->gguf->file, KEY("model"), got, known, COUNT(known), err);
}

static int64_t type_of(const struct reader *r, size_t id)
{
    return r->types ? gguf_int_at(r->types, id) : TYPE_NORMAL;
}

/* An id that no text has: converters fill the vocabulary up with such. */
static bool is_padding(const struct reader *r, size_t id, const struct gguf_text *text)
{
    char padding[32];
    const int length = snprintf(padding, sizeof padding, "[PAD%zu]", id);
    return text->length == 0 || (type_of(r, id) == TYPE_UNUSED && text->length == (size_t)length &&
                                 memcmp(text->bytes, padding, text->length) == 0);
}

static int add_token(struct reader *r, size_t id, const struct gguf_text *text, json_t *added,
                     struct error *err)
{
    const int64_t type = type_of(r, id);
    const int shown = (int)(text->length < 60 ? text->length : 60);
    if (type < TYPE_NORMAL || type > TYPE_BYTE)
        return gguf_bad(r->gguf, KEY("token_type"), err, "[%zu]: expected 1 to %d, got %lld", id,
                        TYPE_BYTE, (long long)type);
    if (memchr(text->bytes, 0, text->length))
        return gguf_bad(r->gguf, KEY("tokens"), err, "[%zu]: expected a text without NUL", id);
    const json_t *other = json_object_getn(r->vocab, text->bytes, text->length);
    if (other)
        return gguf_bad(r->gguf, KEY("tokens"), err, "[%zu]: \"%.*s\" is token %lld, too", id,
                        shown, text->bytes, (long long)json_integer_value(other));
    if (json_object_setn_new(r->vocab, text->bytes, text->length, json_integer((json_int_t)id)) !=
        0)
        return gguf_bad(r->gguf, KEY("tokens"), err, "[%zu]: expected UTF-8, got \"%.*s\"", id,
                        shown, text->bytes);
    const bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
    if (!special && type != TYPE_USER_DEFINED)
        return 0;
    json_t *token = json_pack("{sI ss% sb sb sb sb sb}", "id", (json_int_t)id, "content",
                              text->bytes, text->length, "single_word", 0, "lstrip", 0, "rstrip", 0,
                              "normalized", 0, "special", special);
    return json_array_append_new(added, token) == 0 ? 0 : out_of_memory(r, err);
}

/* A token in GPT-2's alphabet, where the file escapes it. */
static int spell_token(struct reader *r, size_t id, struct gguf_text *text, struct error *err)
{
    const int64_t type = type_of(r, id);
    if (r->kind != WORLD || (type != TYPE_NORMAL && type != TYPE_BYTE))
        return 0;
    struct error why = ERROR_INIT;
    r->bytes.length = r->spelled.length = 0;
    if (world_unescape(text->bytes, text->length, false, &r->bytes, &why) ||
        world_spell(r->bytes.data, r->bytes.length, &r->spelled, &why))
        return gguf_bad(r->gguf, KEY("tokens"), err, "[%zu]: %s", id, why.message);
    *text = (struct gguf_text){r->spelled.data, r->spelled.length};
    return 0;
}

static int read_tokens(struct reader *r, struct error *err)
{
    const struct gguf_entry *tokens;
    if (gguf_array(r->gguf, KEY("tokens"), FIELD_REQUIRED, GGUF_STRING, &tokens, err) != 0 ||
        gguf_array(r->gguf, KEY("token_type"), FIELD_OPTIONAL, GGUF_I32, &r->types, err) != 0)
        return -1;
    r->count = (size_t)tokens->count;
    if (r->count > VOCABULARY_MAX_IDS)
        return gguf_bad(r->gguf, KEY("tokens"), err, "expected at most %d, got %zu",
                        VOCABULARY_MAX_IDS, r->count);
    if (r->types && r->types->count != r->count)
        return gguf_bad(r->gguf, KEY("token_type"), err, "expected %zu values, as tokens, got %zu",
                        r->count, (size_t)r->types->count);
    json_t *added = json_array();
    const unsigned char *at = tokens->data;
    r->vocab = json_object();
    int result = 0;
    for (size_t id = 0; result == 0 && id < r->count; id++) {
        struct gguf_text text = gguf_next_text(&at);
        if (is_padding(r, id, &text))
            continue;
        result = spell_token(r, id, &text, err);
        if (result == 0)
            result = add_token(r, id, &text, added, err);
    }
    if (result == 0)
        return set(r, r->root, "added_tokens", added, err);
    json_decref(added);
    return result;
}

/* The strings "a b". */
static int read_merges(struct reader *r, json_t **merges, struct error *err)
{
    const struct gguf_entry *entry;
    if (gguf_array(r->gguf, KEY("merges"), FIELD_REQUIRED, GGUF_STRING, &entry, err) != 0)
        return -1;
    const unsigned char *at = entry->data;
    *merges = json_array();
    for (uint64_t i = 0; i < entry->count; i++) {
        const struct gguf_text text = gguf_next_text(&at);
        if (json_array_append_new(*merges, json_stringn(text.bytes, text.length)) != 0)
            return gguf_bad(r->gguf, KEY("merges"), err, "[%llu]: expected UTF-8",
                            (unsigned long long)i);
    }
    return 0;
}

/* Which tokens may be joined from others, and be part of one. */
static bool takes_part(int64_t type)
{
    return type == TYPE_NORMAL || type == TYPE_UNUSED || type == TYPE_USER_DEFINED;
}

static int make_merges(struct reader *r, json_t **merges, struct error *err)
{
    const struct gguf_entry *entry;
    if (gguf_array(r->gguf, KEY("scores"), FIELD_REQUIRED, GGUF_F32, &entry, err) != 0)
        return -1;
    if (entry->count != r->count)
        return gguf_bad(r->gguf, KEY("scores"), err, "expected %zu values, as tokens, got %zu",
                        r->count, (size_t)entry->count);
    float *scores = malloc((r->count + 1) * sizeof *scores);
    if (!scores)
        return out_of_memory(r, err);
    for (size_t id = 0; id < r->count; id++) {
        const double score = gguf_number_at(entry, id);
        scores[id] = takes_part(type_of(r, id)) ? (float)score : NAN;
        if (!isfinite(score)) {
            free(scores);
            return gguf_bad(r->gguf, KEY("scores"), err, "[%zu]: expected a finite number, got %f",
                            id, score);
        }
    }
    *merges = gguf_merges(r->vocab, scores, err);
    free(scores);
    return *merges ? 0 : error_prefix(err, "%s: %s", r->gguf->file, KEY("tokens"));
}

/* The id of a special token; *id keeps its default where the file has none. */
static int read_id(const struct reader *r, const char *key, int64_t *id, struct error *err)
{
    int64_t got;
    if (gguf_id(r->gguf, key, &got, err) != 0)
        return -1;
    if (r->count > 0 && got >= (int64_t)r->count)
        return gguf_bad(r->gguf, key, err, "expected an integer in [0, %zu], got %lld",
                        r->count - 1, (long long)got);
    *id = got >= 0 ? got : *id;
    return 0;
}

/* SentencePiece: what no merge makes is spelled in bytes, or is the unknown token. */
static int set_unknown(struct reader *r, json_t *model, struct error *err)
{
    int64_t unknown = r->kind == SCORED ? 0 : -1;
    const char *token;
    json_t *id;
    if (read_id(r, KEY("unknown_token_id"), &unknown, err) != 0 ||
        set(r, model, "byte_fallback", json_true(), err) != 0 ||
        set(r, model, "fuse_unk", json_true(), err) != 0)
        return -1;
    json_object_foreach(r->vocab, token, id)
    {
        if (json_integer_value(id) == unknown)
            return set(r, model, "unk_token", json_string(token), err);
    }
    return 0;
}

static int set_model(struct reader *r, bool ignore_merges, struct error *err)
{
    json_t *merges = NULL;
    json_t *model = json_pack("{ss sb}", "type", "BPE", "ignore_merges", ignore_merges);
    if (set(r, r->root, "model", model, err) != 0 ||
        set(r, model, "vocab", json_incref(r->vocab), err))
        return -1;
    int result = r->kind == SCORED ? make_merges(r, &merges, err) : read_merges(r, &merges, err);
    if (result != 0) {
        json_decref(merges);
        return -1;
    }
    if (set(r, model, "merges", merges, err) != 0)
        return -1;
    return r->kind == BYTE_LEVEL ? 0 : set_unknown(r, model, err);
}

/* Whether a space stands before each text. */
static int read_prefix(struct reader *r, bool *prefix, struct error *err)
{
    *prefix = r->kind == SCORED;
    if (gguf_bool(r->gguf, KEY("add_space_prefix"), FIELD_OPTIONAL, prefix, err) != 0)
        return -1;
    if (!*prefix || r->kind == SCORED)
        return 0;
    *prefix = false;
    warnings_add(r->warnings, "%s: %s: without effect in a model with merges, as in llama.cpp",
                 r->gguf->file, KEY("add_space_prefix"));
    return 0;
}

/* Byte-level: pieces and spelling as tokenizer.ggml.pre says. *add_bos: its default. */
static int set_byte_level(struct reader *r, bool *add_bos, struct error *err)
{
    struct gguf_split split;
    bool prefix;
    if (read_prefix(r, &prefix, err) != 0 || gguf_split(&split, r->gguf, r->warnings, err) != 0)
        return -1;
    *add_bos = split.add_bos;
    json_t *decoder = json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", 1,
                                "trim_offsets", 1, "use_regex", 1);
    const int failed[] = {
        set(r, r->root, "normalizer", split.normalizer ? split.normalizer : json_null(), err),
        set(r, r->root, "pre_tokenizer", split.pre_tokenizer, err),
        set(r, r->root, "decoder", decoder, err)};
    return failed[0] || failed[1] || failed[2] ? -1 : set_model(r, split.ignore_merges, err);
}

static int set_world(struct reader *r, bool *add_bos, struct error *err)
{
    json_t *document = world_document();
    *add_bos = false;
    const int failed = !document || json_object_update(r->root, document) != 0;
    json_decref(document);
    return failed ? out_of_memory(r, err)
                  : set(r, r->root, "model",
                        json_pack("{ss sO}", "type", "World", "vocab", r->vocab), err);
}

/* SentencePiece: spaces are written as a character of their own; one may stand before the text. */
static int set_pieces(struct reader *r, struct error *err)
{
    bool prefix;
    if (read_prefix(r, &prefix, err) != 0)
        return -1;
    json_t *steps = json_array(), *back = json_array();
    if (prefix)
        json_array_append_new(steps, json_pack("{ss ss}", "type", "Prepend", "prepend", METASPACE));
    json_array_append_new(steps, json_pack("{ss s{ss} ss}", "type", "Replace", "pattern", "String",
                                           " ", "content", METASPACE));
    json_array_append_new(back, json_pack("{ss s{ss} ss}", "type", "Replace", "pattern", "String",
                                          METASPACE, "content", " "));
    json_array_append_new(back, json_pack("{ss}", "type", "ByteFallback"));
    json_array_append_new(back, json_pack("{ss}", "type", "Fuse"));
    if (prefix)
        json_array_append_new(back, json_pack("{ss ss si si}", "type", "Strip", "content", " ",
                                              "start", 1, "stop", 0));
    json_t *normalizer = json_pack("{ss so}", "type", "Sequence", "normalizers", steps);
    json_t *decoder = json_pack("{ss so}", "type", "Sequence", "decoders", back);
    const int failed[] = {set(r, r->root, "normalizer", normalizer, err),
                          set(r, r->root, "decoder", decoder, err)};
    return failed[0] || failed[1] ? -1 : set_model(r, false, err);
}

/* One of the ids around a text, "bos" or "eos", as an element of a template. */
static int add_special(struct reader *r, const char *name, const char *key, int64_t usual,
                       json_t *pieces, json_t *specials, struct error *err)
{
    int64_t id = r->kind == SCORED ? usual : -1;
    if (read_id(r, key, &id, err) != 0)
        return -1;
    if (id < 0)
        return gguf_bad(r->gguf, key, err,
                        "expected an id, as the model wants it beside each text, "
                        "got nothing");
    json_array_append_new(pieces,
                          json_pack("{s{ss si}}", "SpecialToken", "id", name, "type_id", 0));
    return set(r, specials, name,
               json_pack("{ss s[I] s[s]}", "id", name, "ids", (json_int_t)id, "tokens", name), err);
}

static int set_template(struct reader *r, bool add_bos, struct error *err)
{
    bool add_eos = false;
    if (gguf_bool(r->gguf, KEY("add_bos_token"), FIELD_OPTIONAL, &add_bos, err) != 0 ||
        gguf_bool(r->gguf, KEY("add_eos_token"), FIELD_OPTIONAL, &add_eos, err) != 0)
        return -1;
    if (r->kind == MERGED && !add_bos) { /* files of the first days say so */
        warnings_add(r->warnings, "%s: %s: expected true, as for each such model; taken as true",
                     r->gguf->file, KEY("add_bos_token"));
        add_bos = true;
    }
    if (!add_bos && !add_eos)
        return 0;
    json_t *single = json_array(), *specials = json_object();
    json_t *pair = json_pack("[{s{ss si}} {s{ss si}}]", "Sequence", "id", "A", "type_id", 0,
                             "Sequence", "id", "B", "type_id", 0);
    json_t *template = json_pack("{ss so so so}", "type", "TemplateProcessing", "single", single,
                                 "pair", pair, "special_tokens", specials);
    if (set(r, r->root, "post_processor", template, err) != 0 ||
        (add_bos && add_special(r, "bos", KEY("bos_token_id"), 1, single, specials, err) != 0))
        return -1;
    json_array_append_new(single, json_pack("{s{ss si}}", "Sequence", "id", "A", "type_id", 0));
    return add_eos ? add_special(r, "eos", KEY("eos_token_id"), 2, single, specials, err) : 0;
}

int gguf_tokenizer(json_t **root, const struct gguf *gguf, struct warnings *warnings,
                   struct error *err)
{
    struct reader r = {.gguf = gguf, .warnings = warnings, .root = json_object()};
    bool add_bos = true;
    int result = r.root ? read_model(&r, err) : out_of_memory(&r, err);
    if (result == 0)
        result = read_tokens(&r, err);
    if (result == 0)
        result = r.kind == BYTE_LEVEL ? set_byte_level(&r, &add_bos, err)
                 : r.kind == WORLD    ? set_world(&r, &add_bos, err)
                                      : set_pieces(&r, err);
    if (result == 0)
        result = set_template(&r, add_bos, err);
    json_decref(r.vocab);
    text_buffer_clear(&r.bytes);
    text_buffer_clear(&r.spelled);
    if (result == 0) {
        *root = r.root;
        return 0;
    }
    json_decref(r.root);
    return -1;
}
