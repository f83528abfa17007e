/* CMakeLists.txt gives this file the compiler flags of avx512, on x86-64. */
#ifdef __AVX512F__
#include "engine/cpu/simd.h"

static const struct kernels table = KERNELS_TABLE("avx512");
const struct kernels *const kernels_avx512 = &table;
#else
#include "engine/cpu/kernels.h"

const struct kernels *const kernels_avx512 = NULL;
#endif
