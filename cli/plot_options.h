/* SPDX-License-Identifier: Apache-2.0 */
/* The options of regla-plot, for the program and for its manual. */
#ifndef CLI_PLOT_OPTIONS_H
#define CLI_PLOT_OPTIONS_H

#include "cli/options.h"

extern const struct options plot_options;

#endif
