/* SPDX-License-Identifier: Apache-2.0 */
/* Which row of a file is a row of the model: files have some matrices' rows in another order, or
 * those of several matrices among each other. So nothing is copied before it is packed. */
#ifndef ENGINE_MODEL_ROW_ORDER_H
#define ENGINE_MODEL_ROW_ORDER_H

#include <stdint.h>

/* Where a file has the rows of a matrix, or the numbers of its bias, in another order than the
 * model: [..][b][a][inner rows] in place of [..][a][b][inner rows]. a = 0: in the model's order. */
struct tensor_order {
    int64_t a, b, inner;
};

/* Some rows of a matrix: runs of `run` rows, the first at `first`, one every `stride`. run = 0: all
 * rows. */
struct row_part {
    int64_t first, run, stride;
};

static inline int64_t tensor_order_row(const struct tensor_order *order, int64_t i)
{
    if (order->a == 0)
        return i;
    const int64_t inner = i % order->inner, b = i / order->inner % order->b;
    const int64_t a = i / (order->inner * order->b) % order->a;
    const int64_t outer = i / (order->inner * order->b * order->a);
    return ((outer * order->b + b) * order->a + a) * order->inner + inner;
}

static inline int64_t row_part_row(const struct row_part *part, int64_t i)
{
    return part->run == 0 ? i : part->first + i / part->run * part->stride + i % part->run;
}

#endif
