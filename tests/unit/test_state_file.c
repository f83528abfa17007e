/* SPDX-License-Identifier: Apache-2.0 */
/* The state file: there and back, and whatever bytes may come instead. */
#include "engine/state_file.h"
#include "engine/state_image.h"
#include "lib/base/bytes.h"
#include "lib/base/half.h"
#include "tests/unit/state_texts.h"

#include <xxhash.h>

enum { HEAD = 72, ENTRY = 24, MOST_SECTIONS = 8 };

struct blob {
    unsigned char *bytes;
    size_t size;
};

static int append(void *context, const void *bytes, size_t size, struct error *err)
{
    struct blob *blob = context;
    (void)err;
    blob->bytes = realloc(blob->bytes, blob->size + size);
    memcpy(blob->bytes + blob->size, bytes, size);
    blob->size += size;
    return 0;
}

/* A text's file at `position` with `more` tokens behind it; its parts are freed with it. */
struct example {
    struct state_file_source source;
    struct blob file;
    char *image;
    int32_t *tokens;
    float *logits;
};

static struct example make_example(struct engine *engine, int64_t position, int more)
{
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    int64_t count = position + more;
    struct example example = {.image = text_image(engine, 1, position),
                              .tokens = calloc((size_t)count + 1, sizeof(int32_t)),
                              .logits = calloc(vocab, sizeof(float))};
    for (int64_t i = 0; i < count; i++)
        example.tokens[i] = text_token(engine, 1, i);
    for (size_t i = 0; i < vocab; i++)
        example.logits[i] = (float)i / 7.0f;
    static const char meta[] = "{\"owner\": \"it\"}";
    example.source = (struct state_file_source){.position = position,
                                                .num_tokens = count,
                                                .tokens = example.tokens,
                                                .image = position > 0 ? example.image : NULL,
                                                .logits = count > 0 ? example.logits : NULL,
                                                .meta = meta,
                                                .meta_bytes = sizeof meta - 1};
    struct error err = ERROR_INIT;
    cr_assert(state_file_write(engine, &example.source, append, &example.file, &err) == 0);
    cr_assert(example.file.size == state_file_bytes(engine, &example.source));
    return example;
}

static void free_example(struct example *example)
{
    free(example->file.bytes);
    free(example->image);
    free(example->tokens);
    free(example->logits);
}

/* Parses and checks a copy of exactly these bytes, so that a sanitizer sees every read past them.
 */
static int read_file(const struct engine *engine, const void *bytes, size_t size, struct error *err)
{
    struct state_file file;
    unsigned char *copy = malloc(size == 0 ? 1 : size);
    memcpy(copy, bytes, size);
    error_clear(err);
    int result =
        state_file_parse(&file, copy, size, err) != 0 || state_file_check(&file, engine, err) != 0
            ? -1
            : 0;
    cr_assert(result == 0 || (err->code == ERROR_INVALID && err->message[0] != 0));
    free(copy);
    return result;
}

static void expect_refused(const struct engine *engine, const struct blob *file, const char *why)
{
    struct error err = ERROR_INIT;
    cr_expect(read_file(engine, file->bytes, file->size, &err) == -1, "expected: %s", why);
    cr_expect(strstr(err.message, why) != NULL, "expected \"%s\", got \"%s\"", why, err.message);
}

static void put_u32(struct blob *file, size_t at, uint32_t value)
{
    memcpy(file->bytes + at, &value, sizeof value);
}

static void put_u64(struct blob *file, size_t at, uint64_t value)
{
    memcpy(file->bytes + at, &value, sizeof value);
}

/* Makes the head's checksum right again. */
static void seal_head(struct blob *file)
{
    size_t summed = read_u32(file->bytes + 12) - 8;
    put_u64(file, summed, XXH3_64bits(file->bytes, summed));
}

/* Makes all checksums right again after a change. */
static void seal(struct blob *file)
{
    size_t at = read_u32(file->bytes + 12);
    for (uint32_t i = 0; i < read_u32(file->bytes + 20); i++) {
        size_t entry = HEAD + i * ENTRY, size = (size_t)read_u64(file->bytes + entry + 8);
        put_u64(file, entry + 16, XXH3_64bits(file->bytes + at, size));
        at += (size + 7) / 8 * 8;
    }
    seal_head(file);
}

