/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, streams and graphs of the emulated device. What is asynchronous waits in the queue of its
 * stream until somebody waits for it, and then runs no further than was waited for: so a host that
 * does not wait reads old numbers, and so does a stream that does not wait for another. Threads may
 * call at the same time; what runs, runs in the thread that waits. */
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/races.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

typedef std::function<void()> work;

struct emulated_graph {
    std::vector<work> works;
};
struct queued_work {
    work run;
    races::moment queued;
};
struct emulated_stream {
    emulated_graph *capture;
    std::deque<queued_work> queue;
    unsigned long queued, run; /* works, so far */
    races::stream_order order;
};
struct emulated_event {
    bool timed;
    double seconds;
    emulated_stream *stream;               /* where it was recorded last; NULL: nowhere */
    unsigned long after;                   /* as which of the stream's works */
    std::shared_ptr<races::moment> moment; /* when that has run */
};

std::recursive_mutex emulation::mutex;

namespace
{
using emulation::check_device;
using emulation::enqueue;
using emulation::is_pinned;
using emulation::mutex;
typedef std::lock_guard<std::recursive_mutex> guard;
std::map<char *, size_t> allocations, pinned;
std::set<void *> mapped;              /* of what is pinned */
std::map<void (*)(), size_t> allowed; /* dynamic shared memory of kernels that asked */
size_t allocated;
long launches, copies;
thread_local int capturing; /* streams */
thread_local cudaError_t last_error;
cudaError_t broken;
emulated_stream default_stream;
std::set<emulated_stream *> streams = {&default_stream};

cudaError_t note(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* Ends the program while the calling thread captures a stream: a device's runtime refuses the call,
 * and the capture is lost. */
void outside_capture(const char *call)
{
    if (capturing == 0)
        return;
    fprintf(stderr, "emulation: %s while a stream is captured\n", call);
    abort();
}

/* The stream's works up to number `until`. */
void run_stream(emulated_stream *stream, unsigned long until)
{
    while (stream->run < until) {
        queued_work next = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->run++;
        races::enter(&stream->order, next.queued);
        next.run();
        races::leave();
    }
}

void run_event(const emulated_event *event)
{
    if (event->stream != nullptr)
        run_stream(event->stream, event->after);
}

void drain()
{
    for (emulated_stream *stream : streams)
        run_stream(stream, stream->queued);
}

/* The host waits. */
void wait_event(const emulated_event *event)
{
    run_event(event);
    if (event->stream != nullptr)
        races::host_waits(*event->moment);
}

void wait_stream(emulated_stream *stream)
{
    run_stream(stream, stream->queued);
    races::host_waits(stream->order.end);
}

void wait_device()
{
    drain();
    for (const emulated_stream *stream : streams)
        races::host_waits(stream->order.end);
}

emulated_stream *stream_of(cudaStream_t stream)
{
    return stream == nullptr ? &default_stream : stream;
}

struct {
    size_t bytes;
    const char *first, *end;
} prefetched;
int carveout = -1;

/* Counts a launch; from the one on that is to fail the device is broken. */
void count_launch()
{
    if (emulation::get_settings().fail_at > 0 && ++launches >= emulation::get_settings().fail_at)
        broken = cudaErrorLaunchFailure;
}

/* What works do. */
void copy(void *to, const void *from, size_t bytes)
{
    races::copy(to, from, bytes);
    memmove(to, from, bytes);
}

void set(void *memory, int value, size_t bytes)
{
    races::copy(memory, nullptr, bytes);
    char *first = static_cast<char *>(memory), *end = first + bytes;
    const uintptr_t page = 4096;
    char *inside =
        reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(first) + page - 1) / page * page);
    char *inside_end = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(end) / page * page);
    if (value == 0 && bytes > (1 << 20) &&
        madvise(inside, (size_t)(inside_end - inside), MADV_DONTNEED) == 0) {
        memset(first, 0, (size_t)(inside - first));
        memset(inside_end, 0, (size_t)(end - inside_end));
    } else {
        memset(memory, value, bytes);
    }
}

