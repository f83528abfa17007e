/* SPDX-License-Identifier: Apache-2.0 */
/* What error replies of Redis 6.2, 7 and Valkey, of clusters and Sentinels mean; where Sentinels
 * say that a master is, and how both are written. */
#include "server/store/redis_refusals.h"
#include "server/store/redis_sentinel.h"

#include <criterion/criterion.h>
#include <hiredis/hiredis.h>
#include <string.h>

static const struct {
    const char *said;
    enum error_code code;
    enum redis_outcome outcome;
    bool passes;
} CASES[] = {
    {"READONLY You can't write against a read only replica.", ERROR_IO, REDIS_LEAVE, true},
    {"READONLY You can't write against a read only replica. script: 1bc9, on @user_script:31.",
     ERROR_IO, REDIS_LEAVE, true},
    {"ERR Error running script (call to f_1bc9): @user_script:31: @user_script: 31: -READONLY You "
     "can't write against a read only replica.",
     ERROR_IO, REDIS_LEAVE, true},
    {"@user_script: 3: -READONLY You can't write against a read only replica.", ERROR_IO,
     REDIS_LEAVE, true},
    {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", ERROR_IO,
     REDIS_LEAVE, true},
    {"LOADING Redis is loading the dataset in memory", ERROR_IO, REDIS_LEAVE, true},
    {"LOADING Valkey is loading the dataset in memory", ERROR_IO, REDIS_LEAVE, true},
    {"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
     ERROR_IO, REDIS_LEAVE, true},
    {"ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a "
     "replica is configured to be writable",
     ERROR_IO, REDIS_LEAVE, true},
    {"NOREPLICAS Not enough good replicas to write.", ERROR_IO, REDIS_AGAIN, true},
    {"CLUSTERDOWN The cluster is down", ERROR_IO, REDIS_STAY, true},
    {"CLUSTERDOWN Hash slot not served", ERROR_IO, REDIS_STAY, true},
    {"TRYAGAIN Multiple keys request during rehashing of slot", ERROR_IO, REDIS_STAY, true},
    {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
     ERROR_IO, REDIS_STAY, true},
    {"MISCONF Errors writing to the AOF file: No space left on device", ERROR_IO, REDIS_STAY, true},
    {"ERR max number of clients reached", ERROR_IO, REDIS_LEAVE, true},
    {"IDONTKNOW I have not enough information to reply. Please ask another Sentinel.", ERROR_IO,
     REDIS_STAY, true},
    {"NOAUTH Authentication required.", ERROR_IO, REDIS_LEAVE, false},
    {"WRONGPASS invalid username-password pair or user is disabled.", ERROR_IO, REDIS_LEAVE, false},
    {"OOM command not allowed when used memory > 'maxmemory'.", ERROR_NO_MEMORY, REDIS_STAY, false},
    {"ERR Error running script (call to f_2): @user_script:40: @user_script: 40: -OOM command not "
     "allowed when used memory > 'maxmemory'.",
     ERROR_NO_MEMORY, REDIS_STAY, false},
    {"WRONGTYPE Operation against a key holding the wrong kind of value", ERROR_INVALID, REDIS_STAY,
     false},
    {"ERR Error running script (call to f_2): @user_script:4: WRONGTYPE Operation against a key",
     ERROR_INVALID, REDIS_STAY, false},
    {"ERR user_script:9: attempt to compare number with nil script: 2, on @user_script:9.",
     ERROR_INVALID, REDIS_STAY, false},
    {"MOVED 3999 127.0.0.1:6381", ERROR_UNSUPPORTED, REDIS_STAY, false},
    {"ASK 3999 127.0.0.1:6381", ERROR_UNSUPPORTED, REDIS_STAY, false},
    {"CROSSSLOT Keys in request don't hash to the same slot", ERROR_UNSUPPORTED, REDIS_STAY, false},
    {"NOPERM this user has no permissions to run the 'evalsha' command", ERROR_INTERNAL, REDIS_STAY,
     false},
    {"EXECABORT Transaction discarded because of previous errors.", ERROR_INTERNAL, REDIS_STAY,
     false},
    {"NOSCRIPT No matching script. Please use EVAL.", ERROR_INTERNAL, REDIS_STAY, false},
    {"BUSYKEY Target key name already exists.", ERROR_INTERNAL, REDIS_STAY, false},
    {"ERR unknown command", ERROR_INTERNAL, REDIS_STAY, false},
    {"", ERROR_INTERNAL, REDIS_STAY, false},
};

Test(redis_refusals, each_has_its_outcome)
{
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct error err = ERROR_INIT;
        redis_refusals_set("redis://host:1/0", CASES[i].said, &err);
        cr_expect_eq(err.code, CASES[i].code, "%s", CASES[i].said);
        const struct redis_refusal *refusal = redis_refusals_behind(&err);
        cr_assert_not_null(refusal);
        cr_expect_eq(refusal->outcome, CASES[i].outcome, "%s", CASES[i].said);
        cr_expect_eq(refusal->passes, CASES[i].passes, "%s", CASES[i].said);
        cr_expect_eq(refusal->words != NULL, refusal->code == ERROR_IO, "%s", CASES[i].said);
    }
}

