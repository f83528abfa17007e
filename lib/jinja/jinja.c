/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/jinja.h"

#include "lib/jinja/origin.h"
#include "lib/jinja/parser.h"
#include "lib/jinja/statements.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { COMPILE_STEPS = 64 << 20, COMPILE_BYTES = 256 << 20, MOST_SOURCE = 4 << 20 };

struct jinja {
    struct heap heap;
    char *name, *source;
    struct token_array tokens;
    struct node *first;
};

/* A copy of the source as jinja2 reads it: one kind of newline, none at the end. */
static void take_source(struct jinja *template, const char *source, size_t length)
{
    char *copy = template->source;
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        if (source[i] == '\r' && i + 1 < length && source[i + 1] == '\n')
            continue;
        copy[used++] = source[i];
        if (source[i] == '\r')
            copy[used - 1] = '\n';
    }
    if (used > 0 && copy[used - 1] == '\n')
        used--;
    copy[used] = 0;
    template->heap.source = copy;
    template->heap.length = used;
}

static int compile(struct jinja *template)
{
    struct heap *heap = &template->heap;
    if (heap_try(heap))
        return -1;
    template->tokens = lexer_run(heap);
    template->first = parser_run(heap, &template->tokens);
    return 0;
}

int jinja_compile(struct jinja **out, const char *name, const char *source, size_t length,
                  struct error *err)
{
    *out = NULL;
    if (length > MOST_SOURCE)
        return error_set(err, ERROR_INVALID, "%s: a template of %zu bytes, more than %d", name,
                         length, MOST_SOURCE);
    if (utf8_valid_length(source, length) < length)
        return error_set(err, ERROR_INVALID, "%s: the template is not UTF-8 at byte %zu", name,
                         utf8_valid_length(source, length));
    struct jinja *template = calloc(1, sizeof *template);
    if (template) {
        template->name = strdup(name);
        template->source = malloc(length + 1);
    }
    if (!template || !template->name || !template->source) {
        jinja_free(template);
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", name);
    }
    template->heap.limit = COMPILE_BYTES;
    template->heap.steps = COMPILE_STEPS;
    template->heap.err = err;
    template->heap.name = template->name;
    take_source(template, source, length);
    int result = compile(template);
    template->heap.err = NULL;
    if (result) {
        jinja_free(template);
        return -1;
    }
    *out = template;
    return 0;
}

void jinja_free(struct jinja *template)
{
    if (!template)
        return;
    heap_clear(&template->heap);
    free(template->name);
    free(template->source);
    free(template);
}

const char *jinja_source(const struct jinja *template, size_t *length)
{
    *length = template->heap.length;
    return template->source;
}

bool jinja_mentions(const struct jinja *template, const char *name)
{
    for (size_t i = 0; i < template->tokens.count; i++) {
        const struct token *token = &template->tokens.items[i];
        if ((token->type == TOKEN_NAME || token->type == TOKEN_STRING) &&
            strcmp(token->value.string->bytes, name) == 0)
            return true;
    }
    return false;
}

/* Hands the spans of the output out. */
static void give_origin(struct run *run, const struct output *out, struct span_list *input)
{
    for (size_t i = 0; i < out->num_input; i++)
        if (span_list_push(input, out->input[i].start, out->input[i].end, run->heap.err))
            heap_fail(&run->heap, ERROR_NO_MEMORY, "no memory");
}

static int render(struct run *run, const struct jinja *template, struct origin_marks *origin,
                  char **text, size_t *length)
{
    struct output out = {0};
    if (heap_try(&run->heap))
        return -1;
    run->out = &out;
    run->known = value_new_dict(&run->heap);
    statements_run(run, template->first);
    if (origin)
        give_origin(run, &out, &origin->input);
    *text = malloc(out.length + 1);
    if (!*text)
        heap_fail(&run->heap, ERROR_NO_MEMORY, "no memory");
    if (out.length > 0)
        memcpy(*text, out.bytes, out.length);
    (*text)[out.length] = 0;
    *length = out.length;
    return 0;
}

int jinja_render(const struct jinja *template, const json_t *context,
                 const struct jinja_limits *limits, int64_t now, char **text, size_t *length,
                 struct origin_marks *origin, struct error *err)
{
    struct run run = {.context = context, .origin = origin, .now = now};
    run.heap.limit = limits->memory;
    run.heap.steps = limits->steps;
    heap_begin_time(&run.heap, limits->seconds);
    run.heap.reserve = limits->reserve;
    run.heap.reserve_context = limits->context;
    run.heap.err = err;
    run.heap.name = template->name;
    run.heap.source = template->heap.source;
    run.heap.length = template->heap.length;
    *text = NULL;
    origin_sort(origin);
    int result = render(&run, template, origin, text, length);
    heap_clear(&run.heap);
    return result;
}
