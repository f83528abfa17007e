/* Memory, streams and graphs of the emulated device. There is one queue: what is asynchronous waits
 * in it until anybody waits for anything, so that a host that does not wait reads old numbers. */
#include "tests/cuda/emulation/emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <deque>
#include <map>
#include <vector>

typedef std::function<void()> work;

struct emulated_graph {
    std::vector<work> works;
};
struct emulated_stream {
    emulated_graph *capture;
};
struct emulated_event {
    double seconds;
    bool done;
};

namespace
{
std::deque<work> queue;
struct allocation {
    size_t bytes, of_device; /* managed memory counts as nothing */
};
std::map<char *, allocation> allocations;
std::map<char *, size_t> pinned;
size_t allocated;
long launches;
cudaError_t last_error, broken;
emulated_stream default_stream;

cudaError_t note(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

void drain()
{
    while (!queue.empty()) {
        work next = std::move(queue.front());
        queue.pop_front();
        next();
    }
}

emulated_stream *stream_of(cudaStream_t stream)
{
    return stream == nullptr ? &default_stream : stream;
}

cudaError_t enqueue(cudaStream_t stream, work item)
{
    if (broken != cudaSuccess)
        return note(broken);
    emulated_graph *capture = stream_of(stream)->capture;
    if (capture != nullptr)
        capture->works.push_back(std::move(item));
    else
        queue.push_back(std::move(item));
    return cudaSuccess;
}

/* Ends the program where [memory, memory + bytes) is not all inside one allocation. */
void check_device(const void *memory, size_t bytes, const char *what)
{
    char *at = static_cast<char *>(const_cast<void *>(memory));
    auto next = allocations.upper_bound(at);
    if (bytes > 0 && (next == allocations.begin() ||
                      std::prev(next)->first + std::prev(next)->second.bytes < at + bytes)) {
        fprintf(stderr, "emulation: %s of %zu bytes that are not device memory\n", what, bytes);
        abort();
    }
}

/* Counts a launch; from the one on that is to fail the device is broken. */
void count_launch()
{
    if (emulation::get_settings().fail_at > 0 && ++launches >= emulation::get_settings().fail_at)
        broken = cudaErrorLaunchFailure;
}

bool is_pinned(const void *memory, size_t bytes)
{
    char *at = static_cast<char *>(const_cast<void *>(memory));
    auto next = pinned.upper_bound(at);
    return next != pinned.begin() && at + bytes <= std::prev(next)->first + std::prev(next)->second;
}

void set(void *memory, int value, size_t bytes)
{
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

const settings &get_settings()
{
    static const settings set = [] {
        settings s = {false, 0, (size_t)4 << 30, 0};
        const char *order = getenv("REGLA_EMULATION_ORDER");
        const char *memory = getenv("REGLA_EMULATION_MEMORY");
        const char *fail = getenv("REGLA_EMULATION_FAIL");
        if (order != nullptr && strcmp(order, "backward") == 0)
            s.backward = true;
        else if (order != nullptr)
            s.seed = (unsigned)strtoul(order, nullptr, 10) % 65536;
        if (memory != nullptr)
            s.memory = strtoull(memory, nullptr, 10);
        if (fail != nullptr)
            s.fail_at = strtol(fail, nullptr, 10);
        return s;
    }();
    return set;
}

cudaError_t launch(const cudaLaunchConfig_t &config, work thread)
{
    dim3 grid = config.gridDim, block = config.blockDim;
    size_t shared = config.dynamicSmemBytes;
    size_t lanes = (size_t)block.x * block.y * block.z;
    if (lanes == 0 || lanes > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.y > 65535 || grid.z > 65535 ||
        shared > 99 * 1024) /* of devices 8.6 and 8.9, the least */
        return note(cudaErrorInvalidValue);
    bool overlaps = false;
    for (unsigned i = 0; i < config.numAttrs; i++)
        overlaps |= config.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                    config.attrs[i].val.programmaticStreamSerializationAllowed != 0;
    count_launch();
    return enqueue(config.stream, [=] { run(grid, block, shared, overlaps, thread); });
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
    properties->sharedMemPerBlockOptin = 227 * 1024;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    drain();
    return note(broken);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = emulation::get_settings().memory;
    *free_bytes = *total_bytes > allocated ? *total_bytes - allocated : 0;
    return cudaSuccess;
}

cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    if (posix_memalign(out, 256, bytes == 0 ? 1 : bytes) != 0)
        return note(cudaErrorMemoryAllocation);
    memset(*out, 0xff, bytes < (1 << 24) ? bytes : 1 << 24); /* the rest is not touched yet */
    allocations[static_cast<char *>(*out)] = {bytes, 0};
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (bytes > emulation::get_settings().memory - allocated)
        return note(cudaErrorMemoryAllocation);
    cudaError_t error = cudaMallocManaged(out, bytes, cudaMemAttachGlobal);
    if (error == cudaSuccess) {
        allocations[static_cast<char *>(*out)].of_device = bytes;
        allocated += bytes;
    }
    return error;
}

cudaError_t cudaFree(void *memory)
{
    if (memory == nullptr)
        return cudaSuccess;
    drain();
    auto at = allocations.find(static_cast<char *>(memory));
    if (at == allocations.end())
        return note(cudaErrorInvalidValue);
    allocated -= at->second.of_device;
    allocations.erase(at);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    if (posix_memalign(out, 256, bytes == 0 ? 1 : bytes) != 0)
        return note(cudaErrorMemoryAllocation);
    pinned[static_cast<char *>(*out)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    if (memory == nullptr)
        return cudaSuccess;
    drain();
    if (pinned.erase(static_cast<char *>(memory)) == 0)
        return note(cudaErrorInvalidValue);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)
        check_device(to, bytes, "a copy to");
    if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)
        check_device(from, bytes, "a copy from");
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes)) {
        std::vector<char> staged(static_cast<const char *>(from),
                                 static_cast<const char *>(from) + bytes);
        return enqueue(stream, [to, staged] { memcpy(to, staged.data(), staged.size()); });
    }
    cudaError_t error = enqueue(stream, [=] { memmove(to, from, bytes); });
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes))
        drain();
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    drain();
    return error;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    check_device(memory, bytes, "a set");
    return enqueue(stream, [=] { set(memory, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = new emulated_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    drain();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream_of(stream)->capture != nullptr)
        return note(cudaErrorInvalidValue);
    drain();
    return note(broken);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return cudaSuccess; /* one queue: what was recorded before comes before */
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = new emulated_event{0, true};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    drain();
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->done = false;
    return enqueue(stream, [=] {
        event->seconds = now();
        event->done = true;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    drain();
    return note(broken);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    bool done = event->done;
    drain();
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    *milliseconds = (float)(1e3 * (end->seconds - start->seconds));
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    (void)mode;
    if (stream == nullptr || stream->capture != nullptr)
        return note(cudaErrorInvalidValue);
    stream->capture = new emulated_graph();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    if (stream == nullptr || stream->capture == nullptr)
        return note(cudaErrorInvalidValue);
    *out = stream->capture;
    stream->capture = nullptr;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
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
    for (const work &item : graph->works) {
        count_launch();
        if (enqueue(stream, item) != cudaSuccess)
            return note(broken);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    drain();
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
