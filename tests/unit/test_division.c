/* SPDX-License-Identifier: Apache-2.0 */
/* How products are cut for any number of threads, on processors that this machine is not: threads
 * of one speed take tasks as threads_run has them (lib/base/threads.c). */
#include "engine/cpu/device.h"

#include <criterion/criterion.h>

enum { MOST = 192, ALL_ROWS = 3 };

/* Inputs and outputs of the presets' layers and heads, 512 to 3072 wide. */
static const struct shape {
    int64_t in, out;
} shapes[] = {{512, 1536},  {768, 768},   {768, 2304},  {768, 3072},  {3072, 768},
              {1024, 4096}, {4096, 1024}, {2048, 6144}, {768, 50304}, {1024, 151936}};
static const int all_rows[ALL_ROWS] = {1, BLOCK_ROWS, 512};

struct share {
    int64_t next, end;
};

/* The panels of a task: the last of a head may have fewer. */
static int64_t panels_in(int64_t task, int64_t panels, int64_t group, int64_t blocks)
{
    int64_t left = panels - task / blocks * group;
    return left < group ? left : group;
}

/* When the last thread ends, a panel taking one unit of time; `done` becomes the panels of all. */
static int64_t end_of_product(int threads, int64_t panels, int64_t group, int64_t blocks,
                              int64_t *done)
{
    const int64_t tasks = (panels + group - 1) / group * blocks;
    struct share shares[MOST];
    int64_t now[MOST] = {0}, last = 0;
    for (int i = 0; i < threads; i++)
        shares[i] = (struct share){tasks * i / threads, tasks * (i + 1) / threads};
    *done = 0;
    for (;;) {
        int first = 0;
        for (int i = 1; i < threads; i++)
            first = now[i] < now[first] ? i : first;
        int j = 0; /* its own share, then those of the others */
        while (j < threads &&
               shares[(first + j) % threads].next == shares[(first + j) % threads].end)
            j++;
        if (j == threads)
            return last;
        struct share *share = &shares[(first + j) % threads];
        int64_t claim = (share->end - share->next + 3) / 4;
        for (; claim > 0; claim--, share->next++) {
            int64_t count = panels_in(share->next, panels, group, blocks);
            now[first] += count;
            *done += count;
        }
        last = now[first] > last ? now[first] : last;
    }
}

/* At most twice the even share, or than one pair of panels, which no thread parts: few products of
 * few rows have as many pairs as there are threads. On average over all shapes and numbers of
 * threads it is at most 1.15 times. */
Test(division, any_number_of_threads_gets_even_shares)
{
    double sum = 0;
    int count = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int r = 0; r < ALL_ROWS; r++)
            for (int threads = 1; threads <= MOST; threads += threads < 32 ? 1 : 16) {
                const int64_t pairs = (shapes[s].out + 2 * PANEL - 1) / (2 * PANEL);
                const int64_t panels = pairs * PANEL_PAIR, blocks = (all_rows[r] + 95) / 96;
                const int64_t bytes = shapes[s].in * (int64_t)row_bytes(WEIGHTS_BF16);
                const int64_t group =
                    product_task_panels(WEIGHTS_BF16, panels, bytes, all_rows[r], threads);
                cr_assert(group >= PANEL_PAIR && group % PANEL_PAIR == 0);
                int64_t done;
                const int64_t last = end_of_product(threads, panels, group, blocks, &done);
                cr_expect(done == panels * blocks);
                const double mean = (double)done / threads;
                const double least = mean > PANEL_PAIR ? mean : PANEL_PAIR;
                cr_expect((double)last <= 2 * least, "%lld x %lld, %d rows, %d threads: %lld of %g",
                          (long long)shapes[s].in, (long long)shapes[s].out, all_rows[r], threads,
                          (long long)last, least);
                sum += (double)last / least;
                count++;
            }
    cr_expect(sum / count <= 1.15, "%g", sum / count);
}
