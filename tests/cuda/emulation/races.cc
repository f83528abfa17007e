/* SPDX-License-Identifier: Apache-2.0 */
/* Shadow cells, the clocks that order what they remember, and what the compiler calls at every
 * access. */
#include "tests/cuda/emulation/races.h"

#include "tests/cuda/emulation/emulation.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bitset>
#include <vector>

extern "C" char __bss_start[], _end[]; /* the linker's */

namespace
{
#ifdef REGLA_CUDA_RACES
const bool watches = true;
#else
const bool watches = false;
#endif
enum {
    CELL_BYTES = 2,
    PAGE_BYTES = 4096,
    PAGE_CELLS = PAGE_BYTES / CELL_BYTES,
    SHARED_BYTES = 2 << 20, /* more than 8 blocks of any device may have */
    MOST_THREADS = 1024,
    BULK_COPY = MOST_THREADS, /* instead of a thread's number: the clock is the copy's number */
    CLOCK_BITS = 21,
    STREAM_BITS = 4
};
static_assert(1 << STREAM_BITS == races::MOST_STREAMS, "streams");
const size_t ARENA_BYTES = (size_t)1 << 40; /* addresses, of which none is given twice */
const uint32_t OF_HOST = 1u << 31;

/* Who did something. An actor is a block of a kernel, or a copy, by number in the order in which
 * they ran; or the host, at a time. */
struct stamp {
    uint32_t actor; /* 0: nobody */
    uint32_t thread : 11, clock : CLOCK_BITS;
    uint32_t where; /* in the program; 0: a copy */
};
struct cell {
    stamp write, reads[2];
};
struct page {
    cell all; /* what each cell is, while there are none */
    cell *cells;
};

/* A stretch of addresses and its pages. */
struct region {
    uintptr_t begin;
    size_t bytes;
    page *pages;
};
region arena;   /* a block's dynamic shared memory, then what is allocated */
region statics; /* __shared__ arrays, among what kernels do not touch */
size_t arena_used = SHARED_BYTES;
uintptr_t program; /* where its code begins */

struct actor {
    uint32_t stream : STREAM_BITS, block : 32 - STREAM_BITS;
};
std::vector<actor> actors(1);
struct begun_kernel {
    uint32_t first; /* actor */
    const void *kernel;
};
std::vector<begun_kernel> kernels;
bool stream_taken[races::MOST_STREAMS] = {true}; /* the default stream is the first */
races::moment host;
std::vector<races::stream_order *> entered;

/* Of the kernel that runs. */
races::moment before_wait, after_wait;
bool overlaps;
bool has_waited[MOST_THREADS];
/* Of the block that runs, or the cluster: everything that orders its threads has a number. */
uint32_t actor_now, block_clock;
enum { MOST_BLOCKS = 8 };
int block_threads;
/* What threads have done before it comes before all that follows: of a block's threads in that
 * block, and of all in the cluster. */
uint32_t clock_floor[MOST_BLOCKS], cluster_floor;
uint32_t thread_clock[MOST_THREADS];
uint32_t known[MOST_THREADS][32]; /* up to where a thread comes after the lanes of its warp */
/* What a thread has done up to then, a bulk_fence of it follows; and one before the last barrier.
 */
uint32_t fenced[MOST_THREADS], fenced_at_barrier[MOST_THREADS];
struct bulk_copy {
    uint32_t end; /* 0: it goes on */
    std::bitset<MOST_THREADS> seen;
};
std::vector<bulk_copy> copies;
size_t first_recent_copy; /* what ended before is before the last barrier */
thread_local int running = -1;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulation: %s\n", what);
    abort();
}

void join(races::moment *to, const races::moment &from)
{
    for (int i = 0; i < races::MOST_STREAMS; i++)
        to->seen[i] = std::max(to->seen[i], from.seen[i]);
    to->host = std::max(to->host, from.host);
}

void *map(size_t bytes, int protection)
{
    void *memory =
        mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail("no addresses");
    return memory;
}

void open_region(region *region, void *begin, size_t bytes)
{
    region->pages =
        static_cast<page *>(map((bytes / PAGE_BYTES + 1) * sizeof(page), PROT_READ | PROT_WRITE));
    region->begin = reinterpret_cast<uintptr_t>(begin);
    region->bytes = bytes;
}

/* ---- whether accesses are in order ---- */

struct access_of {
    stamp me;
    const races::moment *after;
    bool write, shared, any_order;
    uint32_t copy; /* 0, or the bulk copy that begins */
};

