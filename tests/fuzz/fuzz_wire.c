/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes on a connection, in pieces of any size: where requests end does not depend on the
 * pieces. The first byte says how large they are. */
#include "server/http/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t read_pieces(const uint8_t *data, size_t size, size_t most, struct api_error *err)
{
    struct wire wire = {0};
    for (size_t at = 0; at < size && err->code == API_OK;) {
        size_t length = size - at < most ? size - at : most;
        char *piece = malloc(length);
        if (!piece)
            abort();
        memcpy(piece, data + at, length);
        size_t good = wire_read(&wire, piece, length, err);
        if (good > length || (good < length) != (err->code != API_OK))
            abort();
        free(piece);
        at += length;
    }
    return wire.ended;
}

/* In pieces a blank at the end of a length cannot be moved any more. */
static int is_split(const struct api_error *err)
{
    return strstr(err->message, "no white space at its end") != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct api_error whole = {0}, pieces = {0};
    uint64_t ended = read_pieces(data + 1, size - 1, size, &whole);
    uint64_t same = read_pieces(data + 1, size - 1, 1 + data[0] % 32, &pieces);
    if (!is_split(&pieces) &&
        (ended != same || whole.code != pieces.code || strcmp(whole.message, pieces.message) != 0))
        abort();
    return 0;
}
