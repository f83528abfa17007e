/* What a model is: the same for the same tensors and configuration, another for any other. */
#include "engine/engine.h"
#include "engine/model/fingerprint.h"
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

static struct print print_of_parts(const json_t *config, const struct parts *parts)
{
    struct model *model;
    struct error err = ERROR_INIT;
    size_t size;
    char *weights = parts_write(parts, 0, &size);
    char *text = json_dumps(config, JSON_COMPACT);
    cr_assert(model_load(&model, text, strlen(text), weights, size, &err) == 0, "%s", err.message);
    struct print print = print_of(model);
    model_close(model);
    free(text);
    free(weights);
    return print;
}

static bool same(struct print a, struct print b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

Test(fingerprint, the_same_files_from_disk_and_from_memory)
{
    char path[512], name[256];
    struct print all[64];
    int count = 0;
    for (; golden_case(count, path, name); count++) {
        struct model *model;
        struct error err = ERROR_INIT;
        cr_assert(count < 64 && model_open(&model, path, &err) == 0, "%s", err.message);
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
