/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets a machine has: those that other tests then take, and pass over where they
 * are missing. */
#include "engine/cpu/backend.h"
#include "engine/cpu/device.h"
#include "engine/ops/activation_cost.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With what the processor must have; the best one first. pairs: rounds x for bf16 too, tiles: and
 * for f16. The emulation is for those who name it. */
static const struct set {
    const char *name, *flags;
    bool fixes, pairs, tiles;
} sets[] = {
#if defined(__aarch64__)
    {"neonmm", "dotprod i8mm bf16", true, true, false},
    {"neondot", "dotprod", true, false, false},
    {"neon", "", false, false, false},
    {"generic", "", false, false, false},
#else
    {"amx", "amx_tile amx_bf16 amx_int8 avx512f avx512dq avx512bw avx512vl avx512_vnni avx2 fma",
     true, true, true},
    {"avx512vnni", "avx512f avx512dq avx512bw avx512vl avx512_vnni avx2 fma", true, false, false},
    {"avx512", "avx512f avx512dq avx512bw avx512vl avx2 fma", false, false, false},
    {"avx2", "avx2 fma f16c", false, false, false},
    {"generic", "", false, false, false},
    {"amx_emulated", "avx512f avx512dq avx512bw avx512vl avx512_vnni avx2 fma", true, true, true},
#endif
};
enum { SETS = sizeof sets / sizeof *sets };

#if defined(__x86_64__)
/* The first processor's line of that name, between two spaces. */
static void read_line(const char *name, char *out, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    cr_assert(file != NULL, "/proc/cpuinfo");
    out[0] = 0;
    while (out[0] == 0 && (length = getline(&line, &capacity, file)) > 0)
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == '\t') {
            line[length - 1] = 0;
            snprintf(out, size, " %s ", strchr(line, ':') + 1);
        }
    free(line);
    fclose(file);
}
#endif

/* What the processor has, each between two spaces: what the kernel says of an x86, and what an Arm
 * says itself, since qemu shows the cpuinfo of its host. */
static void read_flags(char *out, size_t size)
{
#if defined(__aarch64__)
    uint64_t first, second;
    __asm__("mrs %0, ID_AA64ISAR0_EL1" : "=r"(first));
    __asm__("mrs %0, ID_AA64ISAR1_EL1" : "=r"(second));
    snprintf(out, size, " %s%s%s", first >> 44 & 15 ? "dotprod " : "",
             second >> 52 & 15 ? "i8mm " : "", second >> 44 & 15 ? "bf16 " : "");
#else
    read_line("flags", out, size);
#endif
}

static bool has_all(const char *flags, const char *wanted)
{
    char all[128], word[32], *rest;
    snprintf(all, sizeof all, "%s", wanted);
    for (char *flag = strtok_r(all, " ", &rest); flag; flag = strtok_r(NULL, " ", &rest)) {
        snprintf(word, sizeof word, " %s ", flag);
        if (strstr(flags, word) == NULL)
            return false;
    }
    return true;
}

/* A system may refuse the tiles of a processor. */
static bool is_there(const char *flags, const struct set *set)
{
    return has_all(flags, set->flags) &&
           (strcmp(set->name, "amx") != 0 || cpu_refused_set() == NULL);
}

Test(instruction_set, each_of_the_machine_opens_and_the_best_is_chosen)
{
    char flags[8192];
    const char *best = NULL;
    read_flags(flags, sizeof flags);
#if defined(__x86_64__)
    cr_assert(has_all(flags, "fpu sse2"), "flags: \"%s\"", flags);
#endif
    for (size_t i = 0; i < SETS; i++) {
        const struct cpu_options options = {.threads = 1, .instruction_set = sets[i].name};
        struct backend *backend = NULL;
        struct error err = ERROR_INIT;
        bool opened = cpu_open(&backend, &options, &err) == 0;
        cr_expect(opened == is_there(flags, &sets[i]), "%s %s", sets[i].name, err.message);
        if (!opened)
            continue;
        cr_expect_str_eq(cpu_ops.instruction_set(backend), sets[i].name);
        best = best == NULL ? sets[i].name : best;
        cpu_ops.close(backend);
    }
    struct backend *backend = NULL;
    cr_assert(cpu_open(&backend, &(struct cpu_options){.threads = 1}, NULL) == 0);
    cr_expect_str_eq(cpu_ops.instruction_set(backend), best);
    cpu_ops.close(backend);
}

