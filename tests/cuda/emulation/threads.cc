/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks, warps and threads: fibers that switch where the lanes of a device would wait. */

#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/races.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <ucontext.h>
#endif

/* Not among static arrays, where races.cc takes everything for shared memory. */
#define APART __attribute__((section(".data")))
uint3 threadIdx APART, blockIdx APART;
dim3 blockDim APART, gridDim APART;

namespace
{
enum { STACK_BYTES = 256 << 10 };
enum wait_kind { READY, AT_BARRIER, AT_CLUSTER, IN_COLLECTIVE, TO_WAKE, DONE };

struct context {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t ucontext;
#endif
    char *stack;
    void *fake_stack; /* AddressSanitizer's */
};

struct pending_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct thread {
    struct context context;
    wait_kind state;
    unsigned mask;         /* of the collective it waits in */
    const char *operation; /* its name, or what it waits for */
    unsigned collectives;  /* so far */
    bool has_waited;       /* for the kernel before */
    bool has_times;        /* of its kernel, for timestamps.cuh */
    bool has_ended;        /* as they say */
    bool is_beginning;     /* between cluster_begin and cluster_begun */
    bool has_met;          /* all threads of its cluster, once at least */
    uint3 index;
    std::vector<pending_copy> copies;
    std::vector<size_t> groups; /* copies of each committed group in flight, the oldest first */
};

struct warp {
    emulation::exchange_rows rows[2];
    unsigned lanes, waiting;
};

/* Fibers point to theirs. Arrays, since all that a kernel does begins with a look at its thread. */
enum { MOST_THREADS = 16 << 10 }; /* of a cluster */
struct thread *const threads = new struct thread[MOST_THREADS]();
struct warp *const warps = new struct warp[MOST_THREADS / 32]();
int num_fibers;
struct context scheduler;
/* The blocks of a cluster run together, block after block of num_threads / blocks.size() threads.
 */
struct block {
    uint3 index;
    int waiting; /* threads at its barrier */
    bool orders; /* the barrier that they wait at */
};
std::vector<block> blocks;
int current, num_threads, block_threads, num_at_cluster;
size_t shared_size; /* of a block */
const std::function<void()> *body;
bool kernel_overlaps, cluster_orders;
size_t shared_stride; /* from a block's shared memory to the next one's */
const char SYNCWARP[] = "__syncwarp";
long kernels_run;
char *shared;

/* Whether this is what REGLA_EMULATION_WITHOUT names. */
bool left_out(const char *file, int line)
{
    static const char *const place = getenv("REGLA_EMULATION_WITHOUT");
    if (place == nullptr)
        return false;
    const char *name = strrchr(file, '/') != nullptr ? strrchr(file, '/') + 1 : file;
    const char *colon = strchr(place, ':');
    return colon != nullptr && atoi(colon + 1) == line &&
           strncmp(place, name, (size_t)(colon - place)) == 0 && name[colon - place] == 0;
}

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulation: block (%u, %u, %u) of (%u, %u, %u), thread %d of %d: %s\n",
            blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, current,
            num_threads, what);
    for (int i = 0; i < num_threads && i < 1024; i++)
        if (threads[(size_t)i].state == IN_COLLECTIVE)
            fprintf(stderr, "  thread %d waits in %s of %08x\n", i, threads[(size_t)i].operation,
                    threads[(size_t)i].mask);
        else if (threads[(size_t)i].state == AT_BARRIER)
            fprintf(stderr, "  thread %d waits in __syncthreads\n", i);
        else if (threads[(size_t)i].state == AT_CLUSTER)
            fprintf(stderr, "  thread %d waits for its cluster\n", i);
        else if (threads[(size_t)i].state == TO_WAKE)
            fprintf(stderr, "  thread %d waits for %s\n", i, threads[(size_t)i].operation);
    abort();
}

#if defined(__x86_64__)
extern "C" void emulation_switch(void **save, void *load);
asm(".text\n.globl emulation_switch\n.hidden emulation_switch\n"
    ".type emulation_switch, @function\nemulation_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\npopq %rcx\njmp *%rcx\n"
    ".size emulation_switch, .-emulation_switch\n");
#endif

#if defined(__SANITIZE_ADDRESS__)
const void *scheduler_stack;
size_t scheduler_stack_bytes;
#endif

void switch_to(struct context *from, struct context *to)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom = to == &scheduler ? scheduler_stack : to->stack;
    size_t bytes = to == &scheduler ? scheduler_stack_bytes : STACK_BYTES;
    __sanitizer_start_switch_fiber(&from->fake_stack, bottom, bytes);
