/* SPDX-License-Identifier: Apache-2.0 */
/* The latency and memory study (`regla study`): which points it has, what one measures, the CSV
 * they are kept in, and what follows from them.
 *
 * ReGLA, section 5.2 and figure 5: models of 6 layers, a prompt of 5 tokens, generation lengths of
 * 2^6 to 2^13; the total time of prompt and decoding, and the memory in use at its end, which is
 * its peak. */
#ifndef BENCH_STUDY_H
#define BENCH_STUDY_H

#include "engine/engine.h"

#include <stdio.h>

enum { STUDY_PROMPT_TOKENS = 5, STUDY_MOST_LENGTHS = 16 };

struct study_point {
    const char *system;       /* a preset's name without "-6l"; borrowed */
    int length, batch;        /* tokens generated, of each text; texts */
    int repeat;               /* 1.. */
    bool measured;            /* what follows is there */
    double total_s;           /* from the prompt to the last token of all texts */
    double ttft_s;            /* to the first token of all texts */
    double tokens_per_second; /* batch * length / total_s */
    /* bytes in use at the end */
    int64_t weights_bytes, recurrent_bytes, kv_bytes, workspace_bytes;
    int64_t process_peak_bytes; /* resident, after the model was loaded */
    int64_t device_peak_bytes;  /* 0: the device is the CPU, see process_peak_bytes */
};

struct study_plan {
    struct study_point *points; /* [count], in the order in which they are measured: systems next to
                                   each other, so that a drift of the machine hits all alike */
    size_t count;
};

struct study_axes {
    const char *const *systems; /* [num_systems]; borrowed, outlives the plan */
    const int *lengths, *batches;
    int num_systems, num_lengths, num_batches;
    int repeats;      /* up to lengths of 1,024; */
    int long_repeats; /* and above */
};

int study_plan_create(struct study_plan *plan, const struct study_axes *axes, struct error *err);
void study_plan_clear(struct study_plan *plan);

/* Measures one point in this process. */
int study_measure(struct study_point *point, const struct engine_options *options,
                  struct error *err);

/* The CSV: a header, then a line a point. */
void study_csv_header(FILE *file);
void study_csv_line(FILE *file, const struct study_point *point);
/* A line without its newline; `system` is cut out of it. False: it is none. */
bool study_csv_parse(char *line, struct study_point *out);
/* Enters what an earlier run has measured, from `path` if it is there; a line that was cut off by a
 * crash is taken away from the file. *known: points found. Lines of points that the plan does not
 * have stay in the file. An error: the file is something else. */
int study_csv_resume(struct study_plan *plan, const char *path, size_t *known, struct error *err);

/* The median, least and greatest of the repeats of a point; count 0: none was measured. */
struct study_value {
    int count;
    double median, least, greatest;
};
enum study_quantity {
    STUDY_TOTAL_S,
    STUDY_TTFT_S,
    STUDY_TOKENS_PER_SECOND,
    STUDY_MS_PER_TOKEN, /* of one step: (total - ttft) / (length - 1) */
    STUDY_STATE_BYTES,  /* recurrent + KV */
    STUDY_BYTES,        /* with weights and workspace */
    STUDY_PROCESS_BYTES
};
struct study_value study_value(const struct study_plan *plan, const char *system, int length,
                               int batch, enum study_quantity quantity);

/* A table of every point, then two verdicts per batch: growth of memory and of time per token from
 * the least to the greatest length, and where ReGLA becomes faster than softmax. */
void study_report(FILE *out, const struct study_plan *plan, const struct study_axes *axes);

/* DIR/time-bB.svg, .png and likewise memory, state and speed, for each batch B. */
int study_plots(const char *directory, const struct study_plan *plan, const struct study_axes *axes,
                struct error *err);

#endif
