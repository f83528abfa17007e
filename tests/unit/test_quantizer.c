/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of a checkpoint whose writing was stopped, and places that cannot be. */
#include "engine/model/model_load.h"
#include "engine/quantize/checkpoint.h"
#include "lib/base/error.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MODEL[] = "tests/golden/gpt_neox";

static int entries(const char *folder)
{
    DIR *listing = opendir(folder);
    int count = -2; /* . and .. */
    while (readdir(listing) != NULL)
        count++;
    closedir(listing);
    return count;
}

/* Writes the model as it is. */
static int write_model(const char *out, const volatile sig_atomic_t *stop, struct error *err)
{
    struct model *model;
    cr_assert(model_open(&model, MODEL, err) == 0, "%s", err->message);
    const int result = checkpoint_write(out, MODEL, model_tensors(model), NULL, 0, stop, err);
    model_close(model);
    return result;
}

static void remove_model(const char *out)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", out, names[i]);
        cr_assert(unlink(path) == 0, "%s", path);
    }
    cr_assert(rmdir(out) == 0);
}

Test(quantizer, a_checkpoint_is_whole_or_nothing)
{
    char folder[] = "/tmp/regla-quantize-XXXXXX", out[64];
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(out, sizeof out, "%s/out", folder);
    struct error err = ERROR_INIT;
    volatile sig_atomic_t stop = 1;
    cr_assert(write_model(out, &stop, &err) == -1);
    cr_assert(strstr(err.message, "interrupted") != NULL, "%s", err.message);
    cr_assert(entries(folder) == 0, "something is left");
    error_clear(&err);
    stop = 0;
    cr_assert(write_model(out, &stop, &err) == 0, "%s", err.message);
    cr_assert(entries(folder) == 1 && entries(out) == 3);
    cr_assert(write_model(out, &stop, &err) == -1);
    cr_assert(strstr(err.message, "it is there already") != NULL, "%s", err.message);
    cr_assert(entries(folder) == 1 && entries(out) == 3);
    remove_model(out);
    cr_assert(rmdir(folder) == 0);
}

Test(quantizer, places_are_checked)
{
    char folder[] = "/tmp/regla-quantize-XXXXXX", path[64];
    cr_assert(mkdtemp(folder) != NULL);
    static const struct {
        const char *name, *message; /* NULL: it can be written */
    } cases[] = {{"/new", NULL},
                 {"/new//", NULL},
                 {"/missing/new", "cannot create"},
                 {"", "it is there already"},
                 {"/", "it is there already"},
                 {"/link", "it is there already"}};
    snprintf(path, sizeof path, "%s/link", folder);
    cr_assert(symlink("nowhere", path) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = ERROR_INIT;
        char out[64];
        snprintf(out, sizeof out, "%s%s", folder, cases[i].name);
        const int result = checkpoint_check(out, MODEL, &err);
        if (cases[i].message == NULL)
            cr_assert(result == 0, "%s: %s", out, err.message);
        else
            cr_assert(result == -1 && strstr(err.message, cases[i].message) != NULL, "%s: %s", out,
                      err.message);
    }
    struct error err = ERROR_INIT;
    cr_assert(checkpoint_check("x", "tests/golden/gpt_neox/config.json", &err) == -1);
    cr_assert(strstr(err.message, "a model's folder") != NULL, "%s", err.message);
    cr_assert(unlink(path) == 0 && rmdir(folder) == 0);
}
