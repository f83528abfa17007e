/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels ask memory for before they read it, for each kind of core, and what else differs
 * between cores of one instruction set, in this one place. It changes no result.
 *
 * Distances are bytes from what is read to what is asked for; caches are as __builtin_prefetch has
 * them: 3 all, 2 the second, 0 the first alone. AVX-512: Zen 5 (simd_zen5.c) needs every line to be
 * asked for and takes what is read once past the second cache. Zen 4 (simd_zen4.c) runs ahead by
 * itself to the end of a page, so a line a block shows it the next; more requests hold up its
 * loads. All others as Intel's: every line, into the second cache, which waits for more lines at
 * once than the first, and from there what is read once into the first: loads that find it there
 * hold up fewer of the core's other instructions. AVX2: Zen 3.
 *
 * Zen 4, 2 threads, steps with Zen 5's settings and with its own, or the part of them that counts,
 * in turns in one process, memory at some 34 and at some 62 GB/s: one text q8 1.06 and 1.14 times
 * as fast, bf16 1.03 (slower pace alone), f32 0.99 to 1.01; after 8,000 tokens bf16 1.16 and 1.35,
 * q8 1.19 and 1.45, f32 1.04 and 1.12; 4 texts in q8 1.14; 16 in f32 1.10, q8 1.02, bf16 1.00 to
 * 1.01. kernels_product.h and kernels_vnni.h have Zen 5's.
 *
 * Emerald Rapids, 2 threads, products of 256 MB in turns, memory at 34 GB/s: with Zen 5's settings
 * 12.3 (f32), 13.9 (bf16) and 15.3 GB/s (q8), with Zen 4's 28.2, 23.0 and 21.3, with its own, the
 * second cache alone, 32.7, 31.1 and 31.2; 4 to 32 KiB ahead the same, 2 KiB 0.88 to 0.97. In two
 * steps against one, steps of regla-160m with one text in turns: bf16 1.086 times as fast (1.079 to
 * 1.094), f32 1.024, q8 1.025; products alone, of the speed of reading before and after: 0.87 to
 * 0.91 and 0.96 to 0.98 (bf16), 0.97 and 1.00 (f32), large ones in q8 0.93 and 0.98. The nearer
 * step from 1 KiB ahead 1.02, from 4 to 12 KiB the same. K and V in f16 after 8,000 tokens, steps
 * of gpt_neox-160m in turns: in two steps against one 1.021 (bf16), 1.013 (f32), a head at a
 * time 1.063 (1.058 to 1.070); the farther step at twice, four times and (the nearer one at half)
 * twice as far the same. Tiles that read weights once, steps of regla-160m: bf16 2 texts 1.12, 4
 * texts 1.07, f32 2, 4 and 8 texts 1.03, 1.08 and 1.06; q8's 2 rows 1.02, 8 and 16 rows 0.98 and
 * 0.99, so they stay with one.
 * Tiles of two inputs a turn against one, steps of regla-160m: 16 texts in bf16 1.04, 4 texts 1.01,
 * prompts and f32 and q8 the same; four and eight slower. */
#ifndef ENGINE_CPU_AHEAD_H
#define ENGINE_CPU_AHEAD_H

#include "engine/cpu/vector.h"

#ifndef FOR_ZEN4
#define FOR_ZEN4 0
#endif
#ifndef FOR_ZEN5
#define FOR_ZEN5 0
#endif

enum {
    LINE = 64,
    FOR_INTEL = LANES == 16 && !FOR_ZEN4 && !FOR_ZEN5,
    /* what is read once; whether it comes in two steps, first into the second cache */
    ONCE_CACHES = FOR_ZEN5    ? 0
                  : FOR_INTEL ? 3
                              : 2,
    TWO_STEPS = FOR_INTEL,
    /* one row of x: weights, q8 apart; whether every line is asked for, or one a block or so */
    ROW_AHEAD = LANES < 16 ? 1024
                : FOR_ZEN4 ? 4096
                           : 8192,
    Q8_AHEAD = LANES < 16 || FOR_ZEN4 ? 4096 : 8192,
    ROW_EVERY_LINE = !FOR_ZEN4,
    /* a tile of rows; its caches if its passes read weights again; inputs of a turn of its loop */
    TILE_AHEAD = 8192,
    TILE_CACHES = FOR_ZEN5 ? 3 : 2,
    TILE_INPUTS = LANES < 16 ? 8
                  : FOR_ZEN4 ? 1
                             : 2,
    /* whether weights of two bytes become f32 once for many rows: where that takes the units that
     * multiply */
    WIDENS = FOR_INTEL,
    /* a single query's keys and values, for all the heads that read tiles in turns, at most a tile
     */
    KV_AHEAD = LANES < 16 ? 1 << 20
               : FOR_ZEN5 ? 4096
                          : 12288,
    /* so many: streams beside each other */
    TILES_TOGETHER = LANES < 16 ? 1
                     : FOR_ZEN5 ? 2
                                : 6,
};

/* Asks for a line that will be read once, and, where lines come in two steps, makes the first of
 * them for the line `farther` bytes on. */
static inline __attribute__((always_inline)) void ask_once(const void *line, int64_t farther)
{
    __builtin_prefetch(line, 0, ONCE_CACHES);
    if (TWO_STEPS)
        __builtin_prefetch((const char *)line + farther, 0, 2);
}

#endif
