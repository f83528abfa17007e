/* SPDX-License-Identifier: Apache-2.0 */
/* The study of latency and memory (`regla study`): its points, how one is measured, the files that
 * keep them, and the report. `regla-plot` draws it.
 *
 * It follows ReGLA, section 5.2 and figure 5: models of 6 layers, a prompt of 5 tokens, generation
 * lengths of 2^6 to 2^13; and presets of models that people run, beside them. A point is the total
 * time of prompt and decoding, and the memory in use at its end, which is the peak.
 *
 * A machine that changes its pace within a point says little about the time of a token. So that is
 * measured besides, as `regla bench` does: all systems at all lengths take turns, with the last few
 * tokens of a text of that length, and what they took is told apart by the pace of memory. */
#ifndef BENCH_STUDY_H
#define BENCH_STUDY_H

#include "bench/bench_paces.h"
#include "engine/engine.h"

#include <stdio.h>

enum {
    STUDY_PROMPT_TOKENS = 5,
    STUDY_MOST_LENGTHS = 16,
    STUDY_MOST_SYSTEMS = 64,
    STUDY_MOST_BATCHES = 16,
    STUDY_PRESET_SIZE = 64,
    STUDY_TURN_TOKENS = 16 /* of a text in a turn, or the length, if that is less */
};

struct study_point {
    const char *system;       /* as study_preset has it; borrowed */
    int length, batch;        /* tokens generated per text; number of texts */
    int repeat;               /* 1.. */
    bool measured;            /* the fields below are set */
    double total_s;           /* from the prompt to the last token of all texts */
    double ttft_s;            /* to the first token of all texts */
    double tokens_per_second; /* batch * length / total_s */
    /* bytes in use at the end */
    int64_t weights_bytes, recurrent_bytes, kv_bytes, workspace_bytes;
    int64_t process_peak_bytes; /* resident, after the model was loaded */
    int64_t device_peak_bytes;  /* 0: the device is the CPU, see process_peak_bytes */
};

/* The order in which files have the bytes of a point, the fields above. */
enum { STUDY_NUM_BYTES = 6 };
void study_point_set_bytes(struct study_point *point, const long long bytes[STUDY_NUM_BYTES]);

/* What the turns of a system, a length and a batch took. */
struct study_turns {
    const char *system; /* borrowed, as a point's */
    int length, batch;
    int measurement; /* those of one were measured beside each other, and may be compared */
    struct bench_slice *slices; /* [count], by turns; without a share */
    size_t count;
};

struct study_plan {
    struct study_point *points; /* [count], in the order in which they are measured: systems beside
                                   each other, so that a drift of the machine hits all alike */
    size_t count;
    struct study_turns *turns; /* [num_turns] */
    size_t num_turns;
    int measurements; /* of turns so far: the highest number of one */
    char **names;     /* [num_names], owned: of systems that no axes name */
    size_t num_names;
};

struct study_axes {
    const char *const *systems; /* [num_systems]; borrowed, outlives the plan */
    const int *lengths, *batches;
    int num_systems, num_lengths, num_batches;
    int repeats;      /* for lengths up to 1,024 */
    int long_repeats; /* for longer ones */
    int turns;        /* slices of each system, length and batch; 0: none */
};

/* Axes together with the memory of their strings and numbers. Zero-initialise. */
struct study_choice {
    struct study_axes axes;
    char *names;
    const char *systems[STUDY_MOST_SYSTEMS];
    int lengths[STUDY_MOST_LENGTHS], batches[STUDY_MOST_BATCHES];
};

/* Axes as typed: lists separated by commas. None is NULL. */
struct study_lists {
    const char *systems; /* "all": each NAME-6l; or names (study_preset) */
    const char *lengths, *batches;
    int repeats, long_repeats, turns;
};

/* ERROR_INVALID names the flag, expected and got. The caller clears *choice in every case. */
int study_choice_parse(struct study_choice *choice, const struct study_lists *lists,
                       struct error *err);
void study_choice_clear(struct study_choice *choice);
/* The preset of a system: NAME-6l, else NAME itself, of the size that people run. False: none. */
bool study_preset(char name[STUDY_PRESET_SIZE], const char *system);

int study_plan_create(struct study_plan *plan, const struct study_axes *axes, struct error *err);
void study_plan_clear(struct study_plan *plan);
/* Adds a copy of a point, with a name of its own. */
int study_plan_add(struct study_plan *plan, const struct study_point *point, struct error *err);
/* A copy of the name, the plan's; the same one for equal names. NULL with the error set. */
const char *study_plan_name(struct study_plan *plan, const char *name, struct error *err);
/* Adds the systems, lengths and batches of the plan's points to the choice, which borrows the
 * plan's names. ERROR_INVALID: there are more than a study may have. */
int study_choice_span(struct study_choice *choice, const struct study_plan *plan,
                      struct error *err);

/* Adds turns without slices, with room for `count`. NULL with the error set. */
struct study_turns *study_turns_add(struct study_plan *plan, const char *system, int length,
                                    int batch, size_t count, struct error *err);
