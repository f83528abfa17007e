/* SPDX-License-Identifier: Apache-2.0 */
/* What the longest text is, by the budget and by the device. */
#include "server/capacity.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>

Test(capacity, the_longest_text_fits_the_budget_and_a_step)
{
    const struct engine_options options = {.threads = 1, .state_memory_bytes = (size_t)4 << 20};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, GOLDEN_DIRECTORY "hybrid_regla", &options, &err) == 0, "%s",
              err.message);
    struct engine_info *info = (struct engine_info *)engine_info(engine); /* as another device's */
    int64_t longest = capacity_longest_text(engine);
    cr_expect(engine_state_bytes(engine, longest) <= info->state_memory_bytes);
    cr_expect(engine_state_bytes(engine, longest + 1) > info->state_memory_bytes);
    int64_t pages = (longest + info->kv_page_tokens - 1) / info->kv_page_tokens;
    cr_assert_gt(pages, 3);
    info->max_step_pages = pages;
    cr_expect_eq(capacity_longest_text(engine), longest);
    info->max_step_pages = 3;
    cr_expect_eq(capacity_longest_text(engine), 3 * info->kv_page_tokens);
    engine_close(engine);
}
