/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/sampling.h"

#include <float.h>

#define IS_WHOLE(type) ((type)0.5 == 0)
#define ROW(name, type, low, high, above, usual, gguf, library) \
    [SAMPLING_##name] = {#name, low, high, above, IS_WHOLE(type), usual, gguf, library},

const struct sampling_row sampling_rows[SAMPLING_COUNT] = {SAMPLING_NUMBERS(ROW)};

#define SET(name, type, ...)          \
    case SAMPLING_##name:             \
        sampling->name = (type)value; \
        break;

void sampling_set(struct sampling *sampling, enum sampling_number number, double value)
{
    switch (number) {
        SAMPLING_NUMBERS(SET)
    case SAMPLING_COUNT:
        break;
    }
}
