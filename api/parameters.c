/* SPDX-License-Identifier: Apache-2.0 */
#include "api/parameters.h"

#include "api/request.h"
#include "engine/base/fields.h"

#include <stdbool.h>
#include <string.h>

enum parameter_kind {
    PARAMETER_HONOURED,
    PARAMETER_REFUSED,  /* unless its value asks for nothing */
    PARAMETER_HARMLESS, /* whatever it says, the reply is the same */
    PARAMETER_PASSED    /* honoured: of another API, as in a chat */
};

struct parameter {
    const char *name;
    const char *from; /* "OpenAI", "vLLM", "llama.cpp", "SGLang"; "": only we */
    enum parameter_kind kind;
    const char *nothing; /* REFUSED: values that ask for nothing, as JSON, parted by spaces */
    const char *note;    /* what to use instead, or why it makes no difference */
};

#define O "OpenAI"
#define V "vLLM"
#define L "llama.cpp"
#define S "SGLang"
#define OVS O ", " V ", " S
#define ALL O ", " V ", " L ", " S
#define C "chat APIs"
#define GUIDED "one constraint of the text"
#define OF_GUIDED "of structured output"

static const struct parameter TABLE[] = {
    {"model", ALL, PARAMETER_HONOURED, NULL, ""},
    {"prompt", ALL, PARAMETER_HONOURED, NULL, ""},
    {"max_tokens", ALL, PARAMETER_HONOURED, NULL, ""},
    {"max_completion_tokens", L, PARAMETER_HONOURED, NULL, "max_tokens by its other name"},
    {"min_tokens", V ", " S, PARAMETER_HONOURED, NULL, ""},
    {"temperature", ALL, PARAMETER_HONOURED, NULL, ""},
    {"top_p", ALL, PARAMETER_HONOURED, NULL, ""},
    {"top_k", V ", " L ", " S, PARAMETER_HONOURED, NULL, ""},
    {"min_p", V ", " L ", " S, PARAMETER_HONOURED, NULL, ""},
    {"n", ALL, PARAMETER_HONOURED, NULL, ""},
    {"best_of", O ", " S, PARAMETER_HONOURED, NULL, ""},
    {"stream", ALL, PARAMETER_HONOURED, NULL, ""},
    {"stream_options", ALL, PARAMETER_HONOURED, NULL, ""},
    {"logprobs", ALL, PARAMETER_HONOURED, NULL, ""},
    {"echo", OVS, PARAMETER_HONOURED, NULL, ""},
    {"stop", ALL, PARAMETER_HONOURED, NULL, ""},
    {"stop_token_ids", V ", " S, PARAMETER_HONOURED, NULL, ""},
    {"include_stop_str_in_output", V, PARAMETER_HONOURED, NULL, ""},
    {"seed", ALL, PARAMETER_HONOURED, NULL, ""},
    {"presence_penalty", ALL, PARAMETER_HONOURED, NULL, ""},
    {"frequency_penalty", ALL, PARAMETER_HONOURED, NULL, ""},
    {"repetition_penalty", V ", " S, PARAMETER_HONOURED, NULL, ""},
    {"logit_bias", ALL, PARAMETER_HONOURED, NULL, ""},
    {"ignore_eos", V ", " L ", " S, PARAMETER_HONOURED, NULL, ""},
    {"add_special_tokens", V, PARAMETER_HONOURED, NULL, ""},
    {"skip_special_tokens", V ", " S, PARAMETER_HONOURED, NULL, ""},
    {"return_token_ids", V ", " S, PARAMETER_HONOURED, NULL, ""},
    {"return_tokens_as_token_ids", V, PARAMETER_HONOURED, NULL, ""},
    {"truncate_prompt_tokens", V, PARAMETER_HONOURED, NULL, ""},
    {"truncation_side", V, PARAMETER_HONOURED, NULL, ""},
    {"user", OVS, PARAMETER_HONOURED, NULL, "logged"},
    {"request_id", V, PARAMETER_HONOURED, NULL, "logged, and in the reply's header"},
    {"priority", V ", " S, PARAMETER_HONOURED, NULL,
     "only logged: requests run in order of arrival"},
    {"cache_salt", V ", " S, PARAMETER_HONOURED, NULL, ""},
    {"session_id", V ", " S, PARAMETER_HONOURED, NULL,
     "here it holds the text: prompts are appended to it"},
    {"prompt_logprobs", V, PARAMETER_HONOURED, NULL, ""},
    {"logprob_token_ids", V, PARAMETER_HONOURED, NULL, ""},
    {"allowed_token_ids", V, PARAMETER_HONOURED, NULL, ""},
    {"bad_words", V, PARAMETER_HONOURED, NULL, ""},
    {"typical_p", L, PARAMETER_HONOURED, NULL, ""},
    {"response_format", V ", " S, PARAMETER_HONOURED, NULL, GUIDED},
    {"structured_outputs", V, PARAMETER_HONOURED, NULL, GUIDED},
    {"guided_json", V, PARAMETER_HONOURED, NULL, GUIDED},
    {"guided_json_object", V, PARAMETER_HONOURED, NULL, GUIDED},
    {"guided_regex", V, PARAMETER_HONOURED, NULL, GUIDED},
    {"guided_choice", V, PARAMETER_HONOURED, NULL, GUIDED},
    {"guided_grammar", V, PARAMETER_HONOURED, NULL, GUIDED},
    {"grammar", L, PARAMETER_HONOURED, NULL, GUIDED},
    {"json_schema", L ", " S, PARAMETER_HONOURED, NULL, GUIDED},
    {"regex", S, PARAMETER_HONOURED, NULL, GUIDED},
    {"ebnf", S, PARAMETER_HONOURED, NULL, GUIDED},
    {"expected_position", "", PARAMETER_HONOURED, NULL, "sessions"},
    {"store", "", PARAMETER_HONOURED, NULL, "sessions"},

    {"suffix", OVS, PARAMETER_REFUSED, "\"\"", "no model here fills in the middle"},
    {"use_beam_search", V, PARAMETER_REFUSED, "false", ""},
    {"length_penalty", V, PARAMETER_REFUSED, "1", "of beam search"},
    {"prompt_embeds", V, PARAMETER_REFUSED, "[]", ""},
    {"logits_processors", V, PARAMETER_REFUSED, "[]", ""},
    {"guided_whitespace_pattern", V, PARAMETER_REFUSED, "", OF_GUIDED},
    {"grammar_lazy", L, PARAMETER_REFUSED, "false", "grammar holds from the first token on"},
    {"grammar_triggers", L, PARAMETER_REFUSED, "[]", "grammar holds from the first token on"},
    {"stop_regex", S, PARAMETER_REFUSED, "\"\" []", "stop takes strings"},
    {"spaces_between_special_tokens", V, PARAMETER_REFUSED, "true", ""},
    {"kv_transfer_params", V, PARAMETER_REFUSED, "{}", ""},
    {"vllm_xargs", V, PARAMETER_REFUSED, "{}", ""},
    {"n_predict", L, PARAMETER_REFUSED, "", "use max_tokens"},
    {"n_probs", L, PARAMETER_REFUSED, "0", "use logprobs"},
    {"post_sampling_probs", L, PARAMETER_REFUSED, "false", ""},
    {"repeat_penalty", L, PARAMETER_REFUSED, "1", "use repetition_penalty"},
    {"top_n_sigma", L, PARAMETER_REFUSED, "-1", ""},
    {"dynatemp_range", L, PARAMETER_REFUSED, "0", ""},
    {"mirostat", L, PARAMETER_REFUSED, "0", ""},
    {"dry_multiplier", L, PARAMETER_REFUSED, "0", ""},
    {"xtc_probability", L, PARAMETER_REFUSED, "0", ""},
    {"samplers", L, PARAMETER_REFUSED, "", "the order is fixed"},
    {"n_indent", L, PARAMETER_REFUSED, "0", ""},
    {"t_max_predict_ms", L, PARAMETER_REFUSED, "0 -1", "cancel the request"},
    {"image_data", L ", " S, PARAMETER_REFUSED, "[]", ""},
    {"return_tokens", L, PARAMETER_REFUSED, "false", "use return_token_ids"},
    {"return_progress", L, PARAMETER_REFUSED, "false", ""},
    {"response_fields", L, PARAMETER_REFUSED, "[]", ""},
    {"lora", L, PARAMETER_REFUSED, "[]", ""},
    {"lora_path", S, PARAMETER_REFUSED, "\"\"", ""},
    {"session_params", S, PARAMETER_REFUSED, "{}", "session_id continues a text"},
    {"no_stop_trim", S, PARAMETER_REFUSED, "false", "use include_stop_str_in_output"},
    {"custom_params", S, PARAMETER_REFUSED, "{}", ""},
    {"custom_logit_processor", S, PARAMETER_REFUSED, "\"\"", ""},
    {"return_hidden_states", S, PARAMETER_REFUSED, "false", ""},
    {"min_new_tokens", S, PARAMETER_REFUSED, "0", "use min_tokens"},
    {"max_new_tokens", S, PARAMETER_REFUSED, "", "use max_tokens"},
    {"messages", C, PARAMETER_REFUSED, "[]", "this is the completions API: use prompt"},
    {"watermarking", V, PARAMETER_REFUSED, "", ""},
    {"repetition_detection", V, PARAMETER_REFUSED, "", ""},
    {"thinking_token_budget", V, PARAMETER_REFUSED, "", ""},
    {"return_token_offsets", V, PARAMETER_REFUSED, "false", "logprobs have text_offset"},
    {"return_mm_kwargs", V, PARAMETER_REFUSED, "false", ""},
    {"routed_experts_prompt_start", V, PARAMETER_REFUSED, "", ""},
    {"ec_transfer_params", V, PARAMETER_REFUSED, "{}", ""},
    {"return_routed_experts", S, PARAMETER_REFUSED, "false", ""},
    {"routed_experts_start_len", S, PARAMETER_REFUSED, "0", ""},
    {"return_cached_tokens_details", S, PARAMETER_REFUSED, "false", "usage has cached_tokens"},
    {"images_config", S, PARAMETER_REFUSED, "{}", ""},
    {"bootstrap_host", S, PARAMETER_REFUSED, "", ""},
    {"bootstrap_port", S, PARAMETER_REFUSED, "", ""},
    {"bootstrap_room", S, PARAMETER_REFUSED, "", ""},
    {"extra_key", S, PARAMETER_REFUSED, "\"\"", "use cache_salt"},
    {"ngram_corpus_id", S, PARAMETER_REFUSED, "", ""},
    {"n_cmpl", L, PARAMETER_REFUSED, "1", "use n"},
    {"adaptive_target", L, PARAMETER_REFUSED, "-1", ""},
    {"reasoning_budget_tokens", L, PARAMETER_REFUSED, "-1", ""},
    {"min_keep", L, PARAMETER_REFUSED, "0 1", ""},
    {"repeat_last_n", L, PARAMETER_REFUSED, "-1", "penalties count the whole text"},

    {"cache_prompt", L, PARAMETER_HARMLESS, NULL, "reuse changes no result"},
    {"id_slot", L, PARAMETER_HARMLESS, NULL, "any text's state may serve"},
    {"n_keep", L, PARAMETER_HARMLESS, NULL, "no context is shifted"},
    {"n_discard", L, PARAMETER_HARMLESS, NULL, "no context is shifted"},
    {"dynatemp_exponent", L, PARAMETER_HARMLESS, NULL, "of dynatemp_range"},
    {"mirostat_tau", L, PARAMETER_HARMLESS, NULL, "of mirostat"},
    {"mirostat_eta", L, PARAMETER_HARMLESS, NULL, "of mirostat"},
    {"dry_base", L, PARAMETER_HARMLESS, NULL, "of dry_multiplier"},
    {"dry_allowed_length", L, PARAMETER_HARMLESS, NULL, "of dry_multiplier"},
    {"dry_penalty_last_n", L, PARAMETER_HARMLESS, NULL, "of dry_multiplier"},
    {"dry_sequence_breakers", L, PARAMETER_HARMLESS, NULL, "of dry_multiplier"},
    {"xtc_threshold", L, PARAMETER_HARMLESS, NULL, "of xtc_probability"},
    {"timings_per_token", L, PARAMETER_HARMLESS, NULL, "timings are in the reply"},
    {"rid", S, PARAMETER_HARMLESS, NULL, "request_id is logged"},
    {"data_parallel_rank", S, PARAMETER_HARMLESS, NULL, "there is only one rank"},
    {"routed_dp_rank", S, PARAMETER_HARMLESS, NULL, "there is only one rank"},
    {"disagg_prefill_dp_rank", S, PARAMETER_HARMLESS, NULL, "there is only one rank"},
    {"custom_labels", S, PARAMETER_HARMLESS, NULL, "of metrics"},
    {"stream_interval", V, PARAMETER_HARMLESS, NULL, "each frame has one token"},
    {"n_cache_reuse", L, PARAMETER_HARMLESS, NULL, "reuse changes no result"},
    {"adaptive_decay", L, PARAMETER_HARMLESS, NULL, "of adaptive_target"},
    {"backend_sampling", L, PARAMETER_HARMLESS, NULL, "where sampling runs changes no result"},
    {"speculative.n_max", L, PARAMETER_HARMLESS, NULL, "speculation changes no result"},
    {"speculative.n_min", L, PARAMETER_HARMLESS, NULL, "speculation changes no result"},
    {"speculative.p_min", L, PARAMETER_HARMLESS, NULL, "speculation changes no result"},
    {"speculative.type", L, PARAMETER_HARMLESS, NULL, "speculation changes no result"},
    {"guided_decoding_backend", V, PARAMETER_HARMLESS, NULL, "there is one automaton for all"},
    {"preserved_tokens", L, PARAMETER_HARMLESS, NULL, "of grammar_triggers"},
    {"reasoning_budget_start_tag", L, PARAMETER_HARMLESS, NULL, "of reasoning_budget_tokens"},
    {"reasoning_budget_end_tag", L, PARAMETER_HARMLESS, NULL, "of reasoning_budget_tokens"},
    {"reasoning_budget_message", L, PARAMETER_HARMLESS, NULL, "of reasoning_budget_tokens"},
    {"reasoning_budget_arm_immediately", L, PARAMETER_HARMLESS, NULL, "of reasoning_budget_tokens"},
    {"chat_format", L, PARAMETER_HARMLESS, NULL, "of the chat API"},
    {"chat_parser", L, PARAMETER_HARMLESS, NULL, "of the chat API"},
    {"reasoning_format", L, PARAMETER_HARMLESS, NULL, "of the chat API"},
    {"thinking_forced_open", L, PARAMETER_HARMLESS, NULL, "of the chat API"},
    {"parse_tool_calls", L, PARAMETER_HARMLESS, NULL, "of the chat API"},
};

