/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/tokenizer_config.h"

#include "lib/base/fields.h"
#include "lib/base/file.h"
#include "lib/base/python_json.h"
#include "lib/text/special_tokens.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20 };

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define NAME "tokenizer_config.json"
#define BYTE_LEVEL                                                                                \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": true, \"use_regex\": " \
    "%s}"
#define END "<|endoftext|>"
#define QWEN2_PATTERN                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^" \
    "\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* How a class of transformers builds a tokenizer. */
struct kind {
    const char *name;
    bool builds;            /* its own parts, instead of those of tokenizer.json */
    const char *normalizer; /* JSON */
    bool prefix_space;      /* the default of add_prefix_space */
    bool prefix_optional;   /* add_prefix_space may be null: the default */
    bool drops_template;    /* the post-processor of tokenizer.json is not used */
    bool adds_all;          /* special tokens are added again, without their flags */
    const char *tokens;     /* its default special tokens, JSON */
};

enum { TOKENIZERS, GPT2, GPT_NEOX, QWEN2, LLAMA };

static const struct kind KINDS[] = {
    [TOKENIZERS] = {.name = "TokenizersBackend", .tokens = "{}"},
    [GPT2] = {"GPT2Tokenizer", true, "null", false, false, false, false,
              "{\"bos_token\": \"" END "\", \"eos_token\": \"" END "\", \"unk_token\": \"" END
              "\"}"},
    [GPT_NEOX] = {"GPTNeoXTokenizer", true, "{\"type\": \"NFC\"}", false, false, true, false,
                  "{\"bos_token\": \"" END "\", \"eos_token\": \"" END "\", \"unk_token\": \"" END
                  "\", \"pad_token\": \"<|padding|>\"}"},
    [QWEN2] = {"Qwen2Tokenizer", true, "{\"type\": \"NFC\"}", false, true, false, true,
               "{\"eos_token\": \"" END "\", \"unk_token\": \"" END "\", \"pad_token\": \"" END
               "\"}"},
    [LLAMA] = {"LlamaTokenizer", true, "null", true, true, false, false,
               "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"unk_token\": \"<unk>\"}"},
};

/* Other names of TokenizersBackend. */
static const char *const PLAIN[] = {"PreTrainedTokenizer", "PythonBackend", "BloomTokenizer"};

static int read_json(json_t **document, const char *directory, const char *name, struct error *err)
{
    char path[PATH_MAX];
    char *text;
    size_t length;
    int wrote = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (wrote < 0 || (size_t)wrote >= sizeof path || !file_exists(path))
        return 0;
    if (file_read(path, MAX_FILE_BYTES, &text, &length, err))
        return -1;
    int failed = python_json_parse(document, path, text, length, err);
    free(text);
    if (!failed && !json_is_object(*document))
        return error_set(err, ERROR_INVALID, "%s: expected an object, got %s", path,
                         fields_kind(*document));
    return failed;
}

int tokenizer_config_read(struct tokenizer_config *files, const char *directory, struct error *err)
{
    if (read_json(&files->config, directory, NAME, err))
        return -1;
    if (!files->config)
        return 0;
    return read_json(&files->special_tokens_map, directory, "special_tokens_map.json", err) ||
                   read_json(&files->added_tokens, directory, "added_tokens.json", err) ||
                   read_json(&files->model, directory, "config.json", err)
               ? -1
               : 0;
}

void tokenizer_config_clear(struct tokenizer_config *files)
{
    json_decref(files->config);
    json_decref(files->special_tokens_map);
    json_decref(files->added_tokens);
    json_decref(files->model);
    json_decref(files->more);
    *files = (struct tokenizer_config){0};
}

/* What Python takes for true. */
static bool truthy(const json_t *value)
{
    if (json_is_number(value))
        return json_number_value(value) != 0;
    return json_is_true(value) || json_string_length(value) > 0 || json_array_size(value) > 0 ||
           json_object_size(value) > 0;
}

/* Keys that would change what a tokenizer does, and that nobody needs. */
static int refuse_keys(const json_t *config, struct error *err)
{
    static const char *const REFUSED[] = {
        "init_inputs",
        "fast_tokenizer_files",
        "fix_mistral_regex",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        "vocab",
        "merges",
        "post_processor",
        "tokenizer_object",
        "gguf_file",
        "model_specific_special_tokens",
        "tokenizer_truncation",
        "tokenizer_padding"};
    for (size_t i = 0; i < COUNT(REFUSED); i++)
        if (truthy(json_object_get(config, REFUSED[i])))
            return error_set(err, ERROR_UNSUPPORTED, NAME ": %s is not supported", REFUSED[i]);
    static const char *const SIDES[] = {"left", "right"};
    struct fields fields = {config, NAME};
    int side;
    return fields_choice(&fields, "padding_side", FIELD_OPTIONAL, SIDES, 2, &side, err) ||
                   fields_choice(&fields, "truncation_side", FIELD_OPTIONAL, SIDES, 2, &side, err)
               ? -1
               : 0;
}