/* Whether it was in this memory at all: in shared memory other blocks were not. */
bool counts(const stamp &before, const access_of &access)
{
    return before.actor != 0 && (!access.shared || before.actor == access.me.actor);
}

bool ordered(const stamp &before, const access_of &access)
{
    const stamp &me = access.me;
    if ((before.actor & OF_HOST) != 0)
        return (me.actor & OF_HOST) != 0 || (before.actor & ~OF_HOST) <= access.after->host;
    if (before.actor != me.actor)
        return before.actor <= access.after->seen[actors[before.actor].stream];
    int block = (int)me.thread / block_threads;
    if (before.thread == BULK_COPY) {
        const bulk_copy &copy = copies[before.clock];
        return copy.end != 0 && (copy.end < clock_floor[block] || copy.seen[me.thread]);
    }
    return before.thread == me.thread || before.clock < cluster_floor ||
           ((int)before.thread / block_threads == block && before.clock < clock_floor[block]) ||
           (before.thread / 32 == me.thread / 32 &&
            before.clock <= known[me.thread][before.thread % 32]);
}

/* ---- the message ---- */

uintptr_t program_base()
{
    uintptr_t base = 0;
    dl_iterate_phdr(
        [](struct dl_phdr_info *info, size_t, void *out) {
            *static_cast<uintptr_t *>(out) = info->dlpi_addr;
            return 1; /* the first is the program */
        },
        &base);
    return base;
}

void print_place(uintptr_t at, const char *options)
{
    char program[1024], command[1200];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length < 0 ? 0 : length] = '\0';
    snprintf(command, sizeof command, "addr2line %s -e '%s' %#lx >&2", options, program,
             (unsigned long)at);
    if (system(command) != 0)
        fprintf(stderr, "at %#lx of %s\n", (unsigned long)at, program);
}

void print_stamp(const stamp &stamp, const char *did)
{
    if ((stamp.actor & OF_HOST) != 0) {
        fprintf(stderr, "  the host %s\n", did);
    } else if (stamp.where == 0) {
        fprintf(stderr, "  a copy in stream %d %s\n", (int)actors[stamp.actor].stream, did);
        return;
    } else {
        size_t i = kernels.size() - 1;
        while (i > 0 && kernels[i].first > stamp.actor)
            i--;
        fprintf(stderr, "  kernel %zu, block %u, %s %u %s\n", i,
                (unsigned)actors[stamp.actor].block,
                stamp.thread == BULK_COPY ? "bulk copy" : "thread",
                (unsigned)(stamp.thread == BULK_COPY ? stamp.clock : stamp.thread), did);
        print_place(reinterpret_cast<uintptr_t>(kernels[i].kernel) - program, "-Cfs");
    }
    print_place(stamp.where - 1, "-Cifps"); /* the call: not where it returns to */
}

[[noreturn]] void report(const stamp &before, bool wrote, const access_of &access)
{
    fprintf(stderr, "emulation: a race on %s memory:\n", access.shared ? "shared" : "device");
    print_stamp(access.me, access.write ? "writes" : "reads");
    if (running >= 0 && overlaps && !has_waited[running])
        fprintf(stderr, "  (before its grid_wait)\n");
    print_stamp(before, wrote ? "wrote before, and is not in order" : "read before, not in order");
    abort();
}

/* ---- cells ---- */

/* Whether the thread that wrote it has called bulk_fence after that, and that is in order, too. */
bool is_fenced(const stamp &write, const access_of &access)
{
    if (write.actor != access.me.actor || write.thread == BULK_COPY)
        return true;
    stamp fence = write;
    fence.clock = fenced[write.thread];
    return write.clock <= fenced_at_barrier[write.thread] ||
           (write.clock <= fence.clock && ordered(fence, access));
}

/* The cell is the copy's from now on, until that is waited for. */
void give_to_copy(cell *cell, const access_of &access)
{
    if (!access.write && access.shared && !is_fenced(cell->write, access))
        report(cell->write, true, access);
    const stamp copy = {access.me.actor, BULK_COPY, access.copy, access.me.where};
    if (access.write)
        *cell = {copy, {}};
    else
        cell->reads[0] = copy;
}

