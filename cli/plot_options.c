/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot_options.h"

const struct options plot_options = {
    .usage = "regla-plot DIR...",
    .summary = "Draws the plots of studies, from DIR/study.json, which `regla study --out DIR` "
               "writes: time-bB,\n"
               "memory-bB, state-bB and speed-bB (SVG, PNG) for each batch B.",
    .operands = OPERANDS_DIRECTORIES,
};
