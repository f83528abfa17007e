/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls as Python writes them: [name(key=value, ...), ...], or one after the other without the
 * brackets. Values are literals of Python's or words of JSON's. */
#include "api/chat_formats.h"
#include "api/chat_literals.h"

static bool argument(struct chat_literals *r)
{
    struct chat_part key = chat_literals_name(r);
    if (key.end == key.begin || !chat_literals_take(r, '='))
        return false;
    strbuf_json_string(&r->out, r->text + key.begin, key.end - key.begin);
    strbuf_puts(&r->out, ": ");
    return chat_literals_value(r);
}

static int call(struct chat_literals *r, struct chat_calls *calls)
{
    struct chat_part function = chat_literals_name(r);
    strbuf_reset(&r->out);
    strbuf_puts(&r->out, "{");
    if (function.end == function.begin || !chat_literals_take(r, '('))
        return 0;
    for (bool first = true; !chat_literals_take(r, ')'); first = false) {
        if (!first && !chat_literals_take(r, ','))
            return 0;
        if (!first && chat_literals_take(r, ')'))
            break;
        strbuf_puts(&r->out, first ? "" : ", ");
        if (!argument(r))
            return chat_literals_failed(r) ? -1 : 0;
    }
    strbuf_puts(&r->out, "}");
    if (chat_literals_failed(r))
        return -1;
    return chat_calls_add(calls, r->text + function.begin, function.end - function.begin,
                          r->out.data, r->out.length);
}

static int read_calls(struct chat_literals *r, struct chat_calls *calls)
{
    bool list = chat_literals_take(r, '[');
    int result = 0; /* an empty list is no call */
    for (;;) {
        if (list && chat_literals_take(r, ']')) {
            chat_literals_skip(r);
            return r->at == r->length ? result : 0;
        }
        chat_literals_skip(r);
        if (!list && r->at == r->length)
            return result;
        if (result > 0 && !chat_literals_take(r, ',') && list)
            return 0;
        chat_literals_skip(r);
        if (list && r->at < r->length && r->text[r->at] == ']')
            continue;
        result = call(r, calls);
        if (result <= 0)
            return result;
    }
}

int chat_calls_python_read(struct chat_calls *calls, const char *body, size_t length)
{
    struct chat_literals reader = {.text = body, .length = length};
    int result = read_calls(&reader, calls);
    chat_literals_clear(&reader);
    return result;
}
