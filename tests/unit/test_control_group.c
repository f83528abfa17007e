/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/control_group.h"
#include "engine/base/cpus.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
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
