/* SPDX-License-Identifier: Apache-2.0 */
/* That the engine thread does not sleep through what came before it went to sleep. */
#include "lib/base/clock.h"
#include "server/schedule/inbox.h"

#include <criterion/criterion.h>

enum { WAIT_SECONDS = 3600, LIMIT_SECONDS = 20 };

TestSuite(inbox, .timeout = LIMIT_SECONDS);

Test(inbox, nothing_that_is_there_is_waited_for)
{
    static void (*const EVENTS[])(struct inbox * inbox) = {inbox_close, inbox_poke};
    static const double WAITS[] = {-1, 0, WAIT_SECONDS};
    for (size_t event = 0; event < 2; event++)
        for (size_t wait = 0; wait < 3; wait++) {
            struct inbox inbox = {0};
            struct inbox_taken taken;
            inbox_init(&inbox);
            EVENTS[event](&inbox);
            inbox_take(&inbox, WAITS[wait], &taken);
            cr_assert(taken.closing == (event == 0) && taken.poked == (event == 1));
            inbox_clear(&inbox);
        }
}

static void run_none(struct work *work)
{
    (void)work;
}

Test(inbox, what_comes_at_the_end_is_taken_or_refused)
{
    struct work work = {.run = run_none};
    struct inbox inbox = {0};
    struct inbox_taken taken;
    inbox_init(&inbox);
    cr_assert(inbox_put_work(&inbox, &work));
    cr_assert_not(inbox_end(&inbox));
    inbox_take(&inbox, 0, &taken);
    cr_assert(taken.work == &work);
    cr_assert(inbox_put_work(&inbox, &work));
    inbox_take(&inbox, 0, &taken);
    inbox_poke(&inbox);
    cr_assert(inbox_end(&inbox));
    cr_assert_not(inbox_put_work(&inbox, &work));
    inbox_clear(&inbox);
}

Test(inbox, a_wait_ends)
{
    struct inbox inbox = {0};
    struct inbox_taken taken;
    const double wait_s = 0.02;
    inbox_init(&inbox);
    double began = clock_seconds();
    inbox_take(&inbox, wait_s, &taken);
    cr_assert(!taken.closing && !taken.poked && clock_seconds() - began >= wait_s);
    inbox_clear(&inbox);
}