/* Those of a chat that a completion does not have, or has with another meaning. */
static const struct parameter CHAT[] = {
    {"messages", C, PARAMETER_HONOURED, NULL, ""},
    {"tools", C, PARAMETER_HONOURED, NULL, ""},
    {"documents", C, PARAMETER_HONOURED, NULL, ""},
    {"chat_template_kwargs", C, PARAMETER_HONOURED, NULL, ""},
    {"add_generation_prompt", C, PARAMETER_HONOURED, NULL, ""},
    {"continue_final_message", C, PARAMETER_HONOURED, NULL, ""},
    {"reasoning_effort", C, PARAMETER_HONOURED, NULL, ""},
    {"logprobs", C, PARAMETER_HONOURED, NULL, ""},
    {"top_logprobs", C, PARAMETER_HONOURED, NULL, ""},
    {"prompt", "completion APIs", PARAMETER_REFUSED, "", "this is the chat API: use messages"},
    {"tool_choice", C, PARAMETER_HONOURED, NULL, ""},
    {"functions", C, PARAMETER_REFUSED, "[]", "use tools"},
    {"function_call", C, PARAMETER_REFUSED, "\"auto\" \"none\"", "use tools"},
    {"chat_template", C, PARAMETER_REFUSED, "", "the server's --chat-template sets it"},
    {"echo", C, PARAMETER_REFUSED, "false", "continue_final_message continues the last message"},
    {"best_of", "completion APIs", PARAMETER_REFUSED, "1", "use n"},
    {"modalities", C, PARAMETER_REFUSED, "[\"text\"]", "replies are text"},
    {"audio", C, PARAMETER_REFUSED, "", "replies are text"},
    {"prediction", C, PARAMETER_REFUSED, "", ""},
    {"web_search_options", C, PARAMETER_REFUSED, "", ""},
    {"verbosity", C, PARAMETER_REFUSED, "\"low\" \"medium\" \"high\"",
     "no model here is asked for less; chat_template_kwargs reach the template"},
    {"thinking_token_budget", V, PARAMETER_HONOURED, NULL, "then the closing marker is forced"},
    {"reasoning_budget_tokens", L, PARAMETER_HONOURED, NULL, "as thinking_token_budget"},
    {"thinking", C, PARAMETER_HONOURED, NULL,
     "type enabled: its budget_tokens are thinking_token_budget"},
    {"metadata", C, PARAMETER_HARMLESS, NULL, ""},
    {"service_tier", C, PARAMETER_HARMLESS, NULL, ""},
    {"safety_identifier", C, PARAMETER_HARMLESS, NULL, ""},
    {"prompt_cache_key", C, PARAMETER_HARMLESS, NULL, ""},
    {"parallel_tool_calls", C, PARAMETER_HONOURED, NULL, "false: one call at most"},
    {"include_reasoning", V, PARAMETER_HONOURED, NULL, "false: the reply is without it"},
    {"separate_reasoning", S, PARAMETER_REFUSED, "true",
     "--reasoning off leaves it in the content"},
    {"stream_reasoning", S, PARAMETER_REFUSED, "true", "it is streamed as it comes"},
    {"reasoning_format", L, PARAMETER_REFUSED, "\"auto\" \"deepseek\"",
     "--reasoning off leaves it in the content"},
    {"parse_tool_calls", L, PARAMETER_REFUSED, "true", "without tools a call stays text"},
};

