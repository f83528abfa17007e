/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between cores of one instruction set: above all how far ahead kernels prefetch, and
 * into which caches. No result depends on it.
 *
 * Distances are in bytes. Caches are as __builtin_prefetch has them: 3 all, 2 the second, 0 the
 * first alone.
 *
 * - Zen 5 (simd_zen5.c) needs a prefetch for every line, and takes what is read once past the
 *   second cache.
 * - Zen 4 (simd_zen4.c) runs ahead by itself to the end of a page. A line per block shows it the
 *   next page; more requests hold up its loads.
 * - Other cores with AVX-512 are treated as Intel's: every line into the second cache, which waits
 *   for more lines at once than the first; what is read once goes on into the first, since loads
 *   that find it there hold up fewer other instructions.
 * - AVX2 has the settings of a Zen 3.
 *
 * Figures, and what was tried instead: loadtest/FIGURES.md, "Choices of the kernels". */
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