/* The class that AutoTokenizer would take: *kind, an index into KINDS. */
static int choose_kind(const struct tokenizer_config *files, int *kind, struct error *err)
{
    const char *type = json_string_value(json_object_get(files->model, "model_type"));
    const json_t *stated = json_object_get(files->config, "tokenizer_class");
    if (!truthy(stated))
        stated = json_object_get(files->model, "tokenizer_class");
    const json_t *map = json_object_get(files->config, "auto_map");
    bool own_code = json_is_array(map) || truthy(json_object_get(map, "AutoTokenizer"));
    if (!truthy(stated) && !own_code) {
        *kind = type && strcmp(type, "gpt_neox") == 0 ? GPT_NEOX : TOKENIZERS;
        return 0;
    }
    char name[80];
    const char *text = json_string_value(stated);
    int length = snprintf(name, sizeof name, "%s", text ? text : "(no string)");
    if (length > 4 && (size_t)length < sizeof name && strcmp(name + length - 4, "Fast") == 0)
        name[length - 4] = 0;
    for (size_t i = 0; i < COUNT(KINDS); i++)
        if (strcmp(name, KINDS[i].name) == 0) {
            *kind = i == LLAMA && files->mentions_byte_level ? TOKENIZERS : (int)i;
            return 0;
        }
    *kind = TOKENIZERS;
    for (size_t i = 0; i < COUNT(PLAIN); i++)
        if (strcmp(name, PLAIN[i]) == 0)
            return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     NAME
                     ": tokenizer_class: \"%.60s\" is not supported (known: TokenizersBackend, "
                     "PreTrainedTokenizerFast, which take tokenizer.json as it is; "
                     "GPT2Tokenizer, GPTNeoXTokenizer, LlamaTokenizer, Qwen2Tokenizer)",
                     name);
}

/* Sets the part `name` of root to the JSON that `format` makes. */
static int set_part(json_t *root, const char *name, struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int set_part(json_t *root, const char *name, struct error *err, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_t *part = json_loads(text, JSON_DECODE_ANY, NULL);
    return part && json_object_set_new(root, name, part) == 0
               ? 0
               : error_set(err, ERROR_NO_MEMORY, NAME ": no memory");
}

static int set_parts_llama(json_t *root, bool prefix_space, bool legacy, struct error *err)
{
    const char *scheme = !prefix_space ? "never" : legacy ? "always" : "first";
    return set_part(root, "pre_tokenizer", err,
                    "{\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\", "
                    "\"prepend_scheme\": \"%s\", \"split\": false}",
                    scheme) ||
                   set_part(root, "decoder", err,
                            "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", "
                            "\"pattern\": {\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, "
                            "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}%s]}",
                            prefix_space ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": "
                                           "1, \"stop\": 0}"
                                         : "")
               ? -1
               : 0;
}

/* Keeps type, vocab and merges of the model. */
static int set_model(json_t *root, bool is_llama, struct error *err)
{
    static const char *const KEYS[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix", "ignore_merges"};
    json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return 0; /* what reads it says so */
    for (size_t i = 0; i < COUNT(KEYS); i++)
        json_object_del(model, KEYS[i]);
    return json_object_set_new(model, "fuse_unk", json_boolean(is_llama)) ||
                   json_object_set_new(model, "byte_fallback", json_boolean(is_llama))
               ? error_set(err, ERROR_NO_MEMORY, NAME ": no memory")
               : 0;
}

static int set_parts(json_t *root, int kind, const json_t *config, struct error *err)
{
    struct fields fields = {config, NAME};
    bool prefix_space = KINDS[kind].prefix_space, legacy = false;
    enum field_need need = KINDS[kind].prefix_optional ? FIELD_OPTIONAL : FIELD_NOT_NULL;
    if (fields_bool(&fields, "add_prefix_space", need, &prefix_space, err) ||
        fields_bool(&fields, "legacy", FIELD_OPTIONAL, &legacy, err) ||
        set_model(root, kind == LLAMA, err) ||
        set_part(root, "normalizer", err, "%s", KINDS[kind].normalizer))
        return -1;
    if (KINDS[kind].drops_template && set_part(root, "post_processor", err, "null"))
        return -1;
    if (kind == LLAMA)
        return set_parts_llama(root, prefix_space, legacy, err);
    const char *space = prefix_space ? "true" : "false";
    if (set_part(root, "decoder", err, BYTE_LEVEL, "true", "true"))
        return -1;
    if (kind != QWEN2)
        return set_part(root, "pre_tokenizer", err, BYTE_LEVEL, space, "true");
    return set_part(root, "pre_tokenizer", err,
                    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
                    "\"pattern\": {\"Regex\": \"" QWEN2_PATTERN "\"}, \"behavior\": \"Isolated\", "
                    "\"invert\": false}, " BYTE_LEVEL "]}",
                    space, "false");
}

int tokenizer_config_apply(struct tokenizer_config *files, json_t *root, struct error *err)
{
    int kind;
    struct fields fields = {files->config, NAME};
    if (!files->config || !json_is_object(root))
        return 0;
    if (refuse_keys(files->config, err) || choose_kind(files, &kind, err) ||
        fields_bool(&fields, "split_special_tokens", FIELD_OPTIONAL, &files->split_special_tokens,
                    err) ||
        (KINDS[kind].builds && set_parts(root, kind, files->config, err)))
        return -1;
    json_t *defaults = json_loads(KINDS[kind].tokens, 0, NULL);
    struct special_tokens tokens = {.config = files->config,
                                    .map = files->special_tokens_map,
                                    .added = files->added_tokens,
                                    .defaults = defaults,
                                    .replaces = KINDS[kind].builds,
                                    .adds_all = KINDS[kind].adds_all};
    int failed = defaults ? special_tokens_list(&tokens, root, &files->more, err)
                          : error_set(err, ERROR_NO_MEMORY, NAME ": no memory");
    json_decref(defaults);
    return failed;
}
