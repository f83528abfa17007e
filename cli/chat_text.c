/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_text.h"

int chat_text_render(struct completion_prompt *prompt, const struct chat_template *chat,
                     const json_t *fields, bool content_tokens, const struct chat_specials *said,
                     struct error *err)
{
    const struct completion_limits limits = {.chat = chat, .content_tokens = content_tokens};
    const struct chat_history history = {.said = said};
    struct api_error refused = {0};
    size_t bytes = json_dumpb(fields, NULL, 0, 0);
    return chat_render(prompt, NULL, fields, bytes, &history, &limits, &refused)
               ? error_set(err, ERROR_INVALID, "%s", refused.message)
               : 0;
}
