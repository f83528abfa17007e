/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize/checkpoint.h"

#include "engine/model/fingerprint.h"
#include "engine/model/four_bits.h"
#include "lib/base/file.h"
#include "lib/base/python_json.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_COPIED_BYTES = 256 << 20 };

static const char config_file[] = "config.json", weights_file[] = "model.safetensors";

/* What is read beside a model's weights. */
static const char *const copied[] = {
    "generation_config.json",   "tokenizer.json",
    "tokenizer_config.json",    "special_tokens_map.json",
    "added_tokens.json",        "chat_template.jinja",
    "chat_template.json",       "additional_chat_templates/tool_use.jinja",
    "rwkv_vocab_v20230424.txt",
};
enum { COPIED = sizeof copied / sizeof *copied };

static int cannot(const char *path, const char *what, struct error *err)
{
    return error_set(err, ERROR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

static int join(char path[PATH_MAX], const char *folder, const char *name, struct error *err)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return length < PATH_MAX
               ? 0
               : error_set(err, ERROR_INVALID, "%.100s...: the path is too long", folder);
}

/* A file of the new folder, while it is written. */
struct output {
    char path[PATH_MAX];
    FILE *file;
};

static int open_output(struct output *output, const char *folder, const char *name,
                       struct error *err)
{
    if (join(output->path, folder, name, err) != 0)
        return -1;
    output->file = fopen(output->path, "wbx");
    return output->file != NULL ? 0 : cannot(output->path, "create", err);
}

static int put(const struct output *output, const void *bytes, size_t size, struct error *err)
{
    return fwrite(bytes, 1, size, output->file) == size ? 0 : cannot(output->path, "write", err);
}

/* result: of what came before. */
static int close_output(const struct output *output, int result, struct error *err)
{
    if (result == 0 && (fflush(output->file) != 0 || fsync(fileno(output->file)) != 0))
        result = cannot(output->path, "write", err);
    if (fclose(output->file) != 0 && result == 0)
        result = cannot(output->path, "write", err);
    return result;
}

static int write_file(const char *folder, const char *name, const void *bytes, size_t size,
                      struct error *err)
{
    struct output output;
    if (open_output(&output, folder, name, err) != 0)
        return -1;
    return close_output(&output, put(&output, bytes, size, err), err);
}

/* The folder in which a name like A/B is, below `folder`; false: the name has no folder. */
static bool parent_of(char path[PATH_MAX], const char *folder, const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash &&
           snprintf(path, PATH_MAX, "%s/%.*s", folder, (int)(slash - name), name) < PATH_MAX;
}

static int make_parent(const char *folder, const char *name, struct error *err)
{
    char path[PATH_MAX];
    return parent_of(path, folder, name) && mkdir(path, 0777) != 0 && errno != EEXIST
               ? cannot(path, "create", err)
               : 0;
}

static int copy_file(const char *from, const char *to, const char *name, struct error *err)
{
    char path[PATH_MAX], *bytes;
    size_t size;
    if (join(path, from, name, err) != 0)
        return -1;
    if (!file_exists(path))
        return 0;
    if (file_read(path, MAX_COPIED_BYTES, &bytes, &size, err) != 0)
        return -1;
    int result = make_parent(to, name, err);
    if (result == 0)
        result = write_file(to, name, bytes, size, err);
    free(bytes);
    return result;
}

/* The model's own, as its loader reads it. */
static int read_config(json_t **config, const char *from, struct error *err)
{
    char path[PATH_MAX], *text;
    size_t size;
    if (join(path, from, config_file, err) != 0 ||
        file_read(path, MAX_COPIED_BYTES, &text, &size, err) != 0)
        return -1;
    int result = python_json_parse(config, config_file, text, size, err);
    free(text);
    return result;
}

/* With what its blocks are. */
static int write_config(const char *from, const char *to, struct error *err)
{
    json_t *config;
    if (read_config(&config, from, err) != 0)
        return -1;
    json_t *method = json_pack("{ss ss}", "quant_method", "regla", "format", "q4_1");
    char *text = json_object_set_new(config, "quantization_config", method) == 0
                     ? json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(17))
                     : NULL;
    json_decref(config);
    if (text == NULL)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory to write it", config_file);
    int result = write_file(to, config_file, text, strlen(text), err);
    free(text);
    return result;
}

