/* SPDX-License-Identifier: Apache-2.0 */
/* The options of an engine and what it tells about itself (engine.h): plain structs, which the
 * files below the engine also fill or read. */
#ifndef ENGINE_ENGINE_TYPES_H
#define ENGINE_ENGINE_TYPES_H

#include "engine/ops/formats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_info;
struct error;
struct product_observer;

struct engine_options {
    const char *device; /* "auto" (NULL), "cpu", "cuda", "cuda:N": engine/device.h */
    enum weight_format weights;
    enum kv_format kv;
    enum activation_format activations; /* 0: f32. ERROR_INVALID if it does not fit the weights,
                                           ERROR_UNSUPPORTED if not the device */
    enum products products; /* ERROR_INVALID if they do not fit the weights, ERROR_UNSUPPORTED if
                               not the device */
    const char *packed_weights; /* a file of the weights as the CPU packs them, which is mapped; it
                                   is made where it is missing. NULL: they are packed into memory.
                                   ERROR_UNSUPPORTED on other devices, and beside four_bits.h's */
    int threads; /* of the CPU; 0: as many as the affinity mask and the cgroups allow */
    size_t state_memory_bytes; /* budget for all states and KV pages; 0: a share of free memory,
                                  or what device_memory_bytes leaves */
    int sharing; /* engines that share the device's memory, this one and those that are opened after
                    it: their states get equal parts of it; 0: this one alone */
    size_t device_memory_bytes; /* for weights, workspace and states together; 0: no limit */
    /* Chooses the budget for states instead, or refuses it, once the weights and the workspace are
     * there; NULL: nobody does. *bytes: what would be taken; given: what was asked for, or 0. */
    int (*budget)(void *context, const struct engine_info *info, size_t given, size_t *bytes,
                  struct error *err);
    void *budget_context;
    int max_step_tokens;         /* most tokens of a step, over all spans; 0: 512 */
    int max_step_logits;         /* most positions of a step with logits or draws; 0: 128 */
    int max_step_kept;           /* most tokens of a step that texts may go back over; 0: none */
    bool hidden;                 /* spans may ask for hidden rows */
    const char *instruction_set; /* of the CPU: "amx", "avx512vnni", "avx512", "avx2", "generic";
                                    NULL: the best there is; for tests "amx_emulated" */
    bool poison;                 /* for tests: fill all memory with NaN before its first use */
    bool share_always;           /* for tests: threads share even the smallest operation */
    const struct product_observer *observer; /* of the CPU (engine/ops/ops.h), or NULL.
                                                ERROR_UNSUPPORTED on a GPU */
    /* Progress of loading, 0..1, from the calling thread; may be NULL. */
    void (*progress)(void *context, double fraction);
    void *progress_context;
};

/* Everything that does not change after engine_open. */
struct engine_info {
    int32_t vocab_size;
    enum weight_format weights; /* never auto */
    uint64_t q4_blocks;         /* hash of those beside the model that are computed with; 0: none */
    enum kv_format kv;          /* never auto */
    enum activation_format activations; /* never auto */
    enum products products;
    int threads;
    int max_step_tokens, max_step_logits, max_step_kept;
    int64_t max_step_pages; /* most KV pages of all texts of a step together */
    int64_t max_positions;  /* limit of learned positions; 0: none */
    size_t weights_bytes;   /* as packed for the device */
    size_t weights_bytes_as[WEIGHT_FORMAT_COUNT]; /* the bytes in each format; 0: not here */
    size_t workspace_bytes;          /* on a GPU with everything else allocated at the start */
    size_t second_bytes;             /* of that: weights packed once more, for other products */
    size_t pinned_bytes;             /* of the host, for copies */
    size_t recurrent_bytes_per_text; /* S, c, running maxima, rings: constant */
    size_t kv_bytes_per_token;       /* of layers with a full window */
    int kv_page_tokens;              /* KV is reserved in pages of this many tokens */
    size_t state_memory_bytes;       /* the budget */
    bool overlaps;                   /* engine_submit accepts a step while another runs */
    const char *device;              /* "cpu", "cuda" */
    const char *instruction_set;     /* as in the options; a GPU's name */
    const char *refused_set; /* why the processor's best instruction set is not taken, or NULL */
    const char *unit;        /* what multiplies matrices: "AMX bf16", "AVX-512 VNNI", "f32" */
    const char
        *measured_unit; /* whose operations engine_measure measures: unit, or "f32" on a GPU */
};

struct engine_memory {                                  /* of the state budget, in bytes */
    size_t recurrent_bytes, kv_bytes;                   /* in use */
    size_t recurrent_reserved_bytes, kv_reserved_bytes; /* reserved by the states alive */
    size_t recurrent_peak_bytes, kv_peak_bytes;         /* highest in use since the start */
    size_t recurrent_cached_bytes, kv_cached_bytes;     /* in use only by states set aside */
    int states, cached;                                 /* number of states; of these, set aside */
};

#endif
