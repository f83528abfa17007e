/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: a loaded model on one device, the states of its texts, and the step that advances
 * many texts at once.
 *
 * One thread at a time may use an engine and its states (the engine thread). Any thread may call
 * engine_info, engine_model, engine_fingerprint, engine_state_bytes and state_image_bytes. Nothing
 * here prints, exits or knows HTTP.
 *
 * Reproducibility (api.md): the logits of a text are the same bits whatever shares the step,
 * however its tokens are cut into spans, and on any number of threads; but not with products of
 * cuBLASLt. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/engine_types.h"
#include "engine/ops/formats.h"
#include "engine/span.h"
#include "engine/state.h"
#include "engine/state_save.h"
#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct state_layout;
struct model;

/* Opens the model directory and packs its weights. The caller closes *out with engine_close. */
int engine_open(struct engine **out, const char *model_directory,
                const struct engine_options *options, struct error *err);
/* The same with an open model. The engine takes ownership of it, also on failure. */
int engine_open_model(struct engine **out, struct model *model,
                      const struct engine_options *options, struct error *err);
/* The same with a preset (engine/model/preset.h) and random weights. */
int engine_open_preset(struct engine **out, const char *preset,
                       const struct engine_options *options, struct error *err);
void engine_close(struct engine *engine); /* free all its states first */

const struct engine_info *engine_info(const struct engine *engine);
const struct model *engine_model(const struct engine *engine);
/* [16]: the same for the same tensors and configuration (model/fingerprint.h). */
const unsigned char *engine_fingerprint(const struct engine *engine);
void engine_memory(const struct engine *engine, struct engine_memory *memory);
/* The operations of a step (engine/program/program.h). */
const struct program *engine_program(const struct engine *engine);
/* What a text keeps, and where (state_layout.h). */
const struct state_layout *engine_state_layout(const struct engine *engine);

/* info.kv_bytes_per_token in another format. */
size_t engine_kv_bytes_per_token(const struct engine *engine, enum kv_format format);

/* The bytes that a text of at most max_tokens positions reserves. */
size_t engine_state_bytes(const struct engine *engine, int64_t max_tokens);

/* Makes a new text at position 0 and reserves memory for max_tokens positions. ERROR_NO_MEMORY: the
 * memory is not free now (wait). ERROR_INVALID: it can never be. */
int state_create(struct state **out, struct engine *engine, int64_t max_tokens, struct error *err);
/* The bytes of an image (state_save.h) at `position`. */
size_t state_image_bytes(const struct engine *engine, int64_t position);
/* Makes a new state at `position` from an image that was saved there by an engine with this layout
 * and KV format (state_file.h converts others). Errors are those of state_create. */
int state_restore(struct state **out, struct engine *engine, const void *image, int64_t position,
                  int64_t max_tokens, struct error *err);

/* Advances every span's text by its tokens. On an error (bad arguments, past the reservation, a
 * device that failed) no state has moved and nothing was drawn. A draw that is impossible concerns
 * only its own text (draw_check). Allocates nothing. */
int engine_step(struct engine *engine, struct span *spans, int num_spans, struct error *err);

/* engine_step in two parts. From submit to collect the spans are borrowed, and their texts have
 * moved.
 *
 * Where steps overlap, a second step may be submitted before the first is collected. The second has
 * draws only, no logits. In it a span of one token without `tokens` takes the token that its text's
 * draw in the first step gives; its sampler must not look back (sampler.h). If that token ends the
 * text (draw_ends), the second draw becomes `dropped`, and the text stays where the first step left
 * it. An error of engine_collect ends both steps. */
int engine_submit(struct engine *engine, struct span *spans, int num_spans, struct error *err);
int engine_collect(struct engine *engine, struct error *err);

/* Takes the text back over the last `tokens` tokens of its span in the step that was collected
 * last, at most its num_kept: its state has the bits that it had before them, but for places of
 * pages behind its position, which nobody reads. Once a step, before anything else is done with the
 * state. Drafts are checked so: the logits of all positions are asked for, and tokens behind a
 * draft that was not drawn are taken back. A step with kept tokens does not overlap with others. */
int engine_go_back(struct engine *engine, struct state *state, int tokens, struct error *err);

/* The seconds that the device has worked on the steps collected so far. The rest of a caller's
 * waiting time is the host's part. */
double engine_busy_seconds(const struct engine *engine);
/* The experts that these have read: each that a mixture has chosen in a step counts once. -1: the
 * device does not count them. */
int64_t engine_experts_read(const struct engine *engine);

/* Whether the device has failed. From then on every step fails. */
bool engine_failed(struct engine *engine);

/* Call it when idle: makes the system provide some of the memory that the next texts' states will
 * use, so that their steps need not wait for it. Takes milliseconds at most. True: there is more to
 * do. */
bool engine_populate(struct engine *engine);

/* Measures the device's peaks per second: bytes read from memory and operations of measured_unit (a
 * multiply-add is two). Takes some 0.1 s, and keeps memory that is much larger than the caches. */
int engine_measure(struct engine *engine, double *read_bytes, double *operations,
                   struct error *err);

#endif
