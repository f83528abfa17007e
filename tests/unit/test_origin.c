/* SPDX-License-Identifier: Apache-2.0 */
/* What pages of other origins may do, and under which names the server may be reached. */
#include "server/http/origin.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

static struct names list(const char *text)
{
    struct names names = {0};
    struct error err = ERROR_INIT;
    cr_assert_eq(names_add_lists(&names, &text, 1, &err), 0);
    return names;
}

static void expect_host(struct origin_rules *rules, const char *host, bool allowed)
{
    cr_expect_eq(origin_host_allowed(rules, host), allowed, "%s", host ? host : "none");
}

Test(origin, a_page_reads_replies_if_its_origin_is_listed)
{
    struct origin_rules rules = {.origins = list("http://localhost:3000, https://a.example ,,")};
    cr_expect_str_eq(origin_allowed(&rules, "http://localhost:3000"), "http://localhost:3000");
    cr_expect_str_eq(origin_allowed(&rules, "https://a.example"), "https://a.example");
    cr_expect_null(origin_allowed(&rules, "http://localhost:3001"));
    cr_expect_null(origin_allowed(&rules, "https://a.example.evil"));
    cr_expect_null(origin_allowed(&rules, "null"));
    cr_expect_null(origin_allowed(&rules, ""));
    cr_expect_null(origin_allowed(&rules, NULL));
    names_clear(&rules.origins);
    cr_expect_null(origin_allowed(&rules, "http://localhost:3000"));
    rules.origins = list("*");
    cr_expect_str_eq(origin_allowed(&rules, "null"), "*");
    names_clear(&rules.origins);
}

Test(origin, a_name_that_an_attacker_can_point_here_is_refused)
{
    struct origin_rules rules = {.checks_host = true};
    static const char *const ours[] = {
        NULL,          "",         "localhost",      "localhost:8000",
        "127.0.0.1",   "[::1]:80", "192.168.1.7:80", "x",
        "a.localhost", "box:8000"};
    static const char *const others[] = {
        "evil.example",  "evil.example:8000", "127.0.0.1.nip.io", "evil.localhost.example",
        "localhost.",    "xlocalhost.a",      ".localhost.x",     "127.0.0.1:80@evil.example",
        "[evil.example", "localhost#.evil",   "localhost/evil",   "1.2.3.4.5"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        expect_host(&rules, ours[i], true);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_host(&rules, others[i], false);
    rules.checks_host = false;
    expect_host(&rules, "evil.example", true);
}

Test(origin, where_others_reach_the_server_names_without_a_dot_are_others_too)
{
    struct names listening = list("0.0.0.0,[::],llm.lan,unix:/x"), own = {0};
    struct error err = ERROR_INIT;
    char machine[256] = "";
    cr_assert_eq(origin_add_own(&own, &listening, &err), 0);
    struct origin_rules rules = {.checks_host = true, .strict = true, .own = own};
    gethostname(machine, sizeof machine - 1);
    static const char *const ours[] = {
        NULL, "", "localhost:8000", "10.0.0.1", "[::1]", "a.localhost", "LLM.lan:80"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        expect_host(&rules, ours[i], true);
    expect_host(&rules, machine, true);
    expect_host(&rules, "regla-1:8000", false);
    expect_host(&rules, "x.llm.lan", false);
    rules.hosts = list("regla-1");
    expect_host(&rules, "regla-1:8000", true);
    names_clear(&rules.hosts);
    names_clear(&listening);
    names_clear(&own);
}

static void expect_change(const struct origin_rules *rules, const char *origin, const char *site,
                          const char *host, bool allowed)
{
    cr_expect_eq(origin_may_change(rules, origin, site, host), allowed, "%s, %s, %s",
                 origin ? origin : "none", site ? site : "none", host ? host : "none");
}

Test(origin, a_page_of_another_origin_changes_nothing)
{
    struct origin_rules rules = {.origins = list("https://a.example")};
    expect_change(&rules, NULL, NULL, "x", true);
    expect_change(&rules, "https://a.example", "cross-site", "x", true);
    expect_change(&rules, "https://b.example", "same-origin", "x", true);
    expect_change(&rules, "https://b.example", "none", "x", true);
    expect_change(&rules, "https://b.example", "cross-site", "b.example", false);
    expect_change(&rules, "http://x:3000", "same-site", "x:8000", false);
    expect_change(&rules, NULL, "cross-site", "x", false);
    expect_change(&rules, "http://x:8000", NULL, "X:8000", true);
    expect_change(&rules, "https://x", NULL, "x:443", true);
    expect_change(&rules, "http://[::1]:80", NULL, "[::1]", true);
    expect_change(&rules, "http://x:3000", NULL, "x:8000", false);
    expect_change(&rules, "http://x", NULL, "x:8000", false);
    expect_change(&rules, "https://x.evil", NULL, "x", false);
    expect_change(&rules, "https://x@evil", NULL, "x", false);
    expect_change(&rules, "ftp://x", NULL, "x", false);
    expect_change(&rules, "null", NULL, "x", false);
    expect_change(&rules, "", NULL, "x", false);
    expect_change(&rules, "http://x", NULL, NULL, false);
    names_clear(&rules.origins);
    rules.origins = list("*");
    expect_change(&rules, NULL, "cross-site", "x", true);
    expect_change(&rules, "null", "cross-site", "x", true);
    names_clear(&rules.origins);
}

Test(origin, names_can_be_added)
{
    struct origin_rules rules = {.checks_host = true, .hosts = list("llm.example,.b.example")};
    expect_host(&rules, "llm.example:443", true);
    expect_host(&rules, "LLM.Example", true);
    expect_host(&rules, "b.example", true);
    expect_host(&rules, "x.y.b.example:1", true);
    expect_host(&rules, "a.llm.example", false);
    expect_host(&rules, "xb.example", false);
    names_clear(&rules.hosts);
    rules.hosts = list("*");
    expect_host(&rules, "evil.example", true);
    names_clear(&rules.hosts);
}
