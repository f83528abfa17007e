/* SPDX-License-Identifier: Apache-2.0 */
/* The names that replies and metrics use for kept states: where one lies, and why a prompt had to
 * be computed. */
#ifndef API_STATES_H
#define API_STATES_H

enum tier { TIER_NONE, TIER_DISK, TIER_HOST, TIER_DEVICE, NUM_TIERS };
const char *tier_name(enum tier tier); /* "none", "disk", "host", "device" */

/* Why no more of a prompt was reused (api.md). */
enum miss_reason {
    MISS_NONE,          /* all was reused that could be */
    MISS_NO_CHECKPOINT, /* its tokens, or the first of them, are new here or have no checkpoint */
    MISS_DIVERGED,      /* another text continues differently from there */
    MISS_EVICTED,       /* there was a checkpoint further on */
    MISS_DISABLED,
    NUM_MISS_REASONS
};
const char *miss_reason_name(enum miss_reason reason); /* "none", "no_checkpoint", ... */

#endif
