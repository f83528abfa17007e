/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/jinja/chat_template.h"

#include "engine/base/file.h"
#include "engine/base/gguf.h"
#include "engine/base/python_json.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILE = 64 << 20 };

static const char NONE[] = "the model has no chat template (--chat-template FILE gives one)";

static int no_memory(struct error *err)
{
    return error_set(err, ERROR_NO_MEMORY, "chat template: no memory");
}

/* The file's template. */
static int read_file(struct jinja **out, const char *path, struct error *err)
{
    char *text;
    size_t length;
    if (file_read(path, MOST_FILE, &text, &length, err))
        return -1;
    const char *slash = strrchr(path, '/'); /* clients see the name */
    int result = jinja_compile(out, slash ? slash + 1 : path, text, length, err);
    free(text);
    return result;
}

static int compile_json(struct jinja **out, const char *place, const json_t *text,
                        struct error *err)
{
    if (!json_is_string(text))
        return error_set(err, ERROR_INVALID, "%s: expected a string", place);
    return jinja_compile(out, place, json_string_value(text), json_string_length(text), err);
}

/* A list of {"name", "template"}: those that are called default and tool_use. */
static int compile_list(struct chat_template *chat, const char *place, const json_t *list,
                        struct error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        struct jinja **out = !name                           ? NULL
                             : strcmp(name, "default") == 0  ? &chat->template
                             : strcmp(name, "tool_use") == 0 ? &chat->with_tools
                                                             : NULL;
        if (out && !*out && compile_json(out, place, json_object_get(item, "template"), err))
            return -1;
    }
    return chat->template ? 0 : error_set(err, ERROR_INVALID, "%s: none is called default", place);
}

/* A special token of tokenizer_config.json: its text, or an object with `content`. */
static int take_token(char **token, const json_t *config, const char *name, struct error *err)
{
    const json_t *value = json_object_get(config, name);
    const char *text =
        json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    if (!text)
        return 0;
    *token = strdup(text);
    return *token ? 0 : no_memory(err);
}

static int join(char path[PATH_MAX], const char *folder, const char *name, struct error *err)
{
    int wrote = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    if (wrote < 0 || wrote >= PATH_MAX)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", folder);
    return 0;
}

/* tokenizer_config.json's tokens and, with `wanted`, its template. */
static int read_config(struct chat_template *chat, const char *folder, bool wanted,
                       struct error *err)
{
    char path[PATH_MAX], *text;
    size_t length;
    json_t *config;
    if (join(path, folder, "tokenizer_config.json", err))
        return -1;
    if (!file_exists(path))
        return 0;
    if (file_read(path, MOST_FILE, &text, &length, err))
        return -1;
    int result = python_json_parse(&config, path, text, length, err);
    free(text);
    if (result)
        return -1;
    result = take_token(&chat->bos_token, config, "bos_token", err) ||
                     take_token(&chat->eos_token, config, "eos_token", err)
                 ? -1
                 : 0;
    const json_t *template = json_object_get(config, "chat_template");
    static const char place[] = "tokenizer_config.json: chat_template";
    if (result == 0 && wanted && json_is_array(template))
        result = compile_list(chat, place, template, err);
    else if (result == 0 && wanted && template && !json_is_null(template))
        result = compile_json(&chat->template, place, template, err);
    json_decref(config);
    return result;
}

static int read_folder(struct chat_template *chat, const char *folder, bool wanted,
                       struct error *err)
{
    char path[PATH_MAX];
    if (join(path, folder, "chat_template.jinja", err))
        return -1;
    bool own = wanted && file_exists(path);
    if (read_config(chat, folder, wanted && !own, err))
        return -1;
    return own ? read_file(&chat->template, path, err) : 0;
}

/* The text of the token whose id the key has. */
static int take_gguf_token(char **token, const struct gguf *gguf, const char *key,
                           const struct tokenizer *tokenizer, struct error *err)
{
    int64_t id = -1;
    if (gguf_int(gguf, key, FIELD_OPTIONAL, 0, INT32_MAX, &id, err))
        return -1;
    const char *text = id >= 0 ? tokenizer_token_content(tokenizer, (int32_t)id) : NULL;
    if (!text)
        return 0;
    *token = strdup(text);
    return *token ? 0 : no_memory(err);
}

static int take_gguf(struct chat_template *chat, const struct gguf *gguf, bool wanted,
                     const struct tokenizer *tokenizer, struct error *err)
{
    struct gguf_text text = {0};
    static const char place[] = "tokenizer.chat_template";
    if (take_gguf_token(&chat->bos_token, gguf, "tokenizer.ggml.bos_token_id", tokenizer, err) ||
        take_gguf_token(&chat->eos_token, gguf, "tokenizer.ggml.eos_token_id", tokenizer, err) ||
        gguf_text(gguf, "tokenizer.chat_template", FIELD_OPTIONAL, &text, err))
        return -1;
    return wanted && text.bytes
               ? jinja_compile(&chat->template, place, text.bytes, text.length, err)
               : 0;
}

static int read_gguf(struct chat_template *chat, const char *path, bool wanted,
                     const struct tokenizer *tokenizer, struct error *err)
{
    struct file_map file;
    struct gguf gguf;
    if (file_map_open(&file, path, err))
        return -1;
    int result = gguf_read(&gguf, file.bytes, file.size, path, err);
    if (result == 0) {
        result = take_gguf(chat, &gguf, wanted, tokenizer, err);
        gguf_clear(&gguf);
    }
    file_map_close(&file);
    return result;
}

int chat_template_open(struct chat_template *chat, const char *path, const char *file,
                       const struct tokenizer *tokenizer, struct error *err)
{
    struct error own = ERROR_INIT;
    *chat = (struct chat_template){0};
    int result = gguf_is_file(path) ? read_gguf(chat, path, !file, tokenizer, &own)
                                    : read_folder(chat, path, !file, &own);
    if (result == 0 && file)
        result = read_file(&chat->template, file, &own);
    if (result && (file || own.code == ERROR_NO_MEMORY || own.code == ERROR_IO)) {
        chat_template_clear(chat);
        return error_set(err, own.code, "%s", own.message);
    }
    if (result) {
        jinja_free(chat->template);
        jinja_free(chat->with_tools);
        chat->template = chat->with_tools = NULL;
    }
    if (!chat->template)
        snprintf(chat->why, sizeof chat->why, "%s", result ? own.message : NONE);
    return 0;
}

void chat_template_clear(struct chat_template *chat)
{
    jinja_free(chat->template);
    jinja_free(chat->with_tools);
    free(chat->bos_token);
    free(chat->eos_token);
    *chat = (struct chat_template){0};
}