void remember_read(cell *cell, const access_of &access)
{
    bool over[2]; /* nobody can be in a race with that read who is not with this one */
    for (int i = 0; i < 2; i++)
        over[i] = !counts(cell->reads[i], access) || ordered(cell->reads[i], access);
    if (over[0]) {
        cell->reads[0] = access.me;
        if (over[1])
            cell->reads[1] = {};
    } else if (over[1] || (cell->reads[0].actor == cell->reads[1].actor &&
                           cell->reads[0].thread / 32 == cell->reads[1].thread / 32)) {
        cell->reads[1] = access.me;
    }
}

void touch(cell *cell, const access_of &access)
{
    const stamp &me = access.me, &last = access.write ? cell->write : cell->reads[0];
    if (last.actor == me.actor && last.thread == me.thread && last.clock == me.clock &&
        (!access.write || cell->reads[0].actor == 0) && access.copy == 0)
        return; /* again */
    if (access.any_order) {
        *cell = {me, {}};
        return;
    }
    if (counts(cell->write, access) && !ordered(cell->write, access))
        report(cell->write, true, access);
    if (!access.write) {
        remember_read(cell, access);
        return;
    }
    for (stamp &read : cell->reads) {
        if (counts(read, access) && !ordered(read, access))
            report(read, false, access);
        read = {};
    }
    cell->write = me;
}

void touch_or_give(cell *cell, const access_of &access)
{
    touch(cell, access);
    if (access.copy != 0)
        give_to_copy(cell, access);
}

void touch_page(page *page, size_t begin, size_t end, const access_of &access)
{
    if (page->cells == nullptr && begin == 0 && end == PAGE_BYTES) {
        touch_or_give(&page->all, access);
        return;
    }
    if (page->cells == nullptr) {
        page->cells = static_cast<cell *>(malloc(PAGE_CELLS * sizeof(cell)));
        if (page->cells == nullptr)
            fail("no memory for shadow cells");
        for (int i = 0; i < PAGE_CELLS; i++)
            page->cells[i] = page->all;
    }
    for (size_t i = begin / CELL_BYTES; i < (end + CELL_BYTES - 1) / CELL_BYTES; i++)
        touch_or_give(&page->cells[i], access);
}

void touch_region(const region &region, uintptr_t memory, size_t bytes, const access_of &access)
{
    size_t at = memory - region.begin, end = at + bytes;
    while (at < end) {
        size_t begin = at % PAGE_BYTES, last = std::min(begin + end - at, (size_t)PAGE_BYTES);
        touch_page(&region.pages[at / PAGE_BYTES], begin, last, access);
        at += last - begin;
    }
}

bool inside(const region &region, uintptr_t memory)
{
    return memory - region.begin < region.bytes;
}

uint32_t add_actor(int stream, unsigned block)
{
    actors.push_back({(uint32_t)stream, block});
    return (uint32_t)actors.size() - 1;
}

stamp stamp_of(int thread, const void *where)
{
    uint32_t place = (uint32_t)(reinterpret_cast<uintptr_t>(where) - program);
    if (thread < 0)
        return {OF_HOST | host.host, 0, 0, place};
    return {actor_now, (uint32_t)thread, thread_clock[thread], place};
}

void touch_by_host(uintptr_t memory, size_t bytes, bool write, const void *where)
{
    std::lock_guard<std::recursive_mutex> held(emulation::mutex);
    if (!emulation::is_pinned(reinterpret_cast<void *>(memory), bytes))
        fail("the host touches memory of the device");
    touch_region(arena, memory, bytes, {stamp_of(-1, where), &host, write, false, false, 0});
}

void count_clock(uint32_t *clock)
{
    if (++*clock >> CLOCK_BITS != 0)
        fail("a block too long to be watched");
}
} // namespace