/* Inputs are rounded where the machine has what multiplies them so, else refused. */
Test(instruction_set, activations_are_rounded_by_those_that_multiply_bytes_or_pairs)
{
    static const struct {
        enum weight_format weights;
        enum activation_format activations;
    } cases[] = {
        {WEIGHTS_BF16, ACTIVATIONS_16BIT},
        {WEIGHTS_F16, ACTIVATIONS_16BIT},
        {WEIGHTS_Q8, ACTIVATIONS_16BIT},
        {WEIGHTS_Q8, ACTIVATIONS_8BIT},
        {WEIGHTS_Q4, ACTIVATIONS_16BIT},
        {WEIGHTS_Q4, ACTIVATIONS_8BIT},
#if defined(__x86_64__) /* Arm multiplies six bits as f32 */
        {WEIGHTS_Q6, ACTIVATIONS_16BIT},
        {WEIGHTS_Q6, ACTIVATIONS_8BIT},
#endif
    };
    enum { CASES = sizeof cases / sizeof *cases };
    char flags[8192];
    read_flags(flags, sizeof flags);
    for (size_t i = 0; i < SETS * CASES; i++) {
        const struct set *set = &sets[i / CASES];
        const enum weight_format weights = cases[i % CASES].weights;
        const struct cpu_options options = {.threads = 1,
                                            .instruction_set = set->name,
                                            .weights = weights,
                                            .activations = cases[i % CASES].activations};
        struct backend *backend = NULL;
        struct error err = ERROR_INIT;
        if (!is_there(flags, set))
            continue;
        bool pairs = set->pairs || (set->fixes && has_all(flags, "avx512_bf16"));
        bool rounds = weights == WEIGHTS_BF16  ? pairs
                      : weights == WEIGHTS_F16 ? set->tiles
                                               : set->fixes;
        bool opened = cpu_open(&backend, &options, &err) == 0;
        cr_expect(opened == rounds, "%s %s", set->name, err.message);
        if (opened)
            cpu_ops.close(backend);
        else
            cr_expect(err.code == ERROR_UNSUPPORTED && strstr(err.message, set->name) != NULL &&
                          (weights == WEIGHTS_F16) == (strstr(err.message, "AMX") != NULL),
                      "%s", err.message);
    }
}

#if defined(__x86_64__)
/* AMD's family 25 with AVX-512 is the Zen 4, later ones are the Zen 5 and what follows it. */
Test(instruction_set, amds_get_what_was_measured_on_them)
{
    char flags[8192], vendor[64], family[64];
    read_flags(flags, sizeof flags);
    read_line("vendor_id", vendor, sizeof vendor);
    read_line("cpu family", family, sizeof family);
    if (!has_all(flags, sets[1].flags) || is_there(flags, &sets[0]))
        return;
    int number = strstr(vendor, " AuthenticAMD ") != NULL ? atoi(family) : 0;
    const struct kernels *chosen = instruction_set_choose(NULL, NULL);
    const struct kernels *tuned = number == 25 ? kernels_zen4 : number > 25 ? kernels_zen5 : NULL;
    /* some builds do without those (REGLA_TUNED) */
    cr_expect(chosen == (tuned != NULL ? tuned : kernels_avx512vnni), "%s%s", vendor, family);
    cr_expect((kernels_zen4 != NULL) == (kernels_zen5 != NULL));
    cr_expect(instruction_set_choose(sets[1].name, NULL) == chosen);
}
#endif

/* auto is 16bit, with q4 8bit, where that was faster, or takes fewer tiles, and lost little; f32
 * elsewhere. */
