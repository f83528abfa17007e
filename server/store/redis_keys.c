/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_keys.h"

#include "api/sessions.h"

#include <stdio.h>
#include <string.h>

void redis_key_session(char key[REDIS_KEY_SIZE], const char *model, const char *owner,
                       const char *id, const char *suffix)
{
    snprintf(key, REDIS_KEY_SIZE, "regla:{%s:%s:%s}%s", model, owner, id, suffix);
}

void redis_key_owner(char key[REDIS_KEY_SIZE], const char *model, const char *owner,
                     const char *name)
{
    snprintf(key, REDIS_KEY_SIZE, "regla:{%s:%s}%s", model, owner, name);
}

const char *redis_key_names(const char *id)
{
    return response_id_valid(id, strlen(id)) ? REDIS_RESPONSES : REDIS_SESSIONS;
}

void redis_key_reply(char key[REDIS_KEY_SIZE], const char *model, const char *owner,
                     const char *hash)
{
    snprintf(key, REDIS_KEY_SIZE, "regla:{%s:%s:%s}:idem", model, owner, hash);
}

void redis_key_owners(char key[REDIS_KEY_SIZE], const char *model)
{
    snprintf(key, REDIS_KEY_SIZE, "regla:{%s}:owners", model);
}

void redis_key_state(char key[REDIS_KEY_SIZE], const char *model, const char *name,
                     const char *kind, int64_t piece)
{
    int length = snprintf(key, REDIS_KEY_SIZE, "regla:{%s:%s}%s", model, name, kind);
    if (piece >= 0)
        snprintf(key + length, (size_t)(REDIS_KEY_SIZE - length), ":%lld", (long long)piece);
}
