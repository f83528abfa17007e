/* SPDX-License-Identifier: Apache-2.0 */
/* The body of another API on its way to that of a chat, which says the same and is read as that
 * (chat.h): what messages.c and responses.c share. */
#ifndef API_TRANSLATION_H
#define API_TRANSLATION_H

#include "api/chat_syntax.h"
#include "api/completion.h"
#include "api/tokenizer.h"

#define TRANSLATION_MOST_TOKENS (INT64_C(1) << 53)

struct translation {
    json_t *fields; /* of the body */
    size_t length;  /* its bytes */
    json_t *chat;   /* the chat's */
    const struct completion_limits *limits;
    const struct jinja *template; /* that the chat will have; NULL: none, or not yet found */
    enum chat_systems systems;    /* which messages of the system it writes */
    int64_t max_tokens;           /* -1: not given */
    struct api_error *err;
};

/* Loads the body, with no fields of a chat yet. translation_end frees, in every case. */
int translation_begin(struct translation *to, const char *body, size_t length,
                      const struct completion_limits *limits, struct api_error *err);
void translation_end(struct translation *to);

/* The chat's request, or the text whose tokens are counted. max_tokens is what fits at most. */
int translation_parse(const struct translation *to, struct completion_request *request);
int translation_count(const struct translation *to, struct tokenize_request *request);

/* Sets a field of the chat, whose value it takes. */
int translation_set(const struct translation *to, const char *name, json_t *value);
/* Finds the template by the chat's tools, which are set before. */
void translation_find_template(struct translation *to);
/* Whether the template reads a variable of that name. */
bool translation_takes(const struct translation *to, const char *name);
/* Sets the template's enable_thinking, unless the client has set it itself. */
int translation_think(const struct translation *to, bool enabled);
/* Sets reasoning_effort, unless the client has set it itself; warns where the template does not
 * take it. place: of the field, for the warning. */
int translation_effort(const struct translation *to, const char *effort, const char *place);

/* A field that is an object; *object NULL: absent. */
int translation_object(const struct translation *to, const char *name, const json_t **object);
/* A member of such a field that is one of `words`, which NULL ends; *word NULL: absent. */
int translation_word(const struct translation *to, const char *field, const char *name,
                     const char *const *words, const char *expected, const char **word);
bool translation_one_of(const char *word, const char *const *words);

#endif
