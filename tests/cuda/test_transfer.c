/* SPDX-License-Identifier: Apache-2.0 */
/* States that leave the device while the engine goes on: images larger than what is on its way at
 * once, many of them waited for by several threads in any order, states that are written and freed
 * behind their saves, and a device that fails. Status 77: there is no device. */
#include "engine/cuda/backend.h"
#include "engine/engine.h"
#include "tests/cuda/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODEL REGLA_SOURCE_DIR "/tests/golden/hybrid_regla"

enum { SAVES = 24, THREADS = 3, MEMORY = 160 << 20 };

static struct bench_count count;

static void must(int result, const struct error *err)
{
    if (result != 0) {
        fprintf(stderr, "cuda-transfer: %s\n", err->message);
        exit(1);
    }
}

static struct engine *open_engine(void)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    const struct engine_options options = {.device = "cuda", .state_memory_bytes = MEMORY};
    must(engine_open(&engine, MODEL, &options, &err), &err);
    return engine;
}

/* An image of a text that nobody has computed. */
static char *make_image(const struct engine *engine, int64_t position, unsigned seed)
{
    size_t numbers = state_image_bytes(engine, position) / sizeof(float);
    float *image = malloc(numbers * sizeof *image);
    for (size_t i = 0; i < numbers; i++)
        image[i] = (float)((i * 7 + seed) % 1021);
    return (char *)image;
}

static struct state *put(struct engine *engine, int64_t position, unsigned seed)
{
    struct error err = ERROR_INIT;
    struct state *state;
    char *image = make_image(engine, position, seed);
    must(state_restore(&state, engine, image, position, position + 64, &err), &err);
    free(image);
    return state;
}

static void step(struct engine *engine, struct state *state)
{
    struct error err = ERROR_INIT;
    const int32_t token = 5;
    struct span span = {.state = state, .tokens = &token, .num_tokens = 1, .num_logits = 1};
    must(engine_step(engine, &span, 1, &err), &err);
}

/* One that is larger than all pieces on their way together; saved again, it is the same, whatever
 * has been done to the state since it was begun. */
static void large(struct engine *engine)
{
    struct error err = ERROR_INIT;
    int64_t position = 64;
    while (state_image_bytes(engine, position) < (size_t)36 << 20)
        position += 64;
    size_t bytes = state_image_bytes(engine, position);
    char *image = malloc(bytes), *saved = malloc(bytes);
    struct state *state = put(engine, position, 1);
    must(state_save(state, image, &err), &err);
    struct state_save save = state_save_begin(state, saved);
    step(engine, state);
    state_free(state);
    state = put(engine, position, 2); /* into the same memory */
    must(state_save_wait(&save, &err), &err);
    bench_expect(&count, memcmp(saved, image, bytes) == 0, "large", "image", (double)bytes);
    must(state_save(state, saved, &err), &err);
    bench_expect(&count, memcmp(saved, image, bytes) != 0, "large", "another image", 0);
    state_free(state);
    free(image);
    free(saved);
}

struct crowd {
    struct state_save saves[SAVES];
    char *images[SAVES], *saved[SAVES];
    size_t bytes;
    int wrong[THREADS];
};

struct waiter {
    struct crowd *crowd;
    int number;
};

static void *wait_for_all(void *context)
{
    const struct waiter *waiter = context;
    struct crowd *crowd = waiter->crowd;
    for (int i = 0; i < SAVES; i++) {
        int at = (i * (2 * waiter->number + 5) + waiter->number) % SAVES;
        crowd->wrong[waiter->number] +=
            state_save_wait(&crowd->saves[at], NULL) != 0 ||
            memcmp(crowd->saved[at], crowd->images[at], crowd->bytes) != 0;
    }
    return NULL;
}

