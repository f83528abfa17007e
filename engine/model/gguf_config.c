/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Metadata that say nothing about what is computed, or that others read: the tokenizer
 * (engine/text/gguf_tokenizer.h), the files, whoever quantized. */
static bool is_elsewhere(const char *key)
{
    static const char *const others[] = {"general.", "tokenizer.", "split.", "quantize."};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(key, others[i], strlen(others[i])) == 0)
            return true;
    return false;
}

/* Whether the text is `expected`. */
static bool is_text(const struct gguf_text *text, const char *expected)
{
    return text->length == strlen(expected) && memcmp(text->bytes, expected, text->length) == 0;
}

/* general.type: not an adapter, an importance matrix or a projector. And a quantization of the
 * version whose blocks we know. */
static int check_kind(const struct gguf *gguf, struct error *err)
{
    struct gguf_text type = {"model", 5};
    int64_t version = 2;
    if (gguf_text(gguf, "general.type", FIELD_OPTIONAL, &type, err) != 0 ||
        gguf_int(gguf, "general.quantization_version", FIELD_OPTIONAL, 0, 2, &version, err) != 0)
        return -1;
    if (!is_text(&type, "model"))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: general.type: expected \"model\", got \"%.*s\"", gguf->file,
                         (int)(type.length < 40 ? type.length : 40), type.bytes);
    return 0;
}

/* A value as JSON; NULL: it is no value of config.json. */
static json_t *as_json(const struct gguf_entry *entry)
{
    if (entry->array)
        return NULL;
    if (gguf_type_is_int(entry->type))
        return json_integer(gguf_int_at(entry, 0));
    if (gguf_type_is_float(entry->type))
        return json_real(gguf_number_at(entry, 0)); /* NULL where it is not finite */
    if (entry->type == GGUF_BOOL)
        return json_boolean(entry->data[0]);
    const unsigned char *at = entry->data;
    const struct gguf_text text = gguf_next_text(&at);
    return json_stringn(text.bytes, text.length); /* NULL where it is not UTF-8 */
}

const char *gguf_config_key(char full[GGUF_KEY_SIZE], const struct gguf_source *source,
                            const char *key)
{
    snprintf(full, GGUF_KEY_SIZE, "%s.%s", source->architecture, key);
    return full;
}

int gguf_config_set(json_t *config, const char *name, json_t *value, struct error *err)
{
    return json_object_set_new(config, name, value) == 0
               ? 0
               : error_set(err, ERROR_NO_MEMORY, "%s: out of memory", name);
}

int gguf_config_copy(json_t *config, const char *name, const struct gguf_source *source,
                     const char *key, enum field_need need, struct error *err)
{
    char full[GGUF_KEY_SIZE], got[40];
    const struct gguf_entry *entry = gguf_find(source->gguf, gguf_config_key(full, source, key));
    if (!entry && need == FIELD_REQUIRED)
        return gguf_bad(source->gguf, full, err, "expected a value, got nothing");
    if (!entry || !name)
        return 0;
    json_t *value = as_json(entry);
    if (!value)
        return gguf_bad(source->gguf, full, err, "expected a finite number, a BOOL or text, got %s",
                        gguf_kind(entry, got));
    return gguf_config_set(config, name, value, err);
}

/* Whether a table has the key, or one before `end` of those that it is based on. */
static bool is_known(const struct gguf_names *names, const struct gguf_names *end,
                     const char *below)
{
    for (; names != end; names = names->base)
        for (size_t i = 0; i < names->num_keys; i++)
            if (strcmp(names->keys[i].key, below) == 0)
                return true;
    return false;
}

/* A key of the architecture that the family does not know may change what is computed. Others
 * cannot: llama.cpp does not know them either. */
static int check_keys(const struct gguf_names *names, const struct gguf *gguf,
                      struct warnings *warnings, struct error *err)
{
    const size_t length = strlen(names->architecture);
    const char *first = NULL;
    size_t strange = 0;
    for (size_t i = 0; i < gguf->num_entries; i++) {
        const char *key = gguf->entries[i].key;
        const bool own = strncmp(key, names->architecture, length) == 0 && key[length] == '.';
        if (own && !is_known(names, NULL, key + length + 1))
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s: %.100s: the family does not know this key", gguf->file, key);
        if (!own && !is_elsewhere(key) && strange++ == 0)
            first = key;
    }
    if (strange > 0)
        warnings_add(warnings, "%s: %.100s%s: not known, without effect", gguf->file, first,
                     strange > 1 ? " and others" : "");
    return 0;
}

