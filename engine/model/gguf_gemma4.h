/* SPDX-License-Identifier: Apache-2.0 */
/* What llama.cpp calls the keys and tensors of Gemma 4's text models. */
#ifndef ENGINE_MODEL_GGUF_GEMMA4_H
#define ENGINE_MODEL_GGUF_GEMMA4_H

#include "engine/model/gguf_config.h"

extern const struct gguf_names gguf_gemma4;

#endif
