/* SPDX-License-Identifier: Apache-2.0 */
/* The names of keys in Redis. What is in braces decides where a cluster puts a key: all of a
 * session is together, all lists of an owner, all pieces of a state. */
#ifndef SERVER_STORE_REDIS_KEYS_H
#define SERVER_STORE_REDIS_KEYS_H

#include <stddef.h>
#include <stdint.h>

enum { REDIS_KEY_SIZE = 256 };

/* model: the fingerprint in hex. suffix: "" is the row, ":t" its tokens, ":c" its turns. */
void redis_key_session(char key[REDIS_KEY_SIZE], const char *model, const char *owner,
                       const char *id, const char *suffix);
/* name: of the sets of the names of the owner's sessions and kept responses, below. */
void redis_key_owner(char key[REDIS_KEY_SIZE], const char *model, const char *owner,
                     const char *name);
#define REDIS_SESSIONS ":sessions"
#define REDIS_RESPONSES ":responses"
/* In which of the two the name of a session is. */
const char *redis_key_names(const char *id);
/* Of a request with an Idempotency-Key. hash: of its name. */
void redis_key_reply(char key[REDIS_KEY_SIZE], const char *model, const char *owner,
                     const char *hash);
/* The set of all owners. */
void redis_key_owners(char key[REDIS_KEY_SIZE], const char *model);
/* kind: ":state" of a session, ":prefix" of a prompt. piece < 0: of the head. */
void redis_key_state(char key[REDIS_KEY_SIZE], const char *model, const char *name,
                     const char *kind, int64_t piece);

#endif
