/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/perform.h"

#define NUM_ROWS_OF_ROWS(call) (call)->num_rows
#define NUM_ROWS_OF_BATCH(call) 0
#define PERFORM(kind_, name, profile, rows)                                \
    void perform_##name(const struct ops *ops, struct backend *backend,    \
                        const struct ops_##name *call)                     \
    {                                                                      \
        const struct operation operation = {.kind = kind_, .name = *call}; \
        ops->perform(backend, &operation, NUM_ROWS_##rows(call));          \
    }
OPERATIONS(PERFORM)