Test(instruction_set, auto_activations_are_a_fixed_table)
{
    char flags[8192];
    read_flags(flags, sizeof flags);
    const bool bf16 = has_all(flags, "avx512_bf16");
    const struct kernels *best = instruction_set_choose(NULL, NULL);
    const bool amd = best == kernels_zen4 || best == kernels_zen5;
    for (size_t i = 0; i < SETS; i++) {
        const char *set = sets[i].name;
        const bool rounds = sets[i].fixes && is_there(flags, &sets[i]);
        cr_expect(cpu_activations(set, WEIGHTS_F32) == ACTIVATIONS_F32, "%s", set);
        const bool tiles = rounds && sets[i].tiles, pairs = tiles || (rounds && amd && bf16);
        cr_expect(cpu_activations(set, WEIGHTS_F16) ==
                      (tiles ? ACTIVATIONS_16BIT : ACTIVATIONS_F32),
                  "%s", set);
        cr_expect(cpu_activations(set, WEIGHTS_BF16) ==
                      (pairs ? ACTIVATIONS_16BIT : ACTIVATIONS_F32),
                  "%s", set);
#if defined(__aarch64__)
        const enum activation_format blocks = ACTIVATIONS_F32;
#else
        const enum activation_format blocks = rounds ? ACTIVATIONS_8BIT : ACTIVATIONS_F32;
#endif
        cr_expect(cpu_activations(set, WEIGHTS_Q8) == blocks, "%s", set);
        cr_expect(cpu_activations(set, WEIGHTS_Q6) ==
                      (blocks == ACTIVATIONS_F32 ? blocks : ACTIVATIONS_16BIT),
                  "%s", set);
        cr_expect(cpu_activations(set, WEIGHTS_Q4) == blocks, "%s", set);
    }
    cr_expect(cpu_activations("none", WEIGHTS_Q8) == ACTIVATIONS_F32);
    cr_expect(cpu_activations(NULL, WEIGHTS_Q8) == cpu_activations(best->name, WEIGHTS_Q8));
}

/* What auto rounds on a processor at hand has been measured; f16 only in emulation. */
Test(instruction_set, what_auto_rounds_has_a_cost)
{
    for (size_t i = 0; i < SETS; i++)
        for (int format = WEIGHTS_AUTO + 1; format < WEIGHT_FORMAT_COUNT; format++) {
            const enum weight_format weights = (enum weight_format)format;
            const enum activation_format rounded = cpu_activations(sets[i].name, weights);
            const struct activation_cost *cost = activation_cost(rounded, weights);
            const char *name = weight_format_name(weights);
            cr_expect((cost != NULL) == (rounded != ACTIVATIONS_F32 && weights != WEIGHTS_F16),
                      "%s %s", sets[i].name, name);
            cr_expect(cost == NULL || (cost->divergence > 0 && cost->divergence < 0.1 &&
                                       cost->same_best > 0.9 && cost->same_best <= 1),
                      "%s %s", sets[i].name, name);
        }
}

/* Each reason why AMX is not taken is told. */
Test(instruction_set, a_refusal_of_tiles_is_told)
{
    static const struct {
        bool there, agrees;
        int refused;
        const char *told; /* NULL: it is taken, or not there */
    } cases[] = {{false, false, 0, NULL},
                 {true, true, 0, NULL},
                 {true, false, EPERM, "the system refuses its tiles: Operation not permitted"},
                 {true, false, ENOSPC, "the system refuses its tiles: No space left on device"},
                 {true, false, 0, "gives other bits than its emulation"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char refusal[160];
        const bool taken = instruction_set_amx_runs(cases[i].there, cases[i].refused,
                                                    cases[i].agrees, refusal, sizeof refusal);
        cr_expect(taken == (cases[i].there && cases[i].told == NULL), "case %zu", i);
        if (cases[i].told == NULL)
            cr_expect_str_empty(refusal);
        else
            cr_expect(strstr(refusal, cases[i].told) != NULL, "%s", refusal);
    }
}
