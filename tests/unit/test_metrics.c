/* SPDX-License-Identifier: Apache-2.0 */
/* The Prometheus text: families, buckets, labels. */
#include "server/metrics.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct metrics metrics;

static void init(void)
{
    metrics_init(&metrics);
}

TestSuite(metrics, .init = init);

/* The text; the caller frees it. */
static char *text_of(const struct metrics_view *view)
{
    struct strbuf out = {0};
    metrics_write(&out, &metrics, view);
    strbuf_append(&out, "", 1);
    cr_assert_not(out.failed);
    return out.data;
}

static const struct metrics_view VIEW = {.model = "m", .device = "cpu", .weights_bytes = 77};

static void expect_line(const char *text, const char *line)
{
    char wanted[256];
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    cr_assert(strstr(text, wanted), "no line %s", line);
}

Test(metrics, histograms_are_cumulative)
{
    histogram_observe(&metrics.batch_tokens, 1);
    histogram_observe(&metrics.batch_tokens, 3);
    histogram_observe(&metrics.batch_tokens, 1e9);
    char *text = text_of(&VIEW);
    expect_line(text, "regla_batch_tokens_bucket{model=\"m\",le=\"1\"} 1");
    expect_line(text, "regla_batch_tokens_bucket{model=\"m\",le=\"2\"} 1");
    expect_line(text, "regla_batch_tokens_bucket{model=\"m\",le=\"4\"} 2");
    expect_line(text, "regla_batch_tokens_bucket{model=\"m\",le=\"4096\"} 2");
    expect_line(text, "regla_batch_tokens_bucket{model=\"m\",le=\"+Inf\"} 3");
    expect_line(text, "regla_batch_tokens_sum{model=\"m\"} 1000000004");
    expect_line(text, "regla_batch_tokens_count{model=\"m\"} 3");
    free(text);
}

Test(metrics, requests_by_status_and_reason)
{
    metrics_request(&metrics, 200, OUTCOME_LENGTH);
    metrics_request(&metrics, 200, OUTCOME_LENGTH);
    metrics_request(&metrics, 429, OUTCOME_ERROR);
    metrics_request(&metrics, 418, OUTCOME_ERROR);
    char *text = text_of(&VIEW);
    expect_line(text,
                "regla_requests_total{model=\"m\",status=\"200\",finish_reason=\"length\"} 2");
    expect_line(text, "regla_requests_total{model=\"m\",status=\"200\",finish_reason=\"stop\"} 0");
    expect_line(text, "regla_requests_total{model=\"m\",status=\"429\",finish_reason=\"error\"} 1");
    expect_line(text,
                "regla_requests_total{model=\"m\",status=\"other\",finish_reason=\"error\"} 1");
    free(text);
}

Test(metrics, time_by_cause_is_in_seconds)
{
    atomic_store(&metrics.cause_nanos[CAUSE_HOST], 1500000000);
    char *text = text_of(&VIEW);
    expect_line(text, "regla_engine_seconds_total{model=\"m\",cause=\"device\"} 0");
    expect_line(text, "regla_engine_seconds_total{model=\"m\",cause=\"host\"} 1.5");
    expect_line(text, "regla_engine_seconds_total{model=\"m\",cause=\"idle\"} 0");
    free(text);
}