#define A "Anthropic"
#define AS_CHATS "as in chats"

/* All that POST /v1/messages takes. */
static const struct parameter MESSAGES[] = {
    {"model", A, PARAMETER_PASSED, NULL, ""},
    {"messages", A, PARAMETER_HONOURED, NULL, ""},
    {"system", A, PARAMETER_HONOURED, NULL, ""},
    {"max_tokens", A, PARAMETER_HONOURED, NULL, ""},
    {"stop_sequences", A, PARAMETER_HONOURED, NULL, ""},
    {"stream", A, PARAMETER_PASSED, NULL, ""},
    {"temperature", A, PARAMETER_PASSED, NULL, ""},
    {"top_p", A, PARAMETER_PASSED, NULL, ""},
    {"top_k", A, PARAMETER_PASSED, NULL, ""},
    {"tools", A, PARAMETER_HONOURED, NULL, ""},
    {"tool_choice", A, PARAMETER_HONOURED, NULL, ""},
    {"thinking", A, PARAMETER_HONOURED, NULL, ""},
    {"output_config", A, PARAMETER_HONOURED, NULL, "effort reaches the template"},
    {"output_format", A, PARAMETER_HONOURED, NULL, "output_config.format by its older name"},
    {"context_management", A, PARAMETER_HONOURED, NULL,
     "nothing is cleared: the reply warns of edits that would"},
    {"container", A, PARAMETER_REFUSED, "", "no code runs here"},
    {"mcp_servers", A, PARAMETER_REFUSED, "[]", "no servers are called from here"},
    {"metadata", A, PARAMETER_HARMLESS, NULL, ""},
    {"service_tier", A, PARAMETER_HARMLESS, NULL, ""},
    {"cache_control", A, PARAMETER_HARMLESS, NULL, "reuse is by itself"},
    {"inference_geo", A, PARAMETER_HARMLESS, NULL, ""},
    {"speed", A, PARAMETER_HARMLESS, NULL, ""},
    {"betas", A, PARAMETER_HARMLESS, NULL, "as the header anthropic-beta"},
    {"seed", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"min_tokens", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"min_p", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"typical_p", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"presence_penalty", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"frequency_penalty", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"repetition_penalty", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"logit_bias", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"allowed_token_ids", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"bad_words", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"stop_token_ids", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"ignore_eos", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"response_format", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"structured_outputs", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"documents", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"chat_template_kwargs", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"reasoning_effort", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"include_reasoning", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"session_id", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"expected_position", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"store", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"cache_salt", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"user", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"request_id", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"priority", "", PARAMETER_PASSED, NULL, AS_CHATS},
};

