/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of `regla bench` as a table, CSV or JSON. */
#ifndef BENCH_BENCH_REPORT_H
#define BENCH_BENCH_REPORT_H

#include "bench/bench_run.h"

#include <stdio.h>

void bench_print_table(const struct bench *bench, FILE *out);
void bench_print_csv(const struct bench *bench, FILE *out);
int bench_print_json(const struct bench *bench, FILE *out, struct error *err);

#endif
