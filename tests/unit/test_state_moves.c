/* SPDX-License-Identifier: Apache-2.0 */
/* A text that is moved about while it grows has the bits of one that was computed at once: chunks
 * of any size, beside other texts, cloned, exported and imported, rewound, evicted and brought
 * back, and over a restart of the engine. Random moves, on models with convolutions over 2, 3, 4, 7
 * and 8 tokens, with and without a recurrence behind them, so that each comes at every position mod
 * their width. */
#include "engine/state_file.h"
#include "tests/unit/sanitized.h"
#include "tests/unit/state_texts.h"

enum { CASES = SANITIZED ? 60 : 1000, MOVES = 6, LONGEST = 96, SNAPSHOTS = 3 };

static const char *const models[] = {
    "convolutions", "gated_convolutions", "lfm2",      "lfm2_bias",
    "lfm3",         "delta_qwen3_5_text", "falcon_h1", "delta_olmo_hybrid_rope",
};
enum { NUM_MODELS = sizeof models / sizeof *models };

struct blob {
    unsigned char *bytes;
    size_t size;
};

/* An earlier position of the text, whose file can be read again. */
struct snapshot {
    int64_t position;
    struct blob file;
};

struct walk {
    struct engine *engine;
    const char *model;
    struct state *state;
    int32_t tokens[LONGEST + 1];
    struct snapshot snapshots[SNAPSHOTS];
    int num_snapshots;
    unsigned seed;
    char moves[MOVES + 1];
};

static int below(struct walk *walk, int count)
{
    return rand_r(&walk->seed) % count;
}

static void draw_tokens(struct walk *walk, int64_t from)
{
    for (int64_t i = from; i <= LONGEST; i++)
        walk->tokens[i] = below(walk, engine_info(walk->engine)->vocab_size);
}

/* Takes n tokens; the last one's logits. */
static const float *take(struct walk *walk, struct state *state, int n)
{
    struct span span = {.state = state,
                        .tokens = walk->tokens + state_position(state),
                        .num_tokens = n,
                        .num_logits = 1};
    struct error err = ERROR_INIT;
    cr_assert(engine_step(walk->engine, &span, 1, &err) == 0, "%s", err.message);
    return span.logits;
}

/* How many tokens of a chunk still leave room for the last one. */
static int chunk(struct walk *walk, int most)
{
    const int left = (int)(LONGEST - state_position(walk->state));
    const int n = 1 + below(walk, most);
    return n < left ? n : left;
}

static int append(void *context, const void *bytes, size_t size, struct error *err)
{
    struct blob *blob = context;
    (void)err;
    blob->bytes = realloc(blob->bytes, blob->size + size);
    memcpy(blob->bytes + blob->size, bytes, size);
    blob->size += size;
    return 0;
}

static struct blob export(struct walk *walk)
{
    const int64_t position = state_position(walk->state);
    char *image = malloc(state_image_bytes(walk->engine, position) + 1);
    const struct state_file_source source = {.position = position,
                                             .num_tokens = position,
                                             .tokens = walk->tokens,
                                             .image = position > 0 ? image : NULL};
    struct blob blob = {0};
    struct error err = ERROR_INIT;
    cr_assert(state_save(walk->state, image, &err) == 0, "%s", err.message);
    cr_assert(state_file_write(walk->engine, &source, append, &blob, &err) == 0, "%s", err.message);
    free(image);
    return blob;
}

static void import(struct walk *walk, const struct blob *blob)
{
    struct state_file file;
    struct error err = ERROR_INIT;
    cr_assert(state_file_parse(&file, blob->bytes, blob->size, &err) == 0, "%s", err.message);
    cr_assert(state_file_check(&file, walk->engine, &err) == 0, "%s", err.message);
    cr_assert(blob->bytes[8] == (file.position > 0 ? 2 : 1), "a state with a convolution");
    char *image = malloc(state_image_bytes(walk->engine, file.position) + 1);
    if (file.position > 0)
        state_file_image(&file, walk->engine, image);
    cr_assert(file.position > 0 ? state_restore(&walk->state, walk->engine, image, file.position,
                                                LONGEST + 1, &err) == 0
                                : state_create(&walk->state, walk->engine, LONGEST + 1, &err) == 0,
              "%s", err.message);
    free(image);
}

/* ---- the moves ---- */

/* The text goes on from a clone; whatever the original does then changes nothing. */
static void move_clone(struct walk *walk)
{
    struct state *clone;
    struct error err = ERROR_INIT;
    cr_assert(state_clone(&clone, walk->state, LONGEST + 1, &err) == 0, "%s", err.message);
    take(walk, walk->state, chunk(walk, 9));
    state_free(walk->state);
    walk->state = clone;
}

/* Another text takes the memory in between. */
static void move_evict(struct walk *walk)
{
    struct blob blob = export(walk);
    struct state *other;
    struct error err = ERROR_INIT;
    state_free(walk->state);
    cr_assert(state_create(&other, walk->engine, LONGEST + 1, &err) == 0, "%s", err.message);
    take(walk, other, 1 + below(walk, 30));
    state_free(other);
    import(walk, &blob);
    free(blob.bytes);
}

