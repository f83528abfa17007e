/* SPDX-License-Identifier: Apache-2.0 */
/* Which route a method and a path lead to, and what is said where there is none. */
#include "server/http/routes.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct route ROUTES[] = {
    {.method = "GET", .path = "/all"},
    {.method = "POST", .path = "/all"},
    {.method = "GET", .path = "/things/*"},
    {.method = "DELETE", .path = "/things/*"},
    {.method = "POST", .path = "/things/*/part"},
    {.method = "GET", .path = "/rest/**"},
    {.method = "GET", .path = "/v1/both", .either = true},
    {.method = "GET", .path = "/bare", .either = true},
};

static const char *const LACKING[] = {"/later", "/later/**", "/all/of/it"};

static const struct route_table TABLE = {.routes = ROUTES,
                                         .count = sizeof ROUTES / sizeof *ROUTES,
                                         .lacking = LACKING,
                                         .num_lacking = sizeof LACKING / sizeof *LACKING,
                                         .instead = "/all"};

static void expect_route(const char *method, const char *path, int index, const char *parameter)
{
    char got[64] = "";
    struct api_error err = {0};
    const struct route *route = route_find(&TABLE, method, path, got, sizeof got, &err);
    cr_assert(route == &ROUTES[index], "%s %s: %s", method, path, err.message);
    cr_expect_str_eq(got, parameter);
}

static struct api_error refusal(const char *method, const char *path)
{
    char parameter[256];
    struct api_error err = {0};
    cr_expect_null(route_find(&TABLE, method, path, parameter, sizeof parameter, &err));
    return err;
}

Test(routes, a_path_and_a_method_lead_to_one_row)
{
    expect_route("GET", "/all", 0, "");
    expect_route("HEAD", "/all", 0, "");
    expect_route("POST", "/all", 1, "");
    expect_route("GET", "/things/a", 2, "a");
    expect_route("DELETE", "/things/a b", 3, "a b");
    expect_route("POST", "/things/a/part", 4, "a");
    expect_route("GET", "/rest/a/b/c", 5, "a/b/c");
}

Test(routes, some_have_a_version_before_them_or_not)
{
    expect_route("GET", "/v1/both", 6, "");
    expect_route("HEAD", "/both", 6, "");
    expect_route("GET", "/v1/bare", 7, "");
    expect_route("GET", "/bare", 7, "");
    cr_expect(refusal("POST", "/both").code == API_METHOD_NOT_ALLOWED);
    cr_expect(refusal("GET", "/v1/all").code == API_UNKNOWN_PATH);
    cr_expect(refusal("GET", "/v1/v1/both").code == API_UNKNOWN_PATH);
    cr_expect(refusal("GET", "/v1bare").code == API_UNKNOWN_PATH);
}

Test(routes, an_asterisk_is_one_part)
{
    cr_expect(refusal("GET", "/things/a/b").code == API_UNKNOWN_PATH);
    cr_expect(refusal("POST", "/things/a/b/part").code == API_UNKNOWN_PATH);
    char longest[300];
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "/things/", 8);
    longest[sizeof longest - 1] = 0;
    cr_expect(refusal("GET", longest).code == API_UNKNOWN_PATH, "the parameter has no room");
}

Test(routes, another_method_names_those_that_are_allowed)
{
    struct api_error err = refusal("PUT", "/all");
    cr_expect(err.code == API_METHOD_NOT_ALLOWED);
    cr_expect_str_eq(err.allow, "GET, HEAD, POST");
    err = refusal("POST", "/things/a");
    cr_expect_str_eq(err.allow, "GET, HEAD, DELETE");
}

Test(routes, a_known_path_that_is_lacking_names_another)
{
    struct api_error err = refusal("POST", "/later/x");
    cr_expect(err.code == API_NOT_IMPLEMENTED);
    cr_expect_str_eq(err.message, "/later/x is not implemented, /all is");
    cr_expect(refusal("GET", "/all/of/it").code == API_NOT_IMPLEMENTED);
    cr_expect(refusal("GET", "/nowhere").code == API_UNKNOWN_PATH);
}
