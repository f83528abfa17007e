/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/dtype.h"

#define DTYPE_ROW(name, block, bytes) [DTYPE_##name] = {#name, (block), (bytes)},
static const struct {
    const char *name;
    size_t block, bytes;
} dtypes[] = {DTYPES(DTYPE_ROW)};

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dtype_block(enum dtype dtype)
{
    return dtypes[dtype].block;
}

size_t dtype_size(enum dtype dtype, size_t numbers)
{
    return numbers / dtypes[dtype].block * dtypes[dtype].bytes;
}
