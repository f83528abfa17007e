/* SPDX-License-Identifier: Apache-2.0 */
/* Which accesses of the emulated device are ordered, and the end of the program where two are not
 * that should be: a race. Only a build with REGLA_CUDA_RACES watches memory.
 *
 * The .cu files are compiled with -fsanitize=thread, but linked with races.cc instead of the
 * compiler's library, whose fibers know no blocks and whose clocks cost a barrier of 256 threads
 * half a millisecond. Ordered is what CUDA says is:
 *   threads of a block    by __syncthreads; lanes of a warp by __syncwarp. Shuffles, votes and
 *                         products order nothing
 *   blocks of a kernel    never, but those of a cluster by cluster_sync
 *   works of a stream     one after the other, but what a kernel does before grid_wait comes only
 *                         after the copy, or the kernel that may not overlap, before it
 *   streams               by cudaStreamWaitEvent, and by the host
 *   the host              is before what it queues then, and after what it has waited for; its
 *                         threads count as one. Only .cu files are seen, and of memory what
 *                         cudaMalloc and cudaHostAlloc gave
 *   asynchronous copies   write at both, their beginning and copy_async_wait
 *   bulk copies           read and write all the time until whoever touches the same has waited for
 *                         them, or comes after one who has; of what threads wrote to shared memory
 *                         they read what a bulk_fence of the same thread follows
 *
 * The compiler is clang: gcc does not report accesses to __shared__ variables whose address nobody
 * takes, in kernels of internal linkage (recurrence_kernel's piece).
 *
 * Of a cell (two bytes) the last write is remembered, and two reads since, of two warps where there
 * are two: one of them is enough to be in a race with whatever comes next. */
#ifndef TESTS_CUDA_EMULATION_RACES_H
#define TESTS_CUDA_EMULATION_RACES_H

#include <stddef.h>
#include <stdint.h>

namespace races
{
enum { MOST_STREAMS = 16 };

/* What something comes after: of each stream the blocks and copies up to a number, and of the host
 * what it did up to a time. */
struct moment {
    uint32_t seen[MOST_STREAMS], host;
};

struct stream_order {
    int index;
    moment end;   /* of the works so far */
    moment begin; /* what a kernel that overlaps comes after before it waits */
};

/* Memory that is watched in a build for it, aligned to 256; released, nobody may touch it again.
 * NULL: there is none. */
void *allocate(size_t bytes);
void release(void *memory, size_t bytes);
/* A block's; what others did there does not count. */
void *take_shared(size_t bytes);
void release_shared(void *memory);

/* ---- the host and streams; under the runtime's mutex ---- */
void open_stream(stream_order *stream);
void close_stream(const stream_order &stream);
moment queue();                    /* what a work comes after that is queued now */
void host_waits(const moment &of); /* has waited for */
void enter(stream_order *stream, const moment &queued); /* to run its next work, until leave */
void leave();
const moment &here(); /* the end of the stream entered last */
void wait_for(const moment &other);
void copy(void *to, const void *from, size_t bytes); /* from: NULL for none */

/* ---- a kernel ---- */
void begin_kernel(const void *kernel, bool overlaps);
void end_kernel();
/* block: its number in the grid; of a cluster, the first one's. block_threads: of each block. */
void begin_block(unsigned block, int threads, int block_threads);
void switch_thread(int thread); /* who runs from now on; -1: nobody */
void grid_wait();               /* by the thread that runs, as all that follow */
void barrier(int first_thread, int threads);
void sync_warp(int first_thread, unsigned mask);
void access(const void *memory, size_t bytes, bool write, const void *where);
/* A bulk copy begins, and gets a number in its block; it touches memory; it ends; and the thread
 * that runs has waited for it. */
uint32_t begin_copy();
void access_by_copy(const void *memory, size_t bytes, bool write, uint32_t copy, const void *where);
void end_copy(uint32_t copy);
void see_copy(uint32_t copy);
void fence(); /* what the thread wrote before, bulk copies may read */
/* A write of what is there already, which need not come after the writes and reads before it. */
void take_over(const void *memory, size_t bytes, const void *where);
} // namespace races

#endif
