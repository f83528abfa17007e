/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the emulated device share. */
#ifndef TESTS_CUDA_EMULATION_EMULATION_H
#define TESTS_CUDA_EMULATION_EMULATION_H

#include "tests/cuda/emulation/cuda_runtime.h"

#include <mutex>

namespace emulation
{

struct settings {
    bool backward;
    unsigned seed;
    size_t memory, shared; /* bytes of the device, and of a block */
    long fail_at;          /* launch; 0: none */
};

const settings &get_settings();

extern std::recursive_mutex mutex; /* guards everything; each function of the runtime takes it */

bool is_pinned(const void *memory, size_t bytes);

/* Queues a work of a stream, or puts it into the graph that the stream is captured for. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

/* Ends the program where [memory, memory + bytes) is not all inside one allocation. */
void check_device(const void *memory, size_t bytes, const char *what);

/* Runs a kernel to its end; `thread` is called for every thread of every block. `cluster` blocks
 * beside each other run together. overlaps: a device might begin it before the kernel before has
 * ended, so that its threads have to grid_wait. */
void run(dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, bool overlaps,
         void (*kernel)(), const std::function<void()> &thread);

/* Of the block that runs. */
int thread_number();                              /* who runs */
bool is_shared(const void *memory, size_t bytes); /* whether it is the block's dynamic memory */
void wait_to_wake(const char *what);              /* until another thread calls wake for this one */
void wake(int thread);
void bulk_end_block(); /* bulk.cc */

} // namespace emulation

#endif
