/* SPDX-License-Identifier: Apache-2.0 */
/* A job is one operation of engine/ops/ops.h on random input. job_check runs it on the CPU and on
 * the device and compares; job_time runs it on the device many times and times it. rows.c,
 * product.c and mixers.c make the jobs. */
#ifndef LOADTEST_KERNELS_JOB_H
#define LOADTEST_KERNELS_JOB_H

#include "tests/cuda/bench.h"

enum { JOB_ARRAYS = 10 };

struct job_array {
    size_t count; /* of floats; 0: not used */
    float low, high;
    bool out; /* an output: NaN before the operation, compared after it */
    int unit; /* each `unit` numbers are a vector of length 1; 0: as they are drawn */
};

struct job_case; /* the parameters that a kind of operation varies */

/* A job on a device. */
struct job_run {
    const struct bench_device *device;
    const struct job *job;
    float *arrays[JOB_ARRAYS];
    struct weight **weights; /* [copies] */
    struct batch batch;
};

struct job {
    char name[80];
    const struct job_case *parameters;
    struct job_array arrays[JOB_ARRAYS];
    int texts, rows;               /* of each text */
    int64_t position;              /* of each text's first row */
    size_t slot_bytes, page_bytes; /* of a text, of one of its pages; 0: none */
    int copies;       /* of weights or states; calls use them in turn, so that none is in a cache */
    double tolerance; /* of |out - CPU| / |CPU| */
    double bytes, operations;           /* of a call; operations 0: no rate is printed */
    enum activation_format activations; /* of the device: f32 or 16bit */
    void (*open)(struct job_run *);
    void (*queue)(const struct job_run *, int call);
    void (*close)(struct job_run *);
};

/* The device's peaks, measured before. */
struct job_limits {
    double copy_bytes, operations; /* per second; operations: f32 */
};

void job_check(const struct job *job, const struct bench_device *cpu,
               const struct bench_device *cuda, struct bench_count *count);
/* Prints a line of the table. */
void job_time(const struct job *job, const struct bench_device *cuda,
              const struct job_limits *limits);
/* The median seconds of a call, of some tens in one step. queued_before: all are queued before the
 * device begins with the first, so that none waits for the host. */
double job_seconds(const struct job *job, const struct bench_device *cuda, bool queued_before);

/* Calls `use` with all jobs of a kind with texts of `rows` rows; rows 0: with the jobs that are
 * worth timing. */
typedef void job_use(const struct job *job, void *context);
void rows_jobs(int rows, job_use *use, void *context);
void product_jobs(int rows, job_use *use, void *context);
void recurrence_jobs(int rows, job_use *use, void *context);
void attention_jobs(int rows, job_use *use, void *context);

/* Array `array` of a run as [rows, width]. */
static inline struct rows job_rows(const struct job_run *run, int array, int64_t width)
{
    return (struct rows){run->arrays[array], width};
}

#endif
