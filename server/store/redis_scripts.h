/* SPDX-License-Identifier: Apache-2.0 */
/* What the store does as one step: scripts in Lua. Each touches keys of one hash tag only: of a
 * session the row, its tokens, its turns; of an owner the lists. Times are the store's own.
 *
 * Over each connection they go by EVAL once, and then by EVALSHA; where the store has dropped one
 * (redis_link.h), by EVAL again. */
#ifndef SERVER_STORE_REDIS_SCRIPTS_H
#define SERVER_STORE_REDIS_SCRIPTS_H

#include "server/store/redis_command.h"

enum { REDIS_SHA_SIZE = 41 };

struct redis_script {
    const char *text;
    char sha[REDIS_SHA_SIZE]; /* SHA-1 of it in hex; "": nobody has asked for it yet */
};

/* Begins a command that runs it with so many keys, which follow, and then arguments. Any thread. */
void redis_scripts_begin(struct redis_command *command, struct redis_script *script, int num_keys);
/* The formatted command [size], which began so, by EVAL; malloc'd. NULL: no memory. */
char *redis_scripts_by_text(const struct redis_script *script, const char *bytes, size_t size,
                            size_t *length);

/* ARGV: the version that the caller has, time to live in ms (0: for ever), "1" if this is a use.
 * {fence, what is kept of the key, last use in ms, row...}, where the row is "none", "same", or
 * "row", version, META, tokens, bytes of turns, state, checksum, and both. */
extern struct redis_script redis_script_look;
/* ARGV: version, time to live in ms, holder, lease in ms, field of the key or "". The same, or
 * {"busy", ms left}. What has lived its time goes. */
extern struct redis_script redis_script_take;
/* ARGV: holder, lease in ms. */
extern struct redis_script redis_script_renew;
/* ARGV: holder. Gives the lease back; a row that holds nothing else goes. */
extern struct redis_script redis_script_give;
/* ARGV: holder, fence, version, tokens from, their bytes, bytes in all, turns from, their bytes,
 * bytes in all, META, tokens, state, checksum; field and value of the key, and the time until which
 * keys are known, or nothing. {"done"}, or why not: {"lost"}, {"other"}, {"short"}. */
extern struct redis_script redis_script_commit;
/* ARGV: holder. {"done"}, or {"busy", ms left}. */
extern struct redis_script redis_script_remove;
/* ARGV: time to live in ms. Removes what has lived its time, and nobody works on: {"gone"},
 * {"none"}, or {"used", last use in ms}. */
extern struct redis_script redis_script_expire;

/* For repairs: of a row that nobody works on, else {"busy"}. ARGV: the version that was seen, 0 for
 * none: if it has another by now, {"other"}. The row gets a new version and keeps its last use:
 * {"done"}; one without a version goes: {"gone"}, or was not there: {"none"}. */
extern struct redis_script redis_script_refresh;
/* KEYS: of any type, then what they are called from now on. {"done"}. */
extern struct redis_script redis_script_set_aside;

/* Of an owner's set of names. ARGV: a name. Puts it there, with the time in seconds. */
extern struct redis_script redis_script_name;
/* {now in ms, {name, time, ...}}. */
extern struct redis_script redis_script_names;
/* ARGV: a name and its time, as redis_script_names gave them. Takes the name out: {"gone"}, unless
 * it was put there again: {"other"}. */
extern struct redis_script redis_script_forget;
/* ARGV: time to live in ms, how many at most. {now in ms, {name, time, ...}} of those that may have
 * lived it. */
extern struct redis_script redis_script_due;

/* Of a request with an Idempotency-Key. ARGV: hash of its body, holder, lease in ms. {"new"}: it is
 * the holder's now; {"other"}: another body; {"running", ms left}; or {"reply", status, error,
 * whether it is a stream, bytes, ms left}. */
extern struct redis_script redis_script_reply_take;
/* ARGV: holder, lease in ms. As redis_script_renew. */
extern struct redis_script redis_script_reply_renew;
/* ARGV: holder, time to live in ms, status, error, whether it is a stream, bytes. */
extern struct redis_script redis_script_reply_keep;
/* ARGV: holder. It has no reply. */
extern struct redis_script redis_script_reply_drop;

/* {tokens, bytes of turns} of a session's row; {"busy"} while somebody works on it. */
extern struct redis_script redis_script_size;

/* Of an owner's quota: a hash of what each session counts, or may come to count; "" is all of them.
 * ARGV: a name, bytes, most bytes of all. {"done"}, {"full", bytes of the others}, or {"unknown"}:
 * nobody has counted yet. */
extern struct redis_script redis_script_reserve;
/* ARGV: a name, bytes. From now on it counts so much. */
extern struct redis_script redis_script_count;
/* ARGV: a name, bytes as they were seen ("": none), bytes. The same, unless that has changed. */
extern struct redis_script redis_script_recount;
/* All have been counted: "" is their sum. */
extern struct redis_script redis_script_total;

/* KEYS: head of a prefix. ARGV: its bytes. {'there'}; {'full'}: it would leave too little to the
 * sessions of a store that drops nothing; {'wanted'}. */
extern struct redis_script redis_script_prefix;

#endif
