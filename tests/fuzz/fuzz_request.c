/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of /v1/completions, /tokenize and /detokenize. What parses goes through the
 * encoders, whose output must be JSON again, and in a frame one line. */
#include "api/sse.h"
#include "api/tokenizer.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

static const char *const served[] = {"tiny"};
static const struct completion_limits limits = {.models = served,
                                                .num_models = 1,
                                                .vocab_size = 300,
                                                .max_model_len = 4096,
                                                .max_prompts = 64,
                                                .allow_empty_prompt = true};
static const struct reply_head head = {"cmpl-1", 1700000000, "tiny", "fingerprint", NULL};

static void check_error(const struct api_error *err)
{
    require(err->code != API_OK && err->message[0]);
    struct strbuf buf = {0};
    api_error_encode(&buf, err);
    require_json(buf.data, buf.length);
    strbuf_clear(&buf);
}

static void check_prompt(const struct completion_request *request,
                         const struct completion_prompt *prompt)
{
    for (size_t i = 0; i < prompt->num_ids; i++)
        require(prompt->ids[i] >= 0 && prompt->ids[i] < limits.vocab_size);
    require(prompt->text || prompt->num_ids > 0);
    struct reply_choice choice = {.index = 1,
                                  .text = prompt->text,
                                  .text_length = prompt->length,
                                  .finish_reason = FINISH_STOP,
                                  .stop_token = -1,
                                  .prompt_token_ids = prompt->ids,
                                  .num_prompt_token_ids = prompt->num_ids,
                                  .token_ids = request->stop_token_ids,
                                  .num_token_ids = request->num_stop_token_ids};
    if (request->num_stops > 0) {
        choice.stop_string = request->stops[0].text;
        choice.stop_string_length = request->stops[0].length;
    }
    struct strbuf buf = {0};
    sse_choice_frame(&buf, &head, &choice, SSE_USAGE_NULL, NULL);
    require(buf.length > 8 && memcmp(buf.data, "data: ", 6) == 0);
    require(memcmp(buf.data + buf.length - 2, "\n\n", 2) == 0);
    require(!memchr(buf.data, '\n', buf.length - 2) && !memchr(buf.data, '\r', buf.length));
    require_json(buf.data + 6, buf.length - 8);
    strbuf_clear(&buf);
}

static void fuzz_completion(const char *body, size_t length)
{
    struct completion_request request;
    struct api_error err = {0};
    if (completion_parse(&request, body, length, &limits, &err) != 0) {
        check_error(&err);
        return;
    }
    require(request.num_prompts >= 1 && request.num_prompts <= limits.max_prompts);
    require(request.n >= 1 && request.n <= request.best_of && request.best_of <= 128);
    require(request.max_tokens >= request.min_tokens && request.min_tokens >= 0);
    require(request.logprobs >= -1 && request.logprobs <= 20);
    require(request.prompt_logprobs >= -1 && request.prompt_logprobs <= 20);
    require(request.num_logprob_token_ids <= SAMPLER_MOST_WANTED);
    require(request.num_bad_words <= COMPLETION_MOST_BAD_WORDS);
    for (size_t i = 0; i < request.num_prompts; i++)
        check_prompt(&request, &request.prompts[i]);
    struct sampler *sampler = NULL;
    struct error error = ERROR_INIT;
    require(sampler_create(&sampler, &request.sampling, limits.vocab_size, request.prompts[0].ids,
                           request.prompts[0].num_ids, &error) == 0);
    float logits[300];
    for (int i = 0; i < 300; i++)
        logits[i] = (float)(i % 7) - (float)(i % 11);
    for (int i = 0; i < 4; i++) {
        size_t banned = request.sampling.num_allowed == 0 ? request.num_stop_token_ids : 0;
        struct draw draw = {.sampler = sampler,
                            .banned = request.stop_token_ids,
                            .num_banned = banned < 299 ? banned : 0,
                            .wants_logprob = request.logprobs >= 0,
                            .num_top = (int)request.num_logprob_token_ids,
                            .wanted = request.logprob_token_ids};
        sampler_draw(&draw, logits);
        require(draw_check(&draw, &error) == 0 && draw.id < limits.vocab_size);
        for (int j = 0; draw.wants_logprob && j < draw.num_top; j++)
            require(draw.top[j].id == request.logprob_token_ids[j]);
    }
    sampler_free(sampler);
    completion_request_clear(&request);
}

static void fuzz_tokenizer(const char *body, size_t length)
{
    struct tokenize_request tokenize;
    struct api_error err = {0};
    struct strbuf buf = {0};
    if (tokenize_parse(&tokenize, body, length, true, &limits, &err) == 0) {
        detokenize_reply_encode(&buf, tokenize.prompt, tokenize.length, NULL);
        require_json(buf.data, buf.length);
        tokenize_request_clear(&tokenize);
    } else {
        check_error(&err);
    }
    struct detokenize_request detokenize;
    api_error_clear(&err);
    strbuf_reset(&buf);
    if (detokenize_parse(&detokenize, body, length, &limits, &err) == 0) {
        tokenize_reply_encode(&buf, detokenize.ids, detokenize.count, 0, NULL, NULL);
        require_json(buf.data, buf.length);
        detokenize_request_clear(&detokenize);
    } else {
        check_error(&err);
    }
    strbuf_clear(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_completion((const char *)data, size);
    fuzz_tokenizer((const char *)data, size);
    return 0;
}
