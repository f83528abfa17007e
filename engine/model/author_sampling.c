/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/author_sampling.h"

#include "lib/base/fields.h"
#include "lib/base/file.h"
#include "lib/base/gguf.h"
#include "lib/base/python_json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool author_sampling_says(const struct author_sampling *sampling)
{
    for (int i = 0; i < SAMPLING_COUNT; i++)
        if (sampling->said[i])
            return true;
    return false;
}

double author_sampling_value(const struct author_sampling *sampling, enum sampling_number number)
{
    return sampling && sampling->said[number] ? sampling->values[number]
                                              : sampling_rows[number].usual;
}

static void set(struct author_sampling *sampling, enum sampling_number number, double value,
                const char *place, struct warnings *warnings)
{
    const struct sampling_row *row = &sampling_rows[number];
    if (!(value >= row->low && value <= row->high) || (row->above && value == row->low) ||
        (row->whole && value != floor(value))) {
        warnings_add(warnings, "%s: expected %s in %s%g, %g], got %g: not taken as a default",
                     place, row->whole ? "an integer" : "a number", row->above ? "(" : "[",
                     row->low, row->high, value);
        return;
    }
    sampling->said[number] = true;
    sampling->values[number] = value;
}

/* whole: transformers' own defaults count, too. */
static void read_json(struct author_sampling *sampling, const struct fields *root, const char *from,
                      bool whole, struct warnings *warnings)
{
    char place[260];
    sampling->from = from;
    for (int i = 0; i < SAMPLING_COUNT; i++) {
        const struct sampling_row *row = &sampling_rows[i];
        const json_t *value = row->library ? json_object_get(root->object, row->name) : NULL;
        if (fields_ask_nothing(value, whole ? "" : row->library))
            continue;
        snprintf(place, sizeof place, "%s: %s", root->place, row->name);
        if (json_is_number(value))
            set(sampling, (enum sampling_number)i, json_number_value(value), place, warnings);
        else
            warnings_add(warnings, "%s: expected a number, got %s: not taken as a default", place,
                         fields_kind(value));
    }
    if (whole && json_is_false(json_object_get(root->object, "do_sample")))
        set(sampling, SAMPLING_temperature, 0, "do_sample", warnings);
}

static bool number_of(const struct gguf *gguf, const char *key, double *value,
                      struct warnings *warnings)
{
    char got[40];
    const struct gguf_entry *entry = gguf_find(gguf, key);
    if (!entry)
        return false;
    const bool is_int = gguf_type_is_int(entry->type), is_float = gguf_type_is_float(entry->type);
    if (entry->array || !(is_int || is_float)) {
        warnings_add(warnings, "%s: %s: expected a number, got %s: not taken as a default",
                     gguf->file, key, gguf_kind(entry, got));
        return false;
    }
    /* of an F32 the shortest number that it stands for */
    char text[32];
    snprintf(text, sizeof text, "%.7g", is_int ? 0 : gguf_number_at(entry, 0));
    *value = is_int                    ? (double)gguf_int_at(entry, 0)
             : entry->type == GGUF_F32 ? strtod(text, NULL)
                                       : gguf_number_at(entry, 0);
    return true;
}

static void read_gguf(struct author_sampling *sampling, const struct gguf *gguf,
                      struct warnings *warnings)
{
    static const char last[] = "general.sampling.penalty_last_n";
    char place[260];
    double value;
    sampling->from = "general.sampling";
    for (int i = 0; i < SAMPLING_COUNT; i++) {
        const char *key = sampling_rows[i].gguf;
        if (!key || !number_of(gguf, key, &value, warnings))
            continue;
        snprintf(place, sizeof place, "%s: %s", gguf->file, key);
        set(sampling, (enum sampling_number)i, value, place, warnings);
    }
    if (gguf_find(gguf, last) && number_of(gguf, last, &value, warnings) && value == 0)
        sampling->said[SAMPLING_repetition_penalty] = false; /* of no tokens */
}

static int open_json(struct author_sampling *sampling, const char *path, const char *name,
                     bool whole, struct warnings *warnings, struct error *err)
{
    enum { MOST_BYTES = 64 << 20 };
    char *text;
    size_t size;
    json_t *document;
    struct fields root;
    if (file_read(path, MOST_BYTES, &text, &size, err) != 0)
        return -1;
    int result = python_json_parse(&document, name, text, size, err);
    free(text);
    if (result != 0)
        return -1;
    result = fields_root(&root, document, name, err);
    if (result == 0)
        read_json(sampling, &root, name, whole, warnings);
    json_decref(document);
    return result;
}

static int open_gguf(struct author_sampling *sampling, const char *path, struct warnings *warnings,
                     struct error *err)
{
    struct file_map map;
    struct gguf gguf;
    if (file_map_open(&map, path, err) != 0)
        return -1;
    const char *slash = strrchr(path, '/');
    const int result = gguf_read(&gguf, map.bytes, map.size, slash ? slash + 1 : path, err);
    if (result == 0) {
        read_gguf(sampling, &gguf, warnings);
        gguf_clear(&gguf);
    }
    file_map_close(&map);
    return result;
}

int author_sampling_open(struct author_sampling *sampling, const char *path,
                         struct warnings *warnings, struct error *err)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    char file[GGUF_PATH_SIZE];
    *sampling = (struct author_sampling){.from = NULL};
    if (!path)
        return 0;
    if (gguf_path(file, path, err) != 0)
        return -1;
    if (*file)
        return open_gguf(sampling, file, warnings, err);
    for (int i = 0; i < 2; i++) {
        const int length = snprintf(file, sizeof file, "%s/%s", path, names[i]);
        if (length > 0 && (size_t)length < sizeof file && file_exists(file))
            return open_json(sampling, file, names[i], i == 0, warnings, err);
    }
    return 0; /* whoever reads the model says why */
}

const char *author_sampling_text(const struct author_sampling *sampling, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < SAMPLING_COUNT && used < size; i++)
        if (sampling->said[i])
            used += (size_t)snprintf(text + used, size - used, "%s%s %.9g", used > 0 ? ", " : "",
                                     sampling_rows[i].name, sampling->values[i]);
    return text;
}
