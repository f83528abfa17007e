/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embeddings and the ways in which transformers scales their angles (its
 * modeling_rope_utils.py): what a config.json says of them becomes frequencies. */
#ifndef ENGINE_MODEL_ROPE_H
#define ENGINE_MODEL_ROPE_H

#include "engine/model/model.h"
#include "lib/base/arena.h"
#include "lib/base/fields.h"
#include "lib/base/warnings.h"

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_PROPORTIONAL,
    ROPE_LONGROPE
};

struct rope {
    enum rope_type type;
    double base, part; /* rope_theta and partial_rotary_factor */
    double factor;     /* but of default: it divides frequencies */
    int64_t original;  /* llama3, yarn, longrope: original_max_position_embeddings */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double attention_factor;       /* yarn, longrope: of cosines and sines; 0: as others say */
    double beta_fast, beta_slow;   /* yarn: rotations where the ramp begins and ends */
    double mscale, mscale_all_dim; /* yarn; 0: none */
    bool truncate;                 /* yarn: the ramp's ends to whole numbers */
    const json_t *divisors; /* longrope: a list of numbers, one a frequency; the configuration's */
};

/* What a class of transformers says of keys that its files leave out. */
struct rope_keys {
    /* the outermost object's names for rope_theta, or NULL, and for the part */
    const char *base, *part;
    double usual_base, usual_part;
    int64_t longest;  /* max_position_embeddings */
    bool partial;     /* heads may turn in part with any type; else only with proportional */
    bool by_kind;     /* parameters are of a kind of layer: of rope_parse_kinds */
    int64_t original; /* not 0: original_max_position_embeddings stands outside of the parameters,
                         or is this; types are default and longrope, also called su or yarn */
    bool mrope;       /* keys mrope_... share the angles out among places in images: not of text */
};

/* The rope_scaling of the outermost object, if it has anything, else its rope_parameters. */
int rope_parse(struct rope *rope, const struct fields *root, const struct rope_keys *keys,
               struct warnings *warnings, struct error *err);

/* The same of the parameters in `own`, whose object may be NULL. */
int rope_parse_parameters(struct rope *rope, const struct fields *own, const struct fields *root,
                          const struct rope_keys *keys, struct warnings *warnings,
                          struct error *err);

/* Each kind of layer has its own: full_attention is ropes[0], sliding_attention ropes[1]. The
 * rope_scaling of transformers 4 is full_attention's. */
int rope_parse_kinds(struct rope ropes[2], const struct fields *root,
                     const struct rope_keys keys[2], struct warnings *warnings, struct error *err);

/* The type and what scales it, which the family regla calls `scaling`: base and part are in *rope.
 * Any other key is an error. */
int rope_parse_scaling(struct rope *rope, const struct fields *own, struct error *err);

/* Fills position's rotary_dims, base, frequencies and factor for heads of `size`. */
int rope_position(const struct rope *rope, int64_t size, const char *place, struct arena *arena,
                  struct position *position, struct error *err);

#endif