static size_t section_at(const struct blob *file, uint32_t kind)
{
    size_t at = read_u32(file->bytes + 12);
    for (uint32_t i = 0; i < read_u32(file->bytes + 20); i++) {
        const unsigned char *entry = file->bytes + HEAD + i * ENTRY;
        if (read_u32(entry) == kind)
            return at;
        at += ((size_t)read_u64(entry + 8) + 7) / 8 * 8;
    }
    cr_assert(false, "no section %u", kind);
    return 0;
}

Test(state_file, there_and_back_on_every_case)
{
    static const int64_t positions[] = {0, 1, 37, 64, 100};
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *engine = open_golden(name, true);
        for (size_t j = 0; j < sizeof positions / sizeof *positions; j++) {
            struct example example = make_example(engine, positions[j], (int)(j % 3));
            struct state_file file;
            struct error err = ERROR_INIT;
            const struct state_file_source *source = &example.source;
            size_t bytes = state_image_bytes(engine, positions[j]);
            size_t tokens_bytes = (size_t)source->num_tokens * sizeof(int32_t);
            char *image = malloc(bytes);
            int32_t *tokens = malloc(tokens_bytes + 1);
            cr_assert(state_file_parse(&file, example.file.bytes, example.file.size, &err) == 0 &&
                          state_file_check(&file, engine, &err) == 0,
                      "%s: %s", name, err.message);
            cr_expect(file.position == positions[j] && file.num_tokens == source->num_tokens);
            cr_expect(file.meta.size == source->meta_bytes &&
                      memcmp(file.meta.bytes, source->meta, file.meta.size) == 0);
            state_file_tokens(&file, tokens);
            cr_expect(memcmp(tokens, source->tokens, tokens_bytes) == 0);
            cr_expect(file.state.present == (positions[j] > 0));
            if (file.state.present) {
                state_file_image(&file, engine, image);
                cr_expect(memcmp(image, example.image, bytes) == 0, "%s", name);
            }
            cr_expect(file.logits.present == (source->num_tokens > 0));
            if (file.logits.present)
                cr_expect(memcmp(file.logits.bytes, example.logits, file.logits.size) == 0);
            free(image);
            free(tokens);
            free_example(&example);
        }
        engine_close(engine);
    }
}

Test(state_file, truncated_at_every_length)
{
    struct engine *engine = open_golden("block_kerple_dpfp", false);
    struct example example = make_example(engine, 7, 2);
    struct error err = ERROR_INIT;
    cr_assert(read_file(engine, example.file.bytes, example.file.size, &err) == 0, "%s",
              err.message);
    for (size_t size = 0; size < example.file.size; size++) {
        cr_assert(read_file(engine, example.file.bytes, size, &err) == -1, "%zu", size);
        cr_assert(strstr(err.message, "truncated: expected ") != NULL, "%zu: %s", size,
                  err.message);
    }
    append(&example.file, "", 1, NULL);
    expect_refused(engine, &example.file, "something follows its end");
    free_example(&example);
    engine_close(engine);
}

Test(state_file, every_byte_flipped)
{
    struct engine *engine = open_golden("block_kerple_dpfp", false);
    struct example example = make_example(engine, 7, 2);
    struct error err = ERROR_INIT;
    for (size_t at = 0; at < example.file.size; at++) {
        const unsigned char flips[] = {(unsigned char)(1u << at % 8), 0xff};
        for (size_t i = 0; i < sizeof flips; i++) {
            example.file.bytes[at] ^= flips[i];
            cr_assert(read_file(engine, example.file.bytes, example.file.size, &err) == -1,
                      "byte %zu", at);
            example.file.bytes[at] ^= flips[i];
        }
    }
    cr_expect(read_file(engine, example.file.bytes, example.file.size, &err) == 0);
    free_example(&example);
    engine_close(engine);
}