static const unsigned char *blocks_of(const struct tensor *tensor,
                                      const struct checkpoint_blocks *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (blocks[i].tensor == tensor)
            return blocks[i].blocks;
    return NULL;
}

static size_t bytes_of(const struct tensor *tensor, bool in_blocks)
{
    return in_blocks ? dtype_size(DTYPE_Q4_1, tensor->elements) : tensor->bytes;
}

/* Its entry in the header. False: no memory. */
static bool describe(json_t *header, const struct tensor *tensor, bool in_blocks, size_t offset)
{
    json_t *shape = json_array();
    bool made = shape != NULL;
    for (int i = 0; i < tensor->rank; i++) {
        const size_t numbers = (size_t)tensor->shape[tensor->turned ? tensor->rank - 1 - i : i];
        const size_t size = in_blocks && i == 1 ? dtype_size(DTYPE_Q4_1, numbers) : numbers;
        made = json_array_append_new(shape, json_integer((json_int_t)size)) == 0 && made;
    }
    const char *dtype = tensor_dtype_name(in_blocks ? TENSOR_U8 : tensor->dtype);
    json_t *entry =
        json_pack("{ss so s[II]}", "dtype", dtype, "shape", shape, "data_offsets",
                  (json_int_t)offset, (json_int_t)(offset + bytes_of(tensor, in_blocks)));
    return json_object_set_new(header, tensor->name, entry) == 0 && made;
}

/* Tensors on their way to a file. */
struct writing {
    const char *folder, *from;
    struct tensors *tensors;
    const struct checkpoint_blocks *blocks; /* [count] */
    size_t count;
    const struct tensor *owner; /* comes first, and of the others only those in blocks do; NULL: all
                                 * do, but for those that the model ignores */
    const volatile sig_atomic_t *stop;
};

static bool is_written(const struct writing *w, const struct tensor *tensor)
{
    return tensor->elements > 0 &&
           (w->owner == NULL || blocks_of(tensor, w->blocks, w->count) != NULL);
}

/* The header of all tensors in their order, padded so that what follows begins at a multiple of 8.
 * malloc'd; NULL: no memory. */
static char *header_text(const struct writing *w, size_t *length)
{
    json_t *header = json_pack("{s{ss}}", "__metadata__", "format", "pt");
    bool made = header != NULL && (w->owner == NULL || describe(header, w->owner, false, 0));
    size_t offset = w->owner != NULL ? w->owner->bytes : 0;
    for (size_t i = 0; made && i < tensors_count(w->tensors); i++) {
        const struct tensor *tensor = tensors_at(w->tensors, i);
        const bool in_blocks = blocks_of(tensor, w->blocks, w->count) != NULL;
        if (!is_written(w, tensor))
            continue;
        made = describe(header, tensor, in_blocks, offset);
        offset += bytes_of(tensor, in_blocks);
    }
    char *text = made ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    *length = text != NULL ? (strlen(text) + 7) / 8 * 8 : 0;
    char *padded = text != NULL ? malloc(*length + 1) : NULL;
    if (padded != NULL)
        snprintf(padded, *length + 1, "%-*s", (int)*length, text);
    free(text);
    return padded;
}

/* As the model has it, which is what its new name means. */
static int put_turned(const struct output *output, const struct tensor *tensor, struct error *err)
{
    const size_t rows = (size_t)tensor->shape[1], cols = (size_t)tensor->shape[0];
    const size_t size = tensor_dtype_size(tensor->dtype, 1);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            if (put(output, tensor->data + (c * rows + r) * size, size, err) != 0)
                return -1;
    return 0;
}

