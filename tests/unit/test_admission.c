/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of the queue: its three bounds, that what is taken is given back, and that
 * nobody is kept out by what another has. */
#include "server/admission.h"

#include <criterion/criterion.h>

enum { A, B, C };

static struct admission make(int64_t requests, int64_t running, int64_t tokens, int64_t bytes)
{
    struct admission admission;
    struct admission_limits limits = {requests, running, tokens, bytes};
    admission_init(&admission, &limits);
    return admission;
}

static void expect_refused(struct admission *gate, int64_t requests, int64_t tokens)
{
    int64_t refused[NUM_ADMISSION_LIMITS];
    admission_read_refused(gate, refused);
    cr_expect_eq(refused[ADMISSION_REQUESTS], requests);
    cr_expect_eq(refused[ADMISSION_TOKENS], tokens);
}

Test(admission, requests_beyond_the_queue_are_refused)
{
    struct admission gate = make(2, 1, 1000, 1000);
    struct api_error err = {0};
    /* One may run and two wait; while nothing runs yet, three are on their way. */
    for (int i = 0; i < 3; i++)
        cr_assert_eq(admission_enter(&gate, A, 1, &err), 0);
    cr_assert_eq(admission_enter(&gate, A, 1, &err), -1);
    cr_assert_eq(err.code, API_QUEUE_FULL);
    /* One begins to run: two wait, the queue is full. */
    admission_leave(&gate, A, 1);
    admission_update(&gate, 1, true);
    api_error_clear(&err);
    cr_assert_eq(admission_enter(&gate, A, 1, &err), -1);
    /* It ends, the next begins. */
    admission_leave(&gate, A, 1);
    cr_assert_eq(admission_enter(&gate, A, 1, NULL), 0);
    int64_t requests, tokens, bytes;
    admission_read(&gate, &requests, &tokens, &bytes);
    cr_assert_eq(requests, 2);
    cr_assert_eq(tokens, 2);
    expect_refused(&gate, 2, 0);
    admission_destroy(&gate);
}

Test(admission, memory_that_is_short_closes_the_way_through)
{
    struct admission gate = make(1, 100, 1000, 1000);
    admission_update(&gate, 3, true);
    cr_assert_eq(admission_enter(&gate, A, 1, NULL), 0);
    cr_assert_eq(admission_enter(&gate, A, 1, NULL), -1);
    admission_update(&gate, 3, false);
    cr_assert_eq(admission_enter(&gate, A, 1, NULL), 0);
    admission_destroy(&gate);
}

Test(admission, tokens_beyond_the_bound_are_refused)
{
    struct admission gate = make(10, 10, 100, 1000);
    struct api_error err = {0};
    /* what will never fit is the request's fault */
    cr_assert_eq(admission_enter(&gate, A, 101, &err), -1);
    cr_assert_eq(err.code, API_CONTEXT_LENGTH);
    api_error_clear(&err);
    cr_assert_eq(admission_enter(&gate, A, 60, NULL), 0);
    cr_assert_eq(admission_enter(&gate, A, 41, &err), -1);
    cr_assert_eq(err.code, API_QUEUE_FULL);
    cr_assert_eq(admission_enter(&gate, A, 40, NULL), 0);
    admission_leave(&gate, A, 60);
    cr_assert_eq(admission_enter(&gate, A, 60, NULL), 0);
    expect_refused(&gate, 0, 1); /* not what will never fit */
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
    cr_assert(admission_upload(&gate, A, 0, 60));
    cr_assert(admission_upload(&gate, A, 60, 40)); /* alone it may have all */
    cr_assert_not(admission_upload(&gate, A, 100, 1));
    cr_assert_not(admission_upload(&gate, A, 0, 1));
    admission_received(&gate, A, 100);
    cr_assert(admission_body(&gate, -100));
    cr_assert(admission_upload(&gate, A, 0, 40));
    cr_assert(admission_upload(&gate, A, 0, 35));
    cr_assert_not(admission_upload(&gate, A, 0, 1));
    cr_assert_not(admission_upload(&gate, A, 40, 1));
    cr_assert(admission_body(&gate, 25));
    cr_assert_not(admission_body(&gate, 1));
    /* One is whole: the other may go on as if alone. */
    admission_received(&gate, A, 35);
    cr_assert_not(admission_upload(&gate, A, 40, 1));
    cr_assert(admission_body(&gate, -25));
    cr_assert(admission_upload(&gate, A, 40, 25));
    admission_destroy(&gate);
}

Test(admission, is_busy_from_the_body_to_the_run)
{
    struct admission gate = make(2, 1, 1000, 100);
    struct api_error err = {0};
    cr_assert_not(admission_busy(&gate));
    cr_assert(admission_body(&gate, 10)); /* kept by no request: a compiled grammar */
    cr_assert_not(admission_busy(&gate));
    cr_assert(admission_upload(&gate, A, 0, 20));
    cr_assert(admission_busy(&gate));
    admission_received(&gate, A, 20);
    cr_assert_not(admission_busy(&gate));
    cr_assert_eq(admission_enter(&gate, A, 5, &err), 0);
    cr_assert(admission_busy(&gate));
    admission_leave(&gate, A, 5);
    cr_assert_not(admission_busy(&gate));
    admission_destroy(&gate);
}

static int64_t enter_all(struct admission *gate, uint64_t tenant, int64_t tokens)
{
    int64_t count = 0;
    while (admission_enter(gate, tenant, tokens, NULL) == 0)
        count++;
    return count;
}

Test(admission, a_full_queue_has_places_for_others)
{
    struct admission gate = make(12, 1, 1000, 1000);
    admission_update(&gate, 1, true);
    cr_assert_eq(enter_all(&gate, A, 1), 12); /* alone it may have all */
    cr_assert_eq(enter_all(&gate, B, 1), 6);
    cr_assert_eq(enter_all(&gate, C, 1), 4);
    cr_assert_eq(enter_all(&gate, A, 1), 0);
    /* Where others leave, the queue is full until it has room for all. */
    for (int i = 0; i < 12; i++)
        admission_leave(&gate, A, 1);
    cr_assert_eq(enter_all(&gate, B, 1), 2);
    for (int i = 0; i < 8; i++)
        admission_leave(&gate, B, 1);
    for (int i = 0; i < 4; i++)
        admission_leave(&gate, C, 1);
    cr_assert_eq(enter_all(&gate, A, 1), 12);
    admission_destroy(&gate);
}

Test(admission, estimated_tokens_are_shared_likewise)
{
    struct admission gate = make(100, 1, 1000, 1000);
    cr_assert_eq(enter_all(&gate, A, 100), 10);
    cr_assert_eq(enter_all(&gate, B, 100), 5);
    cr_assert_eq(admission_enter(&gate, C, 334, NULL), -1);
    cr_assert_eq(admission_enter(&gate, C, 333, NULL), 0);
    admission_destroy(&gate);
}

Test(admission, uploads_of_one_leave_room_for_those_of_others)
{
    struct admission gate = make(1, 1, 1, 800);
    while (admission_upload(&gate, A, 0, 100))
        ;
    cr_assert(admission_upload(&gate, B, 0, 100));
    cr_assert_not(admission_upload(&gate, B, 100, 1));
    cr_assert_not(admission_upload(&gate, C, 0, 1));
    cr_assert(admission_body(&gate, 100)); /* of one that is whole */
    admission_received(&gate, A, 600);
    cr_assert(admission_body(&gate, -600));
    cr_assert(admission_upload(&gate, B, 100, 600)); /* alone again */
    admission_destroy(&gate);
}
