/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include "lib/base/file.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef REGLA_COMMIT
#define REGLA_COMMIT "unknown"
#endif

static void processor_name(char *name, size_t size)
{
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file != NULL)
        fclose(file);
}

/* What may not change in the course of a study; compared with study.json when it goes on. */
static json_t *settings_json(const struct study_settings *settings)
{
    char processor[256];
    struct utsname system;
    processor_name(processor, sizeof processor);
    uname(&system);
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:i, s:s, s:s, s:s, s:s}", "processor", processor,
                     "system", system.sysname, "release", system.release, "cores",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "device", settings->device, "threads",
                     settings->threads, "weights", settings->weights, "kv", settings->kv,
                     "activations", settings->activations, "products", settings->products);
}

static void add_points(json_t *points, const struct study_plan *plan)
{
    for (size_t i = 0; points != NULL && i < plan->count; i++) {
        const struct study_point *p = &plan->points[i];
        if (!p->measured)
            continue;
        json_t *point = json_pack(
            "{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "system",
            p->system, "length", p->length, "batch", p->batch, "repeat", p->repeat, "total_s",
            p->total_s, "ttft_s", p->ttft_s, "tokens_per_second", p->tokens_per_second,
            "weights_bytes", (json_int_t)p->weights_bytes, "recurrent_bytes",
            (json_int_t)p->recurrent_bytes, "kv_bytes", (json_int_t)p->kv_bytes, "workspace_bytes",
            (json_int_t)p->workspace_bytes, "process_peak_bytes", (json_int_t)p->process_peak_bytes,
            "device_peak_bytes", (json_int_t)p->device_peak_bytes);
        json_array_append_new(points, point);
    }
}

static json_t *numbers_json(const struct study_turns *turns, size_t field)
{
    json_t *numbers = json_array();
    for (size_t i = 0; numbers != NULL && i < turns->count; i++) {
        const char *slice = (const char *)&turns->slices[i];
        json_array_append_new(numbers, json_real(*(const double *)(const void *)(slice + field)));
    }
    return numbers;
}

/* The numbers of a slice that files have. */
static const struct {
    const char *key;
    size_t field;
} SLICE_FIELDS[] = {
    {"tokens_per_second", offsetof(struct bench_slice, tokens_per_second)},
    {"read_before", offsetof(struct bench_slice, before)},
    {"read_after", offsetof(struct bench_slice, after)},
};
enum { NUM_SLICE_FIELDS = sizeof SLICE_FIELDS / sizeof *SLICE_FIELDS };

static void add_turns(json_t *all, const struct study_plan *plan)
{
    for (size_t i = 0; all != NULL && i < plan->num_turns; i++) {
        const struct study_turns *turns = &plan->turns[i];
        json_t *one =
            json_pack("{s:s, s:i, s:i, s:i}", "system", turns->system, "length", turns->length,
                      "batch", turns->batch, "measurement", turns->measurement);
        for (int f = 0; f < NUM_SLICE_FIELDS; f++)
            json_object_set_new(one, SLICE_FIELDS[f].key,
                                numbers_json(turns, SLICE_FIELDS[f].field));
        json_array_append_new(all, one);
    }
}

/* A process that is killed while it writes leaves the file as it was. */
static int write_file(const char *path, const json_t *json, struct error *err)
{
    char fresh[4200];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "we");
    bool written = file != NULL && json_dumpf(json, file, JSON_INDENT(1)) == 0 &&
                   fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    if (!written || rename(fresh, path) != 0)
        return error_set(err, ERROR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return 0;
}

int study_json_write(const char *path, const struct study_plan *plan, const struct study_plan *kept,
                     const struct study_settings *settings, struct error *err)
{
    json_t *points = json_array(), *turns = json_array();
    add_points(points, plan);
    add_points(points, kept);
    add_turns(turns, plan);
    add_turns(turns, kept);
    json_t *json =
        json_pack("{s:s, s:s, s:o, s:o, s:o}", "regla", REGLA_VERSION, "commit", REGLA_COMMIT,
                  "settings", settings_json(settings), "points", points, "turns", turns);
    int result = json != NULL ? write_file(path, json, err)
                              : error_set(err, ERROR_NO_MEMORY, "%s: out of memory", path);
    json_decref(json);
    return result;
}

/* NULL with the error set: it is not there, or no JSON. */
static json_t *load(const char *path, struct error *err)
{
    json_error_t where;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
        return NULL;
    }
    json_t *json = json_loadf(file, 0, &where);
    fclose(file);
    if (json == NULL)
        error_set(err, ERROR_INVALID, "%s: %s", path, where.text);
    return json;
}

int study_json_check(const char *path, const struct study_settings *settings, struct error *err)
{
    if (!file_exists(path))
        return 0;
    json_t *json = load(path, err);
    if (json == NULL)
        return -1;
    json_t *now = settings_json(settings), *then = json_object_get(json, "settings");
    int result = 0;
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value)
    {
        json_t *before = json_object_get(then, key);
        if (result != 0 || json_equal(value, before))
            continue;
        char *got = json_dumps(value, JSON_ENCODE_ANY), *had = json_dumps(before, JSON_ENCODE_ANY);
        result = error_set(err, ERROR_INVALID,
                           "%s is of a study with %s %s, this one has %s: choose another --out",
                           path, key, had ? had : "(none)", got ? got : "?");
        free(got);
        free(had);
    }
    json_decref(now);
    json_decref(json);
    return result;
}

