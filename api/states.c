/* SPDX-License-Identifier: Apache-2.0 */
#include "api/states.h"

const char *tier_name(enum tier tier)
{
    static const char *const NAMES[NUM_TIERS] = {"none", "disk", "host", "device"};
    return NAMES[tier];
}

const char *miss_reason_name(enum miss_reason reason)
{
    static const char *const NAMES[NUM_MISS_REASONS] = {"none", "no_checkpoint", "diverged",
                                                        "evicted", "disabled"};
    return NAMES[reason];
}