/* Changes of the head or of a section's content whose checksums are right. */
Test(state_file, well_made_files_that_are_wrong)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    struct example example = make_example(engine, 70, 0);
    struct blob *file = &example.file;
    size_t tokens = section_at(file, 2), layout = section_at(file, 3);
    const struct {
        size_t at;
        uint32_t value;
        const char *why;
    } changes[] = {
        {8, 3, "version 3 is newer than this server's 2"},
        {8, 0, "expected version 1 to 2, got 0"},
        {16, 1, "bytes 16 and 68: expected 0"},
        {20, 4, "4 sections in a head of"},
        {24, 1000, "expected 1000 bytes, got"},
        {24, 99999999, "truncated: expected 99999999 bytes"},
        {32, 1, "it is of another model: expected fingerprint"},
        {48, 71, "position 71 of 70 tokens"},
        {48, 69, ""}, /* another number of tokens in the same pages cannot be told */
        {48, 64, "STATE: expected"},
        {48, 0, "at position 0 expected no LAYOUT and STATE"},
        {52, 1u << 31, "position -"},
        {56, 71, "TOKENS: expected 71 tokens"},
        {60, 1u << 31, "byte 48: position 70 of -"},
        {64, 0, "expected a vocabulary"},
        {64, 276, "LOGITS: expected 276 numbers"},
        {HEAD, 2, "TOKENS: it comes after TOKENS"},
        {HEAD, 77, ""}, /* META was optional, and so is section 77 */
        {HEAD + ENTRY, 77, "section 77: this server does not know it"},
        {HEAD + 4, 2, "META: unknown flags 2"},
        {HEAD + 8, 70000, "META: "},
        {HEAD + 12, 1u << 31, "META: "},
        {HEAD + ENTRY + 8, 276, "TOKENS: "},
        {tokens + 8, 275, "token 2: expected 0 to 274, got 275"},
        {tokens + 12, UINT32_MAX, "token 3: expected 0 to 274, got -1"},
        {layout, 64, "STATE: expected 64 + 2 *"},
        {layout + 4, 1, "STATE: expected"},
        {layout + 8, 0, "STATE: expected"},
        {layout + 16, 0, "pages of 0 tokens"},
        {layout + 20, 1, "LAYOUT: 1 parts in"},
        {layout + 24, 1, "part 0 (recurrent state of layer 0): layer: expected 0, got 1"},
        {layout + 28, 3, "part 0 (recurrent state of layer 0): kind: expected 1, got 3"},
        {layout + 32, 2, "part 0 (recurrent state of layer 0): format: expected 1, got 2"},
        {layout + 24 + 48 + 12, 5, "part 1 (running maxima of layer 0): heads: expected 4, got 5"},
        {layout + 24 + 2 * 48 + 8, 9, "KV format: expected 1 to 3, got 9"},
        {layout + 24 + 2 * 48 + 8, 2, "part 2 (KV page of layer 1): expected"},
        {layout + 24 + 32, 64, "bytes a head at 0, got"},
        {layout + 24 + 40, 64, "bytes a head at 0, got 64 at 0"},
    };
    struct blob changed = {malloc(file->size), file->size};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct error err = ERROR_INIT;
        memcpy(changed.bytes, file->bytes, file->size);
        put_u32(&changed, changes[i].at, changes[i].value);
        if (changes[i].at < HEAD + MOST_SECTIONS * ENTRY && changes[i].at < section_at(file, 1))
            seal_head(&changed);
        else
            seal(&changed);
        if (changes[i].why[0] != 0)
            expect_refused(engine, &changed, changes[i].why);
        else
            cr_expect(read_file(engine, changed.bytes, changed.size, &err) == 0 ||
                          changes[i].at == 48,
                      "%s", err.message);
    }
    free(changed.bytes);
    free_example(&example);
    engine_close(engine);
}

Test(state_file, of_another_model)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    struct engine *other = open_golden("gpt_neox_tf5", false);
    struct example example = make_example(engine, 10, 0);
    expect_refused(other, &example.file, "it is of another model: expected fingerprint");
    /* even with its fingerprint its layout is another */
    memcpy(example.file.bytes + 32, engine_fingerprint(other), 16);
    put_u32(&example.file, 64, (uint32_t)engine_info(other)->vocab_size);
    struct error err = ERROR_INIT;
    seal(&example.file);
    cr_expect(read_file(other, example.file.bytes, example.file.size, &err) == -1);
    free_example(&example);
    engine_close(other);

    other = open_golden("sliding_parallel_learned", false); /* 128 positions */
    example = make_example(other, 100, 29);
    expect_refused(other, &example.file, "expected at most 128 tokens, got 129");
    free_example(&example);
    engine_close(other);
    engine_close(engine);
}

