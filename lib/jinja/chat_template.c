/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/chat_template.h"

#include "lib/base/file.h"
#include "lib/base/gguf.h"
#include "lib/base/python_json.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILE = 64 << 20 };

/* The name of a template that chats with tools have instead of the default one. */
#define TOOL_USE "tool_use"

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
        struct jinja **out = !name                          ? NULL
                             : strcmp(name, "default") == 0 ? &chat->template
                             : strcmp(name, TOOL_USE) == 0  ? &chat->with_tools
                                                            : NULL;
        if (out && !*out && compile_json(out, place, json_object_get(item, "template"), err))
            return -1;
    }
    return chat->template ? 0 : error_set(err, ERROR_INVALID, "%s: none is called default", place);
}

/* The special tokens that templates write by name. */
enum { BOS, EOS, TOKENS };
static const char *const TOKEN_NAMES[TOKENS] = {[BOS] = "bos_token", [EOS] = "eos_token"};

/* What tokenizer_config.json says of a special token: its text, an object with `content`, or null.
 * *said: whether it says anything. */
static int take_token(char **token, bool *said, const json_t *config, const char *name,
                      struct error *err)
{
    const json_t *value = json_object_get(config, name);
    const char *text =
        json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    *said = value != NULL;
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

/* The object of a JSON file; *config is NULL where there is none. */
static int read_json(json_t **config, const char *folder, const char *name, struct error *err)
{
    char path[PATH_MAX], *text;
    size_t length;
    *config = NULL;
    if (join(path, folder, name, err))
        return -1;
    if (!file_exists(path))
        return 0;
    if (file_read(path, MOST_FILE, &text, &length, err))
        return -1;
    int result = python_json_parse(config, path, text, length, err);
    free(text);
    return result;
}

/* chat_template of a JSON file: a text or a list. */
static int take_json(struct chat_template *chat, const json_t *config, const char *place,
                     struct error *err)
{
    const json_t *template = json_object_get(config, "chat_template");
    if (!template || json_is_null(template))
        return 0;
    return json_is_array(template) ? compile_list(chat, place, template, err)
                                   : compile_json(&chat->template, place, template, err);
}

/* tokenizer_config.json's tokens and, with `wanted`, its template. */
static int read_config(struct chat_template *chat, const char *folder, bool wanted,
                       bool said[TOKENS], struct error *err)
{
    json_t *config;
    if (read_json(&config, folder, "tokenizer_config.json", err))
        return -1;
    int result = take_token(&chat->bos_token, &said[BOS], config, TOKEN_NAMES[BOS], err) ||
                         take_token(&chat->eos_token, &said[EOS], config, TOKEN_NAMES[EOS], err)
                     ? -1
                     : 0;
    if (result == 0 && wanted)
        result = take_json(chat, config, "tokenizer_config.json: chat_template", err);
    json_decref(config);
    return result;
}

/* A file with a template; none: nothing is done. */
static int read_named(struct jinja **out, const char *folder, const char *name, struct error *err)
{
    char path[PATH_MAX];
    if (join(path, folder, name, err))
        return -1;
    if (!file_exists(path))
        return 0;
    jinja_free(*out);
    *out = NULL;
    return read_file(out, path, err);
}

/* Where transformers and llama.cpp's converter look, the first that is there: files of their own,
 * tokenizer_config.json, chat_template.json. */
static int read_folder(struct chat_template *chat, const char *folder, bool wanted,
                       bool said[TOKENS], struct error *err)
{
    json_t *old;
    if (wanted && (read_named(&chat->template, folder, "chat_template.jinja", err) ||
                   read_named(&chat->with_tools, folder,
                              "additional_chat_templates/" TOOL_USE ".jinja", err)))
        return -1;
    if (read_config(chat, folder, wanted && !chat->template, said, err))
        return -1;
    if (!wanted || chat->template)
        return 0;
    if (read_json(&old, folder, "chat_template.json", err))
        return -1;
    int result = take_json(chat, old, "chat_template.json: chat_template", err);
    json_decref(old);
    return result;
}

/* A template of the file's metadata, if it is there. */
static int take_gguf(struct jinja **out, const struct gguf *gguf, const char *key,
                     struct error *err)
{
    struct gguf_text text = {0};
    if (gguf_text(gguf, key, FIELD_OPTIONAL, &text, err))
        return -1;
    return text.bytes ? jinja_compile(out, key, text.bytes, text.length, err) : 0;
}

static int read_gguf(struct chat_template *chat, const char *path, struct error *err)
{
    struct file_map file;
    struct gguf gguf;
    if (file_map_open(&file, path, err))
        return -1;
    int result = gguf_read(&gguf, file.bytes, file.size, path, err);
    if (result == 0) {
        result =
            take_gguf(&chat->template, &gguf, "tokenizer.chat_template", err) ||
                    take_gguf(&chat->with_tools, &gguf, "tokenizer.chat_template." TOOL_USE, err)
                ? -1
                : 0;
        gguf_clear(&gguf);
    }
    file_map_close(&file);
    return result;
}

/* The text of a token by its id; -1: there is none. */
static int take_id(char **token, const struct tokenizer *tokenizer, int32_t id, struct error *err)
{
    const char *text = id >= 0 ? tokenizer_token_content(tokenizer, id) : NULL;
    if (text && !(*token = strdup(text)))
        return no_memory(err);
    return 0;
}

static int read_all(struct chat_template *chat, const char *path, const char *file,
                    const struct chat_template_source *source, struct error *err)
{
    bool said[TOKENS] = {false};
    char gguf[GGUF_PATH_SIZE];
    if (gguf_path(gguf, path, err) ||
        (*gguf ? !file && read_gguf(chat, gguf, err) : read_folder(chat, path, !file, said, err)))
        return -1;
    if ((!said[BOS] && take_id(&chat->bos_token, source->tokenizer, source->bos_token_id, err)) ||
        (!said[EOS] && take_id(&chat->eos_token, source->tokenizer, source->eos_token_id, err)))
        return -1;
    return file ? read_file(&chat->template, file, err) : 0;
}

int chat_template_open(struct chat_template *chat, const char *path, const char *file,
                       const struct chat_template_source *source, struct error *err)
{
    struct error own = ERROR_INIT;
    *chat = (struct chat_template){0};
    int result = read_all(chat, path, file, source, &own);
    if (result && (file || own.code == ERROR_NO_MEMORY || own.code == ERROR_IO)) {
        chat_template_clear(chat);
        return error_set(err, own.code, "%s", own.message);
    }
    if (result) {
        jinja_free(chat->template);
        chat->template = NULL;
    }
    if (!chat->template) {
        jinja_free(chat->with_tools);
        chat->with_tools = NULL;
        snprintf(chat->why, sizeof chat->why, "%s", result ? own.message : NONE);
    }
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
