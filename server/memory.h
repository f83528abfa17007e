/* SPDX-License-Identifier: Apache-2.0 */
/* Hands out the memory that is left once the model is loaded: how much each part of the server may
 * take, so that all of them together stay inside what the machine, the control groups and ulimit
 * leave. */
#ifndef SERVER_MEMORY_H
#define SERVER_MEMORY_H

#include "lib/base/error.h"
#include "lib/base/free_memory.h"

#include <stdint.h>

enum memory_part {
    MEMORY_STATES,   /* --state-memory, of a device that computes in host memory */
    MEMORY_HOST,     /* --host-state-memory */
    MEMORY_FILES,    /* states on their way to and from --state-dir */
    MEMORY_BODIES,   /* --max-body-memory */
    MEMORY_REPLIES,  /* --idempotency-memory */
    MEMORY_TEXTS,    /* tokens of sessions and of kept states */
    MEMORY_DATABASE, /* SQLite's */
    NUM_MEMORY_PARTS
};

enum { MEMORY_AUTO = -1 };

struct memory_needs {
    struct free_memory now, sure;    /* free_memory_read */
    int64_t asked[NUM_MEMORY_PARTS]; /* bytes; MEMORY_AUTO: to be chosen */
    int64_t taken;                   /* by what has no budget: buffers, stacks, connections */
    /* The state of the shortest text that is of use, and of one of usual length. */
    int64_t short_text, usual_text;
};

struct memory_plan {
    int64_t bytes[NUM_MEMORY_PARTS];
    int64_t taken;
    int64_t spare; /* for what malloc keeps, and the kernel's part of it all */
};

/* What was asked for is given. The rest is shared by the parts that were left to choose. Fails with
 * ERROR_NO_MEMORY where that cannot be; the message has the limit with which it could. */
int memory_plan_make(struct memory_plan *plan, const struct memory_needs *needs, struct error *err);
void memory_plan_report(const struct memory_plan *plan, const struct memory_needs *needs);

/* Before anything large is loaded: fails where so many bytes cannot be had. what: "the weights". */
int memory_check(int64_t bytes, const char *what, struct error *err);

/* A budget for bodies until the model is loaded. */
int64_t memory_bodies(void);

/* So many connections as have room in a part of what is left, 4096 at most; and the bytes of so
 * many. */
int64_t memory_connections(void);
int64_t memory_connection_bytes(int64_t connections);

/* Makes malloc give back what is freed. Before the first thread. */
void memory_tune_malloc(void);

#endif
