/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_scripts.h"

#include <gnutls/crypto.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOW                                                                                   \
    "local t = redis.call('TIME')\n"                                                          \
    "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"                                     \
    "local function text(n) return string.format('%.0f', n) end\n"                            \
    "local function left(holder, ends, me)\n"                                                 \
    "  if holder and holder ~= me and tonumber(ends or 0) > now then return ends - now end\n" \
    "end\n"

/* What only reads is refused where a change is, too: a replica has what its master had. It changes
 * nothing. Other reasons why nothing can be changed do not matter to it. */
#define FROM_MASTER(command)                                                          \
    "local try = redis.pcall('" command "', KEYS[1], '')\n"                           \
    "if type(try) == 'table' and try.err and string.find(try.err, 'READONLY') then\n" \
    "  return try\n"                                                                  \
    "end\n"

/* What a session's row says; what has lived its time (ARGV[2] in ms, 0: none has) is none. Reads
 * all before anything is written: keys of another type end a script as they are. */
#define ROW                                                                                    \
    "local h = redis.call('HMGET', KEYS[1], 'holder', 'until', 'fence', 'used')\n"             \
    "local ttl = tonumber(ARGV[2])\n"                                                          \
    "local over = ttl > 0 and h[4] and now - h[4] >= ttl and not left(h[1], h[2])\n"           \
    "local function row(seen)\n"                                                               \
    "  if over then return {'none'} end\n"                                                     \
    "  local r = redis.call('HMGET', KEYS[1], 'version', 'meta', 'count', 'turns', 'state',\n" \
    "                       'sum')\n"                                                          \
    "  if not r[1] then return {'none'} end\n"                                                 \
    "  if r[1] == seen then return {'same'} end\n"                                             \
    "  return {'row', r[1], r[2], r[3], r[4], r[5], r[6],\n"                                   \
    "          redis.call('GET', KEYS[2]) or '', redis.call('GET', KEYS[3]) or ''}\n"          \
    "end\n"                                                                                    \
    "local function answer(reply, fence, key, used)\n"                                         \
    "  table.insert(reply, 1, used)\n"                                                         \
    "  table.insert(reply, 1, key)\n"                                                          \
    "  table.insert(reply, 1, fence)\n"                                                        \
    "  return reply\n"                                                                         \
    "end\n"

struct redis_script redis_script_look = {.text = NOW FROM_MASTER("HDEL") ROW
                                         "local reply = row(ARGV[1])\n"
                                         "local used = h[4] or '0'\n"
                                         "if ARGV[3] == '1' and reply[1] ~= 'none' then\n"
                                         "  used = text(now)\n"
                                         "  redis.call('HSET', KEYS[1], 'used', used)\n"
                                         "end\n"
                                         "return answer(reply, '0', '', used)\n"};

/* A fence is the time, or more: it grows also where a row has been removed and comes again. */
struct redis_script redis_script_take = {
    .text = NOW ROW "local ms = left(h[1], h[2], ARGV[3])\n"
                    "if ms then return {'busy', text(ms)} end\n"
                    "local fence = text(math.max(tonumber(h[3] or 0) + 1, now))\n"
                    "local key = not over and redis.call('HGET', KEYS[1], ARGV[5]) or ''\n"
                    "local reply = row(ARGV[1])\n"
                    "if over then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) end\n"
                    "redis.call('HSET', KEYS[1], 'holder', ARGV[3], 'until', text(now + ARGV[4]),\n"
                    "           'fence', fence, 'used', text(now))\n"
                    "return answer(reply, fence, key, text(now))\n"};

struct redis_script redis_script_renew = {
    .text = NOW "if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return {'lost'} end\n"
                "redis.call('HSET', KEYS[1], 'until', text(now + ARGV[2]))\n"
                "return {'done'}\n"};

struct redis_script redis_script_give = {
    .text =
        "if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then\n"
        "  redis.call('HDEL', KEYS[1], 'holder', 'until')\n"
        "  if redis.call('HEXISTS', KEYS[1], 'version') == 0 then redis.call('DEL', KEYS[1]) end\n"
        "end\n"
        "return {'done'}\n"};