/* All that POST /v1/responses takes. */
static const struct parameter RESPONSES[] = {
    {"model", O, PARAMETER_PASSED, NULL, ""},
    {"input", O, PARAMETER_HONOURED, NULL, ""},
    {"instructions", O, PARAMETER_HONOURED, NULL, ""},
    {"max_output_tokens", O, PARAMETER_HONOURED, NULL, ""},
    {"stream", O, PARAMETER_PASSED, NULL, ""},
    {"stream_options", O, PARAMETER_HONOURED, NULL, "nothing is obfuscated"},
    {"temperature", O, PARAMETER_PASSED, NULL, ""},
    {"top_p", O, PARAMETER_PASSED, NULL, ""},
    {"top_logprobs", O, PARAMETER_HONOURED, NULL, ""},
    {"include", O, PARAMETER_HONOURED, NULL, ""},
    {"tools", O, PARAMETER_HONOURED, NULL, ""},
    {"tool_choice", O, PARAMETER_HONOURED, NULL, ""},
    {"parallel_tool_calls", O, PARAMETER_PASSED, NULL, "false: one call at most"},
    {"text", O, PARAMETER_HONOURED, NULL, ""},
    {"reasoning", O, PARAMETER_HONOURED, NULL, "effort reaches the template"},
    {"truncation", O, PARAMETER_HONOURED, NULL, ""},
    {"store", O, PARAMETER_HONOURED, NULL, "true without it"},
    {"metadata", O, PARAMETER_HONOURED, NULL, "told again"},
    {"context_management", O, PARAMETER_HONOURED, NULL,
     "nothing is compacted: the reply warns of it"},
    {"previous_response_id", O, PARAMETER_HONOURED, NULL, ""},
    {"conversation", O, PARAMETER_REFUSED, "", "no conversations are stored: send all items"},
    {"prompt", O, PARAMETER_REFUSED, "", "no prompts are stored: use instructions and input"},
    {"background", O, PARAMETER_REFUSED, "false", "use stream"},
    {"moderation", O, PARAMETER_REFUSED, "", "nothing is moderated"},
    {"max_tool_calls", O, PARAMETER_HARMLESS, NULL, "of tools that run here: none do"},
    {"prompt_cache_key", O, PARAMETER_HARMLESS, NULL, "reuse is by itself"},
    {"prompt_cache_retention", O, PARAMETER_HARMLESS, NULL, "reuse is by itself"},
    {"prompt_cache_options", O, PARAMETER_HARMLESS, NULL, "reuse is by itself"},
    {"safety_identifier", O, PARAMETER_HARMLESS, NULL, ""},
    {"service_tier", O, PARAMETER_HARMLESS, NULL, ""},
    {"client_metadata", "Codex", PARAMETER_HARMLESS, NULL, ""},
    {"access_programs", O, PARAMETER_HARMLESS, NULL, ""},
    {"image", O, PARAMETER_HARMLESS, NULL, "no pictures are read"},
    {"user", O, PARAMETER_PASSED, NULL, "logged"},
    {"seed", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"stop", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"min_tokens", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"top_k", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"min_p", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"typical_p", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"presence_penalty", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"frequency_penalty", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"repetition_penalty", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"logit_bias", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"allowed_token_ids", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"bad_words", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"stop_token_ids", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"ignore_eos", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"structured_outputs", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"documents", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"chat_template_kwargs", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"include_reasoning", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"cache_salt", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"request_id", "", PARAMETER_PASSED, NULL, AS_CHATS},
    {"priority", "", PARAMETER_PASSED, NULL, AS_CHATS},
};

