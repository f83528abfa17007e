/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: the folders of tests/golden, in the order of their names, and texts for them. */
#ifndef TESTS_UNIT_GOLDEN_CASES_H
#define TESTS_UNIT_GOLDEN_CASES_H

#include "engine/engine.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN_DIRECTORY REGLA_SOURCE_DIR "/tests/golden/"

static inline int golden_is_case(const struct dirent *entry)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s/expected.json", entry->d_name);
    return entry->d_name[0] != '.' && access(path, R_OK) == 0;
}

/* Case number `index`: its path [512] and name [256]; false when there are no more. */
static inline bool golden_case(int index, char *path, char *name)
{
    struct dirent **entries;
    int count = scandir(GOLDEN_DIRECTORY, &entries, golden_is_case, alphasort);
    bool found = index < count;
    if (found) {
        snprintf(name, 256, "%s", entries[index]->d_name);
        snprintf(path, 512, GOLDEN_DIRECTORY "%s", name);
    }
    for (int i = 0; i < count; i++)
        free(entries[i]);
    if (count >= 0)
        free(entries);
    return found;
}

/* Tokens from a small generator: text `which`, position i. */
static inline int32_t golden_token(int which, int i, int32_t vocab)
{
    uint32_t x = (uint32_t)which * 2654435761u + (uint32_t)i * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (int32_t)(x % (uint32_t)vocab);
}

/* Whether this machine has an instruction set. */
static inline bool golden_has_set(const char *set)
{
    const struct engine_options options = {
        .threads = 1, .instruction_set = set, .state_memory_bytes = (size_t)32 << 20};
    struct engine *engine = NULL;
    if (engine_open(&engine, GOLDEN_DIRECTORY "regla", &options, NULL) != 0)
        return false;
    engine_close(engine);
    return true;
}

#endif
