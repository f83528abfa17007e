/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_pair.h"

#include "bench/bench_text.h"
#include "bench/statistics.h"

#include <stdlib.h>

static int run_once(struct bench_texts *texts, bool generates, int tokens, double *rate,
                    struct error *err)
{
    double seconds;
    if (bench_texts_begin(texts, tokens, err) != 0 ||
        bench_texts_run(texts, generates, tokens, &seconds, err) != 0)
        return -1;
    bench_texts_end(texts);
    *rate = tokens / seconds;
    return 0;
}

/* medians [2]: 0 where there is nothing to measure. rates [2][repeat] */
static int measure(double medians[2], struct bench_texts *const texts[2], bool generates,
                   int tokens, int repeat, double *rates, struct error *err)
{
    medians[0] = medians[1] = 0;
    if (tokens == 0)
        return 0;
    for (int run = -1; run < repeat; run++) /* the first warms up */
        for (int i = 0; i < 2; i++)
            if (run_once(texts[i], generates, tokens, &rates[i * repeat + (run > 0 ? run : 0)],
                         err) != 0)
                return -1;
    for (int i = 0; i < 2; i++)
        medians[i] = statistics_median(&rates[i * repeat], (size_t)repeat);
    return 0;
}

int bench_pair_run(struct bench_pair out[2], struct engine *const engines[2], int pp, int tg,
                   int repeat, struct error *err)
{
    struct bench_texts *texts[2] = {NULL, NULL};
    double prompt[2], generation[2];
    double *rates = calloc(2 * (size_t)repeat, sizeof *rates);
    int result = rates ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for %d runs", repeat);
    for (int i = 0; i < 2 && result == 0; i++)
        result = bench_texts_open(&texts[i], engines[i], NULL, 0, 1, err);
    if (result == 0)
        result = measure(prompt, texts, false, pp, repeat, rates, err);
    if (result == 0)
        result = measure(generation, texts, true, tg, repeat, rates, err);
    for (int i = 0; i < 2; i++) {
        if (result == 0)
            out[i] = (struct bench_pair){prompt[i], generation[i]};
        bench_texts_close(texts[i]);
    }
    free(rates);
    return result;
}
