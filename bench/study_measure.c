/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include "bench/greedy.h"
#include "lib/base/clock.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Steps before the first that counts: caches, huge pages and the threads' first waking. */
enum { WARM_UP_TOKENS = 16 };

struct texts {
    struct engine *engine;
    int count;
    struct greedy *greedy;
    struct span *spans; /* [count]: their prompts */
};

/* "VmHWM:   123 kB" of this process, in bytes; -1: unknown. */
static int64_t process_status(const char *field)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL)
        return -1;
    char line[256];
    long long kilobytes = -1;
    size_t length = strlen(field);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, length) == 0 && line[length] == ':')
            sscanf(line + length + 1, "%lld", &kilobytes);
    fclose(file);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

/* Loading takes more memory than running: forgets its peak. Where the kernel does not let us, the
 * memory at the end is the answer, which only grows while a text does. */
static bool reset_peak(void)
{
    malloc_trim(0);
    int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    bool done = write(file, "5", 1) == 1;
    close(file);
    return done;
}

static void close_texts(struct texts *texts)
{
    for (int i = 0; i < texts->count; i++)
        state_free(texts->spans[i].state);
    texts->count = 0;
}

/* Texts of `length` tokens behind the prompt; the prompts differ, as those of users do. */
static int generate(struct texts *texts, int batch, int length, double *first_s, double *total_s,
                    struct error *err)
{
    int32_t *prompts = calloc((size_t)batch * STUDY_PROMPT_TOKENS, sizeof *prompts);
    if (prompts == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %d texts", batch);
    int32_t vocab_size = engine_info(texts->engine)->vocab_size;
    for (int i = 0; i < batch * STUDY_PROMPT_TOKENS; i++)
        prompts[i] = (int32_t)((1000 + 7919 * (int64_t)i) % vocab_size);
    int result = 0;
    double start = clock_seconds();
    for (int i = 0; result == 0 && i < batch; i++) {
        texts->spans[i] = (struct span){.tokens = prompts + (size_t)i * STUDY_PROMPT_TOKENS,
                                        .num_tokens = STUDY_PROMPT_TOKENS};
        result =
            state_create(&texts->spans[i].state, texts->engine, STUDY_PROMPT_TOKENS + length, err);
        texts->count += result == 0;
    }
    double created = clock_seconds() - start;
    if (result == 0)
        result = greedy_run(texts->greedy, texts->spans, batch, length, first_s, err);
    if (result == 0)
        *first_s += created;
    *total_s = clock_seconds() - start;
    free(prompts);
    return result;
}

static int measure_texts(struct texts *texts, struct study_point *point, struct error *err)
{
    double first, total;
    const size_t budget = engine_info(texts->engine)->state_memory_bytes;
    const size_t each = engine_state_bytes(texts->engine, STUDY_PROMPT_TOKENS + point->length);
    if (each > budget / (size_t)point->batch)
        return error_set(err, ERROR_INVALID,
                         "%d texts of %d tokens need %zu bytes of state memory each, the budget is "
                         "%zu in all",
                         point->batch, point->length, each, budget);
    if (generate(texts, point->batch, WARM_UP_TOKENS, &first, &total, err) != 0)
        return -1;
    close_texts(texts);
    bool fresh = reset_peak();
    if (generate(texts, point->batch, point->length, &point->ttft_s, &point->total_s, err) != 0)
        return -1;
    struct engine_memory memory;
    engine_memory(texts->engine, &memory);
    const struct engine_info *info = engine_info(texts->engine);
    point->weights_bytes = (int64_t)info->weights_bytes;
    point->workspace_bytes = (int64_t)info->workspace_bytes;
    point->recurrent_bytes = (int64_t)memory.recurrent_bytes;
    point->kv_bytes = (int64_t)memory.kv_bytes;
    point->process_peak_bytes = process_status(fresh ? "VmHWM" : "VmRSS");
    point->tokens_per_second = point->batch * (double)point->length / point->total_s;
    point->measured = true;
    return 0;
}

int study_measure(struct study_point *point, const struct engine_options *options,
                  struct error *err)
{
    struct engine_options engine = *options;
    engine.max_step_tokens = point->batch * STUDY_PROMPT_TOKENS;
    engine.max_step_logits = point->batch;
    char preset[STUDY_PRESET_SIZE];
    struct texts texts = {0};
    if (!study_preset(preset, point->system))
        return error_set(err, ERROR_INVALID, "unknown system \"%s\"", point->system);
    if (engine_open_preset(&texts.engine, preset, &engine, err) != 0)
        return -1;
    size_t count = (size_t)point->batch;
    texts.spans = calloc(count, sizeof *texts.spans);
    int result = texts.spans != NULL
                     ? greedy_open(&texts.greedy, texts.engine, point->batch, err)
                     : error_set(err, ERROR_NO_MEMORY, "out of memory for %zu texts", count);
    if (result == 0)
        result = measure_texts(&texts, point, err);
    close_texts(&texts);
    free(texts.spans);
    greedy_close(texts.greedy);
    engine_close(texts.engine);
    return result;
}
