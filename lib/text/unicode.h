/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8, and the character classes of Hugging Face's `tokenizers`.
 *
 * The tables of classes are generated from that library (make_unicode_data.py), since PCRE2 and
 * utf8proc have other versions of Unicode than it has, and than each other. */
#ifndef LIB_TEXT_UNICODE_H
#define LIB_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum unicode_class {
    UNICODE_LETTER = 1,       /* \p{L} of the library's regular expressions */
    UNICODE_NUMBER = 2,       /* \p{N} of the same */
    UNICODE_SPACE = 4,        /* White_Space */
    UNICODE_WORD = 8,         /* what single_word counts as part of a word */
    UNICODE_MARK = 16,        /* what StripAccents removes */
    UNICODE_NUMERIC = 32,     /* what Digits splits */
    UNICODE_PUNCTUATION = 64, /* what Punctuation splits */
};

/* The classes of a code point: a set of enum unicode_class. */
unsigned unicode_class(uint32_t c);

/* Writes the lower case of c to out (at most 2 code points). Returns how many. */
int unicode_lowercase_of(uint32_t c, uint32_t out[2]);

/* Whether the library's normalizers do not know c, though newer tables do. */
bool unicode_is_inert(uint32_t c);

/* The code point at s, which must be valid UTF-8. *length becomes its number of bytes. */
static inline uint32_t utf8_decode(const char *s, size_t *length)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *length = 1;
        return u[0];
    }
    if (u[0] < 0xE0) {
        *length = 2;
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    }
    if (u[0] < 0xF0) {
        *length = 3;
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    }
    *length = 4;
    return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
}

/* Writes c, a valid code point, to out. Returns its number of bytes. */
size_t utf8_encode(uint32_t c, char out[4]);

/* The start of the character that ends before `end` (> 0) in valid UTF-8. */
static inline size_t utf8_previous(const char *s, size_t end)
{
    do
        end--;
    while (end > 0 && ((unsigned char)s[end] & 0xC0) == 0x80);
    return end;
}

/* Says what the bytes at s ([length] > 0) begin with. *used bytes are one character (UTF8_VALID),
 * or become one U+FFFD (UTF8_BROKEN, the Unicode standard's maximal subparts), or may be completed
 * by more bytes (UTF8_PARTIAL: all of them). */
enum utf8_state { UTF8_VALID, UTF8_BROKEN, UTF8_PARTIAL };
enum utf8_state utf8_next(const char *s, size_t length, size_t *used);

/* The offset of the first byte that is not part of valid UTF-8, or length. */
size_t utf8_valid_length(const char *s, size_t length);

/* Characters (code points) in valid UTF-8. */
size_t utf8_characters(const char *s, size_t length);

/* The byte-level alphabet of GPT-2: the character that stands for a byte, and back (-1: c is not in
 * the alphabet). */
uint32_t byte_level_character(unsigned char byte);
int byte_level_byte(uint32_t c);

/* Generated tables, sorted. */
struct unicode_run {
    uint32_t first;
    uint32_t last; /* unicode_lowercase: what first becomes */
};
struct unicode_category_run {
    uint32_t first;
    uint32_t last;
    char category[3];
};
extern const uint32_t unicode_class_edges[]; /* first << 8 | classes, up to the next entry */
extern const size_t unicode_class_edge_count;
extern const struct unicode_category_run unicode_new_categories[]; /* since Unicode 14 */
extern const size_t unicode_new_category_count;
extern const struct unicode_run unicode_inert[];
extern const size_t unicode_inert_count;
extern const struct unicode_run
    unicode_pattern_word[]; /* \w in addition to \p{L}\p{M}\p{Nd}\p{Pc} */
extern const size_t unicode_pattern_word_count;
extern const struct unicode_run unicode_lowercase[]; /* where it is not Unicode 14's */
extern const size_t unicode_lowercase_count;

/* The scripts that patterns may name, as \p{Han}; and Mn, which Unicode versions disagree about. */
struct unicode_script_run {
    uint32_t first;
    uint32_t last;
    int script; /* index into unicode_script_names */
};
extern const char *const unicode_script_names[];
extern const size_t unicode_script_count;
extern const struct unicode_script_run unicode_script_runs[]; /* by script, then first */
extern const size_t unicode_script_run_count;

#endif