enum { COUNT = sizeof TABLE / sizeof *TABLE, CHAT_COUNT = sizeof CHAT / sizeof *CHAT };

/* Of APIs whose tables have all that they take. */
static const struct {
    const struct parameter *table; /* [count] */
    int count;
    const char *which; /* for what only others have */
} APIS[] = {
    [PARAMETERS_MESSAGES] = {MESSAGES, sizeof MESSAGES / sizeof *MESSAGES,
                             "this is the messages API"},
    [PARAMETERS_RESPONSES] = {RESPONSES, sizeof RESPONSES / sizeof *RESPONSES,
                              "this is the responses API"},
};

/* NULL: no table has it. */
static const struct parameter *find(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (strcmp(TABLE[i].name, name) == 0)
            return &TABLE[i];
    return NULL;
}

/* The members of a family that no table can have all of. */
static bool is_guided(const char *name)
{
    return strncmp(name, "guided_", strlen("guided_")) == 0;
}

static bool refuses(const struct parameter *parameter, const json_t *value)
{
    return parameter->kind == PARAMETER_REFUSED && !fields_ask_nothing(value, parameter->nothing);
}

static int refuse(const char *name, const char *note, struct api_error *err)
{
    return api_error_set(err, API_UNSUPPORTED, name, "%.60s is not supported%s%s", name,
                         *note ? ": " : "", note);
}

