/* SPDX-License-Identifier: Apache-2.0 */
/* Every key that GGUF files have, by the package gguf, llama.cpp and Ollama, in one table: which
 * are read, which change nothing, at which values, and which are refused (gguf.md). */
#ifndef LIB_BASE_GGUF_KEYS_H
#define LIB_BASE_GGUF_KEYS_H

#include "lib/base/gguf.h"
#include "lib/base/warnings.h"

enum gguf_rule {
    GGUF_READ,     /* a reader knows what it means; one that does not takes neutral values only */
    GGUF_REFUSED,  /* it would change what is computed, unless its value is neutral */
    GGUF_HARMLESS, /* whatever it says, nothing changes */
    GGUF_WARNED,   /* the same, though its author may expect something, unless it is neutral */
    GGUF_ASIDE,    /* of what is left aside with a warning: towers for images and sound */
};

struct gguf_row {
    /* "%." in front stands for the architecture, a * for anything. */
    const char *key;
    enum gguf_rule rule;
    /* Values that change nothing, parted by |: numbers, true, false, texts; "=KEY": what another
     * key of the architecture says; ">=KEY": that or more. NULL: none. */
    const char *neutral;
};

/* The rows [*count]. */
const struct gguf_row *gguf_rows(size_t *count);
/* The first row that a key of a file of the architecture fits; NULL: none. */
const struct gguf_row *gguf_row_find(const char *key, const char *architecture);

/* Whether a reader knows the key; below: what follows the architecture in it, NULL of others. */
typedef bool gguf_knows(const void *context, const char *below);

/* Holds the keys that begin with "tokenizer.", or all others, against the table. Warns of what is
 * left aside or not known. */
int gguf_keys_check(const struct gguf *gguf, const char *architecture, bool tokenizer,
                    gguf_knows *knows, const void *context, struct warnings *warnings,
                    struct error *err);

#endif
