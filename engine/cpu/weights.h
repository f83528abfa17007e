/* Packing of matrices into panels, and tables of rows; numbers of a file as f32. */
#ifndef ENGINE_CPU_WEIGHTS_H
#define ENGINE_CPU_WEIGHTS_H

#include "engine/ops.h"

struct table {
    struct matrix matrix; /* its data is borrowed */
};

int weights_create(struct weight **out, const struct matrix *parts, int num_parts, int heads,
                   struct error *err);
void weights_free(struct weight *weight); /* NULL is allowed */

/* n numbers from element `first` on. */
void weights_read(const struct matrix *matrix, int64_t first, int64_t n, float *out);

#endif
