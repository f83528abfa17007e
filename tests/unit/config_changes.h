/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a golden case's config.json with something changed, and what is said of it. */
#ifndef TESTS_UNIT_CONFIG_CHANGES_H
#define TESTS_UNIT_CONFIG_CHANGES_H

#include "engine/model/family.h"
#include "tests/unit/checkpoint.h"

/* Parses text and expects success (message NULL) or an error with exactly this message. */
static inline void expect_text(const char *what, const char *text, const char *message)
{
    struct arena arena = {0};
    struct config config;
    struct error err = ERROR_INIT;
    int result = family_parse(&config, &arena, text, strlen(text), &err);
    if (message) {
        cr_expect(result == -1, "%s: accepted", what);
        cr_expect_str_eq(err.message, message, "%s:\n got %s\nwant %s", what, err.message, message);
    } else {
        cr_expect(result == 0, "%s: %s", what, err.message);
    }
    arena_clear(&arena);
}

static inline void expect_patched(const char *golden, const char *path, const char *value,
                                  const char *message)
{
    json_t *config = golden_config(golden);
    json_patch(config, path, value);
    char *text = json_dumps(config, 0);
    char what[256];
    snprintf(what, sizeof what, "%s with %s = %s", golden, path, value ? value : "(removed)");
    expect_text(what, text, message);
    free(text);
    json_decref(config);
}

struct change {
    const char *path, *value; /* NULL: removed */
    const char *message;      /* NULL: accepted */
};

/* Parses a golden case's config, changed as `changes` [count] say; what is found is the arena's. */
static inline void parse_patched(struct config *config, struct arena *arena, const char *golden,
                                 const struct change *changes, int count)
{
    struct error err = ERROR_INIT;
    json_t *json = golden_config(golden);
    for (int i = 0; i < count; i++)
        json_patch(json, changes[i].path, changes[i].value);
    char *text = json_dumps(json, 0);
    cr_assert(family_parse(config, arena, text, strlen(text), &err) == 0, "%s", err.message);
    free(text);
    json_decref(json);
}

/* Each of the changes [count] by itself. */
static inline void expect_changes(const char *golden, const struct change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect_patched(golden, changes[i].path, changes[i].value, changes[i].message);
}

#endif