#endif
#if defined(__x86_64__)
    emulation_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->ucontext, &to->ucontext);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake_stack,
                                    from == &scheduler ? nullptr : &scheduler_stack,
                                    from == &scheduler ? nullptr : &scheduler_stack_bytes);
#endif
}

/* A fiber runs one thread of each block, forever. */
void fiber()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
    for (;;) {
        (*body)();
        struct thread *thread = &threads[(size_t)current];
        if (!thread->copies.empty())
            fail("ends with asynchronous copies in flight");
        if (kernel_overlaps && !thread->has_waited)
            fail("ends without grid_wait, and may have run before the kernel before it");
        if (thread->is_beginning)
            fail("ends after cluster_begin without cluster_begun");
        thread->state = DONE;
        switch_to(&thread->context, &scheduler);
    }
}

void open_fiber(struct context *context)
{
    void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        perror("emulation: stack");
        abort();
    }
    context->stack = static_cast<char *>(stack);
    context->fake_stack = nullptr;
#if defined(__x86_64__)
    void **top = reinterpret_cast<void **>(context->stack + STACK_BYTES - 64);
    *top = reinterpret_cast<void *>(&fiber);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    context->stack_pointer = top;
#else
    getcontext(&context->ucontext);
    context->ucontext.uc_stack.ss_sp = context->stack;
    context->ucontext.uc_stack.ss_size = STACK_BYTES;
    context->ucontext.uc_link = nullptr;
    makecontext(&context->ucontext, &fiber, 0);
#endif
}

void wait()
{
    switch_to(&threads[(size_t)current].context, &scheduler);
}

/* The i-th of n in the order that is set. */
int in_order(int i, int n, const emulation::settings &settings)
{
    int from = settings.backward ? n - 1 - i : i;
    return settings.seed == 0 ? from : (int)((from + settings.seed) % (unsigned)n);
}

/* Runs the lanes of a warp as far as they get; whether any ran. */
bool run_warp(int index, const emulation::settings &settings)
{
    int first = index * 32, lanes = num_threads - first < 32 ? num_threads - first : 32;
    bool ran = false, again = true;
    while (again) {
        again = false;
        for (int i = 0; i < lanes; i++) {
            int lane = in_order(i, lanes, settings);
            if (threads[(size_t)(first + lane)].state != READY)
                continue;
            current = first + lane;
            threadIdx = threads[(size_t)current].index;
            blockIdx = blocks[(size_t)(current / block_threads)].index;
            races::switch_thread(current);
            switch_to(&scheduler, &threads[(size_t)current].context);
            races::switch_thread(-1);
            again = ran = true;
        }
    }
    return ran;
}

/* Lets the threads go that wait at a barrier where all have come. False: there are none. */
bool open_barriers()
{
    bool opened = false;
    for (size_t i = 0; i < blocks.size(); i++) {
        int first = (int)i * block_threads;
        if (blocks[i].waiting < block_threads)
            continue;
        if (blocks[i].orders)
            races::barrier(first, block_threads);
        blocks[i].waiting = 0;
        blocks[i].orders = false;
        for (int j = first; j < first + block_threads; j++)
            threads[(size_t)j].state = READY;
        opened = true;
    }
    if (num_at_cluster < num_threads)
        return opened;
    if (cluster_orders)
        races::barrier(0, num_threads);
    num_at_cluster = 0;
    cluster_orders = false;
    for (int i = 0; i < num_threads; i++)
        threads[(size_t)i].state = READY;
    return true;
}

void run_cluster(const emulation::settings &settings)
{
    int num_warps = (num_threads + 31) / 32;
    memset(shared, 0xff, shared_stride * blocks.size()); /* NaN */
    for (int i = 0; i < num_threads; i++) {
        struct thread *thread = &threads[(size_t)i];
        unsigned in_block = (unsigned)(i % block_threads);
        thread->state = READY;
        thread->collectives = 0;
        thread->has_waited = false;
        thread->has_times = false;
        thread->has_ended = false;
        thread->is_beginning = false;
        thread->has_met = false;
        thread->index = {in_block % blockDim.x, in_block / blockDim.x % blockDim.y,
                         in_block / blockDim.x / blockDim.y};
    }
    for (int i = 0; i < num_warps; i++) {
        int lanes = num_threads - i * 32;
        warps[(size_t)i].lanes = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        warps[(size_t)i].waiting = 0;
    }
    num_at_cluster = 0;
    for (;;) {
        bool ran = false;
        for (int i = 0; i < num_warps; i++)
            ran |= run_warp(in_order(i, num_warps, settings), settings);
        int done = 0;
        for (int i = 0; i < num_threads; i++)
            done += threads[(size_t)i].state == DONE;
        if (done == num_threads) {
            emulation::bulk_end_block();
            return;
        }
        if (!open_barriers() && !ran)
            fail("its threads wait for each other in vain");
    }
}

} // namespace

