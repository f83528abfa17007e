/* SPDX-License-Identifier: Apache-2.0 */
/* A build of the engine as a shared object: side.c compiled with the headers of its own tree and
 * linked with its own libraries, so that builds whose structs differ meet in one process. No type
 * of the engine crosses. All return 0, or -1 with a sentence in `message`. */
#ifndef LOADTEST_BUILDS_SIDE_H
#define LOADTEST_BUILDS_SIDE_H

enum { SIDE_MESSAGE = 512 };

struct side_test {
    const char *preset, *weights, *kv, *activations;
    int generates; /* or reads a prompt */
    int tokens, depth, texts;
};

/* Loads the preset and reads `depth` tokens of each text. What it had opened before is closed. */
typedef int side_open_function(const struct side_test *test, char message[SIDE_MESSAGE]);
/* Takes copies of the texts so many tokens further: the seconds of these steps alone. Steps before
 * them, where texts are generated, have the threads awake. */
typedef int side_run_function(int tokens, double *seconds, char message[SIDE_MESSAGE]);
/* Bytes per second that its threads read, now. */
typedef int side_measure_function(double *bandwidth, char message[SIDE_MESSAGE]);
typedef void side_close_function(void); /* also if it did not open */

#endif