/* The version of a row is the fence of its last commit: so a commit that is sent again, since its
 * reply was lost, is known. It writes nonetheless: WAIT looks only to what its own connection
 * wrote. The row is written last: without it the bytes behind mean nothing, and what a new session
 * finds there goes, of whatever type it is. */
struct redis_script redis_script_commit = {
    .text =
        NOW "local r = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'version')\n"
            "if r[3] == ARGV[2] then\n"
            "  redis.call('HSET', KEYS[1], 'version', ARGV[2])\n"
            "  return {'done'}\n"
            "end\n"
            "if r[1] ~= ARGV[1] or r[2] ~= ARGV[2] then return {'lost'} end\n"
            "if (r[3] or '0') ~= ARGV[3] then return {'other'} end\n"
            "if not r[3] then redis.call('DEL', KEYS[2], KEYS[3]) end\n"
            "if redis.call('STRLEN', KEYS[2]) < tonumber(ARGV[4]) or\n"
            "   redis.call('STRLEN', KEYS[3]) < tonumber(ARGV[7]) then return {'short'} end\n"
            "local function put(key, from, bytes, total)\n"
            "  if #bytes > 0 then redis.call('SETRANGE', key, from, bytes) end\n"
            "  if redis.call('STRLEN', key) <= tonumber(total) then return end\n"
            "  if total == '0' then redis.call('DEL', key) return end\n"
            "  redis.call('SET', key, redis.call('GETRANGE', key, 0, total - 1))\n"
            "end\n"
            "put(KEYS[2], ARGV[4], ARGV[5], ARGV[6])\n"
            "put(KEYS[3], ARGV[7], ARGV[8], ARGV[9])\n"
            "redis.call('HSET', KEYS[1], 'version', ARGV[2], 'meta', ARGV[10], 'count', ARGV[11],\n"
            "           'turns', ARGV[9], 'state', ARGV[12], 'sum', ARGV[13], 'used', text(now))\n"
            "redis.call('HDEL', KEYS[1], 'holder', 'until')\n"
            "if ARGV[14] then\n"
            "  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do\n"
            "    if string.sub(field, 1, 2) == 'k:' then\n"
            "      local ends = string.match(redis.call('HGET', KEYS[1], field), ':(%d+)$')\n"
            "      if tonumber(ends or 0) < tonumber(ARGV[16]) then\n"
            "        redis.call('HDEL', KEYS[1], field)\n"
            "      end\n"
            "    end\n"
            "  end\n"
            "  redis.call('HSET', KEYS[1], ARGV[14], ARGV[15])\n"
            "end\n"
            "return {'done'}\n"};

/* A session that came anew, or was changed, since the version that is to be removed stays. What is
 * gone is removed again, for WAIT. */
struct redis_script redis_script_remove = {
    .text = NOW "local h = redis.call('HMGET', KEYS[1], 'holder', 'until', 'version')\n"
                "local ms = left(h[1], h[2], ARGV[1])\n"
                "if ms then return {'busy', text(ms)} end\n"
                "if h[3] and h[3] ~= ARGV[2] then return {'other'} end\n"
                "if redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) == 0 then\n"
                "  redis.call('HSET', KEYS[1], 'gone', '1')\n"
                "  redis.call('DEL', KEYS[1])\n"
                "end\n"
                "return {'done'}\n"};

/* A row that does not say when it was used begins to live now. */
struct redis_script redis_script_expire = {
    .text =
        NOW "local h = redis.call('HMGET', KEYS[1], 'holder', 'until', 'used')\n"
            "if redis.call('EXISTS', KEYS[1]) == 0 then return {'none'} end\n"
            "local used = h[3] or text(now)\n"
            "if not h[3] then redis.call('HSET', KEYS[1], 'used', used) end\n"
            "if left(h[1], h[2]) or now - used < tonumber(ARGV[1]) then return {'used', used} end\n"
            "redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])\n"
            "return {'gone'}\n"};

/* ---- repairs ---- */

