/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/control_group.h"
#include "lib/base/cpus.h"
#include "lib/base/threads.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/regla_cpus_XXXXXX";

/* Writes a file below the root, and the directories above it. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        cr_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL);
    fputs(text, file);
    fclose(file);
}

typedef long long limit_function(const char *membership, const char *root);

/* 0: no limit. */
static long long limit(limit_function *limit_of, const char *membership)
{
    char path[512];
    put("/self", membership);
    snprintf(path, sizeof path, "%s/self", root);
    long long limit = limit_of(path, root);
    return limit == LLONG_MAX ? 0 : limit;
}

static long long quota(const char *membership)
{
    return limit(control_group_cpus, membership);
}

static long long least; /* of what memory() has asked */

static long long memory_left(const char *membership, const char *of)
{
    least = 0;
    return control_group_memory(membership, of, &least);
}

static long long memory(const char *membership)
{
    return limit(memory_left, membership);
}

static void begin(void)
{
    cr_assert(mkdtemp(root) != NULL);
}

static void end(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert(system(command) == 0);
}

Test(control_group, version_2_asks_the_group_and_all_above_it, .init = begin, .fini = end)
{
    cr_expect(quota("0::/a/b\n") == 0, "no files, no limit");
    put("/a/b/cpu.max", "max 100000\n");
    cr_expect(quota("0::/a/b\n") == 0);
    put("/a/cpu.max", "250000 100000\n");
    cr_expect(quota("0::/a/b\n") == 3);
    put("/a/b/cpu.max", "400000 100000\n");
    cr_expect(quota("0::/a/b\n") == 3);
    put("/a/b/cpu.max", "50000 100000\n");
    cr_expect(quota("0::/a/b\n") == 1);
    cr_expect(quota("0::/a\n") == 3);
    cr_expect(quota("0::/\n") == 0);
    put("/cpu.max", "200000 100000\n");
    cr_expect(quota("0::/\n") == 2);
    cr_expect(quota("0::/of/another/namespace\n") == 2);
}

Test(control_group, version_1_has_two_files, .init = begin, .fini = end)
{
    put("/cpu/g/cpu.cfs_quota_us", "150000\n");
    cr_expect(quota("4:cpu,cpuacct:/g\n") == 0, "no period");
    put("/cpu/g/cpu.cfs_period_us", "100000\n");
    cr_expect(quota("5:memory:/g\n4:cpu,cpuacct:/g\n0::/\n") == 2);
    cr_expect(quota("4:cpuset:/g\n") == 0, "another controller");
    put("/cpu/g/cpu.cfs_quota_us", "-1\n");
    cr_expect(quota("4:cpu:/g\n") == 0);
}

Test(control_group, what_makes_no_sense_is_no_limit, .init = begin, .fini = end)
{
    put("/cpu.max", "0 100000\n");
    cr_expect(quota("0::/\n") == 0);
    put("/cpu.max", "100000 0\n");
    cr_expect(quota("0::/\n") == 0);
    put("/cpu.max", "9000000000000000000 1\n");
    cr_expect(quota("0::/\n") == 9000000000000000000);
    put("/cpu.max", "no number\n");
    cr_expect(quota("\n::\nnothing\n0::\n") == 0);
    cr_expect(control_group_cpus("/nowhere/at/all", root) == LLONG_MAX);
}

Test(control_group, memory_is_what_the_group_and_all_above_it_leave, .init = begin, .fini = end)
{
    cr_expect(memory("0::/slurm/job\n") == 0, "no files, no limit");
    put("/slurm/job/memory.max", "max\n");
    put("/slurm/job/memory.current", "500\n");
    cr_expect(memory("0::/slurm/job\n") == 0);
    put("/slurm/job/memory.max", "2000\n");
    cr_expect(memory("0::/slurm/job\n") == 1500);
    put("/slurm/memory.max", "3000\n");
    cr_expect(memory("0::/slurm/job\n") == 1500, "of that group nothing says how much it has");
    put("/slurm/memory.current", "1900\n");
    cr_expect(memory("0::/slurm/job\n") == 1100);
    cr_expect(least == 3000);
    put("/slurm/memory.stat", "anon 100\ninactive_file 1000\nfile 1800\n");
    cr_expect(memory("0::/slurm/job\n") == 1500);
    cr_expect(least == 2000);
    put("/slurm/memory.stat", "active_file 400\ninactive_file 1000\nfile_mapped 900\n");
    cr_expect(memory("0::/slurm/job\n") == 1500, "what is mapped stays");
    put("/slurm/memory.stat", "inactive_file 100\nfile_mapped 900\n");
    cr_expect(memory("0::/slurm/job\n") == 1100, "some of that is other pages");
    put("/slurm/job/memory.high", "900\n");
    cr_expect(memory("0::/slurm/job\n") == 400);
    cr_expect(least == 900);
    put("/slurm/job/memory.high", "max\n");
    put("/slurm/job/memory.current", "2100\n");
    cr_expect(memory_left("/nowhere/at/all", root) == LLONG_MAX);
    put("/self", "0::/slurm/job\n");
    char path[512];
    snprintf(path, sizeof path, "%s/self", root);
    cr_expect(memory_left(path, root) == 0, "nothing is left");
    put("/memory/g/memory.limit_in_bytes", "700\n");
    put("/memory/g/memory.usage_in_bytes", "300\n");
    put("/memory/g/memory.stat", "inactive_file 5\ntotal_inactive_file 100\n");
    cr_expect(memory("4:cpu,cpuacct:/h\n6:memory:/g\n") == 500);
}

