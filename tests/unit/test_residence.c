/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights in a file: models compute the same bits from it, and no other file or model is
 * taken for them. */
#include "engine/engine.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#define SHIPPED REGLA_SOURCE_DIR "/models/regla-books-7.7m"
enum { TOKENS = 40 };

static char file[64];

static void begin(void)
{
    char folder[] = "/tmp/regla-packed-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/weights", folder);
}

static void end(void)
{
    unlink(file);
    file[strlen(file) - strlen("/weights")] = 0;
    cr_expect_eq(rmdir(file), 0, "something is left beside the file");
}

TestSuite(residence, .init = begin, .fini = end);

static int open_packed(struct engine **out, const char *model, enum weight_format weights,
                       const char *packed, struct error *err)
{
    const struct engine_options options = {.threads = 2,
                                           .weights = weights,
                                           .packed_weights = packed,
                                           .state_memory_bytes = (size_t)32 << 20};
    return engine_open(out, model, &options, err);
}

/* The last logits of a text, [V]. The caller frees them. */
static float *logits_of(struct engine *engine)
{
    const size_t vocab = (size_t)engine_info(engine)->vocab_size;
    int32_t tokens[TOKENS];
    struct state *state;
    struct error err = ERROR_INIT;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = golden_token(1, i, engine_info(engine)->vocab_size);
    cr_assert(state_create(&state, engine, TOKENS, &err) == 0, "%s", err.message);
    struct span span = {.state = state, .tokens = tokens, .num_tokens = TOKENS, .num_logits = 1};
    cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    float *logits = malloc(vocab * sizeof *logits);
    cr_assert_not_null(logits);
    memcpy(logits, span.logits, vocab * sizeof *logits);
    state_free(state);
    return logits;
}

static bool is_mapped(void)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    cr_assert_not_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        found |= strstr(line, file) != NULL;
    fclose(maps);
    return found;
}

/* Returns the size of the file, which it leaves. */
static off_t expect_same_bits(const char *model, enum weight_format weights)
{
    struct engine *engine;
    struct error err = ERROR_INIT;
    const char *const packed[] = {NULL, file, file}; /* in memory, made, mapped */
    float *logits[3];
    size_t bytes = 0;
    struct stat made = {0}, mapped = {0};
    for (int i = 0; i < 3; i++) {
        cr_assert(open_packed(&engine, model, weights, packed[i], &err) == 0, "%s", err.message);
        cr_expect_eq(is_mapped(), i > 0);
        bytes = (size_t)engine_info(engine)->vocab_size * sizeof(float);
        logits[i] = logits_of(engine);
        engine_close(engine);
        stat(file, i == 1 ? &made : &mapped);
    }
    cr_expect(made.st_size > 0 && made.st_ino == mapped.st_ino);
    for (int i = 1; i < 3; i++)
        cr_expect_eq(memcmp(logits[0], logits[i], bytes), 0, "%s", model);
    for (int i = 0; i < 3; i++)
        free(logits[i]);
    return made.st_size;
}

Test(residence, a_file_has_the_same_bits)
{
    cr_expect(expect_same_bits(SHIPPED, WEIGHTS_Q8) > 4 << 20);
}

/* Stacked, with biases, and as blocks of MXFP4, whose numbers q6 has. */
Test(residence, experts_have_the_same_bits)
{
    expect_same_bits(GOLDEN_DIRECTORY "experts_gpt_oss_mxfp4", WEIGHTS_AUTO);
    cr_assert_eq(unlink(file), 0);
    expect_same_bits(GOLDEN_DIRECTORY "experts_qwen3_5_moe_text", WEIGHTS_Q4);
}

static void expect_refused(const char *model, enum weight_format weights, const char *message)
{
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(open_packed(&engine, model, weights, file, &err) != 0);
    cr_expect_not_null(strstr(err.message, message), "%s", err.message);
    cr_expect_eq(err.code, ERROR_INVALID);
}

/* Puts bytes into the file. */
static void change(off_t offset, const void *bytes, size_t size)
{
    const int fd = open(file, O_WRONLY | O_CLOEXEC);
    cr_assert(fd >= 0 && pwrite(fd, bytes, size, offset) == (ssize_t)size);
    close(fd);
}

Test(residence, others_are_refused)
{
    enum { OWNER = 16, COUNT = 32, TABLE = 40, SIZE = 48 }; /* of the header */
    const unsigned char zeros[8] = {0}, large[8] = {0, 0, 0, 0, 0, 0, 0, 0x40};
    unsigned char header[64];
    uint64_t table;
    struct engine *engine;
    struct error err = ERROR_INIT;
    cr_assert(open_packed(&engine, SHIPPED, WEIGHTS_Q8, file, &err) == 0, "%s", err.message);
    engine_close(engine);
    expect_refused(SHIPPED, WEIGHTS_Q6, "expected this model's weights as they are packed now");
    expect_refused(GOLDEN_DIRECTORY "hybrid_regla", WEIGHTS_Q8, "expected this model's weights");
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(read(fd, header, sizeof header), (ssize_t)sizeof header);
    close(fd);
    memcpy(&table, header + TABLE, sizeof table);
    static const struct {
        off_t at;
        bool large;
        const char *message;
    } damages[] = {{0, false, "expected packed weights, got another file"},
                   {OWNER, false, "expected this model's weights"},
                   {COUNT, false, "expected this model's weights"},
                   {COUNT, true, "bytes, got"},
                   {TABLE, true, "bytes, got"},
                   {SIZE, true, "bytes, got"}};
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        change(damages[i].at, damages[i].large ? large : zeros, 8);
        expect_refused(SHIPPED, WEIGHTS_Q8, damages[i].message);
        change(0, header, sizeof header);
    }
    change((off_t)table + 24, large, 8); /* of the first weight: its offset */
    expect_refused(SHIPPED, WEIGHTS_Q8, "weight 0: expected it before the table");
    cr_assert_eq(truncate(file, 100), 0);
    expect_refused(SHIPPED, WEIGHTS_Q8, "expected packed weights, got another file");
}

/* What a killed process has left is no hindrance; who makes a file now is left alone. */
Test(residence, a_file_is_made_by_one)
{
    char partial[80];
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    snprintf(partial, sizeof partial, "%s.partial", file);
    int fd = open(partial, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && write(fd, "left", 4) == 4 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    cr_assert(open_packed(&engine, SHIPPED, WEIGHTS_Q8, file, &err) != 0);
    cr_expect_not_null(strstr(err.message, "another process makes it now"), "%s", err.message);
    close(fd);
    error_clear(&err);
    cr_assert(open_packed(&engine, SHIPPED, WEIGHTS_Q8, file, &err) == 0, "%s", err.message);
    engine_close(engine);
    cr_expect(access(partial, F_OK) != 0 && access(file, F_OK) == 0);
}

Test(residence, a_file_that_cannot_be_made_is_told)
{
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(open_packed(&engine, SHIPPED, WEIGHTS_Q8, "/proc/weights", &err) != 0);
    cr_expect_eq(err.code, ERROR_IO);
    cr_expect_not_null(strstr(err.message, "/proc/weights"), "%s", err.message);
    error_clear(&err);
    cr_expect(open_packed(&engine, SHIPPED, WEIGHTS_Q4, file, &err) != 0 &&
                  err.code == ERROR_UNSUPPORTED,
              "%s", err.message);
}