namespace emulation
{

int lane()
{
    return current % 32;
}

void *shared_memory()
{
    return shared + shared_stride * (size_t)(current / block_threads);
}

void *cluster_shared(void *own, unsigned block)
{
    size_t at = (size_t)(static_cast<char *>(own) - static_cast<char *>(shared_memory()));
    if (at >= shared_stride || block >= blocks.size())
        fail("looks for what is no shared memory of its cluster");
    if (block != (unsigned)(current / block_threads) && !threads[(size_t)current].has_met)
        fail("looks for another block's shared memory before that may be there");
    return shared + shared_stride * block + at;
}

/* Waits for all threads of the cluster. */
static void meet(bool orders)
{
    struct thread *thread = &threads[(size_t)current];
    thread->state = AT_CLUSTER;
    thread->has_met = true;
    cluster_orders |= orders;
    num_at_cluster++;
    wait();
}

void cluster_begin()
{
    struct thread *thread = &threads[(size_t)current];
    if (thread->is_beginning)
        fail("comes to cluster_begin again before cluster_begun");
    thread->is_beginning = true;
}

void cluster_begun()
{
    struct thread *thread = &threads[(size_t)current];
    if (!thread->is_beginning)
        fail("comes to cluster_begun without cluster_begin");
    thread->is_beginning = false;
    meet(false);
}

void cluster_sync(const char *file, int line)
{
    if (threads[(size_t)current].is_beginning)
        fail("comes to cluster_sync between cluster_begin and cluster_begun");
    meet(!left_out(file, line));
}

int thread_number()
{
    return current;
}

bool is_shared(const void *memory, size_t bytes)
{
    size_t at = (size_t)(static_cast<const char *>(memory) - static_cast<char *>(shared_memory()));
    return at < shared_size && bytes <= shared_size - at;
}

void wait_to_wake(const char *what)
{
    threads[(size_t)current].operation = what;
    threads[(size_t)current].state = TO_WAKE;
    wait();
}

void wake(int thread)
{
    threads[(size_t)thread].state = READY;
}

void grid_wait(const char *file, int line)
{
    threads[(size_t)current].has_waited = true;
    if (!left_out(file, line))
        races::grid_wait();
}

uint64_t global_time()
{
    /* A kernel's first thread stores it. Asking for all took an eighth of the emulated tests' time.
     */
    if ((threadIdx.x | threadIdx.y | threadIdx.z | blockIdx.x | blockIdx.y | blockIdx.z) != 0)
        return 0;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void kernel_times_begin()
{
    if (threads[(size_t)current].has_times)
        fail("has its times twice: a function of it calls grid_wait (timestamps.cuh)");
    threads[(size_t)current].has_times = true;
}

void kernel_times_end()
{
    threads[(size_t)current].has_ended = true;
}

void barrier(const char *file, int line)
{
    if (threads[(size_t)current].has_ended)
        fail("its times end before it does: it needs KERNEL_TIMES (timestamps.cuh)");
    threads[(size_t)current].state = AT_BARRIER;
    struct block *block = &blocks[(size_t)(current / block_threads)];
    if (!left_out(file, line))
        block->orders = true;
    block->waiting++;
    wait();
}

const exchange_rows &exchange(unsigned mask, const char *operation, const void *give, size_t bytes)
{
    struct thread *thread = &threads[(size_t)current];
    struct warp *warp = &warps[(size_t)current / 32];
    unsigned lane = (unsigned)current % 32;
    exchange_rows &rows = warp->rows[thread->collectives++ % 2];
    mask &= warp->lanes;
    if ((mask >> lane & 1) == 0)
        fail("a lane takes part in a collective whose mask leaves it out");
    memcpy(rows[lane], give, bytes);
    thread->mask = mask;
    thread->operation = operation;
    thread->state = IN_COLLECTIVE;
    warp->waiting |= 1u << lane;
    if ((warp->waiting & mask) != mask) {
        wait();
        return rows;
    }
    size_t first = (size_t)current / 32 * 32;
    for (size_t i = 0; i < 32; i++)
        if ((mask >> i & 1) != 0 && (threads[first + i].mask != mask ||
                                     (threads[first + i].operation != operation &&
                                      strcmp(threads[first + i].operation, operation) != 0)))
            fail("lanes meet in different collectives");
    for (size_t i = 0; i < 32; i++)
        if ((mask >> i & 1) != 0)
            threads[first + i].state = READY;
    warp->waiting &= ~mask;
    if (strcmp(operation, SYNCWARP) == 0)
        races::sync_warp((int)first, mask);
    return rows;
}

void sync_warp(unsigned mask, const char *file, int line)
{
    exchange(mask, left_out(file, line) ? "__syncwarp, left out" : SYNCWARP, "", 0);
}

void store_same(void *to, const void *value, size_t bytes)
{
    if (memcmp(to, value, bytes) == 0)
        races::take_over(to, bytes, __builtin_return_address(0));
    else
        races::access(to, bytes, true, __builtin_return_address(0));
    memmove(to, value, bytes);
}

void copy_async(void *to, const void *from, size_t bytes)
{
    races::access(from, bytes, false, __builtin_return_address(0));
    races::access(to, bytes, true, __builtin_return_address(0));
    memset(to, 0xff, bytes);
    threads[(size_t)current].copies.push_back({to, from, bytes});
}

void copy_commit()
{
    struct thread *thread = &threads[(size_t)current];
    size_t before = 0;
    for (size_t count : thread->groups)
        before += count;
    thread->groups.push_back(thread->copies.size() - before);
}

void copy_wait(int groups_in_flight)
{
    struct thread *thread = &threads[(size_t)current];
    while (thread->groups.size() > (size_t)groups_in_flight) {
        auto end = thread->copies.begin() + (ptrdiff_t)thread->groups.front();
        for (auto copy = thread->copies.begin(); copy != end; ++copy) {
            races::access(copy->to, copy->bytes, true, __builtin_return_address(0));
            memcpy(copy->to, copy->from, copy->bytes);
        }
        thread->copies.erase(thread->copies.begin(), end);
        thread->groups.erase(thread->groups.begin());
    }
}

void run(dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, bool overlaps,
         void (*kernel)(), const std::function<void()> &thread)
{
    const settings &settings = get_settings();
    gridDim = grid;
    blockDim = block;
    block_threads = (int)(block.x * block.y * block.z);
    num_threads = block_threads * (int)cluster;
    blocks.resize(cluster);
    shared_stride = (shared_bytes + 127) / 128 * 128;
    if (num_threads > MOST_THREADS) {
        fprintf(stderr, "emulation: expected at most %d threads in a cluster, got %d\n",
                MOST_THREADS, num_threads);
        abort();
    }
    while (num_fibers < num_threads)
        open_fiber(&threads[num_fibers++].context);
    body = &thread;
    kernel_overlaps = overlaps;
    shared_size = shared_bytes;
    kernels_run++;
    shared = static_cast<char *>(races::take_shared(shared_stride * cluster));
    races::begin_kernel(reinterpret_cast<const void *>(kernel), overlaps);
#if defined(__x86_64__)
    unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040); /* denormals are zero, as with -ftz=true */
#endif
    long clusters = (long)grid.x * grid.y * grid.z / cluster;
    for (long i = 0; i < clusters; i++) {
        long at = settings.backward ? clusters - 1 - i : i;
        at = (at + settings.seed) % clusters;
        for (unsigned j = 0; j < cluster; j++) {
            long place = at * cluster + j;
            blocks[j] = {{(unsigned)(place % grid.x), (unsigned)(place / grid.x % grid.y),
                          (unsigned)(place / grid.x / grid.y)},
                         0,
                         false};
        }
        blockIdx = blocks[0].index;
        races::begin_block((unsigned)at * cluster, num_threads, block_threads);
        run_cluster(settings);
    }
    races::end_kernel();
#if defined(__x86_64__)
    _mm_setcsr(saved);
#endif
    races::release_shared(shared);
}

} // namespace emulation

long emulation_kernels()
{
    return kernels_run;
}

unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned lanes = 0;
    uint32_t give = predicate != 0;
    const emulation::exchange_rows &rows =
        emulation::exchange(mask, "__ballot_sync", &give, sizeof give);
    mask &= warps[(size_t)current / 32].lanes;
    for (size_t i = 0; i < 32; i++)
        if ((mask >> i & 1) != 0)
            lanes |= rows[i][0] << i;
    return lanes;
}
