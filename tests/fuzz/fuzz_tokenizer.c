/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as tokenizer.json; one that loads encodes and decodes some awkward texts. */
#include "lib/text/detokenize.h"
#include "lib/text/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *const TEXTS[] = {
    "",
    "a",
    "Hello  world, it's 12345!\r\n\t <s>x</s> <mask> \n\n",
    "\xC3\xA9"
    "e\xCC\x81\xE1\x84\x80\xE1\x85\xA1\xE2\x96\x81 \xF0\x9F\x91\xA9\xE2\x80\x8D\xEF\xBF\xBD",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
};

static void decode(const struct tokenizer *tokenizer, const struct token_list *ids, bool skip)
{
    struct error err = ERROR_INIT;
    char *whole;
    size_t length, at = 0;
    if (tokenizer_decode(tokenizer, ids->ids, ids->count, skip, &whole, &length, &err))
        abort();
    struct detokenizer *stream;
    if (detokenizer_create(&stream, tokenizer, skip, &err))
        abort();
    for (size_t i = 0; i <= ids->count; i++) {
        const char *part;
        size_t bytes;
        int failed = i < ids->count ? detokenizer_push(stream, ids->ids[i], &part, &bytes, &err)
                                    : detokenizer_finish(stream, &part, &bytes, &err);
        if (failed || bytes > length - at || memcmp(whole + at, part, bytes) != 0)
            abort();
        at += bytes;
    }
    if (at != length)
        abort();
    detokenizer_free(stream);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    if (tokenizer_load(&tokenizer, (const char *)data, size, &err)) {
        if (err.code == ERROR_NONE || !err.message[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        struct token_list ids = {0};
        if (tokenizer_encode(tokenizer, TEXTS[i], strlen(TEXTS[i]), true, &ids, &err) == 0) {
            decode(tokenizer, &ids, true);
            decode(tokenizer, &ids, false);
        }
        error_clear(&err);
        token_list_clear(&ids);
    }
    tokenizer_free(tokenizer);
    return 0;
}
