/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state_image.h"

#include "lib/base/half.h"

#include <string.h>

size_t state_image_size(const struct state_layout *layout, int64_t position)
{
    size_t bytes;
    if (!size_mul((size_t)state_layout_pages(layout, position), layout->page_bytes, &bytes) ||
        !size_add(bytes, layout->slot_bytes, &bytes))
        return SIZE_MAX;
    return bytes;
}

/* Zeroes the places from `written` on of one tile. */
static void scrub_tile(const struct state_part *part, size_t element, int64_t written, char *tile)
{
    size_t places = (size_t)part->places;
    if (written >= part->places)
        return;
    size_t keep = written > 0 ? (size_t)written : 0, stride = ops_value_stride(part->rows);
    for (int j = 0; j < part->features; j++)
        memset(tile + ((size_t)j * places + keep) * element, 0, (places - keep) * element);
    char *values = tile + (size_t)part->features * places * element;
    memset(values + keep * stride * element, 0, (places - keep) * stride * element);
}

/* The tiles of a part, of which the first `written` places are. */
static void scrub_tiles(const struct state_part *part, size_t element, int64_t written,
                        char *part_at)
{
    size_t tile_bytes =
        ((size_t)part->features + ops_value_stride(part->rows)) * (size_t)part->places * element;
    for (int head = 0; head < part->heads; head++) {
        char *tiles = part_at + (size_t)head * part->head_bytes;
        size_t count = part->head_bytes / tile_bytes, end = count * tile_bytes;
        for (size_t i = 0; i < count; i++)
            scrub_tile(part, element, written - (int64_t)i * part->places, tiles + i * tile_bytes);
        memset(tiles + end, 0, part->head_bytes - end);
    }
}

/* The places of a part that `tokens` tokens write: those of a page, or of a ring. */
static int64_t written(const struct state_part *part, int64_t tokens)
{
    if (state_part_is(part, STATE_OF_SEGMENTS))
        return tokens / part->window * (part->places * part->window / OPS_TILE);
    return part->window > 0 && tokens > part->window ? part->window : tokens;
}

void state_image_scrub(const struct state_layout *layout, int64_t position, void *image)
{
    char *slot = image;
    int64_t last = state_layout_pages(layout, position) - 1;
    size_t end = 0;
    for (int i = 0; i < layout->num_parts; i++) {
        const struct state_part *part = &layout->parts[i];
        if (state_part_pages(part)) {
            if (last >= 0)
                scrub_tiles(
                    part, ops_kv_bytes(layout->kv), written(part, position - last * OPS_TILE),
                    slot + layout->slot_bytes + (size_t)last * layout->page_bytes + part->offset);
            continue;
        }
        memset(slot + end, 0, part->offset - end);
        end = part->offset + (size_t)part->heads * part->head_bytes;
        if (state_part_is(part, STATE_IN_TILES))
            scrub_tiles(part, sizeof(float), written(part, position), slot + part->offset);
        else if (state_part_is(part, STATE_OF_SEGMENTS) &&
                 position % part->window == 0) /* none is in hand */
            memset(slot + part->offset, 0, (size_t)part->heads * part->head_bytes);
    }
    memset(slot + end, 0, layout->slot_bytes - end);
}

static float element_at(enum kv_format format, const char *in, size_t i)
{
    if (format == KV_F32)
        return float_of_bits(read_u32(in + 4 * i));
    uint16_t bits = read_u16(in + 2 * i);
    return format == KV_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void state_image_convert(enum kv_format from, const void *in, enum kv_format to, void *out,
                         size_t count)
{
    if (from == to) {
        memcpy(out, in, count * ops_kv_bytes(to));
        return;
    }
    char *bytes = out;
    for (size_t i = 0; i < count; i++) {
        float value = element_at(from, in, i);
        uint16_t half = to == KV_F16 ? f32_to_f16(value) : f32_to_bf16(value);
        if (to == KV_F32)
            memcpy(bytes + 4 * i, &value, 4);
        else
            memcpy(bytes + 2 * i, &half, 2);
    }
}
