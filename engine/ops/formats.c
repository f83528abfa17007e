/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/formats.h"

#include <stdio.h>
#include <string.h>

#define NAME(value, name, ...) [value] = (name),
static const char *const weight_names[] = {[WEIGHTS_AUTO] = "auto", WEIGHT_FORMATS(NAME)};
static const char *const kv_names[] = {KV_FORMATS(NAME)};
static const char *const activation_names[] = {ACTIVATION_FORMATS(NAME)};
static const char *const product_names[] = {PRODUCTS_LIST(NAME)};

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

const char *activation_format_name(enum activation_format format)
{
    return activation_names[format];
}

const char *products_name(enum products products)
{
    return product_names[products];
}

const char *weight_format_names(char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < WEIGHT_FORMAT_COUNT && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 i == 0                         ? ""
                                 : i + 1 == WEIGHT_FORMAT_COUNT ? " or "
                                                                : ", ",
                                 weight_names[i]);
    return text;
}

bool activation_format_fits(enum activation_format activations, enum weight_format weights)
{
#define MAY(may, ...) may
#define ROUNDS(value, name, end, kind, traits, block, bytes, to_16bit, to_8bit) \
    [value] = 1 << ACTIVATIONS_F32 | MAY to_16bit << ACTIVATIONS_16BIT |        \
              MAY to_8bit << ACTIVATIONS_8BIT,
    static const unsigned rounds[WEIGHT_FORMAT_COUNT] = {WEIGHT_FORMATS(ROUNDS)};
    return rounds[weights] >> activations & 1;
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

bool activation_format_find(const char *name, enum activation_format *out)
{
    int found = find(activation_names, sizeof activation_names / sizeof *activation_names, name);
    if (found >= 0)
        *out = (enum activation_format)found;
    return found >= 0;
}

bool products_find(const char *name, enum products *out)
{
    int found = find(product_names, sizeof product_names / sizeof *product_names, name);
    if (found >= 0)
        *out = (enum products)found;
    return found >= 0;
}

bool products_fit(enum products products, enum weight_format weights)
{
    return products == PRODUCTS_OWN ||
           (weight_format_block(weights) == 1 && weight_format_bytes(weights) == 2);
}

const char *products_caution(enum products products)
{
    if (products == PRODUCTS_OWN)
        return NULL;
    return "with --products cublaslt results are not reproducible: their bits depend on how many "
           "tokens share a step, so equal requests may get other tokens";
}
