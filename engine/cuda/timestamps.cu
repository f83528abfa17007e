/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers launches, and gives each of them what its kernel has stored. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "engine/cuda/timestamps.cuh"

enum { MOST_FILES = 64 };

/* Files, in an order of their own; launches name them by their number. */
static kernel_log_access *files[MOST_FILES];
static int num_files;

static struct launched {
    struct kernel_time time; /* whose moments are not known yet */
    int file;
} launches[MOST_KERNEL_TIMES + 1], next_launch; /* the last: too many */
static int num_launches;                        /* that are remembered */
static int all_launches;
static bool remembers;

void timestamps_file(kernel_log_access *access)
{
    if (num_files < MOST_FILES)
        files[num_files++] = access;
}

void timestamps_next(kernel_log_access *access, const char *path, const char *text)
{
    if (!remembers)
        return;
    const char *name = strchr(text, ',');
    name += strspn(name, ", \n");
    next_launch = {};
    int length = (int)strcspn(name, "<, \n");
    const char *file = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    bool is_name = length > 7 && strncmp(name + length - 7, "_kernel", 7) == 0;
    snprintf(next_launch.time.name, sizeof next_launch.time.name, "%.*s%s%.*s",
             is_name ? 0 : (int)strcspn(file, "."), file, is_name ? "" : ": ", length, name);
    next_launch.file = (int)(std::find(files, files + num_files, access) - files);
}

void timestamps_launched(dim3 grid, dim3 block)
{
    all_launches++;
    if (!remembers || num_launches > MOST_KERNEL_TIMES)
        return;
    next_launch.time.grid[0] = grid.x;
    next_launch.time.grid[1] = grid.y;
    next_launch.time.grid[2] = grid.z;
    next_launch.time.threads = block.x * block.y * block.z;
    launches[num_launches++] = next_launch;
}

void timestamps_remember(bool on)
{
    if (on)
        num_launches = 0;
    remembers = on;
}

int timestamps_launches(void)
{
    return all_launches;
}

static int fail(cudaError_t error, struct error *err)
{
    return error_set(err, ERROR_INTERNAL, "timestamps: %s", cudaGetErrorString(error));
}

int timestamps_clear(struct error *err)
{
    cudaError_t error = cudaDeviceSynchronize();
    for (int i = 0; i < num_files && error == cudaSuccess; i++)
        error = files[i](NULL);
    if (error == cudaSuccess) /* such a copy may return before it is done, and steps do not wait */
        error = cudaDeviceSynchronize();
    return error == cudaSuccess ? 0 : fail(error, err);
}

/* Gives the launches of a file their moments. */
static int take(int file, struct kernel_log *log, struct kernel_time *out, struct error *err)
{
    unsigned expected = 0;
    cudaError_t error = files[file](log);
    if (error != cudaSuccess)
        return fail(error, err);
    for (int i = 0; i < num_launches; i++)
        expected += launches[i].file == file;
    if (log->count != expected)
        return error_set(err, ERROR_INTERNAL,
                         "timestamps: expected the %u kernels of a file that were launched in the "
                         "step before, got %u",
                         expected, log->count);
    /* Places are given as kernels begin; a wait ends when the kernel before has. */
    std::stable_sort(
        log->kernels, log->kernels + expected,
        [](const kernel_moments &a, const kernel_moments &b) { return a.waited < b.waited; });
    for (int i = 0, place = 0; i < num_launches; i++)
        if (launches[i].file == file)
            out[i].moments = log->kernels[place++];
    return 0;
}

int timestamps_read(struct kernel_time *out, int *count, struct error *err)
{
    if (num_launches > MOST_KERNEL_TIMES)
        return error_set(err, ERROR_INTERNAL, "timestamps: expected a step of at most %d kernels",
                         MOST_KERNEL_TIMES);
    cudaError_t error = cudaDeviceSynchronize();
    struct kernel_log *log = new (std::nothrow) struct kernel_log;
    int result = log == NULL            ? error_set(err, ERROR_NO_MEMORY, "timestamps: no memory")
                 : error != cudaSuccess ? fail(error, err)
                                        : 0;
    for (int i = 0; i < num_launches; i++)
        out[i] = launches[i].time;
    for (int i = 0; i < num_files && result == 0; i++)
        result = take(i, log, out, err);
    delete log;
    *count = num_launches;
    return result;
}
