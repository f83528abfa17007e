/* SPDX-License-Identifier: Apache-2.0 */
/* What a model's chat template makes of messages, for the commands that chat. */
#ifndef CLI_CHAT_TEXT_H
#define CLI_CHAT_TEXT_H

#include "api/chat.h"
#include "lib/jinja/chat_template.h"

/* fields: of a request, with `messages`. content_tokens: what they spell may be special tokens.
 * said: those that the model has written in them; NULL: none. The caller frees prompt->text and
 * clears prompt->input. */
int chat_text_render(struct completion_prompt *prompt, const struct chat_template *chat,
                     const json_t *fields, bool content_tokens, const struct chat_specials *said,
                     struct error *err);

#endif
