/* SPDX-License-Identifier: Apache-2.0 */
/* Which node of a cluster has a key: slots as Redis counts them, and what nodes say, which is
 * hostile. */
#include "server/store/redis_cluster.h"

#include <criterion/criterion.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

static struct redis_connection asked;
static struct redis_cluster *cluster;

static void begin(void)
{
    struct redis_address address = {.host = "10.0.0.1", .port = 7000};
    redis_connection_init(&asked, &address, 1);
    cluster = redis_cluster_create();
}

static void end(void)
{
    redis_cluster_free(cluster);
}

TestSuite(redis_cluster, .init = begin, .fini = end);

static int slot(const char *key)
{
    return redis_cluster_slot(key, strlen(key));
}

/* The first three are of the specification of Redis Cluster, the rest of CLUSTER KEYSLOT. */
Test(redis_cluster, slots_are_those_of_redis)
{
    cr_expect_eq(slot("123456789"), 0x31C3);
    cr_expect_eq(slot("{user1000}.following"), slot("{user1000}.followers"));
    cr_expect_neq(slot("foo{}{bar}"), slot("bar"));
    cr_expect_eq(slot("foo{{bar}}zap"), slot("{bar"));
    cr_expect_eq(slot("foo{bar}{zap}"), slot("bar"));
    cr_expect_eq(slot("foo"), 12182);
    cr_expect_eq(slot("bar"), 5061);
    cr_expect_eq(slot(""), 0);
}

Test(redis_cluster, sends_where_a_node_says)
{
    bool moved;
    struct redis_node *node =
        redis_cluster_follow(cluster, "MOVED 3999 10.0.0.2:7001", &asked, &moved);
    cr_assert_not_null(node);
    cr_expect(moved);
    cr_expect_str_eq(node->main.address.host, "10.0.0.2");
    cr_expect_eq(node->main.address.port, 7001);
    cr_expect_eq(redis_cluster_node(cluster, 3999), node);
    cr_expect_null(redis_cluster_node(cluster, 4000));
    cr_expect(cluster->stale);
    struct redis_node *other = redis_cluster_follow(cluster, "ASK 3999 ::1:7002", &asked, &moved);
    cr_assert_not_null(other);
    cr_expect_not(moved);
    cr_expect_str_eq(other->main.address.host, "::1");
    cr_expect_eq(redis_cluster_node(cluster, 3999), node, "asked for once only");
    /* A node that does not know its address: that by which it was reached. */
    other = redis_cluster_follow(cluster, "MOVED 0 :7003", &asked, &moved);
    cr_assert_not_null(other);
    cr_expect_str_eq(other->main.address.host, "10.0.0.1");
    cr_expect_eq(redis_cluster_follow(cluster, "MOVED 1 10.0.0.2:7001", &asked, &moved), node);
    cr_expect_eq(cluster->count, 3);
}

Test(redis_cluster, hostile_directions_lead_nowhere)
{
    static const char *const HOSTILE[] = {"MOVED",
                                          "MOVED ",
                                          "MOVED x 10.0.0.2:7001",
                                          "MOVED -1 10.0.0.2:7001",
                                          "MOVED 16384 10.0.0.2:7001",
                                          "MOVED 3999",
                                          "MOVED 3999 ",
                                          "MOVED 3999 10.0.0.2",
                                          "MOVED 3999 10.0.0.2:",
                                          "MOVED 3999 10.0.0.2:0",
                                          "MOVED 3999 10.0.0.2:65536",
                                          "MOVED 99999999999999999999 10.0.0.2:1",
                                          "ASKING 1 h:1",
                                          "ERR MOVED 1 h:1",
                                          ""};
    char longest[600];
    bool moved;
    for (size_t i = 0; i < sizeof HOSTILE / sizeof *HOSTILE; i++)
        cr_expect_null(redis_cluster_follow(cluster, HOSTILE[i], &asked, &moved), "%s", HOSTILE[i]);
    snprintf(longest, sizeof longest, "MOVED 1 %0500d:1", 1);
    cr_expect_null(redis_cluster_follow(cluster, longest, &asked, &moved));
    cr_expect_eq(cluster->count, 0);
}

Test(redis_cluster, has_so_many_nodes_at_most)
{
    char text[64];
    bool moved;
    for (int i = 1; i <= REDIS_MOST_NODES; i++) {
        snprintf(text, sizeof text, "MOVED 1 h%d:1", i);
        cr_assert_not_null(redis_cluster_follow(cluster, text, &asked, &moved));
    }
    cr_expect_null(redis_cluster_follow(cluster, "MOVED 1 more:1", &asked, &moved));
    cr_expect_eq(cluster->count, REDIS_MOST_NODES);
}

/* ---- replies as they were recorded ---- */

static redisReply *read_reply(const char *bytes)
{
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    redisReaderFeed(reader, bytes, strlen(bytes));
    cr_assert_eq(redisReaderGetReply(reader, &reply), REDIS_OK, "%s", bytes);
    cr_assert_not_null(reply, "%s", bytes);
    redisReaderFree(reader);
    return reply;
}

static int take_bytes(const char *bytes, bool shards, struct error *err)
{
    redisReply *reply = read_reply(bytes);
    int result =
        (shards ? redis_cluster_take_shards : redis_cluster_take)(cluster, reply, &asked, err);
    freeReplyObject(reply);
    return result;
}