static void warn_unknown(struct reply_warnings *warnings, const char *name)
{
    reply_warnings_add(warnings, WARNING_FIELD, "%.60s: no field that is known here; it is ignored",
                       name);
}

int parameters_check(const json_t *fields, struct reply_warnings *warnings, struct api_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        const struct parameter *parameter = find(key);
        if (json_is_null(value))
            continue;
        if (parameter ? refuses(parameter, value) : is_guided(key))
            return refuse(key, parameter ? parameter->note : OF_GUIDED, err);
        if (!parameter && strcmp(key, PARAMETER_OF_TESTS) != 0) /* refused or honoured */
            warn_unknown(warnings, key);
    }
    return 0;
}

void parameters_warn(const json_t *fields, const char *const *known,
                     struct reply_warnings *warnings)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i] && !json_is_null(value))
            warn_unknown(warnings, key);
    }
}

static bool is_of_chat(const char *key)
{
    for (int i = 0; i < CHAT_COUNT; i++)
        if (strcmp(CHAT[i].name, key) == 0)
            return true;
    return false;
}

void parameters_warn_chat(const json_t *fields, struct reply_warnings *warnings)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        if (!json_is_null(value) && !find(key) && !is_guided(key) && !is_of_chat(key))
            warn_unknown(warnings, key);
    }
}

