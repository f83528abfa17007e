/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that brings a step's batch where the embedding is not the step's first kernel. */
#include "engine/cuda/arrival.cuh"

enum { THREADS = 128 };

/* A block per row. */
__global__ static void arrive_kernel(struct device_batch batch, struct device_arrival a)
{
    grid_wait();
    int64_t r = blockIdx.x;
    int32_t token = arrival_row(a, batch, r, true);
    if (threadIdx.x == 0)
        a.tokens[r] = {token, -1};
}

void arrival_launch(struct backend *backend)
{
    struct device_arrival arrival = backend->arrival;
    backend->arrival = {};
    if (arrival.to != NULL)
        launch(backend, arrive_kernel, dim3((unsigned)backend->batch.num_rows), dim3(THREADS), 0,
               backend->batch, arrival);
}
