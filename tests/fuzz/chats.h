/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzers of bodies that become a chat share: a template, a reply of the prompt's own
 * text, and streams of events. */
#ifndef TESTS_FUZZ_CHATS_H
#define TESTS_FUZZ_CHATS_H

#include "api/chat_syntax.h"
#include "api/completion.h"
#include "api/completion_reply.h"
#include "lib/jinja/chat_template.h"
#include "tests/fuzz/require.h"

#include <string.h>

static const char CHATS_SOURCE[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "
    "\"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
    "{{ tools | tojson }}{{ enable_thinking }}{{ reasoning_effort }}";

/* Which messages of the system the template takes goes by the size of the input. */
static inline struct completion_limits chats_limits(size_t size, struct reply_warnings *warnings)
{
    static const char *const served[] = {"tiny"};
    static struct chat_template chat;
    static struct chat_syntax syntax[2] = {
        {.calls = {"<tool_call>", "</tool_call>"}, .format = CHAT_CALLS_JSON}};
    struct error error = ERROR_INIT;
    if (!chat.template)
        require(jinja_compile(&chat.template, "fuzz", CHATS_SOURCE, sizeof CHATS_SOURCE - 1,
                              &error) == 0);
    syntax[0].systems = size % 3 == 0   ? CHAT_SYSTEMS_NONE
                        : size % 3 == 1 ? CHAT_SYSTEMS_FIRST
                                        : CHAT_SYSTEMS_ALL;
    return (struct completion_limits){.models = served,
                                      .num_models = 1,
                                      .vocab_size = 300,
                                      .max_prompts = 64,
                                      .allow_empty_prompt = true,
                                      .chat = &chat,
                                      .syntax = syntax,
                                      .warnings = warnings};
}

/* The prompt as a reply: its parts are cut as the call's place says, between characters. */
static inline struct chat_call chats_call(const struct completion_prompt *prompt)
{
    size_t at = prompt->length / 2;
    while (at > 0 && ((unsigned char)prompt->text[at] & 0xC0) == 0x80)
        at--;
    return (struct chat_call){.name = prompt->text,
                              .name_length = prompt->length,
                              .arguments = "{}",
                              .arguments_length = 2,
                              .at = at};
}

static inline struct reply_choice chats_choice(const struct completion_prompt *prompt,
                                               const struct chat_call *call)
{
    return (struct reply_choice){.text = prompt->text,
                                 .text_length = prompt->length,
                                 .reasoning = prompt->text,
                                 .reasoning_length = prompt->length,
                                 .calls = call,
                                 .num_calls = 1,
                                 .finish_reason = FINISH_STOP,
                                 .begins = true};
}

/* Each event is its name, and JSON. */
static inline void chats_check_events(const struct strbuf *buf)
{
    const char *at = buf->data, *end = buf->data + buf->length;
    while (at < end) {
        require(end - at > 7 && memcmp(at, "event: ", 7) == 0);
        const char *data = memchr(at, '\n', (size_t)(end - at));
        require(data && end - data > 7 && memcmp(++data, "data: ", 6) == 0);
        const char *stop = memchr(data, '\n', (size_t)(end - data));
        require(stop && stop + 1 < end && stop[1] == '\n');
        require_json(data + 6, (size_t)(stop - data) - 6);
        at = stop + 2;
    }
}

#endif
