/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/preset.h"

#include "engine/model/family.h"
#include "engine/model/model_load.h"
#include "engine/model/random_weights.h"
#include "lib/base/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct preset *preset_find(const char *name)
{
    for (size_t i = 0; i < num_presets; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

static int parse_shapes(struct random_shapes *shapes, const struct fields *root, struct error *err)
{
    static const char *const known[] = {"head_dim", "value_dim", "features", "glu", "bias"};
    struct fields fields;
    if (fields_object(root, "shapes", FIELD_REQUIRED, &fields, err) != 0 ||
        fields_only(&fields, known, sizeof known / sizeof *known, err) != 0)
        return -1;
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {{known[0], &shapes->head_dim},
                 {known[1], &shapes->value_dim},
                 {known[2], &shapes->features}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (fields_int(&fields, sizes[i].key, FIELD_REQUIRED, 2, CONFIG_MAX_HIDDEN, sizes[i].value,
                       err) != 0)
            return -1;
    if (fields_bool(&fields, "glu", FIELD_REQUIRED, &shapes->glu, err) != 0)
        return -1;
    return fields_bool(&fields, "bias", FIELD_REQUIRED, &shapes->bias, err);
}

/* Parts a preset's text into shapes and the text of a config.json, malloc'd. */
static int part(const char *text, struct random_shapes *shapes, char **config, struct error *err)
{
    json_t *document;
    struct fields root;
    if (fields_parse(&document, "config.json", text, strlen(text), err) != 0)
        return -1;
    int result = fields_root(&root, document, "config.json", err);
    if (result == 0)
        result = parse_shapes(shapes, &root, err);
    if (result == 0) {
        json_object_del(document, "shapes");
        *config = json_dumps(document, JSON_COMPACT);
        if (!*config)
            result = error_set(err, ERROR_NO_MEMORY, "config.json: out of memory");
    }
    json_decref(document);
    return result;
}

int preset_load(struct model **out, const char *name, const char *config, struct error *err)
{
    struct arena arena = {0};
    struct config parsed;
    struct random_shapes shapes;
    struct file_map image = {0};
    char *text = NULL;
    *out = NULL;
    int result = part(config, &shapes, &text, err);
    if (result == 0)
        result = family_parse(&parsed, &arena, text, strlen(text), err);
    if (result == 0)
        result = random_weights_create(&image, &parsed, &shapes, err);
    if (result == 0)
        result = model_load_map(out, name, text, strlen(text), &image, err);
    file_map_close(&image);
    arena_clear(&arena);
    free(text);
    return result == 0 ? 0 : error_prefix(err, "preset %s", name);
}

/* "regla, softmax": the presets are these names, each in two depths, and some in a third shape; and
 * models of one shape, which come first. */
static int unknown(const char *name, struct error *err)
{
    static const char depth[] = "-6l";
    char systems[448] = "", models[192] = "";
    size_t used = 0, used_models = 0;
    for (size_t i = 0; i < num_presets; i++) {
        char twin[64];
        const char *own = presets[i].name, *end = strrchr(own, '-');
        const int length = end ? (int)(end - own) : (int)strlen(own);
        snprintf(twin, sizeof twin, "%.*s%s", length, own, depth);
        if (strcmp(twin, own) == 0)
            used +=
                (size_t)snprintf(systems + used, used < sizeof systems ? sizeof systems - used : 0,
                                 "%s%.*s", used > 0 ? ", " : "", length, own);
        else if (!preset_find(twin))
            used_models += (size_t)snprintf(
                models + used_models, used_models < sizeof models ? sizeof models - used_models : 0,
                "%s, ", own);
    }
    return error_set(err, ERROR_INVALID,
                     "unknown preset \"%.40s\"; known: %sand, each with -160m or -6l, some with "
                     "-6x512: %s",
                     name, models, systems);
}

int preset_open(struct model **out, const char *name, struct error *err)
{
    const struct preset *preset = preset_find(name);
    if (!preset)
        return unknown(name, err);
    return preset_load(out, name, preset->config, err);
}
