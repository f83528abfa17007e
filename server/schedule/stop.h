/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings in a stream of text: finds the first that ends, whatever pieces the text comes in,
 * and says how much of the text may still become one (and must be held back).
 *
 * An Aho-Corasick automaton over bytes, built once per request and shared by its choices: the cost
 * per byte does not depend on the number of stop strings. */
#ifndef SERVER_SCHEDULE_STOP_H
#define SERVER_SCHEDULE_STOP_H

#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct stop_set;

struct stop_string {
    const char *text; /* [length] */
    size_t length;    /* >= 1 */
};

/* strings: [count], read only during the call. The caller frees *out with stop_set_free. */
int stop_set_create(struct stop_set **out, const struct stop_string *strings, size_t count,
                    struct error *err);
void stop_set_free(struct stop_set *set); /* NULL is allowed */

/* The most that a set of strings with so many bytes together takes, and that making it does. */
size_t stop_set_bytes(size_t length);

/* One text's place in the automaton. Zero-initialise; zero again forgets what came before. */
struct stop_scan {
    int32_t node;
};

struct stop_match {
    size_t end;    /* bytes of this call's text up to the end of the stop string */
    size_t length; /* of the stop string: it may have begun in earlier calls */
    size_t index;  /* which string */
};

/* Takes text [length]. Returns 1 with *match when a stop string ends in it: the one that ends
 * first, of several that end there the longest. Else 0. */
int stop_scan_push(const struct stop_set *set, struct stop_scan *scan, const char *text,
                   size_t length, struct stop_match *match);

/* Bytes at the end of the text so far that may be the beginning of a stop string. */
size_t stop_scan_held(const struct stop_set *set, const struct stop_scan *scan);

#endif
