#include "engine/base/cpus.h"

#include <criterion/criterion.h>
#include <errno.h>
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

static int quota(const char *membership)
{
    char path[512];
    put("/self", membership);
    snprintf(path, sizeof path, "%s/self", root);
    return cpus_quota(path, root);
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

Test(cpus, version_2_asks_the_group_and_all_above_it, .init = begin, .fini = end)
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

Test(cpus, version_1_has_two_files, .init = begin, .fini = end)
{
    put("/cpu/g/cpu.cfs_quota_us", "150000\n");
    cr_expect(quota("4:cpu,cpuacct:/g\n") == 0, "no period");
    put("/cpu/g/cpu.cfs_period_us", "100000\n");
    cr_expect(quota("5:memory:/g\n4:cpu,cpuacct:/g\n0::/\n") == 2);
    cr_expect(quota("4:cpuset:/g\n") == 0, "another controller");
    put("/cpu/g/cpu.cfs_quota_us", "-1\n");
    cr_expect(quota("4:cpu:/g\n") == 0);
}

Test(cpus, what_makes_no_sense_is_no_limit, .init = begin, .fini = end)
{
    put("/cpu.max", "0 100000\n");
    cr_expect(quota("0::/\n") == 0);
    put("/cpu.max", "100000 0\n");
    cr_expect(quota("0::/\n") == 0);
    put("/cpu.max", "9000000000000000000 1\n");
    cr_expect(quota("0::/\n") == 0);
    put("/cpu.max", "no number\n");
    cr_expect(quota("\n::\nnothing\n0::\n") == 0);
    cr_expect(cpus_quota("/nowhere/at/all", root) == 0);
}

Test(cpus, there_is_at_least_one)
{
    cr_expect(cpus_allowed() >= 1);
    cr_expect(cpus_allowed() <= (int)sysconf(_SC_NPROCESSORS_CONF));
}