double now()
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
} // namespace

namespace emulation
{

cudaError_t enqueue(cudaStream_t stream, work item)
{
    if (broken != cudaSuccess)
        return note(broken);
    emulated_stream *to = stream_of(stream);
    if (to->capture != nullptr) {
        to->capture->works.push_back(std::move(item));
    } else {
        to->queue.push_back({std::move(item), races::queue()});
        to->queued++;
    }
    return cudaSuccess;
}

void check_device(const void *memory, size_t bytes, const char *what)
{
    char *at = static_cast<char *>(const_cast<void *>(memory));
    auto next = allocations.upper_bound(at);
    if (bytes > 0 && (next == allocations.begin() ||
                      std::prev(next)->first + std::prev(next)->second < at + bytes)) {
        fprintf(stderr, "emulation: %s of %zu bytes that are not device memory\n", what, bytes);
        abort();
    }
}

const settings &get_settings()
{
    static const settings set = [] {
        settings s = {false, 0, (size_t)4 << 30, 99 << 10, 0};
        const char *order = getenv("REGLA_EMULATION_ORDER");
        const char *memory = getenv("REGLA_EMULATION_MEMORY");
        const char *shared = getenv("REGLA_EMULATION_SHARED");
        const char *fail = getenv("REGLA_EMULATION_FAIL");
        if (order != nullptr && strcmp(order, "backward") == 0)
            s.backward = true;
        else if (order != nullptr)
            s.seed = (unsigned)strtoul(order, nullptr, 10) % 65536;
        if (memory != nullptr)
            s.memory = strtoull(memory, nullptr, 10);
        if (shared != nullptr)
            s.shared = strtoull(shared, nullptr, 10);
        if (fail != nullptr)
            s.fail_at = strtol(fail, nullptr, 10);
        return s;
    }();
    return set;
}

bool is_pinned(const void *memory, size_t bytes)
{
    char *at = static_cast<char *>(const_cast<void *>(memory));
    auto next = pinned.upper_bound(at);
    return next != pinned.begin() && at + bytes <= std::prev(next)->first + std::prev(next)->second;
}

/* 48 KiB where nobody asked, in which the kernel's own arrays lie, too: as if of 1 KiB */
size_t allowed_shared(void (*kernel)())
{
    guard held(mutex);
    return allowed.count(kernel) != 0 ? allowed[kernel] : 47 << 10;
}

/* Less than before is refused, since launches in graphs may need what was allowed. */
cudaError_t allow_shared(void (*kernel)(), size_t bytes)
{
    guard held(mutex);
    if (bytes + 1024 > get_settings().shared ||
        (allowed.count(kernel) != 0 && bytes < allowed[kernel]))
        return note(cudaErrorInvalidValue);
    allowed[kernel] = bytes;
    return cudaSuccess;
}

/* A device prefetches nothing where there is no memory, and says nothing: a mistake would not show.
 */
void prefetch(const void *from, unsigned bytes)
{
    const char *first = static_cast<const char *>(from), *end = first + bytes;
    guard held(mutex);
    if (bytes == 0 || bytes % 16 != 0 || bytes >= 1 << 20 ||
        reinterpret_cast<uintptr_t>(from) % 16 != 0) {
        fprintf(stderr,
                "emulation: a prefetch of %u bytes at %p, not multiples of 16 under a MiB\n", bytes,
                from);
        abort();
    }
    check_device(from, bytes, "a prefetch");
    prefetched.first = prefetched.bytes == 0 || first < prefetched.first ? first : prefetched.first;
    prefetched.end = prefetched.bytes == 0 || end > prefetched.end ? end : prefetched.end;
    prefetched.bytes += bytes;
}

/* Whether the device can run it: up to 8 blocks beside each other, here of whole warps. */
static bool is_cluster(const cudaLaunchAttribute &attribute, dim3 grid, size_t lanes)
{
    unsigned x = attribute.val.clusterDim.x;
    return x >= 1 && x <= 8 && attribute.val.clusterDim.y == 1 && attribute.val.clusterDim.z == 1 &&
           grid.x % x == 0 && lanes % 32 == 0 && lanes * x <= 1024;
}

cudaError_t launch(const cudaLaunchConfig_t &config, void (*kernel)(), work thread)
{
    guard held(mutex);
    dim3 grid = config.gridDim, block = config.blockDim;
    size_t shared = config.dynamicSmemBytes;
    size_t lanes = (size_t)block.x * block.y * block.z;
    if (lanes == 0 || lanes > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.y > 65535 || grid.z > 65535 || shared > allowed_shared(kernel))
        return note(cudaErrorInvalidValue);
    bool overlaps = false;
    carveout = -1;
    unsigned cluster = 1;
    for (unsigned i = 0; i < config.numAttrs; i++) {
        const cudaLaunchAttribute &attribute = config.attrs[i];
        switch (attribute.id) {
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            overlaps |= attribute.val.programmaticStreamSerializationAllowed != 0;
            break;
        case cudaLaunchAttributePreferredSharedMemoryCarveout:
            carveout = (int)attribute.val.sharedMemCarveout;
            if (carveout < 0 || carveout > 100)
                return note(cudaErrorInvalidValue);
            break;
        case cudaLaunchAttributeClusterDimension:
            if (!is_cluster(attribute, grid, lanes))
                return note(cudaErrorInvalidValue);
            cluster = attribute.val.clusterDim.x;
            break;
        default:
            return note(cudaErrorInvalidValue);
        }
    }
    count_launch();
    return enqueue(config.stream,
                   [=] { run(grid, block, cluster, shared, overlaps, kernel, thread); });
}

} // namespace emulation

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    }
    return "unknown error";
}

cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError()
{
    return last_error;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return note(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (device != 0)
        return note(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "emulated device");
    properties->totalGlobalMem = emulation::get_settings().memory;
    properties->sharedMemPerBlockOptin = emulation::get_settings().shared;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    guard held(mutex);
    outside_capture("cudaDeviceSynchronize");
    wait_device();
    return note(broken);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    guard held(mutex);
    *total_bytes = emulation::get_settings().memory;
    *free_bytes = *total_bytes > allocated ? *total_bytes - allocated : 0;
    return cudaSuccess;
}

extern "C" void emulation_memory(size_t *free_bytes, size_t *total_bytes)
{
    cudaMemGetInfo(free_bytes, total_bytes);
}

void emulation_prefetched(size_t *bytes, size_t *extent)
{
    guard held(mutex);
    *bytes = prefetched.bytes;
    *extent = (size_t)(prefetched.end - prefetched.first);
    prefetched = {};
}

int emulation_carveout()
{
    return carveout;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    guard held(mutex);
    outside_capture("cudaMalloc");
    if (bytes == 0) /* on which a driver may have its own opinion */
        return note(cudaErrorInvalidValue);
    if (bytes > emulation::get_settings().memory - allocated ||
        (*out = races::allocate(bytes)) == nullptr)
        return note(cudaErrorMemoryAllocation);
    memset(*out, 0xff, bytes < (1 << 24) ? bytes : 1 << 24); /* the rest is not touched yet */
    allocations[static_cast<char *>(*out)] = bytes;
    allocated += bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    guard held(mutex);
    outside_capture("cudaFree");
    if (memory == nullptr)
        return cudaSuccess;
    wait_device();
    auto at = allocations.find(static_cast<char *>(memory));
    if (at == allocations.end())
        return note(cudaErrorInvalidValue);
    allocated -= at->second;
    races::release(memory, at->second);
    allocations.erase(at);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    guard held(mutex);
    outside_capture("cudaHostAlloc");
    if (bytes == 0)
        return note(cudaErrorInvalidValue);
    *out = races::allocate(bytes);
    if (*out == nullptr)
        return note(cudaErrorMemoryAllocation);
    pinned[static_cast<char *>(*out)] = bytes;
    if ((flags & cudaHostAllocMapped) != 0)
        mapped.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags)
{
    guard held(mutex);
    if (flags != 0 || mapped.count(memory) == 0)
        return note(cudaErrorInvalidValue);
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    guard held(mutex);
    outside_capture("cudaFreeHost");
    wait_device();
    auto at = pinned.find(static_cast<char *>(memory));
    if (at == pinned.end())
        return note(cudaErrorInvalidValue);
    races::release(memory, at->second);
    mapped.erase(memory);
    pinned.erase(at);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    guard held(mutex);
    copies += kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost;
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)
        check_device(to, bytes, "a copy to");
    if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)
        check_device(from, bytes, "a copy from");
    if ((kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes)) ||
        (kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes)))
        outside_capture("a copy of memory that is not pinned");
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes)) {
        std::vector<char> staged(static_cast<const char *>(from),
                                 static_cast<const char *>(from) + bytes);
        return enqueue(stream, [to, staged] { copy(to, staged.data(), staged.size()); });
    }
    cudaError_t error = enqueue(stream, [=] { copy(to, from, bytes); });
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes))
        wait_stream(stream_of(stream));
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    guard held(mutex);
    outside_capture("cudaMemcpy");
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    wait_device();
    return error;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    guard held(mutex);
    check_device(memory, bytes, "a set");
    return enqueue(stream, [=] { set(memory, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    guard held(mutex);
    (void)flags;
    *out = new emulated_stream();
    races::open_stream(&(*out)->order);
    streams.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard held(mutex);
    outside_capture("cudaStreamDestroy");
    drain(); /* no event of it is waited for after that */
    streams.erase(stream);
    races::close_stream(stream->order);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard held(mutex);
    outside_capture("cudaStreamSynchronize");
    wait_stream(stream_of(stream));
    return note(broken);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    guard held(mutex);
    emulated_event recorded = *event; /* as of now: it may be recorded again */
    return enqueue(stream, [recorded] {
        run_event(&recorded);
        if (recorded.stream != nullptr)
            races::wait_for(*recorded.moment);
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = new emulated_event();
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard held(mutex);
    drain();
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard held(mutex);
    auto moment = std::make_shared<races::moment>();
    cudaError_t error = enqueue(stream, [=] {
        event->seconds = now();
        *moment = races::here();
    });
    event->moment = moment;
    event->stream = stream_of(stream);
    event->after = event->stream->queued;
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard held(mutex);
    outside_capture("cudaEventSynchronize");
    wait_event(event);
    return note(broken);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard held(mutex);
    outside_capture("cudaEventQuery");
    bool done = event->stream == nullptr || event->stream->run >= event->after;
    done ? wait_event(event) : run_event(event);
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    guard held(mutex);
    for (const emulated_event *event : {start, end}) {
        if (!event->timed || event->stream == nullptr)
            return note(cudaErrorInvalidResourceHandle);
        if (event->stream->run < event->after)
            return note(cudaErrorNotReady);
    }
    *milliseconds = (float)(1e3 * (end->seconds - start->seconds));
    return cudaSuccess;
}

long emulation_copies()
{
    return copies;
}

static std::atomic<long> graphs_made{0};

long emulation_graphs()
{
    return graphs_made;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    guard held(mutex);
    (void)mode;
    if (stream == nullptr || stream->capture != nullptr)
        return note(cudaErrorInvalidValue);
    stream->capture = new emulated_graph();
    capturing++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    guard held(mutex);
    if (stream == nullptr || stream->capture == nullptr)
        return note(cudaErrorInvalidValue);
    *out = stream->capture;
    stream->capture = nullptr;
    capturing--;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    graphs_made++;
    *out = new emulated_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    (void)graph;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    guard held(mutex);
    for (const work &item : graph->works) {
        count_launch();
        if (enqueue(stream, item) != cudaSuccess)
            return note(broken);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    guard held(mutex);
    drain();
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
