/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sealed_thought.h"

#include "lib/text/unicode.h"

#include <string.h>

/* Each byte is two letters, behind a mark. */
static const char SEAL[] = "rt1.";
static const char LETTERS[] = "ghijklmnopqrstuv";

void sealed_thought_write(struct strbuf *buf, const char *text, size_t length)
{
    strbuf_printf(buf, "\"%s", SEAL);
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)text[i];
        const char two[2] = {LETTERS[byte >> 4], LETTERS[byte & 15]};
        strbuf_append(buf, two, sizeof two);
    }
    strbuf_puts(buf, "\"");
}

static int letter_value(char letter)
{
    const char *at = letter ? strchr(LETTERS, letter) : NULL;
    return at ? (int)(at - LETTERS) : -1;
}

bool sealed_thought_open(const json_t *sealed, struct strbuf *text)
{
    const char *letters = json_string_value(sealed);
    size_t length = json_string_length(sealed), mark = sizeof SEAL - 1, before = text->length;
    if (length < mark || memcmp(letters, SEAL, mark) != 0 || (length - mark) % 2 != 0)
        return false;
    for (size_t i = mark; i < length; i += 2) {
        int high = letter_value(letters[i]), low = letter_value(letters[i + 1]);
        if (high < 0 || low < 0) {
            text->length = before;
            return false;
        }
        char byte = (char)(high << 4 | low);
        strbuf_append(text, &byte, 1);
    }
    size_t bytes = text->length - before;
    if (bytes == 0 || utf8_valid_length(text->data + before, bytes) == bytes)
        return true;
    text->length = before;
    return false;
}