static int put_tensor(const struct output *output, const struct tensor *tensor,
                      const unsigned char *blocks, struct error *err)
{
    if (tensor->turned)
        return put_turned(output, tensor, err);
    return put(output, blocks != NULL ? blocks : tensor->data, bytes_of(tensor, blocks != NULL),
               err);
}

static int put_tensors(const struct output *output, const struct writing *w, struct error *err)
{
    if (w->owner != NULL && put(output, w->owner->data, w->owner->bytes, err) != 0)
        return -1;
    for (size_t i = 0; i < tensors_count(w->tensors); i++) {
        const struct tensor *tensor = tensors_at(w->tensors, i);
        const unsigned char *own = blocks_of(tensor, w->blocks, w->count);
        if (*w->stop)
            return error_set(err, ERROR_IO, "%s: interrupted while it was written", output->path);
        if (is_written(w, tensor) && put_tensor(output, tensor, own, err) != 0)
            return -1;
        file_release(tensor->data, tensor->bytes);
    }
    return 0;
}

/* Into a file that is open, which is closed. */
static int write_tensors(const struct output *output, const struct writing *w, struct error *err)
{
    size_t length;
    char *header = header_text(w, &length);
    const uint64_t size = length;
    int result = header != NULL ? put(output, &size, sizeof size, err)
                                : error_set(err, ERROR_NO_MEMORY, "%s: no memory for its header",
                                            output->path);
    if (result == 0)
        result = put(output, header, length, err);
    if (result == 0)
        result = put_tensors(output, w, err);
    free(header);
    return close_output(output, result, err);
}

static int write_weights(const struct writing *w, struct error *err)
{
    struct output output;
    return open_output(&output, w->folder, weights_file, err) == 0 ? write_tensors(&output, w, err)
                                                                   : -1;
}

static void remove_folder(const char *folder)
{
    struct error ignored = ERROR_INIT;
    char path[PATH_MAX];
    for (int i = 0; i < COPIED + 2; i++)
        if (join(path, folder,
                 i < COPIED    ? copied[i]
                 : i == COPIED ? config_file
                               : weights_file,
                 &ignored) == 0)
            unlink(path);
    for (int i = 0; i < COPIED; i++)
        if (parent_of(path, folder, copied[i]))
            rmdir(path);
    rmdir(folder);
}

static int fill(const struct writing *w, struct error *err)
{
    for (int i = 0; i < COPIED; i++)
        if (copy_file(w->from, w->folder, copied[i], err) != 0)
            return -1;
    if (write_config(w->from, w->folder, err) != 0 || write_weights(w, err) != 0)
        return -1;
    const int fd = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int result = fd >= 0 && fsync(fd) == 0 ? 0 : cannot(w->folder, "write", err);
    if (fd >= 0)
        close(fd);
    return result;
}

/* The folder's name without slashes at its end, and that of the folder above it. */
static int name_of(const char *out, char name[PATH_MAX], char above[PATH_MAX], struct error *err)
{
    size_t length = strlen(out);
    if (length == 0)
        return error_set(err, ERROR_INVALID, "expected the name of a folder to write, got \"\"");
    while (length > 1 && out[length - 1] == '/')
        length--;
    if (length + sizeof ".XXXXXX" > PATH_MAX)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", out);
    snprintf(name, PATH_MAX, "%.*s", (int)length, out);
    const char *slash = strrchr(name, '/');
    snprintf(above, PATH_MAX, "%.*s",
             slash == NULL  ? 1
             : slash > name ? (int)(slash - name)
                            : 1,
             slash == NULL ? "." : name);
    return 0;
}

static int check_free(const char *name, struct error *err)
{
    struct stat status;
    return lstat(name, &status) == 0 ? error_set(err, ERROR_IO, "%s: it is there already", name)
                                     : 0;
}

