/* SPDX-License-Identifier: Apache-2.0 */
/* The small bodies: models, load, version, status, cancel. */
#include "api/models.h"

#include "engine/model/author_sampling.h"

#include <criterion/criterion.h>
#include <string.h>

static void expect_body(struct strbuf *buf, const char *expected)
{
    cr_assert_not(buf->failed);
    strbuf_append(buf, "", 1);
    cr_expect_str_eq(buf->data, expected);
    strbuf_clear(buf);
}

static const char *const layers[] = {"regla", "softmax"};
static const struct model_card card = {.id = "tiny",
                                       .root = "models/tiny",
                                       .created = 1700000000,
                                       .max_model_len = 2048,
                                       .family = "regla",
                                       .layer_types = layers,
                                       .num_layers = 2,
                                       .parameters = 4500000,
                                       .dtype = "BF16",
                                       .state_bytes_per_text = 65536,
                                       .kv_bytes_per_token = 2048};

#define CARD                                                                               \
    "{\"id\":\"tiny\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"regla\"," \
    "\"root\":\"models/tiny\",\"parent\":null,\"permission\":[],\"max_model_len\":2048,"   \
    "\"family\":\"regla\",\"layer_types\":[\"regla\",\"softmax\"],\"parameters\":4500000," \
    "\"dtype\":\"BF16\",\"state_bytes_per_text\":65536,\"kv_bytes_per_token\":2048,"       \
    "\"default_sampling_params\":{}}"

Test(models_api, a_model)
{
    struct strbuf buf = {0};
    model_encode(&buf, &card);
    expect_body(&buf, CARD);
}

Test(models_api, sampling_of_the_author)
{
    struct strbuf buf = {0};
    const struct author_sampling sampling = {
        .said = {[SAMPLING_temperature] = true, [SAMPLING_top_k] = true},
        .values = {[SAMPLING_temperature] = 0.6, [SAMPLING_top_k] = 20}};
    struct model_card recommended = card;
    recommended.sampling = &sampling;
    model_encode(&buf, &recommended);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, "\"default_sampling_params\":{\"temperature\":0.6,\"top_k\":20}}"));
    strbuf_clear(&buf);
}

Test(models_api, the_list)
{
    struct strbuf buf = {0};
    static const char *const names[] = {"tiny", "tiny"};
    models_list_encode(&buf, &card, names, 2);
    expect_body(&buf, "{\"object\":\"list\",\"data\":[" CARD "," CARD "]}");
}

Test(models_api, an_unlimited_length_is_null)
{
    struct model_card unlimited = card;
    unlimited.max_model_len = 0;
    unlimited.num_layers = 0;
    struct strbuf buf = {0};
    model_encode(&buf, &unlimited);
    strbuf_append(&buf, "", 1);
    cr_expect(strstr(buf.data, "\"max_model_len\":null,"));
    cr_expect(strstr(buf.data, "\"layer_types\":[],"));
    strbuf_clear(&buf);
}

Test(models_api, the_rest)
{
    struct strbuf buf = {0};
    load_encode(&buf, 3, 17);
    expect_body(&buf, "{\"running\":3,\"waiting\":17,\"server_load\":20}");
    version_encode(&buf, "1.2.3", "cpu", "avx2");
    expect_body(&buf, "{\"version\":\"1.2.3\",\"device\":\"cpu\",\"instruction_set\":\"avx2\"}");
    status_encode(&buf, "ready", NULL);
    expect_body(&buf, "{\"status\":\"ready\"}");
    status_encode(&buf, "ready", "a replica");
    expect_body(&buf, "{\"status\":\"ready\",\"store\":\"away\",\"store_is\":\"a replica\"}");
    cancel_encode(&buf, "cmpl-1", true);
    expect_body(&buf, "{\"id\":\"cmpl-1\",\"cancelled\":true}");
}
