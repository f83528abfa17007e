/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The drawing library, and the dozens that it brings, are not for what serves: drawing is a program
 * of its own, which has them. */
static const char PROGRAM[] = "regla-plot";

/* Its path: beside this program. */
static bool find_program(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length <= 0)
        return false;
    path[length] = 0;
    char *name = strrchr(path, '/');
    if (name == NULL || (size_t)(++name - path) + sizeof PROGRAM > size)
        return false;
    memcpy(name, PROGRAM, sizeof PROGRAM);
    return true;
}

int study_draw(const char *directory, struct error *err)
{
    char path[4096];
    int status = 0;
    if (!find_program(path, sizeof path) || access(path, X_OK) != 0) {
        fprintf(stderr,
                "regla study: no plots: there is no %s beside this program (package regla-plot); "
                "once there is, `%s %s` draws them\n",
                PROGRAM, PROGRAM, directory);
        return 0;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        return error_set(err, ERROR_IO, "fork: %s", strerror(errno));
    if (child == 0) {
        execl(path, PROGRAM, "--", directory, (char *)NULL);
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return error_set(err, ERROR_IO, "%s: the plots: %s %s %d", directory, PROGRAM,
                         WIFSIGNALED(status) ? "was killed by signal" : "ended with status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return 1;
}
