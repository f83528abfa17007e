/* SPDX-License-Identifier: Apache-2.0 */
/* Computes e^y in double, for the weights of tokens, with the same bits on every device. */
#ifndef LIB_BASE_EXPONENTIAL_H
#define LIB_BASE_EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define EXPONENTIAL static __host__ __device__ __forceinline__
#else
#define EXPONENTIAL static inline __attribute__((always_inline))
#endif

/* e^y for y <= 0, with a relative error of 1e-15. The result is 0 below -87.3, where floats end,
 * and 0 for NaN. */
EXPONENTIAL double exp_below_zero(double y)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    double c = y > -87.3 ? y : -87.3;
    double shifted = c * 1.4426950408889634 + magic;
    double n = shifted - magic;
    double r = c - n * 0.693147180369123816490; /* ln 2 in two parts; n * the first is exact */
    r = r - n * 1.90821492927058770002e-10;
    double p = 1.0 / 479001600.0; /* r^12 / 12! + ...: what is left out is under 2e-16 */
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^n: n is in the low bits */
    double power;
    memcpy(&power, &bits, sizeof power);
    return y > -87.3 ? p * power : 0.0;
}

#endif