static bool read_point(const json_t *json, struct study_point *p)
{
    json_int_t bytes[STUDY_NUM_BYTES];
    *p = (struct study_point){.measured = true};
    if (json_unpack((json_t *)json,
                    "{s:s, s:i, s:i, s:i, s:F, s:F, s:F, s:I, s:I, s:I, s:I, s:I, s:I}", "system",
                    &p->system, "length", &p->length, "batch", &p->batch, "repeat", &p->repeat,
                    "total_s", &p->total_s, "ttft_s", &p->ttft_s, "tokens_per_second",
                    &p->tokens_per_second, "weights_bytes", &bytes[0], "recurrent_bytes", &bytes[1],
                    "kv_bytes", &bytes[2], "workspace_bytes", &bytes[3], "process_peak_bytes",
                    &bytes[4], "device_peak_bytes", &bytes[5]) != 0)
        return false;
    study_point_set_bytes(p, bytes);
    return p->length > 0 && p->batch > 0 && p->total_s > 0;
}

static int read_points(const char *path, const json_t *points, struct study_plan *plan,
                       struct error *err)
{
    size_t index;
    const json_t *json;
    json_array_foreach(points, index, json)
    {
        struct study_point point;
        if (!read_point(json, &point))
            return error_set(err, ERROR_INVALID, "%s: points[%zu]: expected a point of a study",
                             path, index);
        if (study_plan_add(plan, &point, err) != 0)
            return -1;
    }
    return 0;
}

static bool has_number(int number, const int *list, int count)
{
    for (int i = 0; i < count; i++)
        if (list[i] == number)
            return true;
    return false;
}

/* The system's name in the axes; NULL: the turns are not of these. */
static const char *system_within(const struct study_axes *axes, const struct study_turns *turns)
{
    if (!has_number(turns->length, axes->lengths, axes->num_lengths) ||
        !has_number(turns->batch, axes->batches, axes->num_batches))
        return NULL;
    for (int s = 0; s < axes->num_systems; s++)
        if (strcmp(axes->systems[s], turns->system) == 0)
            return axes->systems[s];
    return NULL;
}

static bool read_slices(const json_t *json, struct study_turns *turns)
{
    for (int f = 0; f < NUM_SLICE_FIELDS; f++) {
        const json_t *numbers = json_object_get(json, SLICE_FIELDS[f].key);
        if (json_array_size(numbers) != turns->count)
            return false;
        for (size_t i = 0; i < turns->count; i++) {
            double number = json_real_value(json_array_get(numbers, i));
            if (!(number > 0))
                return false;
            memcpy((char *)&turns->slices[i] + SLICE_FIELDS[f].field, &number, sizeof number);
        }
    }
    return true;
}

/* Others than those of the axes go to `kept`, unless it is NULL. A study of an earlier version has
 * none, or those of one measurement without its number. */
static int read_turns(const char *path, const json_t *json, struct study_plan *plan,
                      struct study_plan *kept, const struct study_axes *axes, struct error *err)
{
    size_t index;
    const json_t *one;
    json_array_foreach(json_object_get(json, "turns"), index, one)
    {
        size_t count = json_array_size(json_object_get(one, SLICE_FIELDS[0].key));
        struct study_turns found = {0};
        if (count == 0 || json_unpack((json_t *)one, "{s:s, s:i, s:i, s?i}", "system",
                                      &found.system, "length", &found.length, "batch", &found.batch,
                                      "measurement", &found.measurement) != 0)
            return error_set(err, ERROR_INVALID, "%s: turns[%zu]: expected turns of a study", path,
                             index);
        struct study_plan *into = plan;
        const char *system = system_within(axes, &found);
        if (plan->measurements < found.measurement)
            plan->measurements = found.measurement;
        if (system == NULL && kept == NULL)
            continue;
        if (system == NULL) {
            into = kept;
            system = study_plan_name(kept, found.system, err);
        }
        struct study_turns *turns =
            system != NULL ? study_turns_add(into, system, found.length, found.batch, count, err)
                           : NULL;
        if (turns == NULL)
            return -1;
        turns->measurement = found.measurement;
        if (!read_slices(one, turns))
            return error_set(err, ERROR_INVALID,
                             "%s: turns[%zu]: expected as many numbers > 0 of each kind", path,
                             index);
    }
    return 0;
}

int study_json_resume(struct study_plan *plan, struct study_plan *kept, const char *path,
                      const struct study_axes *axes, struct error *err)
{
    if (!file_exists(path))
        return 0;
    json_t *json = load(path, err);
    if (json == NULL)
        return -1;
    int result = read_turns(path, json, plan, kept, axes, err);
    json_decref(json);
    return result;
}

int study_json_read(const char *path, struct study_plan *plan, struct study_choice *choice,
                    struct error *err)
{
    *plan = (struct study_plan){0};
    *choice = (struct study_choice){0};
    json_t *json = load(path, err);
    if (json == NULL)
        return -1;
    const json_t *points = json_object_get(json, "points");
    int result =
        json_array_size(points) > 0
            ? read_points(path, points, plan, err)
            : error_set(err, ERROR_INVALID, "%s: expected points of a study, got none", path);
    if (result == 0 && study_choice_span(choice, plan, err) != 0)
        result = error_prefix(err, "%s", path);
    if (result == 0)
        result = read_turns(path, json, plan, NULL, &choice->axes, err);
    json_decref(json);
    return result;
}