namespace races
{

static void open_arena()
{
    if (arena.bytes != 0)
        return;
    program = program_base();
    open_region(&arena, map(ARENA_BYTES, PROT_NONE), ARENA_BYTES);
    open_region(&statics, __bss_start, (size_t)(_end - __bss_start));
    if (mprotect(reinterpret_cast<void *>(arena.begin), SHARED_BYTES, PROT_READ | PROT_WRITE) != 0)
        fail("no memory");
}

void *allocate(size_t bytes)
{
    void *memory;
    if (!watches)
        return posix_memalign(&memory, 256, bytes == 0 ? 1 : bytes) == 0 ? memory : nullptr;
    open_arena();
    size_t room = (bytes / PAGE_BYTES + 1) * PAGE_BYTES;
    memory = reinterpret_cast<void *>(arena.begin + arena_used);
    arena_used += room;
    if (arena_used > ARENA_BYTES || mprotect(memory, room, PROT_READ | PROT_WRITE) != 0)
        fail("no more addresses");
    return memory;
}

void release(void *memory, size_t bytes)
{
    if (!watches) {
        free(memory);
        return;
    }
    size_t first = (reinterpret_cast<uintptr_t>(memory) - arena.begin) / PAGE_BYTES;
    size_t count = bytes / PAGE_BYTES + 1;
    for (size_t i = first; i < first + count; i++)
        free(arena.pages[i].cells);
    if (mmap(memory, count * PAGE_BYTES, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        fail("memory cannot be released");
}

void *take_shared(size_t bytes)
{
    void *memory;
    if (!watches) {
        if (posix_memalign(&memory, 128, bytes + 1) != 0)
            fail("no memory");
        return memory;
    }
    open_arena();
    if (bytes > SHARED_BYTES)
        fail("more shared memory than can be watched");
    return reinterpret_cast<void *>(arena.begin);
}

void release_shared(void *memory)
{
    if (!watches)
        free(memory);
}

void open_stream(stream_order *stream)
{
    int i = 0;
    while (i < MOST_STREAMS && stream_taken[i])
        i++;
    if (i == MOST_STREAMS)
        fail("too many streams");
    stream_taken[i] = true;
    stream->index = i;
}

void close_stream(const stream_order &stream)
{
    stream_taken[stream.index] = false;
}

moment queue()
{
    moment at = host;
    if (++host.host >= OF_HOST)
        fail("too many works to be watched");
    return at;
}

void host_waits(const moment &of)
{
    join(&host, of);
}

void enter(stream_order *stream, const moment &queued)
{
    entered.push_back(stream);
    join(&stream->end, queued);
    join(&stream->begin, queued);
}

void leave()
{
    entered.pop_back();
}

const moment &here()
{
    return entered.back()->end;
}

void wait_for(const moment &other)
{
    stream_order *stream = entered.back();
    join(&stream->end, other);
    stream->begin = stream->end;
}

void copy(void *to, const void *from, size_t bytes)
{
    stream_order *stream = entered.back();
    uint32_t me = add_actor(stream->index, 0);
    uintptr_t read = reinterpret_cast<uintptr_t>(from), write = reinterpret_cast<uintptr_t>(to);
    if (inside(arena, read))
        touch_region(arena, read, bytes, {{me, 0, 0, 0}, &stream->end, false, false, false, 0});
    if (inside(arena, write))
        touch_region(arena, write, bytes, {{me, 0, 0, 0}, &stream->end, true, false, false, 0});
    stream->end.seen[stream->index] = me;
    stream->begin = stream->end;
}

void begin_kernel(const void *kernel, bool may_overlap)
{
    const stream_order *stream = entered.back();
    kernels.push_back({(uint32_t)actors.size(), kernel});
    overlaps = may_overlap;
    before_wait = stream->begin;
    after_wait = stream->end;
}

void end_kernel()
{
    stream_order *stream = entered.back();
    stream->end.seen[stream->index] = (uint32_t)actors.size() - 1;
    if (!overlaps)
        stream->begin = stream->end;
}

void begin_block(unsigned block, int threads, int threads_of_block)
{
    actor_now = add_actor(entered.back()->index, block);
    block_threads = threads_of_block;
    block_clock = cluster_floor = 1;
    for (uint32_t &floor : clock_floor)
        floor = 1;
    memset(has_waited, 0, sizeof has_waited);
    memset(known, 0, (size_t)threads * sizeof known[0]);
    memset(fenced, 0, sizeof fenced);
    memset(fenced_at_barrier, 0, sizeof fenced_at_barrier);
    copies.assign(1, {});
    first_recent_copy = 1;
    for (uint32_t &clock : thread_clock)
        clock = 1;
}

void switch_thread(int thread)
{
    running = thread;
}

void grid_wait()
{
    has_waited[running] = true;
}

void barrier(int first, int threads)
{
    count_clock(&block_clock);
    if (threads > block_threads)
        cluster_floor = block_clock;
    for (int i = first; i < first + threads; i++) {
        clock_floor[i / block_threads] = block_clock;
        thread_clock[i] = block_clock;
        fenced_at_barrier[i] = fenced[i];
    }
    while (first_recent_copy < copies.size() && copies[first_recent_copy].end != 0)
        first_recent_copy++;
}

/* What a lane has seen, all have. */
static void share_copies(int first, unsigned mask)
{
    for (size_t i = first_recent_copy; i < copies.size(); i++) {
        std::bitset<MOST_THREADS> lanes(mask);
        lanes <<= (size_t)first;
        if ((copies[i].seen & lanes).any())
            copies[i].seen |= lanes;
    }
}

void sync_warp(int first, unsigned mask)
{
    uint32_t all[32] = {};
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1) == 0)
            continue;
        for (int j = 0; j < 32; j++)
            all[j] = std::max(all[j], known[first + i][j]);
        all[i] = std::max(all[i], thread_clock[first + i]);
    }
    share_copies(first, mask);
    count_clock(&block_clock);
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) != 0) {
            memcpy(known[first + i], all, sizeof all);
            thread_clock[first + i] = block_clock;
        }
}

