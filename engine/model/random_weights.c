/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/random_weights.h"

#include "engine/model/family.h"
#include "lib/base/half.h"
#include "lib/base/philox.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SEED = 20260, HEADER_ALIGNMENT = 64 };

/* The numbers. */

static int64_t elements_of(const struct random_tensor *spec)
{
    int64_t elements = 1;
    for (int i = 0; i < spec->rank; i++)
        elements *= spec->shape[i];
    return elements;
}

/* The random words of the elements [first, first + 4 LANES) of a tensor: element e has word e % 4
 * of counter e / 4. */
enum { LANES = 64, DRAWN = 4 * LANES };

static void draw(size_t tensor, uint64_t first, uint32_t words[4][LANES])
{
    for (int i = 0; i < LANES; i++) {
        const uint64_t counter = first / 4 + (uint64_t)i;
        words[0][i] = (uint32_t)counter;
        words[1][i] = (uint32_t)(counter >> 32);
        words[2][i] = (uint32_t)tensor;
        words[3][i] = 0;
    }
    philox4x32_10_lanes(words[0], words[1], words[2], words[3], LANES, SEED, 0);
}

enum { MOST_SUM = 4 * 255 };

static uint32_t sum_of_bytes(uint32_t word)
{
    word = (word & 0x00ff00ff) + (word >> 8 & 0x00ff00ff);
    return (word & 0xffff) + (word >> 16);
}

/* values[s]: what a word whose bytes have the sum s becomes. */
static void make_values(const struct random_tensor *spec, float values[MOST_SUM + 1])
{
    const double deviation = sqrt(4 * (256 * 256 - 1) / 12.0);
    for (int sum = 0; sum <= MOST_SUM; sum++)
        values[sum] = (float)(spec->mean + spec->deviation * (sum - MOST_SUM / 2) / deviation);
}

static void fill_bf16(const struct random_tensor *spec, size_t tensor, uint16_t *out)
{
    float values[MOST_SUM + 1];
    uint16_t halves[MOST_SUM + 1];
    make_values(spec, values);
    for (int sum = 0; sum <= MOST_SUM; sum++)
        halves[sum] = f32_to_bf16(values[sum]);
    const uint64_t elements = (uint64_t)elements_of(spec);
    for (uint64_t first = 0; first < elements; first += DRAWN) {
        uint32_t words[4][LANES];
        const uint64_t left = elements - first;
        draw(tensor, first, words);
        for (uint64_t i = 0; i < (left < DRAWN ? left : DRAWN); i++)
            out[first + i] = halves[sum_of_bytes(words[i % 4][i / 4])];
    }
}

/* Numbers of four bytes may follow an odd number of two-byte ones: out is at any alignment. */
static void fill_f32(const struct random_tensor *spec, size_t tensor, unsigned char *out)
{
    float values[MOST_SUM + 1];
    uint32_t words[4][LANES];
    make_values(spec, values);
    for (uint64_t i = 0; i < (uint64_t)elements_of(spec); i++) {
        if (i % DRAWN == 0)
            draw(tensor, i, words);
        const float value =
            values[sum_of_bytes(words[i % 4][i % DRAWN / 4])] + (float)(spec->step * (double)i);
        memcpy(out + 4 * i, &value, 4);
    }
}

