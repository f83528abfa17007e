/* SPDX-License-Identifier: Apache-2.0 */
/* CMakeLists.txt gives this file the compiler flags of avx512, on x86-64; what needs VNNI as well
 * says so itself. */
#ifdef __AVX512F__
#include "engine/cpu/kernels_vnni.h"
#include "engine/cpu/simd.h"

static const struct kernels vnni =
    KERNELS_TABLE("avx512vnni", kernel_product_vnni, kernel_arrange_vnni, VNNI_FORMATS);
#if FOR_ZEN4
const struct kernels *const kernels_zen4 = &vnni;
#elif FOR_ZEN5
const struct kernels *const kernels_zen5 = &vnni;
#else
static const struct kernels table = KERNELS_TABLE("avx512", kernel_product, kernel_arrange, 0);
const struct kernels *const kernels_avx512 = &table;
const struct kernels *const kernels_avx512vnni = &vnni;

#include "engine/cpu/kernels_tiles_kv.h"
#define AMX(name) name##_amx
#define TILE(operation) tile_##operation
#include "engine/cpu/kernels_amx.h"
#include "engine/cpu/kernels_amx_attention.h"
#undef AMX
#undef TILE
#undef ENGINE_CPU_KERNELS_AMX_H
#undef ENGINE_CPU_KERNELS_AMX_ATTENTION_H
#define AMX(name) name##_emulated
#define TILE(operation) emulated_##operation
#include "engine/cpu/kernels_amx.h"
#include "engine/cpu/kernels_amx_attention.h"

static const struct kernels amx = {KERNELS_MEMBERS("amx", kernel_product_amx, kernel_arrange_tiles,
                                                   kernel_attention_amx, VNNI_FORMATS),
                                   .tiles = TILE_FORMATS | PART_FORMATS, MEASURED_TILES(amx)};
static const struct kernels emulated = {
    KERNELS_MEMBERS("amx_emulated", kernel_product_emulated, kernel_arrange_tiles,
                    kernel_attention_emulated, VNNI_FORMATS),
    .tiles = TILE_FORMATS | PART_FORMATS, MEASURED_TILES(emulated)};
const struct kernels *const kernels_amx = &amx;
const struct kernels *const kernels_amx_emulated = &emulated;
#endif
#else
#include "engine/cpu/kernels.h"

#if defined(FOR_ZEN4)
const struct kernels *const kernels_zen4 = NULL;
#elif defined(FOR_ZEN5)
const struct kernels *const kernels_zen5 = NULL;
#else
const struct kernels *const kernels_amx = NULL;
const struct kernels *const kernels_amx_emulated = NULL;
const struct kernels *const kernels_avx512 = NULL;
const struct kernels *const kernels_avx512vnni = NULL;
#endif
#endif