/* Gives what is written its name, and the mode that new ones get. */
static int give_name(const char *written, const char *name, mode_t mode, struct error *err)
{
    const mode_t mask = umask(0);
    umask(mask);
    if (check_free(name, err) != 0)
        return -1;
    return chmod(written, mode & ~mask) == 0 && rename(written, name) == 0
               ? 0
               : cannot(name, "create", err);
}

/* A model's folder with numbers as before a quantization. */
static int check_source(const char *from, struct error *err)
{
    json_t *config;
    struct stat status;
    if (stat(from, &status) == 0 && !S_ISDIR(status.st_mode))
        return error_set(err, ERROR_INVALID,
                         "%s: expected a model's folder, with model.safetensors, got a file", from);
    if (read_config(&config, from, err) != 0)
        return -1;
    const json_t *said = json_object_get(config, "quantization_config");
    const bool none = said == NULL || json_is_null(said);
    json_decref(config);
    return none ? 0
                : error_set(err, ERROR_INVALID,
                            "%s/%s: quantization_config: expected none, got one: the model is "
                            "quantized already",
                            from, config_file);
}

int checkpoint_check(const char *out, const char *from, struct error *err)
{
    char name[PATH_MAX], above[PATH_MAX];
    struct stat status;
    if (stat(from, &status) == 0 && !S_ISDIR(status.st_mode))
        return check_source(from, err);
    if (name_of(out, name, above, err) != 0 || check_free(name, err) != 0)
        return -1;
    if (access(above, W_OK | X_OK) != 0)
        return error_set(err, ERROR_IO, "%s: cannot create: %s: %s", name, above, strerror(errno));
    return check_source(from, err);
}

int checkpoint_write(const char *out, const char *from, struct tensors *tensors,
                     const struct checkpoint_blocks *blocks, size_t count,
                     const volatile sig_atomic_t *stop, struct error *err)
{
    char name[PATH_MAX], above[PATH_MAX], folder[PATH_MAX + sizeof ".XXXXXX"];
    if (name_of(out, name, above, err) != 0)
        return -1;
    snprintf(folder, sizeof folder, "%s.XXXXXX", name);
    if (mkdtemp(folder) == NULL)
        return cannot(name, "create", err);
    const struct writing writing = {folder, from, tensors, blocks, count, NULL, stop};
    if (fill(&writing, err) == 0 && give_name(folder, name, 0777, err) == 0)
        return 0;
    remove_folder(folder);
    return -1;
}

int checkpoint_check_beside(const char *folder, struct error *err)
{
    char path[PATH_MAX];
    if (check_source(folder, err) != 0 || join(path, folder, FOUR_BITS_FILE, err) != 0)
        return -1;
    if (access(folder, W_OK | X_OK) != 0)
        return cannot(path, "create", err);
    return check_free(path, err);
}

int checkpoint_write_beside(const char *folder, struct tensors *tensors,
                            const struct checkpoint_blocks *blocks, size_t count,
                            const unsigned char *fingerprint, const volatile sig_atomic_t *stop,
                            struct error *err)
{
    const struct tensor owner = {.name = FOUR_BITS_OWNER,
                                 .dtype = TENSOR_U8,
                                 .rank = 1,
                                 .shape = {FINGERPRINT_BYTES},
                                 .data = fingerprint,
                                 .bytes = FINGERPRINT_BYTES,
                                 .elements = FINGERPRINT_BYTES};
    const struct writing writing = {folder, folder, tensors, blocks, count, &owner, stop};
    char name[PATH_MAX];
    struct output output;
    if (join(name, folder, FOUR_BITS_FILE, err) != 0 ||
        join(output.path, folder, FOUR_BITS_FILE ".XXXXXX", err) != 0)
        return -1;
    const int fd = mkstemp(output.path);
    if (fd < 0)
        return cannot(name, "create", err);
    output.file = fdopen(fd, "wb");
    if (output.file == NULL) {
        cannot(name, "create", err);
        close(fd);
    } else if (write_tensors(&output, &writing, err) == 0 &&
               give_name(output.path, name, 0666, err) == 0) {
        return 0;
    }
    unlink(output.path);
    return -1;
}
