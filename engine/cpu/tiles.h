/* SPDX-License-Identifier: Apache-2.0 */
/* The few instructions of AMX that products and attention take, and the same in C for machines
 * without it.
 *
 * There are eight tiles of up to 16 rows of 64 bytes. A product C += A * B takes A [m, k] by rows
 * and B [k, n] as dwords, each of which has two (bf16) or four (bytes) inputs k of one output n.
 *
 *     tile_NAME       of the processor. Assembler: gcc 12's _tile_loadconfig and _tile_loadd do not
 *                     say that they read memory, so what was stored for them before can vanish.
 *     emulated_NAME   to the bit what Intel's manual says that the processor does (SDM volume 2,
 *                     the operation of TDPBF16PS and TDPBSUD)
 *
 * The numbers of tiles are constants at each call. */
#ifndef ENGINE_CPU_TILES_H
#define ENGINE_CPU_TILES_H

#include "engine/cpu/vector.h"

#include <assert.h>

enum { TILES = 8, TILE_HEIGHT = 16, TILE_BYTES = 64, TILE_PAIRS = 16 };

/* As the processor reads it. The tiles past the eighth are reserved, and zero. */
struct tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[2 * TILES];
    uint8_t rows[2 * TILES];
};
_Static_assert(sizeof(struct tile_config) == 64, "what ldtilecfg reads");

/* The processor has its own. */
struct tile_state {
    char none;
};

INLINE void tile_configure(struct tile_state *state, const struct tile_config *config)
{
    (void)state;
    __asm__ volatile("ldtilecfg %0" : : "m"(*config) : "memory");
}

INLINE void tile_release(struct tile_state *state)
{
    (void)state;
    __asm__ volatile("tilerelease" : : : "memory");
}

/* stride: bytes from a row to the next. */
#define tile_load(state, tile, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define tile_store(state, tile, to, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(stride) : "memory")
#define tile_zero(state, tile) __asm__ volatile("tilezero %tmm" #tile)
/* f32 += pairs of bf16. */
#define tile_multiply_bf16(state, c, a, b) \
    __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)
/* int32 += fours of signed bytes of a times unsigned ones of b. */
#define tile_multiply_bytes(state, c, a, b) \
    __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #c)

/* Rows and bytes of a tile past its configured size are zero. */
struct emulated_state {
    struct tile_config config;
    _Alignas(64) unsigned char tiles[TILES][TILE_HEIGHT][TILE_BYTES];
};

static void emulated_configure(struct emulated_state *state, const struct tile_config *config)
{
    assert(config->palette == 1 && config->start_row == 0);
    for (int tile = 0; tile < TILES; tile++)
        assert(config->rows[tile] <= TILE_HEIGHT && config->row_bytes[tile] <= TILE_BYTES &&
               (config->rows[tile] == 0) == (config->row_bytes[tile] == 0));
    state->config = *config;
    memset(state->tiles, 0, sizeof state->tiles);
}

static void emulated_release(struct emulated_state *state)
{
    memset(state, 0, sizeof *state);
}

static void emulated_zero(struct emulated_state *state, int tile)
{
    assert(state->config.rows[tile] > 0);
    memset(state->tiles[tile], 0, sizeof state->tiles[tile]);
}

static void emulated_load(struct emulated_state *state, int tile, const void *from, int64_t stride)
{
    emulated_zero(state, tile);
    for (int row = 0; row < state->config.rows[tile]; row++)
        memcpy(state->tiles[tile][row], (const char *)from + row * stride,
               state->config.row_bytes[tile]);
}

static void emulated_store(struct emulated_state *state, int tile, void *to, int64_t stride)
{
    assert(state->config.rows[tile] > 0);
    for (int row = 0; row < state->config.rows[tile]; row++)
        memcpy((char *)to + row * stride, state->tiles[tile][row], state->config.row_bytes[tile]);
}

/* The processor refuses shapes that do not fit. */
static void emulated_check(const struct emulated_state *state, int c, int a, int b)
{
    const struct tile_config *config = &state->config;
    assert(config->rows[c] > 0 && config->rows[c] == config->rows[a] &&
           config->row_bytes[c] == config->row_bytes[b] &&
           config->row_bytes[a] == 4 * config->rows[b] && c != a && c != b && a != b);
    (void)config, (void)c, (void)a, (void)b;
}

/* Each dword of a tile's row, with those past its size zero. */
static inline void emulated_keep(const struct emulated_state *state, int tile, int row, vec_ints v)
{
    memcpy((void *)state->tiles[tile][row], &v, sizeof v);
    memset((char *)state->tiles[tile][row] + state->config.row_bytes[tile], 0,
           (size_t)(TILE_BYTES - state->config.row_bytes[tile]));
}

/* Not inlined: the state of the floating point unit is set around it. */
static __attribute__((noinline)) void emulated_sums(struct emulated_state *state, int c, int a,
                                                    int b)
{
    for (int m = 0; m < state->config.rows[c]; m++) {
        vec even = vec_set(0.0f), odd = vec_set(0.0f), sum;
        for (int k = 0; k < state->config.rows[b]; k++) {
            vec low, high;
            uint16_t x[2];
            memcpy(x, state->tiles[a][m] + 4 * k, sizeof x);
            vec_load_bf16_pairs(state->tiles[b][k], &low, &high);
            even = vec_fma(vec_set(bf16_to_f32(x[0])), low, even);
            odd = vec_fma(vec_set(bf16_to_f32(x[1])), high, odd);
        }
        memcpy(&sum, state->tiles[c][m], sizeof sum);
        emulated_keep(state, c, m, (vec_ints)(sum + (even + odd)));
    }
}

/* Per row and output, from zero: two sums over the pairs in order, of the first and of the second
 * products, each a fused multiply-add; both together are added to c. Denormals count as zero,
 * everywhere, whatever the thread does with them. */
static void emulated_multiply_bf16(struct emulated_state *state, int c, int a, int b)
{
    enum { FLUSHED = 0x9fc0 }; /* denormals, rounded to nearest even, no exceptions */
    emulated_check(state, c, a, b);
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(FLUSHED);
    emulated_sums(state, c, a, b);
    _mm_setcsr(saved);
}

static void emulated_multiply_bytes(struct emulated_state *state, int c, int a, int b)
{
    typedef uint32_t dwords __attribute__((vector_size(sizeof(vec)))); /* they wrap around */
    emulated_check(state, c, a, b);
    for (int m = 0; m < state->config.rows[c]; m++) {
        dwords sum, w;
        memcpy(&sum, state->tiles[c][m], sizeof sum);
        for (int k = 0; k < state->config.rows[b]; k++) {
            int8_t x[4];
            memcpy(x, state->tiles[a][m] + 4 * k, sizeof x);
            memcpy(&w, state->tiles[b][k], sizeof w);
            for (int i = 0; i < 4; i++)
                sum += (uint32_t)(int32_t)x[i] * (w >> 8 * i & 255);
        }
        emulated_keep(state, c, m, (vec_ints)sum);
    }
}

#endif
