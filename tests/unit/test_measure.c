/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <criterion/criterion.h>

/* Figures of a machine that exists, on every instruction set; how much depends on who else works.
 */
Test(measure, gives_plausible_figures)
{
    static const char *const sets[] = {NULL, "generic"};
    for (int i = 0; i < 2; i++) {
        const struct engine_options options = {
            .threads = 2, .state_memory_bytes = 1 << 20, .instruction_set = sets[i]};
        struct error err = ERROR_INIT;
        struct engine *engine;
        double bytes = 0, operations = 0;
        cr_assert(engine_open(&engine, REGLA_SOURCE_DIR "/tests/golden/gpt_neox", &options, &err) ==
                      0,
                  "%s", err.message);
        for (int again = 0; again < 2; again++) {
            cr_assert(engine_measure(engine, &bytes, &operations, &err) == 0, "%s", err.message);
            cr_expect(bytes > 1e6 && bytes < 1e13, "%g bytes a second", bytes);
            cr_expect(operations > 1e6 && operations < 1e14, "%g operations a second", operations);
        }
        engine_close(engine);
    }
}

/* What bench compares prompts with is what multiplies them, in every format that the processor at
 * hand has. */
Test(measure, each_format_has_the_peak_of_what_multiplies)
{
    static const enum activation_format all[] = {ACTIVATIONS_F32, ACTIVATIONS_16BIT,
                                                 ACTIVATIONS_8BIT};
    for (int weights = 0; weights < WEIGHT_FORMAT_COUNT; weights++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            const struct engine_options options = {.threads = 1,
                                                   .state_memory_bytes = 1 << 20,
                                                   .weights = (enum weight_format)weights,
                                                   .activations = all[i]};
            struct error err = ERROR_INIT;
            struct engine *engine;
            double bytes = 0, operations = 0;
            if (engine_open(&engine, REGLA_SOURCE_DIR "/tests/golden/gpt_neox", &options, &err) !=
                0)
                continue; /* the processor has none, or a format none: test_rounding.c */
            const struct engine_info *info = engine_info(engine);
            cr_expect_str_eq(info->measured_unit, info->unit);
            cr_assert_eq(engine_measure(engine, &bytes, &operations, &err), 0, "%s", err.message);
            cr_expect(operations > 1e6 && operations < 1e14, "%s: %g operations a second",
                      info->unit, operations);
            engine_close(engine);
        }
}