static void move_restart(struct walk *walk)
{
    struct blob blob = export(walk);
    state_free(walk->state);
    engine_close(walk->engine);
    walk->engine = open_golden(walk->model, below(walk, 2));
    import(walk, &blob);
    free(blob.bytes);
}

static void move_snapshot(struct walk *walk)
{
    if (walk->num_snapshots == SNAPSHOTS)
        return;
    walk->snapshots[walk->num_snapshots++] =
        (struct snapshot){state_position(walk->state), export(walk)};
    take(walk, walk->state, chunk(walk, 20));
}

/* Back to where it was, and on with other tokens. Snapshots from later on are of another text. */
static void move_rewind(struct walk *walk)
{
    if (walk->num_snapshots == 0)
        return;
    const int chosen = below(walk, walk->num_snapshots);
    const struct snapshot *to = &walk->snapshots[chosen];
    state_free(walk->state);
    import(walk, &to->file);
    cr_assert_eq(state_position(walk->state), to->position);
    draw_tokens(walk, to->position);
    while (walk->num_snapshots > chosen + 1)
        free(walk->snapshots[--walk->num_snapshots].file.bytes);
}

/* A step with two other texts, before and behind it. */
static void move_beside(struct walk *walk)
{
    struct state *others[2];
    struct error err = ERROR_INIT;
    for (int i = 0; i < 2; i++) {
        cr_assert(state_create(&others[i], walk->engine, LONGEST + 1, &err) == 0, "%s",
                  err.message);
        take(walk, others[i], 1 + below(walk, 5));
    }
    struct span spans[3] = {
        {.state = others[0], .tokens = walk->tokens + 3, .num_tokens = 1 + below(walk, 7)},
        {.state = walk->state,
         .tokens = walk->tokens + state_position(walk->state),
         .num_tokens = chunk(walk, 11),
         .num_logits = 1},
        {.state = others[1],
         .tokens = walk->tokens + 1,
         .num_tokens = 1 + below(walk, 7),
         .num_logits = 1}};
    cr_assert(engine_step(walk->engine, spans, 3, &err) == 0, "%s", err.message);
    for (int i = 0; i < 2; i++)
        state_free(others[i]);
}

static void move_take(struct walk *walk)
{
    take(walk, walk->state, chunk(walk, 9));
}

static void make_move(struct walk *walk, int number)
{
    static void (*const all[])(struct walk *) = {
        move_clone, move_evict, move_restart, move_snapshot, move_rewind, move_beside, move_take};
    static const char names[] = "cerswbt";
    const int chosen = below(walk, sizeof all / sizeof *all);
    walk->moves[number] = names[chosen];
    all[chosen](walk);
}

/* ---- the check ---- */

/* The text in one piece, in a fresh state: its image, then the logits after one more token. */
static void check(struct walk *walk, int number)
{
    const int64_t position = state_position(walk->state);
    const size_t bytes = state_image_bytes(walk->engine, position);
    const size_t logits_bytes = (size_t)engine_info(walk->engine)->vocab_size * sizeof(float);
    char *images[2] = {malloc(bytes + 1), malloc(bytes + 1)};
    float *logits = malloc(logits_bytes);
    struct state *cold;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&cold, walk->engine, LONGEST + 1, &err) == 0, "%s", err.message);
    while (state_position(cold) < position) {
        const int64_t left = position - state_position(cold);
        take(walk, cold, left < 64 ? (int)left : 64);
    }
    struct state *const states[2] = {walk->state, cold};
    for (int i = 0; i < 2; i++)
        cr_assert(state_save(states[i], images[i], &err) == 0, "%s", err.message);
    cr_assert(memcmp(images[0], images[1], bytes) == 0, "%s, case %d, moves %s: state at %lld",
              walk->model, number, walk->moves, (long long)position);
    memcpy(logits, take(walk, walk->state, 1), logits_bytes);
    cr_assert(memcmp(logits, take(walk, cold, 1), logits_bytes) == 0,
              "%s, case %d, moves %s: logits at %lld", walk->model, number, walk->moves,
              (long long)position);
    state_free(cold);
    free(images[0]);
    free(images[1]);
    free(logits);
}

/* Each case begins a position further, so that all of them mod K are the first to be moved. */
static void run_case(struct walk *walk, int number)
{
    struct error err = ERROR_INIT;
    walk->seed = (unsigned)number * 7919u + 1;
    walk->num_snapshots = 0;
    memset(walk->moves, 0, sizeof walk->moves);
    draw_tokens(walk, 0);
    cr_assert(state_create(&walk->state, walk->engine, LONGEST + 1, &err) == 0, "%s", err.message);
    const int first = number / NUM_MODELS % 17;
    if (first > 0)
        take(walk, walk->state, first);
    for (int i = 0; i < MOVES && state_position(walk->state) < LONGEST; i++)
        make_move(walk, i);
    check(walk, number);
    state_free(walk->state);
    while (walk->num_snapshots > 0)
        free(walk->snapshots[--walk->num_snapshots].file.bytes);
}

Test(state_moves, a_text_that_is_moved_has_the_bits_of_a_cold_run)
{
    for (int model = 0; model < NUM_MODELS; model++) {
        struct walk walk = {.model = models[model]};
        walk.engine = open_golden(walk.model, true);
        for (int i = model; i < CASES; i += NUM_MODELS)
            run_case(&walk, i);
        engine_close(walk.engine);
    }
}
