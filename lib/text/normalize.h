/* SPDX-License-Identifier: Apache-2.0 */
/* The normalizers of tokenizer.json: change a text before it is split.
 *
 * NFC, NFD, NFKC and NFKD follow the library's own tables (unicode.h): code points that it does not
 * know stay unchanged. Time is linear in the text, except for sorting runs of combining marks. */
#ifndef LIB_TEXT_NORMALIZE_H
#define LIB_TEXT_NORMALIZE_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"
#include "lib/text/charsmap.h"
#include "lib/text/pattern.h"

#include <stdbool.h>

enum normalizer_kind {
    NORMALIZER_NFC,
    NORMALIZER_NFD,
    NORMALIZER_NFKC,
    NORMALIZER_NFKD,
    NORMALIZER_LOWERCASE,
    NORMALIZER_STRIP_ACCENTS,
    NORMALIZER_STRIP,
    NORMALIZER_PREPEND,
    NORMALIZER_REPLACE,
    NORMALIZER_PRECOMPILED,
};

struct normalizer_step {
    enum normalizer_kind kind;
    bool strip_left, strip_right;
    struct pattern *pattern; /* NORMALIZER_REPLACE: owned */
    char *content;           /* NORMALIZER_REPLACE, _PREPEND: owned, [content_length] */
    size_t content_length;
    struct charsmap *charsmap; /* NORMALIZER_PRECOMPILED: owned */
};

/* Steps in order; zero-initialise. */
struct normalizer {
    struct normalizer_step *steps; /* [count] */
    size_t count;
    size_t capacity;
};

/* Adds a step and takes ownership of its members, also on failure. */
int normalizer_push(struct normalizer *normalizer, struct normalizer_step step, struct error *err);
void normalizer_clear(struct normalizer *normalizer);

/* Which bytes of a text are input, through all steps. Zero-initialise, then set `input`;
 * normalizer_marks_clear frees it. */
struct normalizer_marks {
    struct span_list input;      /* [count], in order: of the text, then of the result */
    struct text_buffer bytes[2]; /* 1 for each byte that is input, else 0 */
};
void normalizer_marks_clear(struct normalizer_marks *marks);

/* Normalizes text ([length] bytes of valid UTF-8). *result ([*result_length], valid until the
 * buffers change) is text itself or lies in one of buffers[2], which keep their memory.
 * marks: NULL, or what it carries along: what is made of input, if only in part, is input. */
int normalizer_apply(const struct normalizer *normalizer, const char *text, size_t length,
                     struct text_buffer buffers[2], struct normalizer_marks *marks,
                     const char **result, size_t *result_length, struct error *err);

#endif
