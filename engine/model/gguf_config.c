/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_config.h"

#include "engine/model/config.h"
#include "lib/base/gguf_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Value number i as JSON; NULL: it is no value of config.json. */
static json_t *as_json(const struct gguf_entry *entry, uint64_t i)
{
    if (gguf_type_is_int(entry->type))
        return json_integer(gguf_int_at(entry, i));
    if (gguf_type_is_float(entry->type))
        return json_real(gguf_number_at(entry, i)); /* NULL where it is not finite */
    if (entry->type == GGUF_BOOL)
        return json_boolean(entry->data[i]);
    if (entry->array)
        return NULL;
    const unsigned char *at = entry->data;
    const struct gguf_text text = gguf_next_text(&at);
    return json_stringn(text.bytes, text.length); /* NULL where it is not UTF-8 */
}

/* The same of a list by layer whose values are all the same. */
static json_t *as_common(const struct gguf_entry *entry)
{
    json_t *first = entry->count > 0 ? as_json(entry, 0) : NULL;
    for (uint64_t i = 1; first && i < entry->count; i++) {
        json_t *other = as_json(entry, i);
        if (!json_equal(first, other)) {
            json_decref(first);
            first = NULL;
        }
        json_decref(other);
    }
    return first;
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
    json_t *value = as_common(entry);
    if (!value)
        return gguf_bad(source->gguf, full, err,
                        "expected a finite number, a BOOL or text, or a list of one for each "
                        "layer, all the same, got %s",
                        gguf_kind(entry, got));
    return gguf_config_set(config, name, value, err);
}

int gguf_config_int(const struct gguf_source *source, const char *key, enum field_need need,
                    int64_t min, int64_t max, int64_t *value, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    const struct gguf_entry *entry = gguf_find(source->gguf, gguf_config_key(full, source, key));
    if (!entry || !entry->array)
        return gguf_int(source->gguf, full, need, min, max, value, err);
    json_t *common = as_common(entry);
    const bool whole = json_is_integer(common);
    const int64_t got = json_integer_value(common);
    json_decref(common);
    if (!whole || got < min || got > max)
        return gguf_bad(source->gguf, full, err,
                        "expected one integer in [%" PRId64 ", %" PRId64 "] for all layers", min,
                        max);
    *value = got;
    return 0;
}

int gguf_config_list(const struct gguf_source *source, const char *key,
                     const struct gguf_entry **list, struct error *err)
{
    char full[GGUF_KEY_SIZE], got[40];
    const struct gguf_entry *entry = gguf_find(source->gguf, gguf_config_key(full, source, key));
    *list = entry;
    if (!entry)
        return 0;
    const bool known = gguf_type_is_int(entry->type) || entry->type == GGUF_BOOL;
    const bool enough = !entry->array || entry->count == (uint64_t)source->layers ||
                        entry->count == (uint64_t)source->blocks;
    if (known && enough)
        return 0;
    return gguf_bad(source->gguf, full, err,
                    "expected %" PRId64
                    " integers or BOOLs, as there are layers, got %s of %" PRIu64,
                    source->blocks, gguf_kind(entry, got), entry->count);
}

int64_t gguf_config_at(const struct gguf_entry *list, int64_t layer)
{
    const uint64_t i = list->array ? (uint64_t)layer : 0;
    return list->type == GGUF_BOOL ? list->data[i] : gguf_int_at(list, i);
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

static const char drafts_key[] = "nextn_predict_layers";

/* gguf_knows: what a family's tables have, and what all have. */
static bool knows(const void *context, const char *below)
{
    return below && (strcmp(below, drafts_key) == 0 || is_known(context, NULL, below));
}

/* Ollama's list beside tokenizer.ggml.eos_token_id. */
static int add_end_ids(json_t *list, const struct gguf *gguf, struct error *err)
{
    const struct gguf_entry *ids;
    if (gguf_array(gguf, "tokenizer.ggml.eos_token_ids", FIELD_OPTIONAL, GGUF_I32, &ids, err) != 0)
        return -1;
    for (uint64_t i = 0; ids && i < ids->count && i < CONFIG_MAX_EOS; i++)
        json_array_append_new(list, json_integer(gguf_int_at(ids, i)));
    return 0;
}

/* bos_token_id, and as eos_token_id the ids that end a text, a turn and a message. */
static int set_ids(json_t *config, const struct gguf *gguf, struct error *err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id;
    if (gguf_id(gguf, "tokenizer.ggml.bos_token_id", &id, err) != 0 ||
        (id >= 0 && gguf_config_set(config, "bos_token_id", json_integer(id), err) != 0))
        return -1;
    json_t *list = json_array();
    if (gguf_config_set(config, "eos_token_id", list, err) != 0)
        return -1;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (gguf_id(gguf, ends[i], &id, err) != 0)
            return -1;
        if (id >= 0)
            json_array_append_new(list, json_integer(id));
    }
    return add_end_ids(list, gguf, err);
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
        if (source->layers > 0 && strcmp(key->key, "block_count") == 0 &&
            gguf_config_set(config, key->name, json_integer(source->layers), err) != 0)
            return -1;
    }
    return names->complete ? names->complete(config, source, err) : 0;
}

