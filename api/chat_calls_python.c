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
    const char *name = r->text + function.begin;
    size_t length = function.end - function.begin;
    bool closed;
    strbuf_reset(&r->out);
    strbuf_puts(&r->out, "{");
    if (length == 0 || !chat_literals_take(r, '('))
        return 0;
    bool well = chat_literals_items(r, ')', argument, &closed);
    if (well && closed)
        strbuf_puts(&r->out, "}");
    if (chat_literals_failed(r))
        return -1;
    if (!well)
        return 0;
    return closed ? chat_calls_add(calls, name, length, r->out.data, r->out.length)
                  : chat_calls_add_cut(calls, name, length, r->out.data, r->out.length);
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
        if ((!list || r->end) && r->at == r->length)
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

static int read_all(struct chat_calls *calls, const char *body, size_t length,
                    enum chat_literals_end end)
{
    struct chat_literals reader = {.text = body, .length = length, .end = end};
    int result = read_calls(&reader, calls);
    chat_literals_clear(&reader);
    return result;
}

int chat_calls_python_read(struct chat_calls *calls, const char *body, size_t length)
{
    return read_all(calls, body, length, CHAT_LITERALS_NONE);
}

int chat_calls_python_read_cut(struct chat_calls *calls, const char *body, size_t length)
{
    return read_all(calls, body, length, CHAT_LITERALS_OPEN);
}