static double dot(const double *a, const double *b, int64_t size)
{
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Takes out of a row [d] what it has of the count rows before it, and gives it its length again. */
static void turn_away(double *rows, int64_t count, int64_t d)
{
    double *row = rows + count * d;
    const double length = sqrt(dot(row, row, d));
    for (int64_t i = 0; i < count; i++) {
        const double *other = rows + i * d;
        const double square = dot(other, other, d);
        const double share = square > 0 ? dot(row, other, d) / square : 0;
        for (int64_t j = 0; j < d; j++)
            row[j] -= share * other[j];
    }
    const double left = sqrt(dot(row, row, d)), factor = left > 0 ? length / left : 0;
    for (int64_t j = 0; j < d; j++)
        row[j] *= factor;
}

/* spec->orthogonal; out [n, rows, d] has been filled. */
static int make_orthogonal(const struct random_tensor *spec, unsigned char *out, struct error *err)
{
    const int64_t rows = spec->shape[1], d = spec->shape[2];
    const int64_t most = rows < d ? rows : d;
    double *block = calloc((size_t)(most * d), sizeof *block);
    if (!block)
        return error_set(err, ERROR_NO_MEMORY, "random weights: out of memory");
    for (int64_t row = 0; row < spec->shape[0] * rows; row++, out += 4 * d) {
        const int64_t count = row % rows % d; /* before it in its block */
        float value;
        for (int64_t j = 0; j < d; j++) {
            memcpy(&value, out + 4 * j, 4);
            block[count * d + j] = (double)value;
        }
        turn_away(block, count, d);
        for (int64_t j = 0; j < d; j++) {
            value = (float)block[count * d + j];
            memcpy(out + 4 * j, &value, 4);
        }
    }
    free(block);
    return 0;
}

/* Fisher and Yates; out as above. */
static void fill_permutation(const struct random_tensor *spec, size_t tensor, unsigned char *out)
{
    uint32_t words[4][LANES];
    for (int32_t i = 0; i < spec->shape[0]; i++) {
        if (i % DRAWN == 0)
            draw(tensor, (uint64_t)i, words);
        const uint32_t at = words[i % 4][i % DRAWN / 4] % (uint32_t)(i + 1);
        memmove(out + 4 * (int64_t)i, out + 4 * (uint64_t)at, 4);
        memcpy(out + 4 * (uint64_t)at, &i, 4);
    }
}

static void fill(const struct random_tensor *spec, size_t tensor, unsigned char *out)
{
    if (spec->dtype == TENSOR_BF16)
        fill_bf16(spec, tensor, (uint16_t *)out);
    else if (spec->dtype == TENSOR_F32)
        fill_f32(spec, tensor, out);
    else
        fill_permutation(spec, tensor, out);
}

/* The file. */

static size_t bytes_of(const struct random_tensor *spec)
{
    return tensor_dtype_size(spec->dtype, (size_t)elements_of(spec));
}

/* The header's JSON, malloc'd; *size bytes of data follow it. */
static char *make_header(const struct random_list *list, size_t *size)
{
    json_t *header = json_object();
    *size = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct random_tensor *spec = &list->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < spec->rank; d++)
            json_array_append_new(shape, json_integer(spec->shape[d]));
        json_t *entry =
            json_pack("{ss so s[II]}", "dtype", tensor_dtype_name(spec->dtype), "shape", shape,
                      "data_offsets", (json_int_t)*size, (json_int_t)(*size + bytes_of(spec)));
        json_object_set_new(header, spec->name, entry);
        *size += bytes_of(spec);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static int write_image(struct file_map *image, const struct random_list *list, struct error *err)
{
    size_t data_bytes;
    char *header = make_header(list, &data_bytes);
    if (!header)
        return error_set(err, ERROR_NO_MEMORY, "random weights: out of memory");
    const size_t length = strlen(header);
    const size_t start = (8 + length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    unsigned char *bytes =
        mmap(NULL, start + data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        free(header);
        return error_set(err, ERROR_NO_MEMORY, "random weights: cannot map %zu bytes: %s",
                         start + data_bytes, strerror(errno));
    }
    const uint64_t padded = start - 8;
    memcpy(bytes, &padded, sizeof padded);
    memset(bytes + 8, ' ', padded);
    memcpy(bytes + 8, header, length);
    free(header);
    *image = (struct file_map){.bytes = bytes, .size = start + data_bytes};
    unsigned char *at = bytes + start;
    for (size_t i = 0; i < list->count; i++) {
        fill(&list->tensors[i], i, at);
        if (list->tensors[i].orthogonal && make_orthogonal(&list->tensors[i], at, err) != 0)
            return -1;
        at += bytes_of(&list->tensors[i]);
    }
    return 0;
}

int random_weights_create(struct file_map *image, const struct config *config,
                          const struct random_shapes *shapes, struct error *err)
{
    char names[128];
    struct random_list list = {.config = config, .shapes = shapes};
    if (!config->family->random)
        return error_set(err, ERROR_UNSUPPORTED,
                         "model_type: expected %s for random weights, got %s",
                         family_names_random(names, sizeof names), config->family->name);
    config->family->random(&list);
    int result = list.failed ? error_set(err, ERROR_NO_MEMORY, "random weights: out of memory")
                             : write_image(image, &list, err);
    free(list.tensors);
    return result;
}
