/* SPDX-License-Identifier: Apache-2.0 */
#include "server/noted.h"

#include <stdatomic.h>
#include <string.h>
#include <xxhash.h>

bool noted_anew(struct noted *noted, const char *owner, const char *text)
{
    uint64_t hash = XXH3_64bits_withSeed(text, strlen(text), XXH3_64bits(owner, strlen(owner)));
    return atomic_exchange(&noted->seen[hash % NOTED_MOST], hash) != hash;
}
