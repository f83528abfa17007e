/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer, and functions that write JSON into it.
 *
 * A failed allocation sets `failed` and makes every later append a no-op. So writers check only the
 * flag at the end, not each call. strbuf_json_* always write valid UTF-8 and valid JSON, whatever
 * bytes they get. */
#ifndef API_STRBUF_H
#define API_STRBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; the owner frees it with strbuf_clear. Not NUL-terminated. */
struct strbuf {
    char *data; /* [length] */
    size_t length;
    size_t capacity;
    bool failed;
};

void strbuf_clear(struct strbuf *buf); /* frees; the buffer may be used again */
void strbuf_reset(struct strbuf *buf); /* empties it, keeps the memory, forgets a failure */
void strbuf_append(struct strbuf *buf, const char *bytes, size_t length);
void strbuf_puts(struct strbuf *buf, const char *text);
void strbuf_printf(struct strbuf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends a JSON string with its quotes. Control characters (C0, U+007F, C1) are escaped. Each byte
 * that is not UTF-8 becomes U+FFFD. */
void strbuf_json_string(struct strbuf *buf, const char *text, size_t length);
void strbuf_json_cstring(struct strbuf *buf, const char *text); /* NULL: null */
void strbuf_json_int(struct strbuf *buf, int64_t value);
void strbuf_json_ints(struct strbuf *buf, const int32_t *values, size_t count); /* [1,2,3] */
void strbuf_json_bool(struct strbuf *buf, bool value);

/* The shortest digits that read back as the same float, always with a '.' or an exponent. -inf
 * prints as -9999.0 (api.md). NaN and +inf, which JSON cannot express, print as null. */
void strbuf_json_f32(struct strbuf *buf, float value);

/* A duration or a rate, with at most 3 decimals. Infinities and NaN print as null. */
void strbuf_json_decimal(struct strbuf *buf, double value);

#endif