int parameters_check_chat(const json_t *fields, struct api_error *err)
{
    for (int i = 0; i < CHAT_COUNT; i++) {
        const json_t *value = json_object_get(fields, CHAT[i].name);
        if (value && !json_is_null(value) && refuses(&CHAT[i], value))
            return refuse(CHAT[i].name, CHAT[i].note, err);
    }
    return 0;
}

void parameters_drop_chat(json_t *fields)
{
    for (int i = 0; i < CHAT_COUNT; i++)
        json_object_del(fields, CHAT[i].name);
}

/* NULL: the API has it not. */
static const struct parameter *find_of(enum parameters_api api, const char *name)
{
    for (int i = 0; i < APIS[api].count; i++)
        if (strcmp(APIS[api].table[i].name, name) == 0)
            return &APIS[api].table[i];
    return NULL;
}

int parameters_check_all(enum parameters_api api, const json_t *fields,
                         struct reply_warnings *warnings, struct api_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        const struct parameter *parameter = find_of(api, key);
        if (json_is_null(value) || strcmp(key, PARAMETER_OF_TESTS) == 0)
            continue;
        if (parameter && refuses(parameter, value))
            return refuse(key, parameter->note, err);
        if (!parameter && (find(key) || is_of_chat(key) || is_guided(key)))
            return refuse(key, APIS[api].which, err);
        if (!parameter)
            warn_unknown(warnings, key);
    }
    return 0;
}

