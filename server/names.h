/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of texts as flags give them: the flag several times, or several texts separated by commas.
 */
#ifndef SERVER_NAMES_H
#define SERVER_NAMES_H

#include "lib/base/error.h"

#include <stddef.h>

/* The owner frees it with names_clear. */
struct names {
    char **items; /* [count], none empty */
    size_t count;
};

/* Adds a text without blanks (blanks.h) around it; an empty one is none. */
int names_add(struct names *names, const char *text, size_t length, struct error *err);
/* Adds all texts of the lists [count]. */
int names_add_lists(struct names *names, const char *const *lists, size_t count, struct error *err);
void names_clear(struct names *names);
/* Of secrets: removes texts, of which nothing stays in memory; all, or those from `first` on. */
void names_wipe(struct names *names);
void names_wipe_from(struct names *names, size_t first);

#endif
