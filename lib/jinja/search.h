/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a string in another, from its beginning or its end, in time linear in both: the two-way
 * algorithm (Crochemore and Perrin 1991), which needs no memory. */
#ifndef LIB_JINJA_SEARCH_H
#define LIB_JINJA_SEARCH_H

#include "lib/jinja/run.h"

/* Takes the steps of a search through bytes [begin, end), however often the part is in there. */
void search_charge(struct run *run, const struct string *part, size_t begin, size_t end);

/* The first or last place of the part that lies in bytes [begin, end), or SIZE_MAX. */
size_t search_first(struct run *run, const struct string *string, const struct string *part,
                    size_t begin, size_t end);
size_t search_last(struct run *run, const struct string *string, const struct string *part,
                   size_t begin, size_t end);

#endif
