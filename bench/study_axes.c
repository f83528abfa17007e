/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include "engine/model/preset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int parse_numbers(const char *flag, const char *list, long most_value, int *out, int most,
                         struct error *err)
{
    int count = 0;
    if (*list == 0)
        return error_set(err, ERROR_INVALID, "--%s: expected numbers, got nothing", flag);
    for (const char *at = list; at != NULL;) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || errno != 0 || value < 1 || value > most_value ||
            (*end != 0 && *end != ','))
            return error_set(err, ERROR_INVALID,
                             "--%s: expected numbers from 1 to %ld, got \"%.40s\"", flag,
                             most_value, at);
        if (count == most)
            return error_set(err, ERROR_INVALID, "--%s: expected at most %d numbers, got more",
                             flag, most);
        for (int i = 0; i < count; i++)
            if (out[i] == value)
                return error_set(err, ERROR_INVALID, "--%s: expected each once, got %ld twice",
                                 flag, value);
        out[count++] = (int)value;
        at = *end == ',' ? end + 1 : NULL;
    }
    return count;
}

bool study_preset(char name[STUDY_PRESET_SIZE], const char *system)
{
    int length = snprintf(name, STUDY_PRESET_SIZE, "%s-6l", system);
    if (length > 0 && length < STUDY_PRESET_SIZE && preset_find(name) != NULL)
        return true;
    length = snprintf(name, STUDY_PRESET_SIZE, "%s", system);
    return length > 0 && length < STUDY_PRESET_SIZE && preset_find(name) != NULL;
}

static int add_system(struct study_choice *choice, const char *system, struct error *err)
{
    char preset[STUDY_PRESET_SIZE];
    if (!study_preset(preset, system))
        return error_set(err, ERROR_INVALID,
                         "--systems: unknown system \"%.40s\": expected all alone, or names that "
                         "`regla info --presets` lists, -6l left out",
                         system);
    for (int i = 0; i < choice->axes.num_systems; i++)
        if (strcmp(choice->systems[i], system) == 0)
            return error_set(err, ERROR_INVALID, "--systems: expected each once, got %s twice",
                             system);
    if (choice->axes.num_systems == STUDY_MOST_SYSTEMS)
        return error_set(err, ERROR_INVALID, "--systems: expected at most %d", STUDY_MOST_SYSTEMS);
    choice->systems[choice->axes.num_systems++] = system;
    return 0;
}

/* "regla-6l" of the list of presets becomes "regla". */
static int add_all_systems(struct study_choice *choice, struct error *err)
{
    size_t size = 1;
    for (size_t i = 0; i < num_presets; i++)
        size += strlen(presets[i].name) + 1;
    char *at = choice->names = malloc(size);
    if (at == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < num_presets; i++) {
        const char *name = presets[i].name;
        size_t length = strlen(name);
        if (length < 4 || strcmp(name + length - 3, "-6l") != 0)
            continue;
        memcpy(at, name, length - 3);
        at[length - 3] = 0;
        if (add_system(choice, at, err) != 0)
            return -1;
        at += length - 2;
    }
    return 0;
}

static int parse_systems(struct study_choice *choice, const char *list, struct error *err)
{
    if (strcmp(list, "all") == 0)
        return add_all_systems(choice, err);
    choice->names = strdup(list);
    if (choice->names == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    char *rest = NULL;
    for (char *name = strtok_r(choice->names, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (add_system(choice, name, err) != 0)
            return -1;
    if (choice->axes.num_systems == 0)
        return error_set(err, ERROR_INVALID, "--systems: expected names, got nothing");
    return 0;
}

int study_choice_parse(struct study_choice *choice, const struct study_lists *lists,
                       struct error *err)
{
    struct study_axes *axes = &choice->axes;
    *choice = (struct study_choice){0};
    if (parse_systems(choice, lists->systems, err) != 0)
        return -1;
    axes->num_lengths =
        parse_numbers("lengths", lists->lengths, 1 << 24, choice->lengths, STUDY_MOST_LENGTHS, err);
    axes->num_batches = axes->num_lengths < 0
                            ? -1
                            : parse_numbers("batch", lists->batches, 4096, choice->batches,
                                            STUDY_MOST_BATCHES, err);
    if (axes->num_batches < 0)
        return -1;
    for (int i = 1; i < axes->num_lengths; i++)
        if (choice->lengths[i] <= choice->lengths[i - 1])
            return error_set(err, ERROR_INVALID,
                             "--lengths: expected rising numbers, got %d after %d",
                             choice->lengths[i], choice->lengths[i - 1]);
    axes->systems = choice->systems;
    axes->lengths = choice->lengths;
    axes->batches = choice->batches;
    axes->repeats = lists->repeats;
    axes->long_repeats = lists->long_repeats;
    axes->turns = lists->turns;
    return 0;
}

/* Adds a number to the end of a list unless it is there; false: the list is full. */
static bool add_number(int number, int *list, int *count, int most)
{
    for (int i = 0; i < *count; i++)
        if (list[i] == number)
            return true;
    if (*count == most)
        return false;
    list[(*count)++] = number;
    return true;
}

static bool add_name(struct study_choice *choice, const char *name)
{
    int *count = &choice->axes.num_systems;
    for (int i = 0; i < *count; i++)
        if (strcmp(choice->systems[i], name) == 0)
            return true;
    if (*count == STUDY_MOST_SYSTEMS)
        return false;
    choice->systems[(*count)++] = name;
    return true;
}

static int rising(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int study_choice_span(struct study_choice *choice, const struct study_plan *plan, struct error *err)
{
    struct study_axes *axes = &choice->axes;
    for (size_t i = 0; i < plan->count; i++) {
        const struct study_point *point = &plan->points[i];
        if (!add_name(choice, point->system) ||
            !add_number(point->length, choice->lengths, &axes->num_lengths, STUDY_MOST_LENGTHS) ||
            !add_number(point->batch, choice->batches, &axes->num_batches, STUDY_MOST_BATCHES))
            return error_set(err, ERROR_INVALID,
                             "expected at most %d systems, %d lengths and %d batches in one study",
                             STUDY_MOST_SYSTEMS, STUDY_MOST_LENGTHS, STUDY_MOST_BATCHES);
    }
    axes->systems = choice->systems;
    axes->lengths = choice->lengths;
    axes->batches = choice->batches;
    qsort(choice->lengths, (size_t)axes->num_lengths, sizeof *choice->lengths, rising);
    return 0;
}

void study_choice_clear(struct study_choice *choice)
{
    free(choice->names);
    *choice = (struct study_choice){0};
}
