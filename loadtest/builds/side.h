/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a build of the engine as a shared object. side.c is compiled with the headers of
 * its own tree and linked with its own libraries, so that builds with different structs can run in
 * one process. No type of the engine crosses the interface. All functions return 0, or -1 with a
 * sentence in `message`. */
#ifndef LOADTEST_BUILDS_SIDE_H
#define LOADTEST_BUILDS_SIDE_H

enum { SIDE_MESSAGE = 512 };

struct side_test {
    const char *preset, *weights, *kv, *activations;
    int generates; /* 0: reads a prompt */
    int tokens, depth, texts;
};

/* Loads the preset and reads `depth` tokens of each text. Closes what was open before. */
typedef int side_open_function(const struct side_test *test, char message[SIDE_MESSAGE]);
/* Advances copies of the texts by `tokens`. *seconds: the time of these steps alone. Where texts
 * are generated, earlier steps wake the threads first. */
typedef int side_run_function(int tokens, double *seconds, char message[SIDE_MESSAGE]);
/* Measures the bytes per second that its threads read now. */
typedef int side_measure_function(double *bandwidth, char message[SIDE_MESSAGE]);
typedef void side_close_function(void); /* call it also when open failed */

#endif