/* Redis 8 of nodes that speak TLS alone, asked without; of the first node it knows no address. */
static const char PORTLESS[] =
    "*2\r\n*3\r\n:0\r\n:5460\r\n*4\r\n$-1\r\n:0\r\n$3\r\nd5e\r\n*0\r\n"
    "*3\r\n:5461\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:0\r\n$3\r\n15b\r\n*0\r\n";

#define SHARD_NODE(ports, role, health)                                    \
    "$2\r\nid\r\n$3\r\n15b\r\n" ports                                      \
    "$2\r\nip\r\n$9\r\n127.0.0.1\r\n$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n" \
    "$4\r\nrole\r\n" role "$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n" health
#define MASTER "$6\r\nmaster\r\n"
#define ONLINE "$6\r\nonline\r\n"

/* Redis 7.0: a shard with a replica that was its master, whose place another has taken; and one
 * whose slots are in two ranges. */
static const char SHARDS[] =
    "*2\r\n*4\r\n$5\r\nslots\r\n*2\r\n:5461\r\n:10921\r\n$5\r\nnodes\r\n*3\r\n"
    "*14\r\n" SHARD_NODE(
        "$8\r\ntls-port\r\n:7101\r\n", "$7\r\nreplica\r\n",
        ONLINE) "*14\r\n" SHARD_NODE("$8\r\ntls-port\r\n:7102\r\n", MASTER,
                                     "$4\r\nfail\r\n") "*16\r\n" SHARD_NODE("$4\r\nport\r\n:"
                                                                            "7003\r\n$8\r\ntls-"
                                                                            "port\r\n:7103\r\n",
                                                                            MASTER,
                                                                            ONLINE) "*4\r\n$"
                                                                                    "5\r\nslots\r\n"
                                                                                    "*4\r\n:0\r\n:"
                                                                                    "5460\r\n:"
                                                                                    "10922\r\n:"
                                                                                    "16383\r\n$"
                                                                                    "5\r\nnodes\r\n"
                                                                                    "*1\r\n"
                                                                                    "*16\r"
                                                                                    "\n" SHARD_NODE(
                                                                                        "$4\r\nport"
                                                                                        "\r\n:"
                                                                                        "7004\r\n$"
                                                                                        "8\r\ntls-"
                                                                                        "port\r\n:"
                                                                                        "7104\r\n",
                                                                                        MASTER,
                                                                                        ONLINE);

Test(redis_cluster, a_port_that_is_left_out_is_in_the_shards)
{
    static const struct {
        bool tls;
        int middle, rest;
    } kinds[] = {{true, 7103, 7104}, {false, 7003, 7004}};
    for (size_t i = 0; i < 2; i++) {
        struct error err = ERROR_INIT;
        asked.address.tls = kinds[i].tls;
        cr_assert_eq(take_bytes(PORTLESS, false, &err), 0, "%s", err.message);
        cr_expect(cluster->portless);
        cr_assert_eq(take_bytes(SHARDS, true, &err), 0, "%s", err.message);
        cr_expect(!cluster->portless && !cluster->stale);
        cr_expect_eq(redis_cluster_node(cluster, 5461)->main.address.port, kinds[i].middle);
        cr_expect_eq(redis_cluster_node(cluster, 10921)->main.address.port, kinds[i].middle);
        cr_expect_eq(redis_cluster_node(cluster, 0)->main.address.port, kinds[i].rest);
        cr_expect_eq(redis_cluster_node(cluster, 16383)->main.address.port, kinds[i].rest);
        cr_expect_str_eq(redis_cluster_node(cluster, 0)->main.address.host, "127.0.0.1");
    }
}

Test(redis_cluster, nodes_that_speak_tls_alone_want_a_location_with_it)
{
    static const char ONLY_TLS[] =
        "*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n"
        "*14\r\n" SHARD_NODE("$8\r\ntls-port\r\n:7101\r\n", MASTER, ONLINE);
    struct error err = ERROR_INIT;
    cr_assert_eq(take_bytes(ONLY_TLS, true, &err), -1);
    cr_expect_eq(err.code, ERROR_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "expected rediss://"), "%s", err.message);
}

Test(redis_cluster, shards_are_hostile)
{
    static const char *const WRONG[] = {
        ":1\r\n",
        "$-1\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*1\r\n$5\r\nslots\r\n",
        "*1\r\n*4\r\n$5\r\nslots\r\n:1\r\n$5\r\nnodes\r\n*0\r\n",
        "*1\r\n*4\r\n$5\r\nslots\r\n*1\r\n:1\r\n$5\r\nnodes\r\n*0\r\n",
    };
    static const char *const RANGES[] = {":5\r\n:4\r\n", ":-1\r\n:4\r\n", ":0\r\n:16384\r\n",
                                         "$1\r\n0\r\n:4\r\n"};
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        struct error err = ERROR_INIT;
        cr_expect_eq(take_bytes(WRONG[i], true, &err), -1, "%s", WRONG[i]);
    }
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++) {
        struct error err = ERROR_INIT;
        char bytes[1000];
        snprintf(bytes, sizeof bytes,
                 "*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n%s$5\r\nnodes\r\n*1\r\n*14\r\n%s", RANGES[i],
                 SHARD_NODE("$4\r\nport\r\n:7101\r\n", MASTER, ONLINE));
        cr_expect_eq(take_bytes(bytes, true, &err), -1, "%s", RANGES[i]);
    }
    for (int slot = 0; slot < REDIS_SLOTS; slot++)
        cr_assert_null(redis_cluster_node(cluster, slot));
}
