/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/checkpoint_meta.h"

#include "engine/bits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUILD_SIZE = 160 };

/* What the bits of a state depend on, besides the model: only a server that computes the same bits
 * goes on from its files, whatever its version. */
static void build_of(const struct engine *engine, char build[BUILD_SIZE])
{
    const struct engine_info *info = engine_info(engine);
    const bool rounds = info->activations != ACTIVATIONS_F32;
    char blocks[40] = "";
    if (info->q4_blocks != 0)
        snprintf(blocks, sizeof blocks, " of %016" PRIx64, info->q4_blocks);
    snprintf(build, BUILD_SIZE, "regla bits %d, weights %s%s, KV %s, %s %s%s%s",
             engine_bits(info->weights, info->activations), weight_format_name(info->weights),
             blocks, kv_format_name(info->kv), info->device, info->instruction_set,
             rounds ? ", activations " : "",
             rounds ? activation_format_name(info->activations) : "");
}

char *checkpoint_meta_encode(const struct engine *engine, const struct space *space, size_t *length)
{
    char build[BUILD_SIZE];
    build_of(engine, build);
    size_t head = strlen(build) + strlen(space->owner) + 2;
    char *meta = malloc(head + space->salt_length + 1);
    if (!meta)
        return NULL;
    snprintf(meta, head + 1, "%s\n%s\n", build, space->owner);
    memcpy(meta + head, space->salt, space->salt_length);
    *length = head + space->salt_length;
    return meta;
}

/* Takes the text up to the next newline off *meta; false: there is none, or it is too long. */
static bool take_line(const char **meta, size_t *length, char *line, size_t size)
{
    const char *newline = memchr(*meta, '\n', *length);
    size_t count = newline ? (size_t)(newline - *meta) : 0;
    if (!newline || count >= size)
        return false;
    memcpy(line, *meta, count);
    line[count] = 0;
    *meta += count + 1;
    *length -= count + 1;
    return true;
}

struct space *checkpoint_meta_space(const struct engine *engine, struct spaces *spaces,
                                    const struct store_found *found)
{
    char expected[BUILD_SIZE], build[BUILD_SIZE], owner[STORE_OWNER_SIZE];
    const char *meta = found->meta;
    size_t length = found->meta_length;
    build_of(engine, expected);
    if (found->position != found->count || found->count == 0 ||
        !take_line(&meta, &length, build, sizeof build) ||
        !take_line(&meta, &length, owner, sizeof owner) || strcmp(build, expected) != 0)
        return NULL;
    return spaces_take(spaces, owner, meta, length);
}
