/* SPDX-License-Identifier: Apache-2.0 */
/* What a model is: the same for the same tensors and configuration, another for any other; and what
 * is refused as its weights are read. */
#include "engine/engine.h"
#include "engine/model/fingerprint.h"
#include "engine/model/model_load.h"
#include "tests/unit/checkpoint.h"
#include "tests/unit/golden_cases.h"

struct print {
    unsigned char bytes[FINGERPRINT_BYTES];
};

static struct print print_of(const struct model *model)
{
    struct print print;
    struct error err = ERROR_INIT;
    cr_assert(model_fingerprint(model, print.bytes, &err) == 0, "%s", err.message);
    return print;
}

/* pad: bytes that move the data. */
static int take_print(struct print *print, const json_t *config, const struct parts *parts,
                      size_t pad, struct error *err)
{
    struct model *model;
    size_t size;
    char *weights = parts_write(parts, pad, &size);
    char *text = json_dumps(config, JSON_COMPACT);
    cr_assert(model_load(&model, text, strlen(text), weights, size, err) == 0, "%s", err->message);
    int result = model_fingerprint(model, print->bytes, err);
    model_close(model);
    free(text);
    free(weights);
    return result;
}

static struct print print_of_parts(const json_t *config, const struct parts *parts)
{
    struct print print;
    struct error err = ERROR_INIT;
    cr_assert(take_print(&print, config, parts, 0, &err) == 0, "%s", err.message);
    return print;
}

