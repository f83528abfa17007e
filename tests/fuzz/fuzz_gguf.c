/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a GGUF file: refused with a message, or every value and tensor readable to its end,
 * as a configuration, as matrices and as a tokenizer. */
#include "engine/model/family.h"
#include "engine/model/gguf_tensors.h"
#include "engine/model/quantized.h"
#include "engine/model/weights.h"
#include "lib/text/tokenizer.h"

#include <stdlib.h>

static void must_say(int result, const struct error *err)
{
    if (result != 0 && (err->code == ERROR_NONE || !err->message[0]))
        abort();
}

static unsigned read_values(const struct gguf *gguf)
{
    unsigned sum = 0;
    for (size_t i = 0; i < gguf->num_entries; i++) {
        const struct gguf_entry *entry = &gguf->entries[i];
        const unsigned char *at = entry->data;
        if (gguf_find(gguf, entry->key) != entry)
            abort();
        for (uint64_t v = 0; v < entry->count; v++) {
            if (entry->type == GGUF_STRING) {
                struct gguf_text text = gguf_next_text(&at);
                for (size_t byte = 0; byte < text.length; byte++)
                    sum += (unsigned char)text.bytes[byte];
            } else if (gguf_type_is_float(entry->type)) {
                sum += gguf_number_at(entry, v) > 0;
            } else if (gguf_type_is_int(entry->type)) {
                sum += gguf_int_at(entry, v) > 0;
            }
        }
    }
    return sum;
}

static void read_tensors(struct tensors *tensors)
{
    struct arena arena = {0};
    struct weights weights = {.file = tensors, .arena = &arena};
    float numbers[40];
    for (size_t i = 0; i < tensors_count(tensors); i++) {
        const struct tensor *tensor = tensors_at(tensors, i);
        struct matrix matrix;
        struct error err = ERROR_INIT;
        for (size_t at = 0; tensor_dtype_of_matrices(tensor->dtype) && at < tensor->elements;
             at += 40)
            quantized_numbers((enum dtype)tensor->dtype, tensor->data, (int64_t)at,
                              tensor->elements - at < 40 ? (int64_t)(tensor->elements - at) : 40,
                              numbers);
        if (tensor->rank != 2)
            continue;
        must_say(weights_check_finite(tensor, &err), &err);
        error_clear(&err);
        must_say(
            weights_matrix(&weights, tensor->name, WEIGHT_ANY, tensor->shape[1], &matrix, &err),
            &err);
    }
    arena_clear(&arena);
}

static void read_model(const struct gguf *gguf, struct tensors *tensors)
{
    struct arena arena = {0};
    struct config config;
    struct error err = ERROR_INIT;
    must_say(family_parse_gguf(&config, &arena, gguf, tensors, &err), &err);
    read_tensors(tensors);
    arena_clear(&arena);
}

static void read_tokenizer(const uint8_t *data, size_t size)
{
    struct tokenizer *tokenizer;
    struct token_list ids = {0};
    struct error err = ERROR_INIT;
    int result = tokenizer_load_gguf(&tokenizer, data, size, &err);
    must_say(result, &err);
    if (result != 0)
        return;
    tokenizer_encode(tokenizer, "It's 12 <s>  \xc3\xa9\xe2\x96\x81", 16, true, &ids, &err);
    token_list_clear(&ids);
    tokenizer_free(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensors *tensors;
    struct gguf gguf;
    struct error err = ERROR_INIT;
    read_tokenizer(data, size);
    int result = gguf_tensors_load(&tensors, &gguf, data, size, "fuzz", &err);
    must_say(result, &err);
    if (result != 0)
        return 0;
    volatile unsigned sum = read_values(&gguf);
    for (size_t i = 0; i < tensors_count(tensors); i++)
        for (size_t byte = 0; byte < tensors_at(tensors, i)->bytes; byte++)
            sum += tensors_at(tensors, i)->data[byte];
    read_model(&gguf, tensors);
    gguf_clear(&gguf);
    tensors_close(tensors);
    return 0;
}
