/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as lines of a World vocabulary, behind those of all bytes; one that loads encodes some
 * texts, and gets them back. */
#include "lib/text/tokenizer.h"
#include "tests/fuzz/require.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *const TEXTS[] = {
    "",
    "abcd\r\n\r\n  <|rwkv_tokenizer_end_of_text|>\n",
    "\xC3\xA9\xE4\xB8\xAD\xE4\xB8\x96 \xF0\x9F\x91\xA9\xE2\x80\x8D\xEF\xBF\xBD",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
};

static void round_trip(const struct tokenizer *tokenizer, const char *text)
{
    struct error err = ERROR_INIT;
    struct token_list ids = {0};
    char *back;
    size_t length;
    require(tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &err) == 0);
    require(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &back, &length, &err) == 0);
    require(length == strlen(text) && memcmp(back, text, length) == 0);
    token_list_clear(&ids);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char bytes[256 * 16];
    static size_t length;
    for (int byte = 0; byte < 256 && (byte > 0 || length == 0); byte++)
        length += (size_t)sprintf(bytes + length, "%d %s'\\x%02x' 1\n", byte + 1,
                                  byte < 0x80 ? "" : "b", (unsigned)byte);
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    char *text = malloc(length + size + 1);
    require(text != NULL);
    memcpy(text, bytes, length);
    if (size > 0)
        memcpy(text + length, data, size);
    int failed = tokenizer_load_world(&tokenizer, text, length + size, "world", &err);
    free(text);
    if (failed) {
        require(err.code != ERROR_NONE && err.message[0]);
        return 0;
    }
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
        round_trip(tokenizer, TEXTS[i]);
    tokenizer_free(tokenizer);
    return 0;
}
