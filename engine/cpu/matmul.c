/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"

void cpu_matmul(struct backend *backend, const struct ops_matmul *a)
{
    if (backend->observer != NULL)
        backend->observer->multiplied(backend->observer->context, a);
    if (a->chosen > 0)
        routing_multiply(backend, a);
    else
        product_multiply(backend, a);
}
