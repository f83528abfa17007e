/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles, of two rows or more that share keys and values in f16 or bf16. This file is
 * included twice, as kernels_amx.h is. What is summed in which order: kernels_tiles_kv.h.
 *
 * A row's values are summed by tiles over whole blocks of 32 keys before the one that its own key
 * is in. Those of that block are added in f32, key by key, and only those that the row sees: in a
 * tile a later key counts with weight 0, which is no number where its value is none. All rows of a
 * group have the same blocks. */

#ifndef ENGINE_CPU_KERNELS_AMX_ATTENTION_H
#define ENGINE_CPU_KERNELS_AMX_ATTENTION_H

_Static_assert(KV_BLOCK % QUERY_GROUP == 0, "the rows of a group have their keys in one block");

/* out [m, out_stride], of which `columns`, (+)= x [m, n], as part_rows has it, * w [n, columns].
 * The columns written are whole tiles of 32. */
INLINE void AMX(multiply_kv)(const enum kv_format kv, const int parts, int m, const float *x,
                             int64_t n, struct panel w, int64_t columns, float *out,
                             int64_t out_stride, bool add)
{
    enum { CHUNK = 2 }; /* blocks */
    _Alignas(LINE) pair_tiles tiles[CHUNK * MOST_WEIGHT_PARTS];
    AMX_STATE state;
    const int first = m < TILE_HEIGHT ? m : TILE_HEIGHT, second = m - first;
    const int64_t blocks = (n + KV_BLOCK - 1) / KV_BLOCK;
    AMX(shape_pairs)(&state, first, second);
    for (int64_t c = 0; c < columns; c += PANEL_PAIR * PANEL)
        for (int64_t from = 0; from < blocks; from += CHUNK) {
            const int64_t count = blocks - from < CHUNK ? blocks - from : CHUNK;
            const int64_t before = from * parts * TILE_PAIRS;
            const int64_t far =
                TILE_HEIGHT * blocks * parts * TILE_PAIRS + before * (second - first);
            for (int64_t b = 0; b < count; b++) {
                struct panel block = w;
                block.data += (from + b) * KV_BLOCK * w.stride * 2 + c * 2;
                pair_block_kv(kv, block, n - (from + b) * KV_BLOCK, columns - c,
                              tiles + b * kv_parts(kv));
            }
            for (int panel = 0; panel < PANEL_PAIR && c + panel * PANEL < columns; panel++) {
                float *to = out + c + panel * PANEL;
                if (second > 0)
                    AMX(multiply_pairs)
                (&state, parts, kv_parts(kv), true, first, second, x + before * first, far, count,
                 tiles, panel, to, out_stride, add || from > 0);
                else AMX(multiply_pairs)(&state, parts, kv_parts(kv), false, first, 0,
                                         x + before * first, 0, count, tiles, panel, to, out_stride,
                                         add || from > 0);
            }
        }
    TILE(release)(&state);
}

static void AMX(shared_product)(enum kv_format kv, int parts, int m, const float *x, int64_t n,
                                struct panel w, int64_t columns, float *out, int64_t out_stride,
                                bool add)
{
    FOR_KV_PARTS(AMX(multiply_kv)(KV, PARTS, m, x, n, w, columns, out, out_stride, add))
}

static void AMX(prepare_queries)(const struct ops_attention *a, struct query_rows *rows,
                                 float *scratch)
{
    if (tiles_apart(rows))
        return;
    split_rows(rows->parts, rows->q, rows->q_stride, rows->n, a->key_dim, scratch);
    rows->pairs = scratch;
}

static void AMX(scores)(const struct ops_attention *a, const struct query_rows *rows,
                        struct panel k, int width, float *scores)
{
    if (tiles_apart(rows)) {
        row_pairs(a->kv, rows->parts, rows->n, rows->q, rows->q_stride, a->key_dim, k, width,
                  scores, OPS_TILE, false);
        return;
    }
    AMX(shared_product)
    (a->kv, rows->parts, rows->n, rows->pairs, a->key_dim, k, width, scores, OPS_TILE, false);
}

static void AMX(values)(const struct ops_attention *a, const struct query_rows *rows, int64_t seen,
                        const float *weights, struct panel v, float *sums)
{
    const int64_t stride = sums_stride(a);
    const int64_t whole = seen > OPS_TILE ? OPS_TILE : (seen - 1) / KV_BLOCK * KV_BLOCK;
    _Alignas(LINE) float pairs[QUERY_GROUP * OPS_TILE / 2 * MOST_PARTS];
    if (whole > 0 && tiles_apart(rows)) {
        row_pairs(a->kv, rows->parts, rows->n, weights, OPS_TILE, whole, v, v.stride, sums, stride,
                  true);
    } else if (whole > 0) {
        split_rows(rows->parts, weights, OPS_TILE, rows->n, whole, pairs);
        AMX(shared_product)
        (a->kv, rows->parts, rows->n, pairs, whole, v, v.stride, sums, stride, true);
    }
    if (whole < OPS_TILE)
        add_values_from(a, rows, whole, seen, weights, v, sums);
}

static void AMX(kernel_attention)(const struct ops_attention *a, const struct batch_span *span,
                                  const struct query_group *group, int first, int end, int parts,
                                  float *scratch)
{
    static const struct attention_way way = {AMX(prepare_queries), AMX(scores), AMX(values)};
    if (tiles_attend(a->kv, parts))
        attention_by(&way, a, span, group, first, end, parts, scratch);
    else
        kernel_attention(a, span, group, first, end, parts, scratch);
}

#endif