Test(state_file, with_a_part_too_few)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    struct example example = make_example(engine, 70, 0);
    struct blob *file = &example.file, less = {NULL, 0};
    size_t layout = section_at(file, 3), end = section_at(file, 4);
    uint32_t parts = read_u32(file->bytes + layout + 20);
    append(&less, file->bytes, end - 48, NULL);
    append(&less, file->bytes + end, file->size - end, NULL);
    put_u64(&less, 24, less.size);
    put_u64(&less, HEAD + 2 * ENTRY + 8, end - 48 - layout);
    put_u32(&less, layout + 20, parts - 1);
    seal(&less);
    expect_refused(engine, &less, "LAYOUT: expected 6 parts, got 5");
    free(less.bytes);
    free_example(&example);
    engine_close(engine);
}

/* A file without its end: the sections that are at hand are checked, and only these. */
Test(state_file, the_first_part_of_a_file)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    struct example example = make_example(engine, 70, 3);
    struct blob *file = &example.file;
    size_t state = section_at(file, 4);
    struct state_file parsed;
    struct error err = ERROR_INIT;
    file->bytes[state] ^= 1; /* not looked at */
    cr_expect(state_file_parse_part(&parsed, file->bytes, state, file->size, &err) == 0, "%s",
              err.message);
    cr_expect(parsed.state.present && parsed.state.bytes == NULL && parsed.state.offset == state);
    cr_expect(parsed.logits.present && parsed.logits.bytes == NULL);
    cr_expect(parsed.meta.bytes != NULL && parsed.tokens.bytes != NULL);
    cr_expect(state_file_check(&parsed, engine, &err) == 0, "%s", err.message);
    file->bytes[section_at(file, 2)] ^= 1;
    cr_expect(state_file_parse_part(&parsed, file->bytes, state, file->size, &err) == -1);
    error_clear(&err);
    cr_expect(state_file_parse_part(&parsed, file->bytes, 90, file->size, &err) == -1 &&
                  strstr(err.message, "truncated") != NULL,
              "%s", err.message);
    free_example(&example);
    engine_close(engine);
}

/* What a newer server may have added without a new version. */
Test(state_file, an_unknown_optional_section_is_skipped_and_checked)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    struct example example = make_example(engine, 70, 0);
    struct blob *file = &example.file, more = {NULL, 0};
    static const char payload[16] = "something new";
    uint32_t head = read_u32(file->bytes + 12), sections = read_u32(file->bytes + 20);
    unsigned char entry[ENTRY] = {200, 0, 0, 0, 1, 0, 0, 0, sizeof payload};
    append(&more, file->bytes, head - 8, NULL);
    append(&more, entry, ENTRY, NULL);
    append(&more, file->bytes + head - 8, file->size - head + 8, NULL);
    append(&more, payload, sizeof payload, NULL);
    put_u32(&more, 12, head + ENTRY);
    put_u32(&more, 20, sections + 1);
    put_u64(&more, 24, more.size);
    seal(&more);
    struct error err = ERROR_INIT;
    cr_expect(read_file(engine, more.bytes, more.size, &err) == 0, "%s", err.message);
    more.bytes[more.size - 1] ^= 1;
    expect_refused(engine, &more, "section 200: expected checksum");
    more.bytes[more.size - 1] ^= 1;
    put_u32(&more, head - 8 + 4, 0);
    seal(&more);
    expect_refused(engine, &more, "section 200: this server does not know it");
    free(more.bytes);
    free_example(&example);
    engine_close(engine);
}

static struct engine *open_with(const char *model, enum kv_format kv)
{
    const struct engine_options options = {
        .threads = 1, .kv = kv, .state_memory_bytes = (size_t)16 << 20, .max_step_logits = 64};
    struct engine *engine = NULL;
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", model);
    cr_assert(engine_open(&engine, path, &options, NULL) == 0, "%s", model);
    return engine;
}

