/* SPDX-License-Identifier: Apache-2.0 */
/* One operation by itself, outside of a program: perform_matmul(ops, backend, call). */
#ifndef ENGINE_OPS_PERFORM_H
#define ENGINE_OPS_PERFORM_H

#include "engine/ops/operation.h"

#define PERFORM_ONE(kind, name, profile, rows) \
    void perform_##name(const struct ops *, struct backend *, const struct ops_##name *);
OPERATIONS(PERFORM_ONE)

#endif