/* Like a lease's fence, the version is higher than all before. */
struct redis_script redis_script_refresh = {
    .text = NOW "local h = redis.call('HMGET', KEYS[1], 'holder', 'until', 'fence', 'version')\n"
                "if redis.call('EXISTS', KEYS[1]) == 0 then return {'none'} end\n"
                "if left(h[1], h[2]) then return {'busy'} end\n"
                "if (h[4] or '0') ~= ARGV[1] then return {'other'} end\n"
                "if not h[4] then\n"
                "  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])\n"
                "  return {'gone'}\n"
                "end\n"
                "local fence = text(math.max(tonumber(h[3] or 0) + 1, now))\n"
                "redis.call('HSET', KEYS[1], 'fence', fence, 'version', fence)\n"
                "redis.call('HDEL', KEYS[1], 'holder', 'until')\n"
                "return {'done'}\n"};

struct redis_script redis_script_set_aside = {
    .text = NOW "local ends = redis.pcall('HGET', KEYS[1], 'until')\n"
                "if (tonumber(ends) or 0) > now then return {'busy'} end\n"
                "for i = 1, 3 do\n"
                "  if redis.call('EXISTS', KEYS[i]) == 1 then\n"
                "    redis.call('RENAME', KEYS[i], KEYS[i + 3])\n"
                "  end\n"
                "end\n"
                "return {'done'}\n"};

/* ---- the names of an owner's sessions ---- */

struct redis_script redis_script_name = {
    .text = NOW "redis.call('ZADD', KEYS[1], text(math.floor(now / 1000)), ARGV[1])\n"
                "return {'done'}\n"};

struct redis_script redis_script_names = {
    .text = NOW FROM_MASTER(
        "ZREM") "return {text(now), redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}\n"};

struct redis_script redis_script_forget = {
    .text = "if redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then\n"
            "  redis.call('ZREM', KEYS[1], ARGV[1])\n"
            "  return {'gone'}\n"
            "end\n"
            "return {'other'}\n"};

struct redis_script redis_script_due = {
    .text = NOW "return {text(now), redis.call('ZRANGEBYSCORE', KEYS[1], '-inf',\n"
                "                             text((now - ARGV[1]) / 1000), 'WITHSCORES',\n"
                "                             'LIMIT', 0, ARGV[2])}\n"};

/* ---- an owner's quota ---- */

struct redis_script redis_script_size = {
    .text = NOW "local h = redis.call('HMGET', KEYS[1], 'holder', 'until', 'count', 'turns')\n"
                "if left(h[1], h[2]) then return {'busy'} end\n"
                "return {h[3] or '0', h[4] or '0'}\n"};

#define COUNT                                                                             \
    "local all = redis.call('HGET', KEYS[1], '')\n"                                       \
    "local own = redis.call('HGET', KEYS[1], ARGV[1])\n"                                  \
    "local function text(n) return string.format('%.0f', n) end\n"                        \
    "local function count(bytes)\n"                                                       \
    "  if bytes == 0 then redis.call('HDEL', KEYS[1], ARGV[1])\n"                         \
    "  else redis.call('HSET', KEYS[1], ARGV[1], text(bytes)) end\n"                      \
    "  if all then redis.call('HSET', KEYS[1], '', text(all - (own or 0) + bytes)) end\n" \
    "  return {'done'}\n"                                                                 \
    "end\n"

struct redis_script redis_script_reserve = {
    .text = COUNT "if not all then return {'unknown'} end\n"
                  "local others, bytes = all - (own or 0), tonumber(ARGV[2])\n"
                  "if bytes > ARGV[3] - others then return {'full', text(others)} end\n"
                  "return count(bytes)\n"};

struct redis_script redis_script_count = {.text = COUNT "return count(tonumber(ARGV[2]))\n"};

struct redis_script redis_script_recount = {.text = COUNT
                                            "if (own or '') ~= ARGV[2] then return {'done'} end\n"
                                            "return count(tonumber(ARGV[3]))\n"};

struct redis_script redis_script_total = {
    .text = "local sum, all = 0, redis.call('HGETALL', KEYS[1])\n"
            "for i = 1, #all, 2 do\n"
            "  if all[i] == '' then return {'done'} end\n"
            "  sum = sum + all[i + 1]\n"
            "end\n"
            "redis.call('HSET', KEYS[1], '', string.format('%.0f', sum))\n"
            "return {'done'}\n"};

