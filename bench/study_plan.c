/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG_TOKENS = 1024 };

int study_plan_create(struct study_plan *plan, const struct study_axes *axes, struct error *err)
{
    int most = axes->repeats > axes->long_repeats ? axes->repeats : axes->long_repeats;
    size_t capacity =
        (size_t)(most * axes->num_lengths) * (size_t)(axes->num_batches * axes->num_systems);
    *plan = (struct study_plan){.points = calloc(capacity + 1, sizeof *plan->points)};
    if (plan->points == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu points", capacity);
    for (int l = 0; l < axes->num_lengths; l++) {
        int length = axes->lengths[l];
        int repeats = length > LONG_TOKENS ? axes->long_repeats : axes->repeats;
        for (int r = 1; r <= repeats; r++)
            for (int b = 0; b < axes->num_batches; b++)
                for (int s = 0; s < axes->num_systems; s++)
                    plan->points[plan->count++] = (struct study_point){.system = axes->systems[s],
                                                                       .length = length,
                                                                       .batch = axes->batches[b],
                                                                       .repeat = r};
    }
    return 0;
}

void study_plan_clear(struct study_plan *plan)
{
    free(plan->points);
    study_turns_clear(plan);
    for (size_t i = 0; i < plan->num_names; i++)
        free(plan->names[i]);
    free(plan->names);
    *plan = (struct study_plan){0};
}

const char *study_plan_name(struct study_plan *plan, const char *name, struct error *err)
{
    for (size_t i = 0; i < plan->num_names; i++)
        if (strcmp(plan->names[i], name) == 0)
            return plan->names[i];
    char **names = realloc(plan->names, (plan->num_names + 1) * sizeof *names);
    char *copy = strdup(name);
    if (names != NULL)
        plan->names = names;
    if (names == NULL || copy == NULL) {
        free(copy);
        error_set(err, ERROR_NO_MEMORY, "out of memory for %zu names", plan->num_names);
        return NULL;
    }
    return names[plan->num_names++] = copy;
}

int study_plan_add(struct study_plan *plan, const struct study_point *point, struct error *err)
{
    const char *system = study_plan_name(plan, point->system, err);
    if (system == NULL)
        return -1;
    struct study_point *points = realloc(plan->points, (plan->count + 1) * sizeof *points);
    if (points == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu points", plan->count);
    plan->points = points;
    points[plan->count] = *point;
    points[plan->count++].system = system;
    return 0;
}

static const char HEADER[] =
    "system,length,batch,repeat,total_s,ttft_s,tokens_per_second,weights_bytes,recurrent_bytes,"
    "kv_bytes,workspace_bytes,process_peak_bytes,device_peak_bytes";

void study_csv_header(FILE *file)
{
    fprintf(file, "%s\n", HEADER);
}

void study_csv_line(FILE *file, const struct study_point *p)
{
    fprintf(file, "%s,%d,%d,%d,%.6f,%.6f,%.3f,%lld,%lld,%lld,%lld,%lld,%lld\n", p->system,
            p->length, p->batch, p->repeat, p->total_s, p->ttft_s, p->tokens_per_second,
            (long long)p->weights_bytes, (long long)p->recurrent_bytes, (long long)p->kv_bytes,
            (long long)p->workspace_bytes, (long long)p->process_peak_bytes,
            (long long)p->device_peak_bytes);
}

void study_point_set_bytes(struct study_point *point, const long long bytes[STUDY_NUM_BYTES])
{
    point->weights_bytes = bytes[0];
    point->recurrent_bytes = bytes[1];
    point->kv_bytes = bytes[2];
    point->workspace_bytes = bytes[3];
    point->process_peak_bytes = bytes[4];
    point->device_peak_bytes = bytes[5];
}

bool study_csv_parse(char *line, struct study_point *out)
{
    char *comma = strchr(line, ',');
    if (comma == NULL)
        return false;
    *comma = 0;
    long long bytes[STUDY_NUM_BYTES];
    int end = 0;
    *out = (struct study_point){.system = line, .measured = true};
    int got =
        sscanf(comma + 1, "%d,%d,%d,%lf,%lf,%lf,%lld,%lld,%lld,%lld,%lld,%lld%n", &out->length,
               &out->batch, &out->repeat, &out->total_s, &out->ttft_s, &out->tokens_per_second,
               &bytes[0], &bytes[1], &bytes[2], &bytes[3], &bytes[4], &bytes[5], &end);
    if (got != 12 || comma[1 + end] != 0 || out->length < 1 || out->batch < 1 ||
        !(out->total_s > 0))
        return false;
    study_point_set_bytes(out, bytes);
    return true;
}

static struct study_point *find_point(const struct study_plan *plan, const struct study_point *like)
{
    for (size_t i = 0; i < plan->count; i++) {
        struct study_point *point = &plan->points[i];
        if (point->length == like->length && point->batch == like->batch &&
            point->repeat == like->repeat && strcmp(point->system, like->system) == 0)
            return point;
    }
    return NULL;
}

static int enter(struct study_plan *plan, struct study_plan *kept, const struct study_point *found,
                 size_t *known, struct error *err)
{
    struct study_point *point = find_point(plan, found);
    if (point == NULL)
        return find_point(kept, found) == NULL ? study_plan_add(kept, found, err) : 0;
    if (point->measured)
        return 0;
    const char *system = point->system;
    *point = *found;
    point->system = system;
    ++*known;
    return 0;
}

int study_csv_resume(struct study_plan *plan, struct study_plan *kept, const char *path,
                     size_t *known, struct error *err)
{
    *known = 0;
    FILE *file = fopen(path, "r+e");
    if (file == NULL && errno == ENOENT)
        return 0;
    if (file == NULL)
        return error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    long number = 0, whole = 0;
    int result = 0;
    while (result == 0 && (length = getline(&line, &capacity, file)) > 0) {
        if (line[length - 1] != '\n')
            break;
        line[length - 1] = 0;
        number++;
        struct study_point found;
        if (number == 1 ? strcmp(line, HEADER) != 0 : !study_csv_parse(line, &found))
            result =
                error_set(err, ERROR_INVALID, "%s:%ld: expected a line of a study, got \"%.40s\"",
                          path, number, line);
        else if (number > 1)
            result = enter(plan, kept, &found, known, err);
        whole = ftell(file);
    }
    if (result == 0 && (ftruncate(fileno(file), whole) != 0))
        result = error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return result;
}
