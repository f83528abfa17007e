/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a chat template; one that compiles is rendered with a conversation. */
#include "lib/jinja/jinja.h"
#include "lib/text/unicode.h"

#include <stdint.h>
#include <stdlib.h>

static const char CONTEXT[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" s "
    "\"},{\"role\":\"user\",\"content\":[{\"type\":"
    "\"text\",\"text\":\"\xC3\xA9<a>\"}]},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{"
    "\"name\":"
    "\"f\",\"arguments\":{\"a\":1,\"b\":2.5,\"c\":null}}}]}],\"tools\":[{\"k\":[1,2]}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *context;
    struct error err = ERROR_INIT;
    struct jinja *template;
    if (!context && !(context = json_loads(CONTEXT, 0, NULL)))
        abort();
    if (jinja_compile(&template, "t", (const char *)data, size, &err)) {
        if (err.code == ERROR_NONE || !err.message[0])
            abort();
        return 0;
    }
    const struct jinja_limits limits = {.steps = 100000, .memory = 4 << 20};
    char *text;
    size_t length;
    if (jinja_render(template, context, &limits, 1795000000, &text, &length, NULL, &err) == 0 &&
        utf8_valid_length(text, length) != length)
        abort();
    free(text);
    jinja_free(template);
    return 0;
}
