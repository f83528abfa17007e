/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/backend.h"
#include "engine/cpu/device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
/* clang 14's __builtin_cpu_supports does not know it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/* AMD's family, 0 for others: 25 for Zen 3, which has no AVX-512, and 4, 26 for Zen 5. gcc 12 has
 * no names for them. */
static unsigned amd_family(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_is("amd") || __get_cpuid(1, &a, &b, &c, &d) == 0)
        return 0;
    return (a >> 8 & 15) + (a >> 20 & 255);
}

/* Whether the processor has AMX for bf16 and bytes, and the system keeps its registers. */
static bool has_amx(void)
{
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* amx_bf16, amx_tile, amx_int8 */
    const unsigned registers = 1u << 17 | 1u << 18;         /* of XCR0: tiles and their shape */
    unsigned a, b, c, d, low, high;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0 ||
        __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & wanted) != wanted)
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

/* Asks the kernel for tiles, for all threads of this process; errno, or 0. Without it the first
 * instruction with one ends the process. */
static int ask_for_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 ? 0 : errno;
}
#else
static bool has_amx(void)
{
    return false;
}

static int ask_for_tiles(void)
{
    return ENOSYS;
}
#endif

/* What was found out about AMX, once. */
static struct {
    pthread_once_t once;
    bool runs;
    char refusal[160];
} amx = {.once = PTHREAD_ONCE_INIT};

bool instruction_set_amx_runs(bool there, int refused, bool agrees, char *refusal, size_t size)
{
    refusal[0] = 0;
    if (there && refused != 0)
        snprintf(refusal, size, "amx is there, but the system refuses its tiles: %s",
                 strerror(refused));
    else if (there && !agrees)
        snprintf(refusal, size, "amx is there, but gives other bits than its emulation");
    return there && refused == 0 && agrees;
}

static void find_amx(void)
{
    const bool there = kernels_amx != NULL && has_amx();
    const int refused = there ? ask_for_tiles() : 0;
    const bool agrees = there && refused == 0 && tiles_agree(kernels_amx, kernels_amx_emulated);
    amx.runs = instruction_set_amx_runs(there, refused, agrees, amx.refusal, sizeof amx.refusal);
}

static bool runs(const struct kernels *kernels)
{
    if (kernels == NULL)
        return false;
#if defined(__x86_64__)
    if (kernels == kernels_amx) {
        pthread_once(&amx.once, find_amx);
        return runs(kernels_avx512vnni) && amx.runs;
    }
    if (kernels == kernels_amx_emulated)
        return runs(kernels_avx512vnni);
    if (kernels == kernels_zen4)
        return runs(kernels_avx512vnni) && amd_family() == 25;
    if (kernels == kernels_zen5)
        return runs(kernels_avx512vnni) && amd_family() > 25;
    if (kernels == kernels_avx512vnni)
        return runs(kernels_avx512) && __builtin_cpu_supports("avx512vnni");
    if (kernels == kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (kernels == kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#elif defined(__aarch64__)
    const unsigned long matrices = HWCAP2_I8MM | HWCAP2_BF16;
    if (kernels == kernels_neonmm)
        return runs(kernels_neondot) && (getauxval(AT_HWCAP2) & matrices) == matrices;
    if (kernels == kernels_neondot)
        return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return true;
}

bool instruction_set_rounds(const struct kernels *kernels, enum weight_format weights)
{
    if (fixes_inputs(kernels, weights) || parts_inputs(kernels, weights))
        return true;
#if defined(__x86_64__)
    const bool pairs = kernels->fixes != 0 && __builtin_cpu_supports("avx512bf16");
#else
    const bool pairs = kernels == kernels_neonmm;
#endif
    return pairs && weight_format_has(weights, HAS_WIDE_EXPONENT);
}

const struct kernels *instruction_set_choose(const char *name, struct error *err)
{
    /* what runs everywhere comes before the emulated one: that is for those who name it */
    const struct kernels *const all[] = {kernels_amx,        kernels_zen4,        kernels_zen5,
                                         kernels_avx512vnni, kernels_avx512,      kernels_avx2,
                                         kernels_neonmm,     kernels_neondot,     kernels_neon,
                                         kernels_generic,    kernels_amx_emulated};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (runs(all[i]) && (name == NULL || strcmp(name, all[i]->name) == 0))
            return all[i];
    error_set(err, ERROR_INVALID, "instruction_set: \"%s\" is unknown or not on this machine",
              name == NULL ? "" : name);
    return NULL;
}

enum unit instruction_set_unit(const struct kernels *kernels, enum weight_format weights,
                               enum activation_format activations)
{
    const bool fixed = fixes_inputs(kernels, weights);
    if ((kernels->tiles >> weights & 1) != 0)
        return fixed ? UNIT_TILES_OF_BYTES : UNIT_TILES_OF_PAIRS;
    if (fixed)
        return UNIT_BYTES;
    const bool rounds =
        weight_format_has(weights, HAS_WIDE_EXPONENT) && activations == ACTIVATIONS_16BIT;
    return rounds ? UNIT_PAIRS : UNIT_FLOATS;
}

const char *instruction_set_unit_name(const struct kernels *kernels, enum unit unit)
{
#if defined(__aarch64__)
    const char *pairs = "NEON BF16",
               *bytes = kernels == kernels_neonmm ? "NEON I8MM" : "NEON dot product";
#else
    const char *pairs = "AVX-512 BF16", *bytes = "AVX-512 VNNI";
    (void)kernels;
#endif
    const char *const names[UNIT_COUNT] = {[UNIT_FLOATS] = "f32",
                                           [UNIT_PAIRS] = pairs,
                                           [UNIT_BYTES] = bytes,
                                           [UNIT_TILES_OF_PAIRS] = "AMX bf16",
                                           [UNIT_TILES_OF_BYTES] = "AMX int8"};
    return names[unit];
}

const char *cpu_refused_set(void)
{
    pthread_once(&amx.once, find_amx);
    return amx.refusal[0] == 0 ? NULL : amx.refusal;
}

enum activation_format cpu_activations(const char *instruction_set, enum weight_format weights)
{
    struct error unknown = ERROR_INIT; /* cpu_open tells */
    const struct kernels *kernels = instruction_set_choose(instruction_set, &unknown);
    if (kernels == NULL || !instruction_set_rounds(kernels, weights))
        return ACTIVATIONS_F32;
#if defined(__aarch64__)
    return ACTIVATIONS_F32; /* nothing was measured there */
#endif
    /* q6 has no wide fours, so there 8bit costs a model's words three times as much as elsewhere:
     * loadtest/FIGURES.md, "Inputs in 8 bits" */
    if (activation_format_fits(ACTIVATIONS_8BIT, weights))
        return weight_format_has(weights, HAS_FACTORS) ? ACTIVATIONS_16BIT : ACTIVATIONS_8BIT;
    /* One tile product takes the place of three, with f16 two that of six. Without tiles products
     * of bf16 with bf16 take longer than those with f32 on Intel's cores. */
    const bool fewer_or_faster =
        parts_inputs(kernels, weights) || kernels == kernels_zen4 || kernels == kernels_zen5;
    return fewer_or_faster ? ACTIVATIONS_16BIT : ACTIVATIONS_F32;
}
