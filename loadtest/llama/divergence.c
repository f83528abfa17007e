/* SPDX-License-Identifier: Apache-2.0 */
/* How far llama.cpp's predictions with one GGUF file are from its own with another of the same
 * vocabulary, in f32 keys and values: for loadtest/divergence.py.
 *
 *   divergence REFERENCE GGUF IDS TOKENS WINDOW
 *     After each of the first so many of a file of ids, in windows of so many, as `regla compare`
 *     has them (--tokens, --context). Prints one line of JSON.
 */
#include "bench/divergence.h"
#include "lib/base/cpus.h"
#include "loadtest/llama/peer.h"

#include <stdio.h>
#include <stdlib.h>

enum { COMPARED = 2 };

static int open_both(struct peer peers[COMPARED], char **paths, int window, struct error *err)
{
    for (int i = 0; i < COMPARED; i++) {
        const struct peer_options options = {.path = paths[i],
                                             .load = PEER_AS_IT_LIKES,
                                             .kv = KV_F32,
                                             .threads = cpus_allowed(),
                                             .texts = 1,
                                             .length = window};
        if (peer_open(&peers[i], &options, err) != 0)
            return -1;
    }
    if (peers[0].vocab_size == peers[1].vocab_size)
        return 0;
    return error_set(err, ERROR_INVALID, "%s: expected a vocabulary of %d tokens, got %d", paths[1],
                     peers[0].vocab_size, peers[1].vocab_size);
}

/* Adds what both say after each id [count] of a window. */
static int add_window(struct divergences *all, struct peer peers[COMPARED], const int *ids,
                      int count, struct error *err)
{
    for (int i = 0; i < COMPARED; i++)
        if (peer_cut(&peers[i], 0, err) != 0 || peer_read(&peers[i], ids, count, err) != 0)
            return -1;
    for (int t = 0; t < count; t++)
        if (divergences_add(all, llama_get_logits_ith(peers[0].context, t),
                            llama_get_logits_ith(peers[1].context, t), peers[0].vocab_size,
                            err) != 0)
            return -1;
    return 0;
}

static int compare(char **arguments, struct peer peers[COMPARED], struct divergences *all, int *ids,
                   struct error *err)
{
    int tokens = atoi(arguments[3]), window = atoi(arguments[4]);
    if (open_both(peers, arguments, window, err) != 0 ||
        peer_read_ids(arguments[2], ids, tokens, peers[0].vocab_size, err) != 0)
        return -1;
    for (int done = 0, count; done < tokens; done += count) {
        count = tokens - done < window ? tokens - done : window;
        if (add_window(all, peers, ids + done, count, err) != 0)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int tokens = argc == 6 ? atoi(argv[4]) : 0, window = argc == 6 ? atoi(argv[5]) : 0;
    if (tokens < 1 || window < 1 || window > PEER_BATCH) {
        fprintf(stderr,
                "usage: divergence REFERENCE GGUF IDS TOKENS WINDOW; a window has at most %d\n",
                PEER_BATCH);
        return 2;
    }
    struct error err = ERROR_INIT;
    struct peer peers[COMPARED] = {0};
    struct divergences all = {0};
    int *ids = calloc((size_t)tokens, sizeof *ids);
    int result = ids == NULL ? error_set(&err, ERROR_NO_MEMORY, "no memory for %d ids", tokens)
                             : compare(argv + 1, peers, &all, ids, &err);
    if (result == 0) {
        const struct divergence_summary found = divergences_summary(&all);
        printf("{\"tokens\": %zu, \"mean\": %.9g, \"p99\": %.9g, \"worst\": %.9g, \"same_best\": "
               "%.9g}\n",
               all.count, found.mean, found.p99, found.worst, found.same_best);
    } else {
        fprintf(stderr, "divergence: %s\n", err.message);
    }
    divergences_clear(&all);
    free(ids);
    for (int i = 0; i < COMPARED; i++)
        peer_close(&peers[i]);
    return result != 0;
}
