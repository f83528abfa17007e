/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a state file: refused with a message, or a state that goes on. The checksums are
 * made right in a second run, or nothing would get past them. */
#include "engine/state_file.h"
#include "lib/base/bytes.h"

#include <stdlib.h>
#include <xxhash.h>

enum { HEAD = 72, ENTRY = 24, FINGERPRINT_AT = 32 };

static struct engine *engine;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    /* The kernels that this build checks (CMakeLists.txt). */
    const struct engine_options options = {
        .threads = 1, .state_memory_bytes = (size_t)64 << 20, .instruction_set = "generic"};
    if (engine_open(&engine, REGLA_SOURCE_DIR "/tests/golden/hybrid_regla", &options, NULL) != 0)
        abort();
    return 0;
}

static void go_on(const struct state_file *file)
{
    struct state *state;
    struct error err = ERROR_INIT;
    char *image = malloc(state_image_bytes(engine, file->position));
    state_file_image(file, engine, image);
    if (state_restore(&state, engine, image, file->position, file->position + 1, &err) == 0) {
        int32_t token = 3;
        struct span span = {state, &token, 1, 1, NULL};
        if (engine_step(engine, &span, 1, &err) != 0)
            abort();
        state_free(state);
    }
    free(image);
}

static void try_file(const uint8_t *data, size_t size)
{
    struct state_file file, part;
    struct error err = ERROR_INIT;
    if (state_file_parse(&file, data, size, &err) != 0 ||
        state_file_check(&file, engine, &err) != 0) {
        if (err.code != ERROR_INVALID || !err.message[0])
            abort();
        return;
    }
    if (file.state.present &&
        state_file_parse_part(&part, data, file.state.offset, size, &err) != 0)
        abort();
    int32_t *tokens = malloc((size_t)file.num_tokens * sizeof *tokens + 1);
    float *logits = malloc((size_t)file.vocab_size * sizeof *logits);
    state_file_tokens(&file, tokens);
    if (file.logits.present)
        state_file_logits(&file, logits);
    if (file.state.present)
        go_on(&file);
    free(tokens);
    free(logits);
}

static void put_sum(uint8_t *at, const uint8_t *bytes, size_t size)
{
    uint64_t sum = XXH3_64bits(bytes, size);
    memcpy(at, &sum, sizeof sum);
}

/* The engine's fingerprint and right checksums, as far as the structure has places for them. */
static void seal(uint8_t *data, size_t size)
{
    size_t head = size >= HEAD ? read_u32(data + 12) : 0;
    if (head < HEAD + 8 || head > size)
        return;
    size_t at = head, sections = (head - HEAD - 8) / ENTRY;
    memcpy(data + FINGERPRINT_AT, engine_fingerprint(engine), 16);
    for (size_t i = 0; i < sections; i++) {
        uint8_t *entry = data + HEAD + i * ENTRY;
        uint64_t bytes = read_u64(entry + 8);
        if (bytes > size - at)
            break;
        put_sum(entry + 16, data + at, (size_t)bytes);
        at += ((size_t)bytes + 7) / 8 * 8;
        at = at < size ? at : size;
    }
    put_sum(data + head - 8, data, head - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_file(data, size);
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, data, size);
    seal(copy, size);
    try_file(copy, size);
    free(copy);
    return 0;
}
