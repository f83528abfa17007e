/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of an API's bodies and replies; else the fuzzer has found a fault. */
#ifndef TESTS_FUZZ_REQUIRE_H
#define TESTS_FUZZ_REQUIRE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

static inline void require(bool condition)
{
    if (!condition)
        abort();
}

static inline void require_json(const char *text, size_t length)
{
    json_t *value = json_loadb(text, length, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    require(value != NULL);
    json_decref(value);
}

#endif
