/* SPDX-License-Identifier: Apache-2.0 */
/* Finds stop strings in a stream of text, whatever pieces the text comes in: the first one that
 * ends. Says how much of the text may still become one, and must be held back.
 *
 * It is an Aho-Corasick automaton over bytes, built once per request and shared by its choices. The
 * cost per byte does not depend on the number of stop strings. */
#ifndef SERVER_SCHEDULE_STOP_H
#define SERVER_SCHEDULE_STOP_H

#include "lib/base/error.h"

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

/* Most bytes that a set needs, also while it is made; length: of all its strings together. */
size_t stop_set_bytes(size_t length);

/* One text's place in the automaton. Zero-initialise it; zero it again to forget earlier text. */
struct stop_scan {
    int32_t node;
};

struct stop_match {
    size_t end;    /* bytes of this call's text up to the end of the stop string */
    size_t length; /* of the stop string: it may have begun in earlier calls */
    size_t index;  /* which string */
};

/* Takes text [length]. Returns 1 with *match when a stop string ends in it, else 0. The one that
 * ends first counts; of several that end at the same byte, the longest. */
int stop_scan_push(const struct stop_set *set, struct stop_scan *scan, const char *text,
                   size_t length, struct stop_match *match);

/* Bytes at the end of the text so far that may be the beginning of a stop string. */
size_t stop_scan_held(const struct stop_set *set, const struct stop_scan *scan);

#endif