Test(redis_refusals, without_an_answer_the_store_is_out_of_reach)
{
    struct error err = ERROR_INIT;
    error_set(&err, ERROR_IO, "redis://host:1/0: Connection refused");
    cr_expect_null(redis_refusals_behind(&err));
    cr_expect_str_eq(redis_refusals_words(&err), "out of reach");
}

/* ---- Sentinels ---- */

static struct redis_address parsed(const char *location)
{
    struct redis_address address;
    struct error err = ERROR_INIT;
    cr_assert(redis_location(location), "%s", location);
    cr_assert_eq(redis_address_parse(&address, location, &err), 0, "%s: %s", location, err.message);
    return address;
}

Test(redis_sentinel, an_address_names_them_and_the_master)
{
    const char *location = "rediss+sentinel://me:p%40ss@one,[::1]:7000,three:26380/the%2dmaster/3";
    struct redis_address address = parsed(location), sentinel;
    struct error err = ERROR_INIT;
    cr_expect(address.tls && redis_location_tls(location));
    cr_expect_str_eq(address.user, "me");
    cr_expect_str_eq(address.password, "p@ss");
    cr_expect_str_eq(address.master, "the-master");
    cr_expect_eq(address.database, 3);
    cr_expect_null(strstr(address.name, "p%40ss"));
    cr_assert_eq(redis_address_sentinels(&address), 3);
    static const struct {
        const char *host;
        int port;
    } expected[] = {{"one", 26379}, {"::1", 7000}, {"three", 26380}};
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(redis_address_sentinel(&address, i, &sentinel, &err), 0);
        cr_expect_str_eq(sentinel.host, expected[i].host);
        cr_expect_eq(sentinel.port, expected[i].port);
        cr_expect(sentinel.tls);
        cr_expect_str_empty(sentinel.password);
    }
    cr_expect_eq(redis_address_sentinels(&(struct redis_address){0}), 0);
}

Test(redis_sentinel, what_names_none_is_refused)
{
    static const char *const WRONG[] = {
        "redis+sentinel://",          "redis+sentinel:///name",      "redis+sentinel://host",
        "redis+sentinel://host/",     "redis+sentinel://host//1",    "redis+sentinel://,host/name",
        "redis+sentinel://host:0/n",  "redis+sentinel://host,/name", "redis+sentinel://a:b:c/name",
        "redis+sentinel://host/n/-1",
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        struct redis_address address;
        struct error err = ERROR_INIT;
        cr_expect_eq(redis_address_parse(&address, WRONG[i], &err), -1, "%s", WRONG[i]);
        cr_expect_neq(err.code, ERROR_NONE);
    }
}

static int take(struct redis_address *address, const char *bytes)
{
    struct error err = ERROR_INIT;
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    redisReaderFeed(reader, bytes, strlen(bytes));
    cr_assert_eq(redisReaderGetReply(reader, &reply), REDIS_OK);
    cr_assert_not_null(reply);
    int result = redis_sentinel_take(address, reply, "Sentinel one:1", &err);
    cr_expect_eq(err.code, result == 0 ? ERROR_NONE : ERROR_IO);
    freeReplyObject(reply);
    redisReaderFree(reader);
    return result;
}

Test(redis_sentinel, what_they_say_is_hostile)
{
    struct redis_address address = parsed("redis+sentinel://one/master");
    cr_assert_eq(take(&address, "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6380\r\n"), 0);
    cr_expect_str_eq(address.host, "127.0.0.1");
    cr_expect_eq(address.port, 6380);
    cr_expect_str_eq(address.name, "redis://127.0.0.1:6380");
    static const char *const WRONG[] = {
        "*-1\r\n",
        "$-1\r\n",
        ":1\r\n",
        "*0\r\n",
        "*1\r\n$4\r\nhost\r\n",
        "*2\r\n$4\r\nhost\r\n:6380\r\n",
        "*2\r\n$4\r\nhost\r\n$0\r\n\r\n",
        "*2\r\n$4\r\nhost\r\n$1\r\n0\r\n",
        "*2\r\n$4\r\nhost\r\n$5\r\n65536\r\n",
        "*2\r\n$4\r\nhost\r\n$2\r\n7x\r\n",
        "*2\r\n$0\r\n\r\n$1\r\n7\r\n",
        "*2\r\n$-1\r\n$1\r\n7\r\n",
        "*3\r\n$4\r\nhost\r\n$1\r\n7\r\n$1\r\n7\r\n",
        "*2\r\n*1\r\n:1\r\n$1\r\n7\r\n",
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
        cr_expect_eq(take(&address, WRONG[i]), -1, "%s", WRONG[i]);
    cr_expect_str_eq(address.host, "127.0.0.1", "it stays");
}