/* bos_token_id, and as eos_token_id the ids that end a text, a turn and a message. */
static int set_ids(json_t *config, const struct gguf *gguf, struct error *err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id = -1;
    if (gguf_int(gguf, "tokenizer.ggml.bos_token_id", FIELD_OPTIONAL, 0, INT64_MAX, &id, err) != 0)
        return -1;
    if (id >= 0 && gguf_config_set(config, "bos_token_id", json_integer(id), err) != 0)
        return -1;
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        id = -1;
        if (gguf_int(gguf, ends[i], FIELD_OPTIONAL, 0, INT64_MAX, &id, err) != 0) {
            json_decref(list);
            return -1;
        }
        if (id >= 0)
            json_array_append_new(list, json_integer(id));
    }
    return gguf_config_set(config, "eos_token_id", list, err);
}

/* What the tensors say: the vocabulary's size, and whether the head is a matrix of its own. */
static int set_ends(json_t *config, const struct gguf *gguf, struct tensors *tensors,
                    struct error *err)
{
    const struct tensor *embeddings = tensors_find(tensors, "token_embd.weight");
    const bool tied = !tensors_find(tensors, "output.weight");
    if (!embeddings || embeddings->rank != 2)
        return error_set(err, ERROR_INVALID,
                         "%s: tensor \"token_embd.weight\": expected a matrix, got %s", gguf->file,
                         embeddings ? "another shape" : "nothing");
    if (!json_object_get(config, "vocab_size") &&
        gguf_config_set(config, "vocab_size", json_integer(embeddings->shape[0]), err) != 0)
        return -1;
    return gguf_config_set(config, "tie_word_embeddings", json_boolean(tied), err);
}

/* The keys of a base, and what is more, before those that are based on it: tables from `first` on
 * down to `names`. */
static int set_all(json_t *config, const struct gguf_names *first, const struct gguf_names *names,
                   const struct gguf_source *source, struct error *err)
{
    if (names->base && set_all(config, first, names->base, source, err) != 0)
        return -1;
    for (size_t i = 0; i < names->num_keys; i++) {
        const struct gguf_key *key = &names->keys[i];
        if (is_known(first, names, key->key))
            continue;
        if (gguf_config_copy(config, key->name, source, key->key, key->need, err) != 0)
            return -1;
    }
    return names->complete ? names->complete(config, source, err) : 0;
}

int gguf_config(json_t **json, const struct gguf_names *names, const char *model_type,
                const struct gguf *gguf, struct tensors *tensors, struct error *err)
{
    const struct gguf_source source = {gguf, names->architecture, names->partial, tensors};
    *json = json_pack("{ss}", "model_type", model_type);
    if (!*json)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", gguf->file);
    if (check_kind(gguf, err) == 0 &&
        check_keys(names, gguf, tensors_warnings(tensors), err) == 0 &&
        set_ids(*json, gguf, err) == 0 && set_all(*json, names, names, &source, err) == 0 &&
        set_ends(*json, gguf, tensors, err) == 0)
        return 0;
    json_decref(*json);
    *json = NULL;
    return -1;
}

/* Whether name matches pattern, in which a * stands for digits. *layer: those digits, [*digits]. */
static bool matches(const char *pattern, const char *name, size_t length, const char **layer,
                    size_t *digits)
{
    const size_t before = strcspn(pattern, "*");
    *layer = name + before;
    *digits = 0;
    if (length < before || memcmp(name, pattern, before) != 0)
        return false;
    if (!pattern[before])
        return length == before;
    *digits = strspn(*layer, "0123456789");
    const size_t after = strlen(pattern + before + 1), used = before + *digits;
    return *digits > 0 && *digits < 8 && length == used + after &&
           memcmp(name + used, pattern + before + 1, after) == 0;
}

/* Which has neither .weight nor .bias in the folder. */
static bool is_vector(enum gguf_how how)
{
    return how == GGUF_FLAT || how == GGUF_DECAY || how == GGUF_VALUE_HEADS_WHOLE;
}