/* ---- replies to requests with an Idempotency-Key ---- */

struct redis_script redis_script_reply_take = {
    .text = "local h = redis.call('HMGET', KEYS[1], 'body', 'holder', 'status', 'error', 'stream', "
            "'data')\n"
            "local left = string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), 0))\n"
            "if h[1] and h[1] ~= ARGV[1] then return {'other'} end\n"
            "if h[1] and h[2] and h[2] ~= ARGV[2] then return {'running', left} end\n"
            "if h[1] and h[3] then return {'reply', h[3], h[4], h[5], h[6], left} end\n"
            "redis.call('HSET', KEYS[1], 'body', ARGV[1], 'holder', ARGV[2])\n"
            "redis.call('PEXPIRE', KEYS[1], ARGV[3])\n"
            "return {'new'}\n"};

#define IF_HELD "if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return {'lost'} end\n"

struct redis_script redis_script_reply_renew = {.text = IF_HELD
                                                "redis.call('PEXPIRE', KEYS[1], ARGV[2])\n"
                                                "return {'done'}\n"};

struct redis_script redis_script_reply_keep = {
    .text = IF_HELD
    "redis.call('HSET', KEYS[1], 'status', ARGV[3], 'error', ARGV[4], 'stream', ARGV[5],\n"
    "           'data', ARGV[6])\n"
    "redis.call('HDEL', KEYS[1], 'holder')\n"
    "redis.call('PEXPIRE', KEYS[1], ARGV[2])\n"
    "return {'done'}\n"};

struct redis_script redis_script_reply_drop = {.text = IF_HELD "redis.call('DEL', KEYS[1])\n"
                                                               "return {'done'}\n"};

struct redis_script redis_script_prefix = {
    .text = "if redis.call('EXISTS', KEYS[1]) == 1 then return {'there'} end\n"
            "local info = redis.pcall('INFO', 'memory')\n"
            "if type(info) ~= 'string' then return {'full'} end\n"
            "local function number(name)\n"
            "  return tonumber(string.match(info, name .. ':(%d+)') or '0')\n"
            "end\n"
            "local most, used = number('maxmemory'), number('used_memory')\n"
            "if most == 0 or 2 * (used + ARGV[1]) <= most then return {'wanted'} end\n"
            "return {'full'}\n"};

/* ---- commands ---- */

static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* guards sha of all */

/* False: this system has no SHA-1. */
static bool name_script(struct redis_script *script)
{
    unsigned char hash[(REDIS_SHA_SIZE - 1) / 2];
    pthread_mutex_lock(&naming);
    bool named = script->sha[0] != 0;
    if (!named &&
        gnutls_hash_fast(GNUTLS_DIG_SHA1, script->text, strlen(script->text), hash) == 0) {
        for (size_t i = 0; i < sizeof hash; i++)
            snprintf(script->sha + 2 * i, 3, "%02x", hash[i]);
        named = true;
    }
    pthread_mutex_unlock(&naming);
    return named;
}

void redis_scripts_begin(struct redis_command *command, struct redis_script *script, int num_keys)
{
    const bool named = name_script(script);
    redis_command_begin(command, named ? "EVALSHA" : "EVAL");
    redis_command_text(command, named ? script->sha : script->text);
    redis_command_number(command, num_keys);
    command->script = named ? script : NULL;
}

char *redis_scripts_by_text(const struct redis_script *script, const char *bytes, size_t size,
                            size_t *length)
{
    static const char NAME[] = "$7\r\nEVALSHA\r\n$40\r\n";
    const char *name = strstr(bytes, NAME), *rest = name + strlen(NAME) + REDIS_SHA_SIZE + 1;
    const size_t behind = size - (size_t)(rest - bytes), text = strlen(script->text);
    char *out = malloc(size + text + 64);
    if (out == NULL)
        return NULL;
    int head = sprintf(out, "%.*s$4\r\nEVAL\r\n$%zu\r\n%s\r\n", (int)(name - bytes), bytes, text,
                       script->text);
    memcpy(out + head, rest, behind);
    *length = (size_t)head + behind;
    return out;
}
