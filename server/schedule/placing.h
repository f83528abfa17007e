/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the texts of prompts, and gives texts their states: those that begin, and those that were
 * set aside. Which is next is the tenants' turn. All functions are for the engine thread. */
#ifndef SERVER_SCHEDULE_PLACING_H
#define SERVER_SCHEDULE_PLACING_H

#include "server/schedule/room.h"

struct placing {
    struct service *service;
    struct state_tree *tree;
    struct batch *batch;
    struct tenants *tenants;
    struct room room;
    float *logits;   /* [vocab_size]: of a prompt that the tree has as a whole */
    uint64_t opened; /* texts so far */
};

int placing_init(struct placing *placing, struct service *service, struct batch *batch,
                 struct tenants *tenants, int max_texts, struct error *err);
void placing_clear(struct placing *placing);

/* Whether the echo alone is the reply. No token is asked for then, so nothing is computed. */
bool placing_needs_no_engine(const struct job *job);

/* Whether prompts of the job are still to start: it stands in its tenant's line. */
bool placing_job_waits(const struct job *job);

/* Gives places and memory to what waits, tenant by tenant. A job that fails gets its error
 * (job_fail_engine). Returns whether something has to wait for room. */
bool placing_run(struct placing *placing);

#endif