Test(control_group, there_is_at_least_one)
{
    cr_expect(cpus_allowed() >= 1);
    cr_expect(cpus_allowed() <= (int)sysconf(_SC_NPROCESSORS_CONF));
}

/* Two sockets of `half` CPUs, whose hardware threads are numbered as Linux does: the second of each
 * core after all the first. */
static void put_sockets(int half)
{
    char list[64];
    put("/online", "0-1\n");
    for (int node = 0; node < 2; node++) {
        const int first = node * half / 2;
        snprintf(list, sizeof list, "%d-%d,%d-%d\n", first, first + half / 2 - 1, half + first,
                 half + first + half / 2 - 1);
        put(node == 0 ? "/node0/cpulist" : "/node1/cpulist", list);
    }
}

static cpu_set_t range(int first, int end)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = first; i < end; i++)
        CPU_SET((size_t)i, &set);
    return set;
}

/* Which socket of 96 CPUs each a thread keeps to; -1: none. */
static int socket_of(const cpu_set_t *allowed, int index, int count)
{
    cpu_set_t got;
    if (!cpus_of_node(root, allowed, index, count, &got))
        return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &got) != (CPU_ISSET(cpu, allowed) && cpu < 192 &&
                                     cpu / 48 % 2 == (CPU_ISSET(48, &got) || CPU_ISSET(144, &got))))
            return -1;
    return CPU_ISSET(48, &got) || CPU_ISSET(144, &got);
}

Test(cpus, threads_are_spread_over_sockets, .init = begin, .fini = end)
{
    const cpu_set_t all = range(0, 192);
    put_sockets(96);
    for (int count = 2; count <= 192; count++)
        for (int i = 0, last = 0; i < count; i++) {
            const int socket = socket_of(&all, i, count);
            if (count % 2 == 0)
                cr_assert(socket == (i >= count / 2), "thread %d of %d", i, count);
            cr_assert(socket >= last, "neighbours are together: thread %d of %d", i, count);
            last = socket;
        }
    const cpu_set_t more = range(24, 144); /* 72 of the first socket, 48 of the second */
    for (int i = 0; i < 5; i++)
        cr_expect(socket_of(&more, i, 5) == (i >= 3), "thread %d", i);
    const cpu_set_t one = range(0, 48), beyond = range(500, 600);
    cr_expect(socket_of(&one, 1, 4) == -1, "all that is allowed is on one");
    cr_expect(socket_of(&beyond, 1, 4) == -1, "of these nothing is said");
}

Test(cpus, memory_without_cpus_and_one_memory, .init = begin, .fini = end)
{
    const cpu_set_t all = range(0, 8), second = range(4, 8);
    cpu_set_t got;
    cr_expect(!cpus_of_node(root, &all, 0, 2, &got), "no files");
    put("/online", "0,2-3\n");
    put("/node0/cpulist", "0-3\n");
    cr_expect(!cpus_of_node(root, &all, 1, 2, &got), "a file is not there");
    put("/node2/cpulist", "\n");
    put("/node3/cpulist", "4,5-6,7\n");
    cr_expect(cpus_of_node(root, &all, 1, 2, &got) && CPU_EQUAL(&got, &second));
    static const char *const wrong[] = {"4-", "4-x\n", "7-4\n", "-4\n", "4;5\n", "4-1024\n", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put("/node3/cpulist", wrong[i]);
        cr_expect(!cpus_of_node(root, &all, 1, 2, &got), "%s", wrong[i]);
    }
    put("/online", "0\n");
    put("/node0/cpulist", "0-7\n");
    cr_expect(!cpus_of_node(root, &all, 1, 2, &got), "one memory");
}

enum { SPREAD = 4 };

struct kept {
    atomic_int entered;
    cpu_set_t sets[SPREAD]; /* of each thread */
};

/* Ends when every thread has one. */
static void keep_task(void *context, int task, int thread)
{
    struct kept *kept = context;
    (void)task;
    cpus_of(0, &kept->sets[thread]);
    atomic_fetch_add(&kept->entered, 1);
    while (atomic_load(&kept->entered) < SPREAD)
        sched_yield();
}

Test(cpus, a_pools_own_threads_keep_to_a_memory, .init = begin, .fini = end)
{
    cpu_set_t allowed, sides[2];
    char list[16];
    int cpus[2], found = 0;
    cr_assert(cpus_of(0, &allowed));
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET((size_t)i, &allowed))
            cpus[found++] = i;
    if (found < 2)
        cr_skip("one CPU");
    put("/online", "0-1\n");
    for (int i = 0; i < 2; i++) {
        snprintf(list, sizeof list, "%d\n", cpus[i]);
        put(i == 0 ? "/node0/cpulist" : "/node1/cpulist", list);
        sides[i] = range(cpus[i], cpus[i] + 1);
    }
    allowed = range(cpus[0], cpus[0] + 1);
    CPU_SET((size_t)cpus[1], &allowed);
    cpus_use(&allowed);
    struct threads *threads;
    cr_assert(threads_open_on(root, &threads, SPREAD, NULL) == 0);
    struct kept kept = {0};
    threads_run(threads, keep_task, &kept, SPREAD);
    threads_close(threads);
    cr_expect(CPU_EQUAL(&kept.sets[0], &allowed), "the caller moves as it likes");
    for (int thread = 1; thread < SPREAD; thread++)
        cr_expect(CPU_EQUAL(&kept.sets[thread], &sides[thread / 2]), "thread %d", thread);
    cr_assert(threads_open(&threads, SPREAD, NULL) == 0, "as the machine is");
    threads_close(threads);
}