/* Many small ones, begun between steps of other texts, and waited for by several threads. */
static void many(struct engine *engine)
{
    struct error err = ERROR_INIT;
    struct crowd crowd = {.bytes = state_image_bytes(engine, 100)};
    struct state *running = put(engine, 1, 3);
    for (int i = 0; i < SAVES; i++) {
        struct state *state = put(engine, 100, (unsigned)i);
        crowd.images[i] = malloc(crowd.bytes);
        crowd.saved[i] = malloc(crowd.bytes);
        must(state_save(state, crowd.images[i], &err), &err);
        crowd.saves[i] = state_save_begin(state, crowd.saved[i]);
        state_free(state);
        step(engine, running);
    }
    pthread_t threads[THREADS];
    struct waiter waiters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (struct waiter){&crowd, i};
        pthread_create(&threads[i], NULL, wait_for_all, &waiters[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        bench_expect(&count, crowd.wrong[i] == 0, "many", "images that are others", crowd.wrong[i]);
    }
    for (int i = 0; i < SAVES; i++) {
        free(crowd.images[i]);
        free(crowd.saved[i]);
    }
    state_free(running);
}

/* What is saved first is held up, so that the others must wait for room. */
static void hold_up(const struct ops_save *save)
{
    const struct timespec pause = {0, 20000000};
    (void)save;
    nanosleep(&pause, NULL);
}

static void full(void)
{
    struct bench_device cpu, cuda;
    struct error err = ERROR_INIT;
    float numbers[SAVES], saved[SAVES] = {0};
    void *device;
    const struct ops_limits limits = bench_limits(1);
    bench_open(&cpu, &cuda, &limits);
    for (int i = 0; i < SAVES; i++)
        numbers[i] = (float)(i + 1);
    must(cuda.ops->upload(cuda.backend, numbers, sizeof numbers, &device, &err), &err);
    uint64_t last = 0;
    for (int i = 0; i < SAVES; i++) {
        const struct ops_save save = {.to = &saved[i],
                                      .head = (const char *)device + (size_t)i * sizeof(float),
                                      .head_bytes = sizeof(float),
                                      .there = i == 0 ? hold_up : NULL};
        last = cuda.ops->save(cuda.backend, &save);
    }
    must(cuda.ops->save_wait(cuda.backend, last, &err), &err);
    bench_expect(&count, memcmp(saved, numbers, sizeof saved) == 0, "full", "numbers", saved[0]);
    cuda.ops->unload(cuda.backend, device);
    cuda.ops->close(cuda.backend);
    cpu.ops->close(cpu.backend);
}

/* On an emulated device that is broken from some launch on: a save from then on says so, and so
 * does the engine. In a process of its own, whose status is 0 when all is as it should be. */
static int fails(void)
{
    struct engine *engine = open_engine();
    struct error err = ERROR_INIT;
    struct state *state = put(engine, 70, 4);
    char *image = malloc(state_image_bytes(engine, 134));
    const int32_t token = 5;
    struct span span = {.state = state, .tokens = &token, .num_tokens = 1, .num_logits = 1};
    for (int steps = 0; engine_step(engine, &span, 1, &err) == 0; steps++)
        if (steps == 60 || state_save(state, image, &err) != 0)
            return 2;
    struct state_save save = state_save_begin(state, image);
    error_clear(&err);
    if (state_save_wait(&save, &err) == 0 || strstr(err.message, "launch failure") == NULL)
        return 3;
    state_free(state);
    int status = engine_failed(engine) ? 0 : 4;
    engine_close(engine);
    free(image);
    return status;
}

/* Before this process looks at a device itself. Others than an emulated one do not break to order.
 */
static void failure(void)
{
#ifdef REGLA_CUDA_EMULATION
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        setenv("REGLA_EMULATION_FAIL", "400", 1);
        _exit(fails());
    }
    waitpid(child, &status, 0);
    bench_expect(&count, WIFEXITED(status) && WEXITSTATUS(status) == 0, "fails", "status",
                 WEXITSTATUS(status));
#else
    (void)fails;
#endif
}

int main(void)
{
    failure();
    if (cuda_devices() == 0) {
        printf("cuda-transfer: skipped: no CUDA device\n");
        return 77;
    }
    full();
    struct engine *engine = open_engine();
    large(engine);
    many(engine);
    bench_expect(&count, !engine_failed(engine), "engine", "failed", 1);
    engine_close(engine);
    printf("cuda-transfer: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
