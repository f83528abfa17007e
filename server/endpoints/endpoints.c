/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/endpoints.h"

#include "api/messages_reply.h"
#include "server/endpoints/cancel.h"
#include "server/endpoints/chat.h"
#include "server/endpoints/completions.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/health.h"
#include "server/endpoints/llama_cpp.h"
#include "server/endpoints/load.h"
#include "server/endpoints/messages.h"
#include "server/endpoints/metrics_page.h"
#include "server/endpoints/models.h"
#include "server/endpoints/openapi.h"
#include "server/endpoints/page.h"
#include "server/endpoints/response_routes.h"
#include "server/endpoints/responses.h"
#include "server/endpoints/session_routes.h"
#include "server/endpoints/session_tokens.h"
#include "server/endpoints/state_routes.h"
#include "server/endpoints/tokenize.h"
#include "server/endpoints/version.h"

static const struct route ROUTES[] = {
    {"POST", "/v1/completions", .either = true, .json = true, .handle = completions_handle,
     .end = generate_end},
    {"POST", "/v1/chat/completions", .either = true, .json = true, .handle = chat_handle,
     .end = generate_end},
    {"POST", "/v1/messages", .json = true, .encode_error = messages_error_encode,
     .id_header = "request-id", .handle = messages_handle, .end = generate_end},
    {"POST", "/v1/messages/count_tokens", .json = true, .encode_error = messages_error_encode,
     .id_header = "request-id", .handle = tokenize_handle_messages},
    {"POST", "/v1/responses", .either = true, .json = true, .handle = responses_handle,
     .end = generate_end},
    {"POST", "/v1/responses/input_tokens", .either = true, .json = true,
     .handle = tokenize_handle_responses},
    {"GET", "/v1/responses/*", .either = true, .handle = response_routes_get},
    {"DELETE", "/v1/responses/*", .either = true, .handle = response_routes_delete},
    {"POST", "/v1/responses/*/cancel", .either = true, .handle = response_routes_cancel},
    {"GET", "/v1/responses/*/input_items", .either = true, .handle = response_routes_input},
    {"GET", "/v1/models", .either = true, .handle = models_handle},
    {"GET", "/v1/models/**", .either = true, .handle = models_handle_one},
    {"GET", "/v1/sessions", .handle = session_routes_list},
    {"GET", "/v1/sessions/*", .handle = session_routes_get},
    {"DELETE", "/v1/sessions/*", .handle = session_routes_delete},
    {"POST", "/v1/sessions/*/fork", .json = true, .handle = session_routes_fork},
    {"POST", "/v1/sessions/*/rewind", .json = true, .handle = session_routes_rewind},
    {"GET", "/v1/sessions/*/tokens", .handle = session_tokens_handle},
    {"GET", "/v1/sessions/*/state", .handle = state_routes_export},
    {"PUT", "/v1/sessions/*/state", .octets = true, .handle = state_routes_import},
    {"GET", "/v1/state", .handle = state_routes_report},
    {"POST", "/v1/requests/*/cancel", .handle = cancel_handle},
    {"POST", "/tokenize", .json = true, .handle = tokenize_handle},
    {"POST", "/detokenize", .json = true, .handle = tokenize_handle_detokenize},
    {"GET", "/tokenizer_info", .handle = tokenize_handle_info},
    {"POST", "/apply-template", .json = true, .handle = tokenize_handle_template},
    {"GET", "/props", .handle = llama_cpp_handle_props},
    {"GET", "/slots", .quiet = true, .handle = llama_cpp_handle_slots},
    {"GET", "/health", .either = true, .open = true, .quiet = true, .vital = true,
     .handle = health_handle},
    {"GET", "/ready", .open = true, .quiet = true, .vital = true, .handle = health_handle_ready},
    {"GET", "/load", .open = true, .quiet = true, .handle = load_handle},
    {"GET", "/version", .open = true, .quiet = true, .handle = version_handle},
    {"GET", "/openapi.json", .open = true, .quiet = true, .handle = openapi_handle},
    {"GET", "/metrics", .quiet = true, .handle = metrics_page_handle},
    /* last: those of the page, which a server may go without */
    {"GET", "/", .open = true, .quiet = true, .handle = page_handle},
    {"GET", "/page/*", .open = true, .quiet = true, .handle = page_handle_file},
};
enum { NUM_ROUTES = sizeof ROUTES / sizeof *ROUTES, NUM_PAGE_ROUTES = 2 };

/* Endpoints that clients know from elsewhere. */
static const char *const LACKING[] = {
    /* OpenAI's, Anthropic's, vLLM's */
    "/v1/embeddings",
    "/v1/responses/compact",
    "/responses/compact",
    "/v1/responses/**",
    "/v1/messages/**",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/v1/moderations",
    "/v1/audio/**",
    "/v1/images/**",
    "/v1/files",
    "/v1/files/**",
    "/v1/batches",
    "/v1/batches/**",
    "/v1/fine_tuning/**",
    /* llama.cpp's */
    "/completion",
    "/infill",
    "/embedding",
    "/embeddings",
    "/reranking",
    "/v1/reranking",
    "/lora-adapters",
    "/slots/*",
    "/responses/**",
    "/chat/completions/**",
    "/v1/chat/completions/**",
    "/audio/**",
    "/v1/stream/*",
    "/v1/streams",
    "/tools",
    "/cors-proxy",
    "/v1/systemone",
    "/api/**",
};

#define TABLE(number)                                                                  \
    {                                                                                  \
        .routes = ROUTES, .count = (number), .lacking = LACKING,                       \
        .num_lacking = sizeof LACKING / sizeof *LACKING, .instead = "/v1/completions", \
    }

const struct route_table endpoints = TABLE(NUM_ROUTES);
const struct route_table endpoints_without_page = TABLE(NUM_ROUTES - NUM_PAGE_ROUTES);