Test(metrics, a_generation_counts_in_the_smallest_length_that_holds_it)
{
    const struct metrics_text texts[] = {
        {.generated = 64, .decode_s = 1, .state_bytes = 500},
        {.generated = 65, .decode_s = 2, .state_bytes = 700},
        {.generated = 66, .decode_s = 2, .state_bytes = 600},
        {.generated = 8193, .decode_s = 1, .state_bytes = 900},
        {.generated = 1, .decode_s = 0, .state_bytes = 1},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        metrics_text(&metrics, &texts[i]);
    char *text = text_of(&VIEW);
    expect_line(text, "regla_generation_peak_memory_bytes{model=\"m\",length=\"64\"} 500");
    expect_line(text, "regla_generation_peak_memory_bytes{model=\"m\",length=\"128\"} 700");
    expect_line(text, "regla_generation_peak_memory_bytes{model=\"m\",length=\"8192\"} 0");
    expect_line(text, "regla_generation_peak_memory_bytes{model=\"m\",length=\"inf\"} 900");
    expect_line(text, "regla_generation_tokens_per_second_sum{model=\"m\",length=\"64\"} 63");
    expect_line(text, "regla_generation_tokens_per_second_count{model=\"m\",length=\"64\"} 1");
    expect_line(text, "regla_generation_tokens_per_second_sum{model=\"m\",length=\"128\"} 64.5");
    free(text);
}

Test(metrics, texts_and_lookups_as_vllm_counts_them)
{
    struct metrics_view view = VIEW;
    view.vllm_names = true;
    metrics_text(&metrics, &(struct metrics_text){.prompt_tokens = 7,
                                                  .generated = 3,
                                                  .max_tokens = INT64_C(1) << 53,
                                                  .prefill_s = 0.5,
                                                  .decode_s = 0.25});
    metrics_lookup(&metrics, 7, 5, MISS_DIVERGED);
    metrics_lookup(&metrics, 100, 0, MISS_DISABLED);
    metrics_request(&metrics, 499, OUTCOME_CANCELLED);
    char *text = text_of(&view);
    expect_line(text, "vllm:request_prompt_tokens_sum{model_name=\"m\"} 7");
    expect_line(text, "vllm:request_generation_tokens_bucket{model_name=\"m\",le=\"5\"} 1");
    expect_line(text, "vllm:request_params_max_tokens_sum{model_name=\"m\"} 9.00719925474099e+15");
    expect_line(text, "vllm:request_inference_time_seconds_sum{model_name=\"m\"} 0.75");
    expect_line(text, "vllm:prefix_cache_queries_total{model_name=\"m\"} 7");
    expect_line(text, "vllm:prefix_cache_hits_total{model_name=\"m\"} 5");
    expect_line(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 1");
    free(text);
}

Test(metrics, why_requests_wait_and_are_refused_as_vllm_says)
{
    struct metrics_view view = VIEW;
    view.vllm_names = true;
    view.refused[ADMISSION_TOKENS] = 4;
    atomic_store(&metrics.waiting, 5);
    atomic_store(&metrics.waiting_for_states, 2);
    atomic_store(&metrics.waiting_for_sessions, 1);
    char *text = text_of(&view);
    expect_line(text, "vllm:num_requests_waiting{model_name=\"m\"} 5");
    expect_line(text,
                "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"capacity\"} 2");
    expect_line(text,
                "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"deferred\"} 3");
    expect_line(text, "vllm:admission_rejections_total{model_name=\"m\","
                      "reason=\"max_num_queued_reqs\"} 0");
    expect_line(text, "vllm:admission_rejections_total{model_name=\"m\","
                      "reason=\"max_num_queued_tokens\"} 4");
    free(text);
    atomic_store(&metrics.waiting, 1); /* read at another moment */
    text = text_of(&view);
    expect_line(text,
                "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"capacity\"} 0");
    expect_line(text,
                "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"deferred\"} 1");
    free(text);
}

Test(metrics, label_values_are_escaped)
{
    struct metrics_view view = VIEW;
    view.model = "a\"b\\c\nd";
    char *text = text_of(&view);
    cr_assert(strstr(text, "{model=\"a\\\"b\\\\c\\nd\"}"));
    free(text);
}

Test(metrics, vllm_names_are_there_when_asked_for)
{
    struct metrics_view view = VIEW;
    char *plain = text_of(&view);
    cr_assert_null(strstr(plain, "vllm:"));
    view.vllm_names = true;
    view.kv_pages = 9;
    view.kv_page_tokens = 64;
    view.kv_format = "f16";
    view.reuses_prefixes = true;
    atomic_store(&metrics.running, 3);
    char *compatible = text_of(&view);
    expect_line(compatible, "vllm:num_requests_running{model_name=\"m\"} 3");
    expect_line(compatible, "vllm:num_preemptions_total{model_name=\"m\"} 0");
    expect_line(compatible, "vllm:cache_config_info{block_size=\"64\",cache_dtype=\"f16\","
                            "enable_prefix_caching=\"True\",num_gpu_blocks=\"9\"} 1");
    free(plain);
    free(compatible);
}

/* Each number of the store has its sample. */
Test(metrics, the_store_is_told)
{
    struct metrics_view view = VIEW;
    view.store = (struct metrics_store){.written = 3,
                                        .read = 4,
                                        .gone = 5,
                                        .prefixes = {21, 22, 23, 24, 25, 26},
                                        .returns = 6,
                                        .leases = 7,
                                        .leases_lost = 8,
                                        .older_copies = 9,
                                        .away = true};
    view.store.kinds[0].ended[1] = 11;
    view.store.kinds[1].waiting = 12;
    view.store.kinds[2].seconds = 0.5;
    static const char *const lines[] = {
        "regla_store_operations_total{model=\"m\",kind=\"session\",result=\"busy\"} 11\n",
        "regla_store_operations_waiting{model=\"m\",kind=\"checkpoint\"} 12\n",
        "regla_store_operation_seconds_total{model=\"m\",kind=\"reply\"} 0.5\n",
        "regla_store_states_total{model=\"m\",event=\"written\"} 3\n",
        "regla_store_states_total{model=\"m\",event=\"read\"} 4\n",
        "regla_store_states_total{model=\"m\",event=\"gone\"} 5\n",
        "regla_store_prefixes_total{model=\"m\",event=\"found\"} 21\n",
        "regla_store_prefixes_total{model=\"m\",event=\"missing\"} 22\n",
        "regla_store_prefixes_total{model=\"m\",event=\"written\"} 23\n",
        "regla_store_prefixes_total{model=\"m\",event=\"read\"} 24\n",
        "regla_store_prefix_bytes_total{model=\"m\",event=\"written\"} 25\n",
        "regla_store_prefix_bytes_total{model=\"m\",event=\"read\"} 26\n",
        "regla_store_returns_total{model=\"m\"} 6\n",
        "regla_store_leases{model=\"m\"} 7\n",
        "regla_store_leases_lost_total{model=\"m\"} 8\n",
        "regla_store_older_copies_total{model=\"m\"} 9\n",
        "regla_store_away{model=\"m\"} 1\n"};
    char *text = text_of(&view);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_assert_not_null(strstr(text, lines[i]), "%s", lines[i]);
    free(text);
}

/* Every sample belongs to the family announced last, and each family is announced once. */
Test(metrics, families_are_whole)
{
    struct metrics_view view = VIEW;
    view.vllm_names = true;
    char *text = text_of(&view);
    char family[128] = "", seen[16384] = "\n";
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "# HELP ", 7) == 0)
            continue;
        if (strncmp(line, "# TYPE ", 7) == 0) {
            cr_assert_eq(sscanf(line, "# TYPE %127s", family), 1);
            char name[160];
            snprintf(name, sizeof name, "\n%s\n", family);
            cr_assert_null(strstr(seen, name), "%s twice", family);
            strncat(seen, name + 1, sizeof seen - strlen(seen) - 1);
            continue;
        }
        cr_assert_eq(strncmp(line, family, strlen(family)), 0, "%s under %s", line, family);
    }
    free(text);
}
