/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in, and that a key is the same one after keys have been replaced. */
#include "server/http/auth.h"

#include <criterion/criterion.h>

static struct names list(const char *text)
{
    struct names names = {0};
    struct error err = ERROR_INIT;
    cr_assert_eq(auth_read(&names, &text, 1, NULL, &err), 0, "%s", err.message);
    return names;
}

static void replace(struct auth *auth, const char *text)
{
    struct names keys = list(text);
    struct error err = ERROR_INIT;
    cr_assert_eq(auth_learn(auth, &keys, &err), 0, "%s", err.message);
    auth_allow(auth, &keys);
    names_clear(&keys);
}

Test(auth, without_keys_everybody_is_let_in)
{
    struct auth auth;
    auth_init(&auth);
    cr_expect_eq(auth_check(&auth, NULL, NULL), 0);
    cr_expect_eq(auth_check(&auth, "Bearer any", NULL), 0);
    auth_clear(&auth);
}

Test(auth, headers_that_bear_a_key)
{
    struct auth auth;
    auth_init(&auth);
    replace(&auth, "one,two");
    cr_expect_eq(auth_check(&auth, NULL, NULL), -1);
    cr_expect_eq(auth_check(&auth, "Bearer one", NULL), 0);
    cr_expect_eq(auth_check(&auth, "bearer   two \t", NULL), 1);
    cr_expect_eq(auth_check(&auth, NULL, "two"), 1);
    cr_expect_eq(auth_check(&auth, "Basic one", "two"), -1);
    cr_expect_eq(auth_check(&auth, "Bearer tw", NULL), -1);
    cr_expect_eq(auth_check(&auth, "Bearer twoo", NULL), -1);
    cr_expect_eq(auth_check(&auth, "Bearer ", NULL), -1);
    auth_clear(&auth);
}

Test(auth, a_key_keeps_its_index_while_others_come_and_go)
{
    struct auth auth;
    auth_init(&auth);
    replace(&auth, "one,two,one");
    cr_expect_eq(auth.keys.count, 2, "one is one");
    replace(&auth, "three,two");
    cr_expect_eq(auth_check(&auth, NULL, "one"), -1);
    cr_expect_eq(auth_check(&auth, NULL, "two"), 1);
    cr_expect_eq(auth_check(&auth, NULL, "three"), 2);
    replace(&auth, "one");
    cr_expect_eq(auth_check(&auth, NULL, "one"), 0);
    cr_expect_eq(auth_check(&auth, NULL, "three"), -1);
    auth_clear(&auth);
}

Test(auth, what_is_only_known_is_not_let_in)
{
    struct auth auth;
    struct names keys = list("one"), fresh = list("two");
    struct error err = ERROR_INIT;
    auth_init(&auth);
    cr_assert_eq(auth_learn(&auth, &keys, &err), 0);
    auth_allow(&auth, &keys);
    cr_assert_eq(auth_learn(&auth, &fresh, &err), 0);
    cr_expect_eq(auth_check(&auth, NULL, "two"), -1);
    cr_expect_eq(auth_check(&auth, NULL, "one"), 0);
    names_clear(&keys);
    names_clear(&fresh);
    auth_clear(&auth);
}
