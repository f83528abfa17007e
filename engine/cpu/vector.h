/* The vector of the instruction set that this file is compiled for. */
#ifndef ENGINE_CPU_VECTOR_H
#define ENGINE_CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

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

#elif defined(__AVX2__) && defined(__FMA__)
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
#endif

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
