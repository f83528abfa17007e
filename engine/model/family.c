/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/family.h"

#include <stdio.h>

/* A new family is a name here. */
#define FAMILIES(X) \
    X(regla)        \
    X(gpt_neox)     \
    X(gla)

#define DECLARE(name) extern const struct family family_##name;
FAMILIES(DECLARE)

#define POINTER(name) &family_##name,
static const struct family *const families[] = {FAMILIES(POINTER)};
enum { NUM_FAMILIES = sizeof families / sizeof *families };

static int parse_root(struct config *config, const struct fields *root, struct error *err)
{
    const char *names[NUM_FAMILIES];
    for (int i = 0; i < NUM_FAMILIES; i++)
        names[i] = families[i]->name;
    int family = 0;
    if (fields_choice(root, "model_type", FIELD_REQUIRED, names, NUM_FAMILIES, &family, err) != 0)
        return -1;
    config->family = families[family];
    return config->family->parse(config, root, err);
}

int family_parse(struct config *config, struct arena *arena, const char *text, size_t length,
                 struct error *err)
{
    *config = (struct config){.arena = arena, .bos_token_id = -1, .fp8.dtype = DTYPE_BF16};
    return config_parse_file(config, "config.json", text, length, parse_root, err);
}

const char *family_names_random(char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < NUM_FAMILIES && used < size; i++)
        if (families[i]->random)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? " or " : "",
                                     families[i]->name);
    return text;
}
