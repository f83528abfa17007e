/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/blob_op.h"
#include "server/store/store_accounts.h"

#include <criterion/criterion.h>

static struct store_report ended(enum store_what what, enum error_code code,
                                 enum store_refusal refusal)
{
    struct store_accounts accounts;
    struct store_report report;
    struct store_get get = {
        .blob.op = {.kind = STORE_CHECKPOINT, .what = what, .refusal = refusal}};
    struct store_op *op = &get.blob.op;
    store_accounts_init(&accounts, 0);
    store_accounts_begin(&accounts, op);
    if (code != ERROR_NONE)
        error_set(&op->error, code, "it is so");
    store_accounts_end(&accounts, op);
    store_accounts_copy(&accounts, &report);
    store_accounts_clear(&accounts);
    cr_assert_eq(report.counts[STORE_CHECKPOINT].waiting, 0);
    return report;
}

/* What is wanted while the store is away is not gone. */
Test(store_accounts, states_are_gone_or_the_store_is_away)
{
    struct store_report report = ended(STORE_GET, ERROR_IO, STORE_AWAY);
    cr_assert_eq(report.counts[STORE_CHECKPOINT].ended[STORE_END_AWAY], 1);
    cr_assert_eq(report.states_gone, 0);
    report = ended(STORE_GET, ERROR_IO, STORE_GONE);
    cr_assert_eq(report.counts[STORE_CHECKPOINT].ended[STORE_END_FAILED], 1);
    cr_assert_eq(report.states_gone, 1);
    cr_assert_eq(ended(STORE_GET, ERROR_INVALID, STORE_ACCEPTED).states_gone, 1);
    cr_assert_eq(ended(STORE_REMOVE, ERROR_INVALID, STORE_ACCEPTED).states_gone, 0);
    report = ended(STORE_GET, ERROR_NONE, STORE_ACCEPTED);
    cr_assert_eq(report.states_read, 1);
    cr_assert_eq(report.states_gone, 0);
}