/* Where the file has rows of value heads, if a key head serves several. `last` rows count. */
static void order_values(struct tensor *tensor, const json_t *config, int64_t last)
{
    const int64_t keys = json_integer_value(json_object_get(config, "linear_num_key_heads"));
    const int64_t heads = json_integer_value(json_object_get(config, "linear_num_value_heads"));
    if (keys > 0 && heads > keys && heads % keys == 0 && last > 0 && last % heads == 0)
        tensor->order = (struct tensor_order){keys, heads / keys, last / heads};
}

/* Those that follow q and k in one matrix. */
static int64_t last_values(const struct tensor *tensor, const json_t *config)
{
    const int64_t keys = json_integer_value(json_object_get(config, "linear_num_key_heads"));
    const int64_t size = json_integer_value(json_object_get(config, "linear_key_head_dim"));
    return tensor->shape[0] - 2 * keys * size;
}

static void set_how(struct tensor *tensor, enum gguf_how how, const json_t *config)
{
    if (how == GGUF_FLAT || how == GGUF_DECAY) {
        tensor->rank = 1;
        tensor->shape[0] = (int64_t)tensor->elements;
    }
    if (how >= GGUF_DECAY)
        order_values(tensor, config,
                     how == GGUF_VALUE_HEADS_LAST ? last_values(tensor, config) : tensor->shape[0]);
    tensor->decay = how == GGUF_DECAY;
    const int64_t parts = 3 * json_integer_value(json_object_get(config, "num_attention_heads"));
    const int64_t half = json_integer_value(json_object_get(config, "head_dim")) / 2;
    if (how == GGUF_STACKED && parts > 0 && tensor->shape[0] % parts == 0)
        tensor->order = (struct tensor_order){parts / 3, 3, tensor->shape[0] / parts};
    if (how == GGUF_PAIRED && half > 0 && tensor->shape[0] % (2 * half) == 0)
        tensor->order = (struct tensor_order){2, half, 1};
    tensor->one_added = how == GGUF_ONE_ADDED;
}

/* The name of a tensor without its end; *layer, *digits: the number in it. NULL: there is none. */
static const struct gguf_name *find_name(const struct gguf_names *names, const char *tensor,
                                         size_t length, const char **layer, size_t *digits)
{
    for (; names; names = names->base)
        for (size_t i = 0; i < names->num_names; i++)
            if (matches(names->names[i].gguf, tensor, length, layer, digits))
                return &names->names[i];
    return NULL;
}

static int rename_tensor(const struct gguf_names *names, const json_t *config,
                         struct tensors *tensors, struct tensor *tensor, struct error *err)
{
    char full[200];
    const char *end = strrchr(tensor->name, '.'), *layer;
    size_t digits;
    const struct gguf_name *name =
        end ? find_name(names, tensor->name, (size_t)(end - tensor->name), &layer, &digits) : NULL;
    if (!name) {
        name = find_name(names, tensor->name, strlen(tensor->name), &layer, &digits);
        end = name && is_vector(name->how) ? "" : ".weight";
    }
    if (!name)
        return error_set(err, ERROR_INVALID, "%s: tensor \"%s\": the family %s has no use for it",
                         tensor->file, tensor->name, names->architecture);
    const size_t before = strcspn(name->name, "*");
    snprintf(full, sizeof full, "%.*s%.*s%s%s", (int)before, name->name, (int)digits, layer,
             name->name[before] ? name->name + before + 1 : "", end);
    set_how(tensor, name->how, config);
    return tensors_rename(tensors, tensor, full, err);
}

int gguf_config_finish(struct config *config, const struct gguf_names *names, const json_t *json,
                       struct tensors *tensors, struct error *err)
{
    for (size_t i = 0; i < tensors_count(tensors); i++) /* those in use are ignored */
        if (!tensors_at(tensors, i)->used &&
            rename_tensor(names, json, tensors, tensors_at(tensors, i), err) != 0)
            return -1;
    if (tensors_sort(tensors, err) != 0)
        return -1;
    while (names && !names->finish)
        names = names->base;
    return names ? names->finish(config, tensors, err) : 0;
}
