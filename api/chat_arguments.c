/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_arguments.h"

#include "api/chat_literals.h"
#include "api/request.h"

/* Whether nothing follows but what closes more than is open. */
static bool ends(struct chat_literals *reader)
{
    while (chat_literals_take(reader, '}') || chat_literals_take(reader, ']'))
        ;
    return reader->at == reader->length;
}

static json_t *mend(const char *text, size_t length, struct api_error *err)
{
    struct chat_literals reader = {.text = text, .length = length, .end = CHAT_LITERALS_CLOSED};
    struct api_error own = {0};
    json_t *object = NULL;
    chat_literals_skip(&reader);
    bool readable = reader.at < length && text[reader.at] == '{' && chat_literals_value(&reader) &&
                    ends(&reader);
    if (chat_literals_failed(&reader))
        request_no_memory(err);
    else if (readable &&
             !(object = request_load_repeats(reader.out.data, reader.out.length, &own)) &&
             own.code == API_OUT_OF_MEMORY)
        request_no_memory(err);
    chat_literals_clear(&reader);
    return object;
}

json_t *chat_arguments_load(const char *text, size_t length, bool *whole, struct api_error *err)
{
    struct api_error own = {0};
    size_t begin = chat_calls_skip(text, length, 0);
    json_t *object = begin < length ? request_load(text, length, &own) : json_object();
    *whole = object != NULL;
    if (!object && begin < length && own.code != API_OUT_OF_MEMORY)
        return mend(text, length, err);
    if (!object)
        request_no_memory(err);
    return object;
}
