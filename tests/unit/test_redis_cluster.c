/* SPDX-License-Identifier: Apache-2.0 */
/* Which node of a cluster has a key: slots as Redis counts them, and what nodes say, which is
 * hostile. */
#include "server/store/redis_cluster.h"

#include <criterion/criterion.h>
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
