/* SPDX-License-Identifier: Apache-2.0 */
/* vec, the vector type of the instruction set that this file is compiled for, and its operations.
 * Loads and stores of two-byte numbers convert as lib/base/half.h does, bit for bit. */
#ifndef ENGINE_CPU_VECTOR_H
#define ENGINE_CPU_VECTOR_H

#include "lib/base/half.h"

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
enum { LANES = 16, TILE_ROWS = 12 };

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline vec vec_load_bf16(const uint16_t *p)
{
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
typedef __m256 vec;
enum { LANES = 8, TILE_ROWS = 6 };

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vec vec_load_bf16(const uint16_t *p)
{
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

#elif defined(FOR_NEON)
#include <arm_neon.h>
typedef float32x4_t vec;
enum { LANES = 4, TILE_ROWS = 12 };

static inline vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

static inline vec vec_set(float x)
{
    return vdupq_n_f32(x);
}

static inline vec vec_max(vec a, vec b) /* vmaxq_f32 has another idea of NaN */
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline vec vec_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

#else
typedef float vec __attribute__((vector_size(16)));
enum { LANES = 4, TILE_ROWS = 4 };

static inline vec vec_fma(vec a, vec b, vec c)
{
    return a * b + c;
}

static inline vec vec_set(float x)
{
    return (vec){x, x, x, x};
}

/* The greater of a and b, lane by lane; b where both are equal or either is NaN. */
static inline vec vec_max(vec a, vec b)
{
    for (int i = 0; i < LANES; i++)
        b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return (vec){f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3])};
}

static inline vec vec_load_bf16(const uint16_t *p)
{
    return (vec){bf16_to_f32(p[0]), bf16_to_f32(p[1]), bf16_to_f32(p[2]), bf16_to_f32(p[3])};
}
#endif

/* The LANES bf16 in the lower halves of the dwords at p, and those in the upper halves. */
static inline void vec_load_bf16_pairs(const void *p, vec *low, vec *high)
{
    typedef uint32_t lanes __attribute__((vector_size(sizeof(vec))));
    lanes pairs;
    memcpy(&pairs, p, sizeof pairs);
    *low = (vec)(pairs << 16);
    *high = (vec)(pairs & 0xffff0000u);
}

typedef int32_t vec_ints __attribute__((vector_size(sizeof(vec))));

/* Moves byte i of each dword to its highest byte; the other bytes become zero. */
static inline vec_ints vec_raise_byte(vec_ints dwords, const int i)
{
#if defined(__AVX2__) && !defined(__AVX512F__) /* one instruction, and few ports that shift */
    if (i == 1 || i == 2) {
        const __m256i lowest = _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0); /* of 16 bytes */
        __m256i from = _mm256_slli_epi32(_mm256_add_epi32(lowest, _mm256_set1_epi32(i)), 24);
        return (vec_ints)_mm256_shuffle_epi8((__m256i)dwords,
                                             _mm256_or_si256(from, _mm256_set1_epi32(0x808080)));
    }
#endif
    vec_ints raised = dwords << (24 - 8 * i);
    return i == 0 ? raised : raised & -(1 << 24);
}

/* Nibble 2i of each dword as a number, for i from 0 to 3, and nibble 2(i - 4) + 1 for i from 4 on.
 */
static inline vec vec_nibbles(vec_ints dwords, const int i)
{
    vec_ints lowest = dwords >> (i < 4 ? 8 * i : 8 * (i - 4) + 4);
#if defined(__AVX512F__) /* looks up the lower four bits, in one instruction */
    const vec numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return _mm512_permutexvar_ps((__m512i)lowest, numbers);
#else
    return __builtin_convertvector(lowest & 15, vec);
#endif
}

/* Makes a call with M = m as a constant, for m from `least` to `most`, at most TILE_ROWS. */
#define ROWS_CASE(rows, least, most, call)                             \
    case rows:                                                         \
        if (rows >= least && rows <= most) {                           \
            enum { M = rows >= least && rows <= most ? rows : least }; \
            call;                                                      \
        }                                                              \
        break;
#define FOR_ROWS(m, least, most, call)   \
    switch (m) {                         \
        ROWS_CASE(1, least, most, call)  \
        ROWS_CASE(2, least, most, call)  \
        ROWS_CASE(3, least, most, call)  \
        ROWS_CASE(4, least, most, call)  \
        ROWS_CASE(5, least, most, call)  \
        ROWS_CASE(6, least, most, call)  \
        ROWS_CASE(7, least, most, call)  \
        ROWS_CASE(8, least, most, call)  \
        ROWS_CASE(9, least, most, call)  \
        ROWS_CASE(10, least, most, call) \
        ROWS_CASE(11, least, most, call) \
        ROWS_CASE(12, least, most, call) \
    }

/* Any alignment. */
static inline vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

#endif