/* The same state as a writer with another KV format has it. */
static void check_conversion(const char *model)
{
    struct engine *engine = open_with(model, KV_F32);
    const struct state_layout *layout = engine_state_layout(engine);
    struct example example = make_example(engine, 70, 0);
    struct blob *file = &example.file;
    size_t at = section_at(file, 3), state = section_at(file, 4), logits = section_at(file, 5);
    size_t pages = state_image_bytes(engine, 70) - layout->slot_bytes;
    for (uint32_t kv = KV_F16; kv <= KV_BF16; kv++) {
        struct blob half = {NULL, 0};
        uint16_t *halves = malloc(pages / 2);
        float *image = malloc(layout->slot_bytes + pages);
        state_image_convert(KV_F32, file->bytes + state + layout->slot_bytes, (enum kv_format)kv,
                            halves, pages / 4);
        append(&half, file->bytes, state + layout->slot_bytes, NULL);
        append(&half, halves, pages / 2, NULL);
        append(&half, file->bytes + logits, file->size - logits, NULL);
        put_u64(&half, 24, half.size);
        put_u64(&half, at + 8, layout->page_bytes / 2);
        put_u64(&half, HEAD + 3 * ENTRY + 8, layout->slot_bytes + pages / 2);
        for (int i = 0; i < layout->num_parts; i++) {
            size_t part = at + 24 + (size_t)i * 48;
            if (!state_part_pages(&layout->parts[i]))
                continue;
            put_u32(&half, part + 8, kv);
            put_u64(&half, part + 32, layout->parts[i].offset / 2);
            put_u64(&half, part + 40, layout->parts[i].head_bytes / 2);
        }
        seal(&half);
        struct state_file parsed;
        struct error err = ERROR_INIT;
        cr_assert(state_file_parse(&parsed, half.bytes, half.size, &err) == 0 &&
                      state_file_check(&parsed, engine, &err) == 0,
                  "%s", err.message);
        state_file_image(&parsed, engine, image);
        cr_expect(memcmp(image, example.image, layout->slot_bytes) == 0);
        const float *got = image + layout->slot_bytes / sizeof(float);
        for (size_t i = 0; i < pages / sizeof(float); i++)
            cr_assert(got[i] == (kv == KV_F16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i])));
        free(halves);
        free(image);
        free(half.bytes);
    }
    free_example(&example);
    engine_close(engine);
}

/* Of the second one a head's part of a page is no multiple of a cache line by itself. */
static const char *const paged[] = {"hybrid_regla", "long_short_rank3_alibi"};

Test(state_file, pages_of_another_kv_format_are_converted)
{
    for (size_t i = 0; i < sizeof paged / sizeof *paged; i++)
        check_conversion(paged[i]);
}

Test(state_file, pages_lie_alike_in_every_kv_format)
{
    for (size_t i = 0; i < sizeof paged / sizeof *paged; i++) {
        struct engine *engines[2] = {open_with(paged[i], KV_F32), open_with(paged[i], KV_BF16)};
        const struct state_layout *whole = engine_state_layout(engines[0]);
        const struct state_layout *half = engine_state_layout(engines[1]);
        cr_expect(whole->page_bytes > 0 && whole->page_bytes == 2 * half->page_bytes);
        for (int part = 0; part < whole->num_parts; part++) {
            size_t times = state_part_pages(&whole->parts[part]) ? 2 : 1;
            cr_expect(whole->parts[part].offset == times * half->parts[part].offset);
            cr_expect(whole->parts[part].head_bytes == times * half->parts[part].head_bytes);
        }
        cr_expect(engine_kv_bytes_per_token(engines[0], KV_BF16) ==
                  engine_info(engines[1])->kv_bytes_per_token);
        engine_close(engines[0]);
        engine_close(engines[1]);
    }
}

static int fail_at(void *context, const void *bytes, size_t size, struct error *err)
{
    int *calls = context;
    (void)bytes;
    (void)size;
    return (*calls)-- > 0 ? 0 : error_set(err, ERROR_IO, "the disk is full");
}

Test(state_file, a_failure_to_write_is_the_result)
{
    struct engine *engine = open_golden("hybrid_regla", false);
    struct example example = make_example(engine, 70, 0);
    for (int calls = 0; calls < 6; calls++) {
        struct error err = ERROR_INIT;
        int left = calls;
        cr_expect(state_file_write(engine, &example.source, fail_at, &left, &err) == -1);
        cr_expect(err.code == ERROR_IO && left == -1);
    }
    free_example(&example);
    engine_close(engine);
}
