/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: the folders of tests/golden, in the order of their names. */
#ifndef TESTS_UNIT_GOLDEN_CASES_H
#define TESTS_UNIT_GOLDEN_CASES_H

#include <dirent.h>
#include <stdbool.h>
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

#endif