/* Removes all. */
void study_turns_clear(struct study_plan *plan);
/* Turns are measured by groups: up to 8 systems at all lengths, and one batch. How many. */
int study_turns_groups(const struct study_axes *axes);
/* Measures those of a group in this process and replaces what the plan had of it. 1: it did. 0: the
 * plan has axes->turns of each already, of one measurement. */
int study_turns_measure(struct study_plan *plan, const struct study_axes *axes, int group,
                        const struct engine_options *options, bool progress, struct error *err);
/* NULL: there are none. */
const struct study_turns *study_turns_find(const struct study_plan *plan, const char *system,
                                           int length, int batch);
/* The paces of the slices (bench_paces): `share` is milliseconds per step or, with `base`, these
 * divided by what base took in the same turn. Returns how many: none if base was measured at
 * another time. */
int study_turns_paces(const struct study_turns *turns, const struct study_turns *base,
                      struct bench_pace paces[BENCH_MOST_PACES]);

/* Measures one point in this process. */
int study_measure(struct study_point *point, const struct engine_options *options,
                  struct error *err);

/* The CSV: a header, then one line per point. */
void study_csv_header(FILE *file);
void study_csv_line(FILE *file, const struct study_point *point);
/* Parses a line without its newline. out->system points into the line, which is cut up. False: the
 * line is no point. */
bool study_csv_parse(char *line, struct study_point *out);
/* Enters into the plan what an earlier run measured, from `path`. A missing file is not an error;
 * another kind of file is. A last line that a crash cut off is removed from the file. Points
 * outside the plan stay in the file, and are added to `kept`. *known: number of points found. */
int study_csv_resume(struct study_plan *plan, struct study_plan *kept, const char *path,
                     size_t *known, struct error *err);

/* What may not change in the course of a study; borrowed, as typed, but activations are not auto.
 */
struct study_settings {
    const char *device, *weights, *kv, *activations, *products;
    int threads;
};

/* study.json: program, machine, settings, and the points and turns measured so far; those of
 * earlier runs with other axes, too (kept). */
int study_json_write(const char *path, const struct study_plan *plan, const struct study_plan *kept,
                     const struct study_settings *settings, struct error *err);
/* An error: the file is there, and is of a study with other settings or on another machine. */
int study_json_check(const char *path, const struct study_settings *settings, struct error *err);
/* Its turns, if the file is there: those outside the axes go to `kept`. */
int study_json_resume(struct study_plan *plan, struct study_plan *kept, const char *path,
                      const struct study_axes *axes, struct error *err);
/* Its points and turns, and the axes that they span. The caller clears both in every case; the
 * choice borrows the plan's names. */
int study_json_read(const char *path, struct study_plan *plan, struct study_choice *choice,
                    struct error *err);

struct study_options {
    const char *out; /* the directory, made if need be */
    bool quiet;      /* no progress on standard error */
    struct study_settings settings;
    struct engine_options engine; /* what `settings` says, for turns */
    /* [up to 32], then NULL: arguments of this program, behind which system:length:batch:repeat
     * makes it measure that point and print its line of CSV. */
    const char *const *child;
};

/* The whole study. Each point is measured by a process of its own, one at a time; its line goes to
 * OUT/study.csv at once, so that a study that was stopped goes on where it was. Then plots, and the
 * report on standard output. */
int study_run(const struct study_options *options, const struct study_axes *axes,
              struct error *err);

/* Runs regla-plot, which lies beside this program, on a study's directory. Returns 1; 0 where there
 * is none, which it says on standard error; -1: it failed, and has said why. */
int study_draw(const char *directory, struct error *err);

/* The median, least and greatest of the repeats of a point; count 0: none was measured. Of times
 * per step: the median of turns and its interval, at the pace at which most turns of the batch
 * were. */
struct study_value {
    int count;
    double median, least, greatest;
};
enum study_quantity {
    STUDY_TOTAL_S,
    STUDY_TTFT_S,
    STUDY_TOKENS_PER_SECOND,
    STUDY_MS_PER_TOKEN, /* of one step; from turns */
    STUDY_STATE_BYTES,  /* recurrent + KV */
    STUDY_BYTES,        /* with weights and workspace */
    STUDY_PROCESS_BYTES
};
struct study_value study_value(const struct study_plan *plan, const char *system, int length,
                               int batch, enum study_quantity quantity);

/* Prints a table of every point, then three results per batch: the growth of memory from the least
 * to the greatest length, the length from which ReGLA is faster than softmax, and times per token
 * by pace, with how they compare (study_compare). */
void study_report(FILE *out, const struct study_plan *plan, const struct study_axes *axes);

/* Prints the time per token of each system and length by the pace of memory, what it is of the
 * least length's, and ReGLA's of fast decay's, each with an interval; nothing without turns. */
void study_compare(FILE *out, const struct study_plan *plan, const struct study_axes *axes,
                   int batch);

/* Draws DIR/time-bB.svg, .png and likewise memory, state, speed and, with turns, token, for each
 * batch B. */
int study_plots(const char *directory, const struct study_plan *plan, const struct study_axes *axes,
                struct error *err);

#endif