uint32_t begin_copy()
{
    copies.push_back({});
    if (copies.size() >> CLOCK_BITS != 0)
        fail("too many bulk copies to be watched");
    return (uint32_t)copies.size() - 1;
}

void end_copy(uint32_t copy)
{
    count_clock(&block_clock);
    copies[copy].end = block_clock;
}

void see_copy(uint32_t copy)
{
    copies[copy].seen.set((size_t)running);
}

void fence()
{
    fenced[running] = thread_clock[running];
    count_clock(&block_clock);
    thread_clock[running] = block_clock;
}

static void access_by_kernel(const void *memory, size_t bytes, bool write, bool any_order,
                             uint32_t copy, const void *where)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    bool in_arena = inside(arena, at);
    bool shared = !in_arena || at - arena.begin < SHARED_BYTES;
    if (in_arena || inside(statics, at))
        touch_region(in_arena ? arena : statics, at, bytes,
                     {stamp_of(running, where),
                      overlaps && !has_waited[running] ? &before_wait : &after_wait, write, shared,
                      any_order, copy});
}

void access(const void *memory, size_t bytes, bool write, const void *where)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    if (running >= 0)
        access_by_kernel(memory, bytes, write, false, 0, where);
    else if (inside(arena, at))
        touch_by_host(at, bytes, write, where);
}

void take_over(const void *memory, size_t bytes, const void *where)
{
    access_by_kernel(memory, bytes, true, true, 0, where);
}

void access_by_copy(const void *memory, size_t bytes, bool write, uint32_t copy, const void *where)
{
    access_by_kernel(memory, bytes, write, false, copy, where);
}

} // namespace races

#ifdef REGLA_CUDA_RACES
#define WATCHED(name, bytes, write)                                       \
    void __tsan_##name(void *memory)                                      \
    {                                                                     \
        races::access(memory, bytes, write, __builtin_return_address(0)); \
    }
#define WATCHED_SIZE(bytes)                      \
    WATCHED(read##bytes, bytes, false)           \
    WATCHED(write##bytes, bytes, true)           \
    WATCHED(unaligned_read##bytes, bytes, false) \
    WATCHED(unaligned_write##bytes, bytes, true)
extern "C" {
WATCHED_SIZE(2)
WATCHED_SIZE(4)
WATCHED_SIZE(8)
WATCHED_SIZE(16)
WATCHED(read1, 1, false)
void __tsan_write1(void *memory)
{
    if (running >= 0 && inside(arena, reinterpret_cast<uintptr_t>(memory)))
        fail("a kernel writes a single byte: races.cc needs smaller cells");
}
/* The program's calls of memcpy come here (cuda.cmake); newer compilers' own are named. */
void *__real_memcpy(void *to, const void *from, size_t bytes);
#define COPIES(name, copy)                                              \
    void *name(void *to, const void *from, size_t bytes)                \
    {                                                                   \
        races::access(from, bytes, false, __builtin_return_address(0)); \
        races::access(to, bytes, true, __builtin_return_address(0));    \
        return copy(to, from, bytes);                                   \
    }
COPIES(__wrap_memcpy, __real_memcpy)
COPIES(__tsan_memcpy, __real_memcpy)
COPIES(__tsan_memmove, memmove)
void *__tsan_memset(void *at, int value, size_t bytes)
{
    races::access(at, bytes, true, __builtin_return_address(0));
    return memset(at, value, bytes);
}
unsigned char __tsan_atomic8_load(const volatile unsigned char *at, int)
{
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
void __tsan_atomic8_store(volatile unsigned char *at, unsigned char value, int)
{
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}
void __tsan_init()
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}
}
#endif
