/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the backend's switches from the environment. */
#include "engine/cuda/switches.h"

static const char *const switch_names[] = {
#define NAME(name, string) string,
    CUDA_SWITCHES(NAME)
#undef NAME
};

const char *switch_name(int i)
{
    return i >= 0 && i < NUM_CUDA_SWITCHES ? switch_names[i] : NULL;
}

/* Switches off the one of this name; -1: there is none. */
static int switch_off(struct backend *backend, const char *name, size_t length)
{
    for (int i = 0; i < NUM_CUDA_SWITCHES; i++)
        if (strlen(switch_names[i]) == length && memcmp(switch_names[i], name, length) == 0) {
            backend->switched_off |= 1u << i;
            return 0;
        }
    return -1;
}

static int read_without(struct backend *backend, const char *list, struct error *err)
{
    for (const char *name = list; *name != '\0';) {
        size_t length = strcspn(name, ",");
        if (switch_off(backend, name, length) != 0) {
            char known[256] = "";
            for (const char *other : switch_names)
                snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                         known[0] == '\0' ? "" : ", ", other);
            return error_set(err, ERROR_INVALID,
                             "REGLA_CUDA_WITHOUT: expected some of %s; got %.*s", known,
                             (int)length, name);
        }
        name += length + (name[length] == ',');
    }
    return 0;
}

int switches_read(struct backend *backend, struct error *err)
{
    const char *without = getenv("REGLA_CUDA_WITHOUT");
    const char *rows = getenv("REGLA_CUDA_STREAMED_ROWS");
    if (without != NULL && read_without(backend, without, err) != 0)
        return -1;
    backend->streamed_rows = STREAMED_ROWS;
    if (rows == NULL)
        return 0;
    char *end;
    long number = strtol(rows, &end, 10);
    if (end == rows || *end != '\0' || number < LEAST_STREAMED_ROWS || number > 256)
        return error_set(err, ERROR_INVALID,
                         "REGLA_CUDA_STREAMED_ROWS: expected a number from %d to 256, got %s",
                         LEAST_STREAMED_ROWS, rows);
    backend->streamed_rows = (int)number;
    return 0;
}
