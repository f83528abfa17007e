/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of the queue: its three bounds, and that what is taken is given back. */
#include "server/admission.h"

#include <criterion/criterion.h>

static struct admission make(int64_t requests, int64_t running, int64_t tokens, int64_t bytes)
{
    struct admission admission;
    struct admission_limits limits = {requests, running, tokens, bytes};
    admission_init(&admission, &limits);
    return admission;
}

Test(admission, requests_beyond_the_queue_are_refused)
{
    struct admission gate = make(2, 1, 1000, 1000);
    struct api_error err = {0};
    /* One may run and two wait; while nothing runs yet, three are on their way. */
    for (int i = 0; i < 3; i++)
        cr_assert_eq(admission_enter(&gate, 1, &err), 0);
    cr_assert_eq(admission_enter(&gate, 1, &err), -1);
    cr_assert_eq(err.code, API_QUEUE_FULL);
    /* One begins to run: two wait, the queue is full. */
    admission_leave(&gate, 1);
    admission_update(&gate, 1, true);
    api_error_clear(&err);
    cr_assert_eq(admission_enter(&gate, 1, &err), -1);
    /* It ends, the next begins. */
    admission_leave(&gate, 1);
    cr_assert_eq(admission_enter(&gate, 1, NULL), 0);
    int64_t requests, tokens, bytes;
    admission_read(&gate, &requests, &tokens, &bytes);
    cr_assert_eq(requests, 2);
    cr_assert_eq(tokens, 2);
    admission_destroy(&gate);
}

Test(admission, memory_that_is_short_closes_the_way_through)
{
    struct admission gate = make(1, 100, 1000, 1000);
    admission_update(&gate, 3, true);
    cr_assert_eq(admission_enter(&gate, 1, NULL), 0);
    cr_assert_eq(admission_enter(&gate, 1, NULL), -1);
    admission_update(&gate, 3, false);
    cr_assert_eq(admission_enter(&gate, 1, NULL), 0);
    admission_destroy(&gate);
}

Test(admission, tokens_beyond_the_bound_are_refused)
{
    struct admission gate = make(10, 10, 100, 1000);
    struct api_error err = {0};
    /* what will never fit is the request's fault */
    cr_assert_eq(admission_enter(&gate, 101, &err), -1);
    cr_assert_eq(err.code, API_CONTEXT_LENGTH);
    api_error_clear(&err);
    cr_assert_eq(admission_enter(&gate, 60, NULL), 0);
    cr_assert_eq(admission_enter(&gate, 41, &err), -1);
    cr_assert_eq(err.code, API_QUEUE_FULL);
    cr_assert_eq(admission_enter(&gate, 40, NULL), 0);
    admission_leave(&gate, 60);
    cr_assert_eq(admission_enter(&gate, 60, NULL), 0);
    admission_destroy(&gate);
}

Test(admission, bodies_share_a_budget)
{
    struct admission gate = make(1, 1, 1, 100);
    cr_assert(admission_body(&gate, 70));
    cr_assert_not(admission_body(&gate, 31));
    cr_assert(admission_body(&gate, 30));
    cr_assert(admission_body(&gate, -100));
    int64_t requests, tokens, bytes;
    admission_read(&gate, &requests, &tokens, &bytes);
    cr_assert_eq(bytes, 0);
    admission_destroy(&gate);
}

Test(admission, several_uploads_leave_a_quarter_of_the_budget)
{
    struct admission gate = make(1, 1, 1, 100);
    cr_assert(admission_upload(&gate, 0, 60));
    cr_assert(admission_upload(&gate, 60, 40)); /* alone it may have all */
    cr_assert_not(admission_upload(&gate, 100, 1));
    cr_assert_not(admission_upload(&gate, 0, 1));
    admission_received(&gate, 100);
    cr_assert(admission_body(&gate, -100));
    cr_assert(admission_upload(&gate, 0, 40));
    cr_assert(admission_upload(&gate, 0, 35));
    cr_assert_not(admission_upload(&gate, 0, 1));
    cr_assert_not(admission_upload(&gate, 40, 1));
    cr_assert(admission_body(&gate, 25));
    cr_assert_not(admission_body(&gate, 1));
    /* One is whole: the other may go on as if alone. */
    admission_received(&gate, 35);
    cr_assert_not(admission_upload(&gate, 40, 1));
    cr_assert(admission_body(&gate, -25));
    cr_assert(admission_upload(&gate, 40, 25));
    admission_destroy(&gate);
}

Test(admission, is_busy_from_the_body_to_the_run)
{
    struct admission gate = make(2, 1, 1000, 100);
    struct api_error err = {0};
    cr_assert_not(admission_busy(&gate));
    cr_assert(admission_body(&gate, 10)); /* kept by no request: a compiled grammar */
    cr_assert_not(admission_busy(&gate));
    cr_assert(admission_upload(&gate, 0, 20));
    cr_assert(admission_busy(&gate));
    admission_received(&gate, 20);
    cr_assert_not(admission_busy(&gate));
    cr_assert_eq(admission_enter(&gate, 5, &err), 0);
    cr_assert(admission_busy(&gate));
    admission_leave(&gate, 5);
    cr_assert_not(admission_busy(&gate));
    admission_destroy(&gate);
}
