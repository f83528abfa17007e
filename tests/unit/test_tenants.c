/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares the server, and what the engine thread remembers of them. */
#include "server/schedule/tenants.h"
#include "server/tenant.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>

static uint64_t of(int family, const char *text)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    void *to = family == AF_INET ? (void *)&four.sin_addr : (void *)&six.sin6_addr;
    cr_assert_eq(inet_pton(family, text, to), 1);
    return tenant_of_address(family == AF_INET ? (struct sockaddr *)&four
                                               : (struct sockaddr *)&six);
}

Test(tenants, addresses_are_told_apart)
{
    const struct sockaddr file = {.sa_family = AF_UNIX};
    cr_assert_neq(of(AF_INET, "10.0.0.1"), of(AF_INET, "10.0.0.2"));
    cr_assert_eq(of(AF_INET, "10.0.0.1"), of(AF_INET6, "::ffff:10.0.0.1"));
    cr_assert_eq(of(AF_INET6, "2001:db8::1"), of(AF_INET6, "2001:db8::ffff:2"));
    cr_assert_neq(of(AF_INET6, "2001:db8::1"), of(AF_INET6, "2001:db8:0:1::1"));
    cr_assert_neq(of(AF_INET, "10.0.0.1"), tenant_of_address(&file));
    cr_assert_eq(tenant_of_address(NULL), tenant_of_address(&file));
    cr_assert_neq(tenant_of_key(1), tenant_of_key(2));
}

/* A turn in which each of them has something in the batch, for which so much was computed. */
static void turn(struct tenants *tenants, struct tenant *a, int64_t of_a, struct tenant *b,
                 int64_t of_b)
{
    a->served += of_a;
    b->served += of_b;
    tenants_turn(tenants);
}

Test(tenants, who_comes_has_had_what_the_least_served_had)
{
    struct tenants tenants = {0};
    struct tenant *a = tenants_get(&tenants, 1), *b = tenants_get(&tenants, 2);
    cr_assert_eq(tenants_get(&tenants, 1), a);
    a->open = a->places = b->open = b->places = 1;
    turn(&tenants, a, 100, b, 30);
    cr_assert_eq(tenants_get(&tenants, 3)->served, 30);
    tenants_turn(&tenants); /* it has nothing: it is forgotten */
    /* What waits for its reader saves nothing up. */
    turn(&tenants, a, 100, b, 0);
    cr_assert_eq(b->served, 200);
    cr_assert_eq(tenants_get(&tenants, 3)->served, 200);
    /* What waits for room does. */
    b->open++;
    turn(&tenants, a, 100, b, 0);
    turn(&tenants, a, 100, b, 0);
    cr_assert_eq(b->served, 200);
    tenants_clear(&tenants);
}
