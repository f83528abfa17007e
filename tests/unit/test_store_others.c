/* SPDX-License-Identifier: Apache-2.0 */
/* What other models have left in --state-dir: their sessions stay and count, their checkpoints go
 * when room is lacking. */
#include "server/store/store_others.h"
#include "tests/unit/state_trees.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHER "00112233445566778899aabbccddeeff"

static char directory[64];

static void leave(const char *kind, const char *name, int64_t bytes, time_t modified)
{
    char path[256];
    const struct timespec times[2] = {{modified, 0}, {modified, 0}};
    snprintf(path, sizeof path, "%s/" OTHER, directory);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/" OTHER "/%s", directory, kind);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/" OTHER "/%s/%s", directory, kind, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    cr_assert(fd >= 0 && ftruncate(fd, bytes) == 0 && futimens(fd, times) == 0);
    close(fd);
}

static bool there(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/" OTHER "/%s", directory, name);
    return access(path, F_OK) == 0;
}

static int64_t bytes_there(void)
{
    char command[200], line[32] = "";
    snprintf(command, sizeof command,
             "find %s -mindepth 2 -type f -printf '%%s\\n' | awk '{s += $1} END {print s + 0}'",
             directory);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe && fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoll(line);
}

Test(store_others, what_was_written_first_goes_first)
{
    struct store_others others;
    struct error err = ERROR_INIT;
    make_directory(directory);
    leave("checkpoints", "young.state", 3000, 3000);
    leave("checkpoints", "old.state", 1000, 1000);
    leave("checkpoints", "middle.state", 2000, 2000);
    leave("checkpoints", "odd.rejected", 10, 1);
    leave("sessions", "mine.session", 100, 1);
    int root = open(directory, O_RDONLY | O_DIRECTORY);
    cr_assert(store_others_scan(&others, root, OTHER, &err) == 0);
    cr_expect(others.bytes == 0 && others.kept == 0, "one's own are no others");
    store_others_clear(&others);
    cr_assert(store_others_scan(&others, root, "", &err) == 0);
    cr_expect(others.bytes == 6000 && others.kept == 110);
    store_others_trim(&others, 6000);
    cr_expect(there("checkpoints/old.state"));
    store_others_trim(&others, 4999);
    cr_expect(!there("checkpoints/old.state") && !there("checkpoints/middle.state"));
    cr_expect(there("checkpoints/young.state") && others.bytes == 3000);
    store_others_trim(&others, -1);
    cr_expect(!there("checkpoints/young.state") && others.bytes == 0);
    cr_expect(there("checkpoints/odd.rejected") && there("sessions/mine.session"));
    store_others_clear(&others);
    close(root);
    remove_directory(directory);
}

Test(store_others, the_budget_is_the_directorys)
{
    int32_t texts[6][LONG];
    make_directory(directory);
    leave("checkpoints", "other.state", 300000, 1000);
    leave("sessions", "mine.session", 200000, 1000);
    open_tree_on(20, 10, ROOM, directory, 3);
    int64_t budget = report().tiers[TIER_DISK].budget_bytes;
    cr_assert(budget > 500000 && budget < 2000000, "%lld", (long long)budget);
    cr_expect_eq(report().tiers[TIER_DISK].bytes, 200000 + database_bytes(directory),
                 "what cannot be removed is taken");
    cr_expect(there("checkpoints/other.state"), "there is room yet");
    for (int i = 0; i < 6; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    state_tree_save_all(tree, 1e18);
    cr_expect_gt(count_files(directory, ".state"), 1);
    cr_expect(!there("checkpoints/other.state") && there("sessions/mine.session"));
    cr_expect_leq(bytes_there() + database_bytes(directory), budget);
    close_tree();
    remove_directory(directory);
}
