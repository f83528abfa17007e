#include "engine/formats.h"

#include <stddef.h>
#include <string.h>

#define NAME(value, name) [value] = (name),
static const char *const weight_names[] = {WEIGHT_FORMATS(NAME)};
static const char *const kv_names[] = {KV_FORMATS(NAME)};

static int find(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return (int)i;
    return -1;
}

const char *weight_format_name(enum weight_format format)
{
    return weight_names[format];
}

const char *kv_format_name(enum kv_format format)
{
    return kv_names[format];
}

bool weight_format_find(const char *name, enum weight_format *out)
{
    int found = find(weight_names, sizeof weight_names / sizeof *weight_names, name);
    if (found >= 0)
        *out = (enum weight_format)found;
    return found >= 0;
}

bool kv_format_find(const char *name, enum kv_format *out)
{
    int found = find(kv_names, sizeof kv_names / sizeof *kv_names, name);
    if (found >= 0)
        *out = (enum kv_format)found;
    return found >= 0;
}
