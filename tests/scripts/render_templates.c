/* SPDX-License-Identifier: Apache-2.0 */
/* Renders chat templates for check_package_templates.py. Standard input has {"source", "contexts",
 * "now"}, one a line; standard output has {"texts", "errors"} for each, with null in one of both.
 */
#include "lib/base/error.h"
#include "lib/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>

static const struct jinja_limits LIMITS = {.steps = 64 << 20, .memory = 256 << 20};

static void add(json_t *reply, const char *text, size_t length, const struct error *err)
{
    json_array_append_new(json_object_get(reply, "texts"),
                          text ? json_stringn(text, length) : json_null());
    json_array_append_new(json_object_get(reply, "errors"),
                          text ? json_null() : json_string(err->message));
}

static json_t *render(const json_t *request)
{
    json_t *reply = json_pack("{s[]s[]}", "texts", "errors"), *context;
    const json_t *source = json_object_get(request, "source");
    struct jinja *template = NULL;
    struct error err = ERROR_INIT;
    size_t i;
    if (jinja_compile(&template, "t", json_string_value(source), json_string_length(source), &err))
        template = NULL;
    json_array_foreach(json_object_get(request, "contexts"), i, context)
    {
        struct error own = err;
        char *text = NULL;
        size_t length = 0;
        if (template)
            jinja_render(template, context, &LIMITS,
                         json_integer_value(json_object_get(request, "now")), &text, &length, NULL,
                         &own);
        add(reply, text, length, &own);
        free(text);
    }
    jinja_free(template);
    return reply;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, stdin)) > 0) {
        json_error_t why;
        json_t *request = json_loadb(line, (size_t)length, JSON_ALLOW_NUL, &why);
        if (!request) {
            fprintf(stderr, "render_templates: %s\n", why.text);
            return 1;
        }
        json_t *reply = render(request);
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    return 0;
}