int parameters_pass(enum parameters_api api, json_t *chat, const json_t *fields,
                    struct api_error *err)
{
    json_t *of_tests = json_object_get(fields, PARAMETER_OF_TESTS);
    bool failed = of_tests && json_object_set(chat, PARAMETER_OF_TESTS, of_tests);
    for (int i = 0; i < APIS[api].count && !failed; i++) {
        const struct parameter *parameter = &APIS[api].table[i];
        json_t *value = json_object_get(fields, parameter->name);
        failed = parameter->kind == PARAMETER_PASSED && value &&
                 json_object_set(chat, parameter->name, value);
    }
    return failed ? request_no_memory(err) : 0;
}

static void print_table(FILE *out, const struct parameter *table, int count)
{
    static const char *const KINDS[] = {"honoured", "refused", "harmless", "honoured"};
    fprintf(out, "| parameter | who has it | here | accepted values | |\n|---|---|---|---|---|\n");
    for (int i = 0; i < count; i++) {
        const struct parameter *p = &table[i];
        const char *nothing = p->nothing ? p->nothing : "";
        fprintf(out, "| `%s` | %s | %s | %s%s%s | %s |\n", p->name, *p->from ? p->from : "regla",
                KINDS[p->kind], *nothing ? "`" : "", nothing, *nothing ? "`" : "", p->note);
    }
}

void parameters_print(FILE *out)
{
    print_table(out, TABLE, COUNT);
    fprintf(out, "\n## Chats\n\nThese `POST /v1/chat/completions` has beside them, or with another "
                 "meaning:\n\n");
    print_table(out, CHAT, CHAT_COUNT);
    fprintf(out, "\n## Messages\n\nThese are all that `POST /v1/messages` has:\n\n");
    print_table(out, APIS[PARAMETERS_MESSAGES].table, APIS[PARAMETERS_MESSAGES].count);
    fprintf(out, "\n## Responses\n\nThese are all that `POST /v1/responses` has:\n\n");
    print_table(out, APIS[PARAMETERS_RESPONSES].table, APIS[PARAMETERS_RESPONSES].count);
}