/* How many layers there are, and how many of the last ones draft tokens, which are left aside.
 * Those that Ollama calls mtp are not among them. */
static int find_layers(struct gguf_source *source, struct error *err)
{
    struct tensors *tensors = source->tensors;
    int64_t drafts = 0;
    if (gguf_config_int(source, "block_count", FIELD_OPTIONAL, 0, INT64_MAX, &source->blocks,
                        err) != 0)
        return -1;
    if (source->blocks > CONFIG_MAX_LAYERS) /* the family refuses it */
        source->blocks = 0;
    const int64_t most = source->blocks > 0 ? source->blocks - 1 : 0;
    if (gguf_config_int(source, drafts_key, FIELD_OPTIONAL, 0, most, &drafts, err) != 0)
        return -1;
    for (size_t i = 0; i < tensors_count(tensors); i++)
        drafts = strncmp(tensors_at(tensors, i)->name, "mtp.", 4) == 0 ? 0 : drafts;
    source->layers = source->blocks - drafts;
    for (size_t i = 0; drafts > 0 && i < tensors_count(tensors); i++) {
        struct tensor *tensor = tensors_at(tensors, i);
        if (strncmp(tensor->name, "blk.", 4) == 0 &&
            strtoll(tensor->name + 4, NULL, 10) >= source->layers)
            tensor_ignore(tensor);
    }
    if (drafts > 0)
        warnings_add(tensors_warnings(tensors),
                     "%s: %s.%s: layers that draft tokens, %" PRId64 ", are left aside",
                     source->gguf->file, source->architecture, drafts_key, drafts);
    return 0;
}

int gguf_config(json_t **json, const struct gguf_names *names, const char *model_type,
                const struct gguf *gguf, struct tensors *tensors, struct error *err)
{
    struct gguf_source source = {.gguf = gguf,
                                 .architecture = names->architecture,
                                 .partial = names->partial,
                                 .tensors = tensors};
    *json = json_pack("{ss}", "model_type", model_type);
    if (!*json)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", gguf->file);
    if (gguf_keys_check(gguf, names->architecture, false, knows, names, tensors_warnings(tensors),
                        err) == 0 &&
        find_layers(&source, err) == 0 && set_ids(*json, gguf, err) == 0 &&
        set_all(*json, names, names, &source, err) == 0 && set_ends(*json, gguf, tensors, err) == 0)
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
    return how == GGUF_FLAT || how == GGUF_DECAY || how == GGUF_DECAY_AS_IT_IS ||
           how == GGUF_VALUE_HEADS_WHOLE;
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
    if (how == GGUF_FLAT || how == GGUF_DECAY || how == GGUF_DECAY_AS_IT_IS) {
        tensor->rank = 1;
        tensor->shape[0] = (int64_t)tensor->elements;
    }
    if (how >= GGUF_DECAY)
        order_values(tensor, config,
                     how == GGUF_VALUE_HEADS_LAST ? last_values(tensor, config) : tensor->shape[0]);
    tensor->decay = how == GGUF_DECAY || how == GGUF_DECAY_AS_IT_IS;
    const int64_t parts = 3 * json_integer_value(json_object_get(config, "num_attention_heads"));
    const int64_t half = json_integer_value(json_object_get(config, "head_dim")) / 2;
    if (how == GGUF_STACKED && parts > 0 && tensor->shape[0] % parts == 0)
        tensor->order = (struct tensor_order){parts / 3, 3, tensor->shape[0] / parts};
    if (how == GGUF_PAIRED && half > 0 && tensor->shape[0] % (2 * half) == 0)
        tensor->order = (struct tensor_order){2, half, 1};
    tensor->one_added = how == GGUF_ONE_ADDED;
}

/* Of a tower for images or sound, or of layers that draft tokens, as others call them. */
static bool is_aside(const char *name)
{
    static const char *const towers[] = {"v.", "a.", "mm.", "mtp.", "model.vision_tower."};
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (strncmp(name, towers[i], strlen(towers[i])) == 0)
            return true;
    return false;
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

/* Leaves those tensors aside that the family has no names for. */
static void leave_aside(const struct gguf_names *names, struct tensors *tensors)
{
    const struct tensor *first = NULL;
    const char *layer;
    size_t digits, count = 0;
    for (size_t i = 0; i < tensors_count(tensors); i++) {
        struct tensor *tensor = tensors_at(tensors, i);
        if (!is_aside(tensor->name) ||
            find_name(names, tensor->name, strlen(tensor->name), &layer, &digits))
            continue;
        tensor_ignore(tensor);
        first = first ? first : tensor;
        count++;
    }
    if (first)
        warnings_add(tensors_warnings(tensors),
                     "%s: tensor \"%s\"%s: of images, sound or drafts, which are left aside",
                     first->file, first->name, count > 1 ? " and others" : "");
}

static int rename_tensor(const struct gguf_names *names, const json_t *config,
                         struct tensors *tensors, struct tensor *tensor, struct error *err)
{
    char full[200];
    const char *end = strrchr(tensor->name, '.'), *layer;
    size_t digits;
    if (end && strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0)
        end = NULL; /* of the name, as in blk.0.ffn_gate_inp.scale */
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
    leave_aside(names, tensors);
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
