/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the unit tests where Criterion's own runner cannot: under qemu-user, where a program cannot
 * start itself once more. Each test is a child by fork.
 * Usage: unit_tests [-j N] [-x PATTERN]... [PATTERN]...      PATTERN: "suite/name", with wildcards;
 * -x leaves out */
#include <criterion/criterion.h>
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CHILDREN = 64, PASSED = 0, FAILED = 1, SKIPPED = 77 };

/* What Test() and TestSuite() leave to the linker. */
extern struct criterion_test *__start_cr_tst[], *__stop_cr_tst[];
extern struct criterion_suite *__start_cr_sts[], *__stop_cr_sts[];

/* ---- in the child: what Criterion's macros call, in place of the library's ---- */

static const struct criterion_test *current;
static jmp_buf after_test;
static bool failed, skipped;

void criterion_send_assert(struct criterion_assert_stats *stats)
{
    if (!stats->passed)
        printf("[----] %s:%u: %s/%s: %s\n", stats->file, stats->line, current->category,
               current->name, stats->message);
}

void criterion_continue_test(void)
{
    failed = true;
}

void criterion_abort_test(void)
{
    failed = true;
    longjmp(after_test, 1);
}

void criterion_skip_test(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("[SKIP] %s/%s: ", current->category, current->name);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    skipped = true;
    longjmp(after_test, 1);
}

void cri_asserts_passed_incr(void)
{
}

static const struct criterion_test_extra_data *suite_of(const struct criterion_test *test)
{
    for (struct criterion_suite **suite = __start_cr_sts; suite < __stop_cr_sts; suite++)
        if (*suite != NULL && strcmp((*suite)->name, test->category) == 0)
            return (*suite)->data;
    return NULL;
}

static void call(void (*function)(void))
{
    if (function != NULL)
        function();
}

void criterion_internal_test_setup(void)
{
    const struct criterion_test_extra_data *suite = suite_of(current);
    if (suite != NULL)
        call(suite->init);
    call(current->data->init);
}

void criterion_internal_test_main(void (*function)(void))
{
    if (setjmp(after_test) == 0)
        function();
}

void criterion_internal_test_teardown(void)
{
    const struct criterion_test_extra_data *suite = suite_of(current);
    call(current->data->fini);
    if (suite != NULL)
        call(suite->fini);
}

/* ---- in the parent ---- */

static struct child {
    pid_t pid;
    const struct criterion_test *test;
    double began;
} children[MOST_CHILDREN];
static int running, passing, failing, crashing;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void start(const struct criterion_test *test)
{
    struct child *child = children;
    while (child->pid != 0)
        child++;
    fflush(stdout);
    *child = (struct child){fork(), test, seconds()};
    if (child->pid < 0) {
        perror("fork");
        exit(2);
    }
    if (child->pid == 0) {
        current = test;
        test->test();
        exit(failed ? FAILED : skipped ? SKIPPED : PASSED);
    }
    running++;
}

static void reap(void)
{
    int status;
    pid_t pid = wait(&status);
    struct child *child = children;
    while (child->pid != pid)
        child++;
    const struct criterion_test *test = child->test;
    const bool ended = WIFEXITED(status);
    const bool well = ended && (WEXITSTATUS(status) == PASSED || WEXITSTATUS(status) == SKIPPED);
    if (well)
        passing++;
    else if (ended && WEXITSTATUS(status) == FAILED)
        failing++;
    else
        crashing++;
    printf("[%s] %s/%s (%.2f s)\n",
           well    ? "PASS"
           : ended ? "FAIL"
                   : "CRASH",
           test->category, test->name, seconds() - child->began);
    child->pid = 0;
    running--;
}

static bool matches(const struct criterion_test *test, char *const *patterns, int count)
{
    char name[512];
    snprintf(name, sizeof name, "%s/%s", test->category, test->name);
    for (int i = 0; i < count; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    char *without[64];
    int jobs = 1, left_out = 0, option;
    while ((option = getopt(argc, argv, "j:x:")) != -1)
        if (option == 'j')
            jobs = atoi(optarg);
        else if (option == 'x' && left_out < 64)
            without[left_out++] = optarg;
        else
            return 2;
    jobs = jobs < 1 ? 1 : jobs > MOST_CHILDREN ? MOST_CHILDREN : jobs;
    for (struct criterion_test **test = __start_cr_tst; test < __stop_cr_tst; test++) {
        if (*test == NULL || matches(*test, without, left_out) ||
            (optind < argc && !matches(*test, argv + optind, argc - optind)))
            continue;
        if (running == jobs)
            reap();
        start(*test);
    }
    while (running > 0)
        reap();
    printf("arm-units: %d passed, %d failed\n", passing, failing + crashing);
    return failing + crashing > 0 || passing == 0;
}
