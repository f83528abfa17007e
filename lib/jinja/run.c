/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/run.h"

#include "lib/jinja/origin.h"

#include <string.h>

const struct builtin *builtin_find(const struct builtin *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

bool builtin_lacks(enum builtin_lack kind, const char *name)
{
    static const char *const NAMES[][24] = {
        [BUILTIN_LACKS_FILTER] = {"filesizeformat", "pprint", "random", "striptags", "urlencode",
                                  "urlize", "wordwrap", "xmlattr"},
        [BUILTIN_LACKS_METHOD] = {"as_integer_ratio", "bit_count", "bit_length", "casefold",
                                  "conjugate", "encode", "expandtabs", "format_map", "from_bytes",
                                  "fromhex", "hex", "is_integer", "isdisjoint", "isidentifier",
                                  "maketrans", "striptags", "to_bytes", "translate", "unescape"},
        [BUILTIN_LACKS_FUNCTION] = {"cycler", "joiner", "lipsum"},
    };
    for (const char *const *one = NAMES[kind]; *one; one++)
        if (strcmp(*one, name) == 0)
            return true;
    return false;
}

/* The index of the parameter with that name, or -1. *count: how many there are. */
static int parameter(const char *params, const char *name, int *count)
{
    int found = -1;
    *count = 0;
    while (*params) {
        size_t length = strcspn(params, " ");
        if (name && strlen(name) == length && memcmp(params, name, length) == 0)
            found = *count;
        (*count)++;
        params += length + (params[length] == ' ');
    }
    return found;
}

static struct value bind_and_run(struct run *run, const struct builtin *builtin, struct value self,
                                 const struct args *args)
{
    struct value given[BUILTIN_MOST_PARAMS] = {{.kind = VALUE_MISSING}};
    int count, index;
    if (!builtin->params)
        return builtin->run(run, self, NULL, args);
    parameter(builtin->params, NULL, &count);
    if (args->count > (size_t)count)
        heap_fail(&run->heap, ERROR_INVALID, "%s: expected at most %d arguments, got %zu",
                  builtin->name, count, args->count);
    for (size_t i = 0; i < args->count; i++)
        given[i] = args->items[i];
    for (size_t i = 0; i < args->num_named; i++) {
        const char *name = args->named[i].name->bytes;
        index = parameter(builtin->params, name, &count);
        if (index < 0 || given[index].kind != VALUE_MISSING)
            heap_fail(&run->heap, ERROR_INVALID, "%s: the argument %.40s is %s", builtin->name,
                      name, index < 0 ? "unknown" : "there twice");
        given[index] = args->named[i].value;
    }
    for (index = 0; index < builtin->required; index++)
        if (given[index].kind == VALUE_MISSING)
            heap_fail(&run->heap, ERROR_INVALID, "%s: expected %d arguments, got %d", builtin->name,
                      builtin->required, index);
    return builtin->run(run, self, given, args);
}

struct value builtin_call(struct run *run, const struct builtin *builtin, struct value self,
                          const struct args *args)
{
    heap_work(&run->heap, 0);
    heap_enter(&run->heap);
    struct value result = bind_and_run(run, builtin, self, args);
    heap_leave(&run->heap);
    return result;
}

static void append(struct run *run, const char *bytes, size_t length)
{
    struct output *out = run->out;
    heap_work(&run->heap, length);
    if (length > out->capacity - out->length) {
        size_t capacity = 2 * out->capacity + length + 64;
        char *grown = heap_alloc(&run->heap, capacity, 1);
        if (out->length > 0)
            memcpy(grown, out->bytes, out->length);
        out->bytes = grown;
        out->capacity = capacity;
    }
    if (length > 0)
        memcpy(out->bytes + out->length, bytes, length);
    out->length += length;
}

/* The bytes [begin, end) of the output came from the context. */
static void mark(struct run *run, size_t begin, size_t end)
{
    struct output *out = run->out;
    if (begin >= end)
        return;
    if (out->num_input > 0 && out->input[out->num_input - 1].end == begin) {
        out->input[out->num_input - 1].end = end;
        return;
    }
    if (out->num_input == out->input_capacity) {
        size_t capacity = 2 * out->input_capacity + 4;
        struct text_span *grown = heap_alloc(&run->heap, capacity, sizeof *grown);
        if (out->num_input > 0)
            memcpy(grown, out->input, out->num_input * sizeof *grown);
        out->input = grown;
        out->input_capacity = capacity;
    }
    out->input[out->num_input++] = (struct text_span){begin, end};
}

void output_own(struct run *run, const char *bytes, size_t length)
{
    append(run, bytes, length);
}

void output_part(struct run *run, const struct string *string, size_t begin, size_t end)
{
    const struct origin *origin = string->origin;
    const size_t at = run->out->length;
    append(run, string->bytes + begin, end - begin);
    if (!origin)
        return;
    for (size_t i = origin_from(origin, begin); i < origin->count; i++) {
        const struct text_span *span = &origin->input[i];
        if (span->start >= end)
            break;
        heap_work(&run->heap, 0);
        mark(run, at + (span->start > begin ? span->start - begin : 0),
             at + (span->end < end ? span->end : end) - begin);
    }
}

void output_string(struct run *run, const struct string *string)
{
    output_part(run, string, 0, string->length);
}

void output_for(struct run *run, const struct string *string, size_t at, const char *bytes,
                size_t length)
{
    append(run, bytes, length);
    if (origin_at(string->origin, at))
        mark(run, run->out->length - length, run->out->length);
}

struct output *output_begin(struct run *run, struct output *own)
{
    struct output *before = run->out;
    *own = (struct output){0};
    run->out = own;
    return before;
}

struct value output_take(struct run *run, struct output *before)
{
    struct output *own = run->out;
    run->out = before;
    struct string *string = value_own(&run->heap, own->bytes, own->length);
    /* Nothing changes the spans any more. */
    const struct origin origin = {own->input, own->num_input};
    if (own->num_input > 0)
        string->origin = origin_part(&run->heap, &origin, 0, own->length);
    return value_of(string);
}