static bool same(struct print a, struct print b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

Test(fingerprint, the_same_files_from_disk_and_from_memory)
{
    char path[512], name[256];
    struct print all[128];
    int count = 0;
    for (; golden_case(count, path, name); count++) {
        struct model *model;
        struct error err = ERROR_INIT;
        cr_assert(count < 128 && model_open(&model, path, &err) == 0, "%s", err.message);
        all[count] = print_of(model);
        cr_expect(same(all[count], print_of(model)));
        model_close(model);
        for (int i = 0; i < count; i++)
            cr_expect(!same(all[i], all[count]), "%s has the fingerprint of case %d", name, i);
        if (strcmp(name, "hybrid_regla") != 0)
            continue;
        json_t *config = golden_config(name);
        struct parts parts = golden_parts(name);
        cr_expect(same(all[count], print_of_parts(config, &parts)));
        parts_free(&parts);
        json_decref(config);
    }
    cr_expect(count > 30);
}

/* Sessions on disk are those of a model: what version 0.2 said of these must not change. */
Test(fingerprint, of_models_that_version_0_2_knew)
{
    static const char *const cases[][2] = {
        {"hybrid_regla", "4e94b4eed1694518ec1ad8e84c5061a5"},
        {"flash", "fcd3873fb8fbf775f2c9d5666f9801bb"},
        {"flash_quad", "64cca72370a306e457d0196d27e967ab"},
        {"gpt_neox", "a602eb5eb3aa1a589b964f2f8c424b6a"},
        {"parallel_blocks", "ba3e75cc5db564f194fac0f4e1b89d34"},
        {"sliding_parallel_learned", "c6640237f5b3d949aa71096de03609eb"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512], hex[2 * FINGERPRINT_BYTES + 1];
        struct model *model;
        struct error err = ERROR_INIT;
        snprintf(path, sizeof path, GOLDEN "%s", cases[i][0]);
        cr_assert(model_open(&model, path, &err) == 0, "%s", err.message);
        const struct print print = print_of(model);
        for (int j = 0; j < FINGERPRINT_BYTES; j++)
            snprintf(hex + 2 * j, 3, "%02x", print.bytes[j]);
        cr_expect_str_eq(hex, cases[i][1], "%s: got %s", cases[i][0], hex);
        model_close(model);
    }
}

Test(fingerprint, of_an_engine_whatever_its_options)
{
    struct print prints[2];
    for (int i = 0; i < 2; i++) {
        const struct engine_options options = {.threads = 1 + i,
                                               .state_memory_bytes = (size_t)(1 + i) << 20,
                                               .instruction_set = i == 0 ? "generic" : NULL};
        struct engine *engine;
        struct error err = ERROR_INIT;
        cr_assert(engine_open(&engine, GOLDEN "hybrid_regla", &options, &err) == 0, "%s",
                  err.message);
        memcpy(prints[i].bytes, engine_fingerprint(engine), FINGERPRINT_BYTES);
        cr_expect(same(prints[i], print_of(engine_model(engine))));
        engine_close(engine);
    }
    cr_expect(same(prints[0], prints[1]));
}

Test(fingerprint, another_tensor_or_configuration_is_another_model)
{
    json_t *config = golden_config("hybrid_regla");
    struct parts parts = golden_parts("hybrid_regla");
    struct print before = print_of_parts(config, &parts);
    const char *name = json_object_iter_key(json_object_iter(parts.header));
    char *data = (char *)parts.data;
    size_t at = (size_t)json_integer_value(
        json_array_get(json_object_get(parts_entry(&parts, name), "data_offsets"), 0));
    data[at] ^= 1;
    cr_expect(!same(before, print_of_parts(config, &parts)));
    data[at] ^= 1;
    cr_expect(same(before, print_of_parts(config, &parts)));

    static const char *const changes[][2] = {
        {"norm_eps", "1e-6"},
        {"hidden_act", "\"relu\""},
        {"parallel_residual", "true"},
        {"position_embedding", "\"sinusoidal\""},
        {"mixers/r/query_scale", "\"none\""},
        {"mixers/s/position", "{\"type\": \"rope\", \"base\": 500000}"},
        {"mixers/s/position", "{\"type\": \"rope\", \"pairing\": \"adjacent\"}"},
        {"mixers/s/window", "\"block\""},
        {"mixers/s/activation", "\"relu\""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        json_t *changed = json_deep_copy(config);
        json_patch(changed, changes[i][0], changes[i][1]);
        if (strcmp(changes[i][0], "mixers/s/window") == 0)
            json_patch(changed, "mixers/s/window_size", "64");
        cr_expect(!same(before, print_of_parts(changed, &parts)), "%s = %s", changes[i][0],
                  changes[i][1]);
        json_decref(changed);
    }
    /* what says nothing of how a state is computed */
    json_t *same_config = json_deep_copy(config);
    json_patch(same_config, "eos_token_id", "7");
    cr_expect(same(before, print_of_parts(same_config, &parts)));
    json_decref(same_config);
    parts_free(&parts);
    json_decref(config);
}

static const char *const post_norm_changes[][2] = {
    {"logit_scale", "0.5"},
    {"logit_softcap", "0.5"},
    {"norm_plus_one", "false"},
    {"mixers/full/score_scale", "0.5"},
    {"mixers/full/score_softcap", "0.5"},
    {"mixers/full/qk_norm/type", "\"layernorm\""},
    {"mixers/full/qk_norm/eps", "0.5"},
    {"mixers/full/qk_norm/plus_one", "false"},
    {"mixers/full/output_gate", "\"swish\""},
    {"mixers/near/qk_norm/eps", "0.5"},
    {"mixers/near/window_size", "21"},
    {"blocks/before_and_behind/0/alpha", "2"},
    {"blocks/before_and_behind/1/alpha", "2"},
    {"blocks/before_and_behind/0/beta", "2"},
    {"blocks/before_and_behind/1/beta", "2"},
    {"blocks/before_and_behind/0/branches/0/scale", "2"},
    {"blocks/before_and_behind/1/branches/0/scale", "2"},
    {"blocks/before_and_behind/1/branches/0/mlp/hidden_act", "\"relu\""},
    {"blocks/behind/1/branches/0/mlp/hidden_act", "\"relu\""},
    {"blocks/behind/0/alpha", "2"},
};
static const char *const branches_changes[][2] = {
    {"blocks/side_by_side/0/alpha", "2"},
    {"blocks/side_by_side/0/beta", "2"},
    {"blocks/side_by_side/0/post_norm", "\"none\""},
    {"blocks/side_by_side/1/post_norm", "\"simple_rmsnorm\""},
    {"blocks/side_by_side/0/branches/0/scale", "2"},
    {"blocks/side_by_side/0/branches/1/scale", "2"},
    {"blocks/side_by_side/1/branches/0/scale", "2"},
    {"blocks/side_by_side/0/branches/1/norm", "\"simple_rmsnorm\""},
    {"blocks/only_mlp/0/post_norm", "\"simple_rmsnorm\""},
    {"blocks/only_mlp/0/branches/0/mlp/hidden_act", "\"gelu\""},
    {"blocks/only_mixer/0/post_norm", "\"simple_rmsnorm\""},
    {"blocks/only_mixer/0/beta", "2"},
    {"blocks/only_mixer/0/branches/0/scale", "2"},
    {"blocks/mlp_first/0/post_norm", "\"simple_rmsnorm\""},
    {"blocks/mlp_first/0/branches/0/scale", "2"},
    {"blocks/mlp_first/0/branches/1/scale", "2"},
    {"blocks/mlp_first/0/branches/1/norm", "\"none\""},
};

/* The same layer in one block and in two, and each of these in another place. */
static const char *const place_changes[][2] = {
    {"blocks/plain/0/alpha", "2"},
    {"blocks/plain/1/alpha", "2"},
    {"blocks/plain/0/beta", "2"},
    {"blocks/plain/1/beta", "2"},
    {"blocks/plain/0/branches/0/scale", "2"},
    {"blocks/plain/1/branches/0/scale", "2"},
    {"blocks/plain/0/post_norm", "\"simple_rmsnorm\""},
    {"blocks/plain/1/post_norm", "\"simple_rmsnorm\""},
    {"layer_types/1", "\"mlp_first\""},
    {"layer_types/1", "\"parallel\""},
    {"layer_types/1", "\"first_scaled\""},
    {"layer_types/1", "\"second_scaled\""},
};
#define MIXER(more) "{\"mixer\": \"s\"" more "}"
#define MLP(more) "{\"mlp\": {}" more "}"
static const char blocks[] = "{\"plain\": [{\"branches\": [" MIXER("") "]}, {\"branches\": [" MLP(
    "") "]}],"
        " \"mlp_first\": [{\"branches\": [" MLP("") "]}, {\"branches\": [" MIXER(
            "") "]}],"
                " \"parallel\": [{\"branches\": [" MIXER("") ", " MLP(
                    "") "]}],"
                        " \"first_scaled\": [{\"branches\": [" MIXER(", \"scale\": 2") ", " MLP(
                            "") "]}],"
                                " \"second_scaled\": [{\"branches\": [" MIXER("") ", " MLP(
                                    ", \"scale\": 2") "]}]}";

static const char *const conv_changes[][2] = {
    {"mixers/four/conv/activation", "\"none\""},
    {"mixers/three/conv/activation", "\"silu\""},
    {"mixers/eight/conv/activation", "\"none\""},
};

static const char *const expert_changes[][2] = {
    {"blocks/one_of_two/1/branches/0/mlp/num_experts_per_tok", "2"},
    {"blocks/one_of_two/1/branches/0/mlp/norm_topk_prob", "true"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts_per_tok", "1"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts_per_tok", "3"},
    {"blocks/two_of_four/0/branches/1/mlp/norm_topk_prob", "false"},
};

/* Each of the changes makes another model than all others do. */
static void expect_all_differ(json_t *config, const char *golden, const char *const (*changes)[2],
                              size_t count)
{
    struct parts parts = golden_parts(golden);
    struct print all[32] = {print_of_parts(config, &parts)};
    cr_assert(count < 32);
    for (size_t i = 0; i < count; i++) {
        json_t *changed = json_deep_copy(config);
        json_patch(changed, changes[i][0], changes[i][1]);
        all[i + 1] = print_of_parts(changed, &parts);
        for (size_t j = 0; j <= i; j++)
            cr_expect(!same(all[i + 1], all[j]), "%s is as %s", changes[i][0],
                      j > 0 ? changes[j - 1][0] : "it was");
        json_decref(changed);
    }
    parts_free(&parts);
    json_decref(config);
}

Test(fingerprint, other_blocks_are_another_model)
{
    expect_all_differ(golden_config("blocks_post_norm"), "blocks_post_norm", post_norm_changes,
                      sizeof post_norm_changes / sizeof *post_norm_changes);
    expect_all_differ(golden_config("blocks_branches"), "blocks_branches", branches_changes,
                      sizeof branches_changes / sizeof *branches_changes);
    expect_all_differ(golden_config("convolutions"), "convolutions", conv_changes,
                      sizeof conv_changes / sizeof *conv_changes);
    expect_all_differ(golden_config("experts"), "experts", expert_changes,
                      sizeof expert_changes / sizeof *expert_changes);
    json_t *config = golden_config("hybrid_regla");
    json_patch(config, "blocks", blocks);
    json_patch(config, "layer_types/1", "\"plain\"");
    expect_all_differ(config, "hybrid_regla", place_changes,
                      sizeof place_changes / sizeof *place_changes);
}

Test(fingerprint, a_layer_is_what_its_blocks_say)
{
    json_t *config = golden_config("hybrid_regla");
    struct parts parts = golden_parts("hybrid_regla");
    const struct print before = print_of_parts(config, &parts);
    json_patch(config, "blocks", blocks);
    json_patch(config, "layer_types/1", "\"plain\"");
    cr_expect(same(before, print_of_parts(config, &parts)));
    parts_free(&parts);
    json_decref(config);
}

Test(fingerprint, other_segments_are_another_model)
{
    json_t *config = golden_config("transformer_ls");
    struct parts parts = golden_parts("transformer_ls");
    struct print before = print_of_parts(config, &parts);
    json_patch(config, "mixers/a/segment_length", "8");
    cr_expect(!same(before, print_of_parts(config, &parts)));
    parts_free(&parts);
    json_decref(config);
}

/* A number of a matrix, by its bits: refused, but where `got` is NULL. */
static void check_number(const char *golden, const char *name, size_t element, uint32_t bits,
                         const char *got)
{
    struct print print;
    json_t *config = golden_config(golden);
    struct parts parts = golden_parts(golden);
    const json_t *entry = parts_entry(&parts, name);
    const json_t *offsets = json_object_get(entry, "data_offsets");
    size_t width = strcmp(json_string_value(json_object_get(entry, "dtype")), "F32") == 0 ? 4 : 2;
    char *data = (char *)parts.data + json_integer_value(json_array_get(offsets, 0));
    memcpy(data + element * width, &bits, width);
    for (size_t pad = 0; pad < 2; pad++) {
        struct error err = ERROR_INIT;
        char expected[300] = "";
        if (got)
            snprintf(expected, sizeof expected,
                     "model.safetensors: tensor \"%s\": expected finite numbers, got %s at "
                     "element %zu",
                     name, got, element);
        cr_expect_eq(take_print(&print, config, &parts, pad, &err), got ? -1 : 0);
        cr_expect_str_eq(err.message, expected);
    }
    parts_free(&parts);
    json_decref(config);
}

Test(fingerprint, numbers_that_are_not_finite_are_refused)
{
    const char *f32 = "hybrid_regla", *bf16 = "sliding_t5", *f16 = "gpt_neox_tf4";
    const char *embeddings = "model.embeddings.weight";
    const char *neox = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight";
    check_number(f32, embeddings, 0, 0x7f800000, "inf");
    check_number(f32, embeddings, 9001, 0xff800000, "-inf");
    check_number(f32, "model.layers.0.attn.q_proj.weight", 17, 0x7f800001, "nan");
    check_number(f32, "lm_head.weight", 275 * 48 - 1, 0x7fc00000, "nan");
    check_number(f32, "lm_head.weight", 275 * 48 - 1, 0x7f7fffff, NULL);
    check_number(f32, "lm_head.weight", 275 * 48 - 1, 0x00000001, NULL);
    check_number(bf16, embeddings, 4900, 0x7f80, "inf");
    check_number(bf16, embeddings, 4900, 0x7fc0, "nan");
    check_number(bf16, embeddings, 4900, 0xff7f, NULL);
    check_number(f16, neox, 4, 0xfc00, "-inf");
    check_number(f16, neox, 4, 0x7e00, "nan");
    check_number(f16, neox, 4, 0x7bff, NULL);
}
