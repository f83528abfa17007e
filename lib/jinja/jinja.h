/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the part of Jinja that they use, with the results of Python's jinja2 as
 * transformers sets it up (trim_blocks, lstrip_blocks, loop controls, the immutable sandbox).
 *
 * Templates are hostile files. What is not known is an error with line and column: while the
 * template is compiled if it can be seen there, else when it is reached. A rendering is bounded in
 * steps, time, depth and memory. A compiled template never changes: many threads may render it at
 * once. chat-templates.md says what is known. */
#ifndef LIB_JINJA_JINJA_H
#define LIB_JINJA_JINJA_H

#include "lib/base/error.h"
#include "lib/jinja/origin.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jinja;

/* Compiles source ([length] bytes of UTF-8, borrowed for the call); `name` is its place in
 * messages. The caller frees *out with jinja_free. */
int jinja_compile(struct jinja **out, const char *name, const char *source, size_t length,
                  struct error *err);
void jinja_free(struct jinja *template);

/* Its text [*length], without \r and the last newline. */
const char *jinja_source(const struct jinja *template, size_t *length);

/* Whether the template mentions the name anywhere: as a variable, an attribute or a string. */
bool jinja_mentions(const struct jinja *template, const char *name);

struct jinja_limits {
    int64_t steps;  /* a node of the template, or some dozens of bytes or items at work on */
    double seconds; /* of the thread's processor time; 0: no limit */
    size_t memory;  /* bytes of all values and texts, the rendered one too */
    /* NULL, or whom to ask for that memory as it is taken. At the end it is given back, as a
     * negative number. False: none is left, which is an ERROR_NO_MEMORY. */
    bool (*reserve)(void *context, int64_t bytes);
    void *context; /* of reserve */
};

/* Renders with the members of `context`, an object, as variables. `now`: seconds since 1970, for
 * strftime_now, in local time. *text ([*length] bytes and a NUL) is malloc'd. What the template
 * itself refuses (raise_exception) is an ERROR_INVALID too, with its words. origin: NULL, or what
 * the caller clears with span_list_clear, also after a failure. */
int jinja_render(const struct jinja *template, const json_t *context,
                 const struct jinja_limits *limits, int64_t now, char **text, size_t *length,
                 struct origin_marks *origin, struct error *err);

#endif
