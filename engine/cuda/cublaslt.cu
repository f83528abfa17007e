/* SPDX-License-Identifier: Apache-2.0 */
/* Products by cuBLASLt (--products cublaslt), which is loaded when it is asked for: those of
 * LEAST_ROWS rows and more, with weights of bf16 or f16 that are no heads' matrices. All others
 * stay the engine's own.
 *
 * What that gives up: a row's bits may depend on the number of rows in its step. With 127 rows its
 * product is own, with 128 another; and cuBLASLt promises the same bits for the same sizes only.
 * They depend on its version too, so the device's name ends with that.
 *
 * In the library's words, where matrices are column by column, a row of ours is a column: A is the
 * weight (transposed), B is x, C and D are y.
 *
 * Why weights are there twice: the library reads rows, and decode reads fragments (weights.h).
 * Unpacking b bytes before each product would move 2 b, where a product of N rows does 2 N b
 * operations (x is split). By an H100's data sheet, 3.35 TB/s and 990 TFLOP/s, that is 295 / N of
 * the product's own time: 2.3 times as long at 128 rows, 0.6 at 512, 0.14 at 2048. A second copy
 * takes b bytes of memory, once.
 *
 * x is split into as many numbers as for the other products (product.cuh), each [rows, 32 blocks]:
 * one product adds each of them to y, the small one first. Bias and activation, where there are
 * any, follow in a kernel of ours: the library's gelu is another.
 *
 * An algorithm, with its tiles and its split of the inputs, is chosen once for each shape of
 * weights, for CHOSEN_ROWS rows, and does all numbers of rows: of what the library could do that
 * depends least on the batch. The library is asked beforehand about some numbers of rows (`serves`)
 * and again when a product has another one. If it refuses that, the product is own, which is one
 * more way in which bits may depend on the number of rows. */
#include "engine/cuda/product.cuh"

#include <cublasLt.h>
#include <dlfcn.h>

/* All that is called of it. */
#define CUBLASLT_FUNCTIONS(X)               \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtGetVersion)                   \
    X(cublasLtGetStatusName)                \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatrixLayoutSetAttribute)     \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmulAlgoCheck)              \
    X(cublasLtMatmul)

struct library {
#define POINTER(name) decltype(&::name) name;
    CUBLASLT_FUNCTIONS(POINTER)
#undef POINTER
};

/* Weights of one format and size. */
struct shape {
    enum weight_format format;
    int64_t width, out;                /* width: inputs with their padding */
    cublasLtMatrixLayout_t rows, x, y; /* x and y: of CHOSEN_ROWS rows, or of the last product */
    cublasLtMatmulAlgo_t algorithm;
    bool chosen;
    struct {
        int rows;
        int64_t y_stride;
        bool does;
    } last; /* what was asked of the algorithm for a product */
};

struct cublaslt {
    struct library library;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatmulPreference_t preference;
    struct shape *shapes;
    int num_shapes;
    size_t bytes; /* of all weights' rows */
};

/* 32 MiB are what NVIDIA's documentation recommends for sm_90. y lies as the step's arrays do. */
enum {
    LEAST_ROWS = 128,
    CHOSEN_ROWS = 512,
    MOST_CANDIDATES = 16,
    WORKSPACE = 32 << 20,
    Y_ALIGNMENT = 16
};

/* ---- the library ---- */

/* The name of a function that it lacks; NULL: of none. */
static const char *find_functions(struct library *library, void *loaded)
{
    const char *missing = NULL;
#define FIND(name)                                                                   \
    library->name = reinterpret_cast<decltype(library->name)>(dlsym(loaded, #name)); \
    if (library->name == NULL)                                                       \
        missing = #name;
    CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    return missing;
}

/* Opens a file; NULL: it cannot be, and why (until the next dl call). */
static void *open_file(const char *name, const char **why)
{
    void *loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    *why = loaded == NULL ? dlerror() : NULL;
    return loaded;
}

/* It stays loaded until the program ends, as it has threads and handlers of its own. */
static int load(struct library *library, struct error *err)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.12"};
    const char *named = getenv("REGLA_CUDA_CUBLASLT"), *name = named, *why = NULL;
    void *loaded = NULL;
#ifdef REGLA_CUDA_EMULATION
    if (named == NULL) {
#define TAKE(name) library->name = ::name;
        CUBLASLT_FUNCTIONS(TAKE)
#undef TAKE
        return 0;
    }
#endif
    if (named != NULL)
        loaded = open_file(named, &why);
    for (size_t i = 0; i < sizeof names / sizeof *names && named == NULL && loaded == NULL; i++)
        loaded = open_file(name = names[i], &why);
    if (loaded == NULL && named != NULL)
        return error_set(err, ERROR_UNSUPPORTED,
                         "products: cublaslt: REGLA_CUDA_CUBLASLT: expected a libcublasLt.so, got "
                         "%s: %s",
                         named, why);
    if (loaded == NULL)
        return error_set(err, ERROR_UNSUPPORTED,
                         "products: cublaslt: expected libcublasLt.so.13 or .12 where the loader "
                         "looks or in /usr/local/cuda/lib64, got for the last: %s "
                         "(REGLA_CUDA_CUBLASLT names a file elsewhere)",
                         why);
    const char *missing = find_functions(library, loaded);
    return missing == NULL ? 0
                           : error_set(err, ERROR_UNSUPPORTED,
                                       "products: cublaslt: %s has no function %s", name, missing);
}

static int refuse(const struct cublaslt *c, cublasStatus_t status, const char *what,
                  struct error *err)
{
    return error_set(err, ERROR_UNSUPPORTED, "products: cublaslt: %s: %s", what,
                     c->library.cublasLtGetStatusName(status));
}

/* The operation and what algorithms are chosen by. No reduction in place, which would take y's
 * place for sums: its order is not ours to know. */
static cublasStatus_t describe(struct cublaslt *c)
{
    const struct library *l = &c->library;
    const int32_t transposed = CUBLAS_OP_T;
    const uint64_t workspace = WORKSPACE;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = Y_ALIGNMENT;
    cublasStatus_t status =
        l->cublasLtMatmulDescCreate(&c->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = l->cublasLtMatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                   &transposed, sizeof transposed);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = l->cublasLtMatmulPreferenceCreate(&c->preference);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t size;
    } preferences[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
                       {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment}};
    for (const auto &p : preferences)
        if (status == CUBLAS_STATUS_SUCCESS)
            status = l->cublasLtMatmulPreferenceSetAttribute(c->preference, p.attribute, p.value,
                                                             p.size);
    return status;
}

/* Looks for the library that REGLA_CUDA_CUBLASLT names, else where `load` says. */
int cublaslt_open(struct backend *backend, struct error *err)
{
    struct cublaslt *c = static_cast<struct cublaslt *>(calloc(1, sizeof *c));
    if (c == NULL)
        return error_set(err, ERROR_NO_MEMORY, "products: cublaslt: no memory");
    if (load(&c->library, err) != 0) {
        free(c);
        return -1;
    }
    backend->cublaslt = c;
    device_use(backend);
    cublasStatus_t status = c->library.cublasLtCreate(&c->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return refuse(c, status, "cublasLtCreate", err);
    status = describe(c);
    if (status != CUBLAS_STATUS_SUCCESS)
        return refuse(c, status, "its descriptors", err);
    size_t version = c->library.cublasLtGetVersion(), used = strlen(backend->name);
    snprintf(backend->name + used, sizeof backend->name - used, ", cublasLt %zu.%zu.%zu",
             version / 10000, version / 100 % 100, version % 100);
    return 0;
}

void cublaslt_close(struct backend *backend)
{
    struct cublaslt *c = backend->cublaslt;
    if (c == NULL)
        return;
    for (int i = 0; i < c->num_shapes; i++)
        for (cublasLtMatrixLayout_t layout : {c->shapes[i].rows, c->shapes[i].x, c->shapes[i].y})
            if (layout != NULL)
                c->library.cublasLtMatrixLayoutDestroy(layout);
    if (c->preference != NULL)
        c->library.cublasLtMatmulPreferenceDestroy(c->preference);
    if (c->product != NULL)
        c->library.cublasLtMatmulDescDestroy(c->product);
    if (c->handle != NULL)
        c->library.cublasLtDestroy(c->handle);
    free(c->shapes);
    free(c);
    backend->cublaslt = NULL;
}

/* ---- shapes and their algorithms ---- */

/* Of the next product: rows, and the distance of y's rows. */
static cublasStatus_t set_rows(const struct cublaslt *c, const struct shape *shape, int rows,
                               int64_t y_stride)
{
    const uint64_t columns = (uint64_t)rows;
    cublasStatus_t status = c->library.cublasLtMatrixLayoutSetAttribute(
        shape->y, CUBLASLT_MATRIX_LAYOUT_LD, &y_stride, sizeof y_stride);
    for (cublasLtMatrixLayout_t layout : {shape->x, shape->y})
        if (status == CUBLAS_STATUS_SUCCESS)
            status = c->library.cublasLtMatrixLayoutSetAttribute(
                layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
    return status;
}

/* y's stride where only its alignment matters. */
static int64_t any_stride(const struct shape *shape)
{
    return (shape->out + 3) / 4 * 4;
}

static bool does(const struct cublaslt *c, const struct shape *shape,
                 const cublasLtMatmulAlgo_t *algorithm, int rows, int64_t y_stride)
{
    cublasLtMatmulHeuristicResult_t result = {};
    return set_rows(c, shape, rows, y_stride) == CUBLAS_STATUS_SUCCESS &&
           c->library.cublasLtMatmulAlgoCheck(c->handle, c->product, shape->rows, shape->x,
                                              shape->y, shape->y, algorithm,
                                              &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE;
}

/* Whether an algorithm does these numbers of rows, up to the largest of a step: each kind of
 * remainder that tiles leave, with one stride. cublaslt_takes asks about the rest. */
static bool serves(const struct backend *backend, const struct shape *shape,
                   const cublasLtMatmulAlgo_t *algorithm)
{
    for (int rows : {128, 129, 192, 255, 256, 511, 512, 1000, 2048, 4095, INT32_MAX}) {
        rows = rows < backend->limits.max_rows ? rows : backend->limits.max_rows;
        if (rows >= LEAST_ROWS &&
            !does(backend->cublaslt, shape, algorithm, rows, any_stride(shape)))
            return false;
    }
    return true;
}

static int choose(struct backend *backend, struct shape *shape, struct error *err)
{
    struct cublaslt *c = backend->cublaslt;
    cublasLtMatmulHeuristicResult_t candidates[MOST_CANDIDATES];
    int count = 0;
    cublasStatus_t status = set_rows(c, shape, CHOSEN_ROWS, any_stride(shape));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = c->library.cublasLtMatmulAlgoGetHeuristic(
            c->handle, c->product, shape->rows, shape->x, shape->y, shape->y, c->preference,
            MOST_CANDIDATES, candidates, &count);
    for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS && !shape->chosen; i++)
        if (candidates[i].state == CUBLAS_STATUS_SUCCESS &&
            serves(backend, shape, &candidates[i].algo)) {
            shape->algorithm = candidates[i].algo;
            shape->chosen = true;
        }
    if (shape->chosen)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "products: cublaslt: expected an algorithm for %s weights of %lld x %lld and "
                     "%d to %d rows, got none of %d that does those asked about (%s)",
                     weight_format_name(shape->format), (long long)shape->out,
                     (long long)shape->width, (int)LEAST_ROWS, backend->limits.max_rows, count,
                     c->library.cublasLtGetStatusName(status));
}

int cublaslt_prepare(struct backend *backend, struct error *err)
{
    struct cublaslt *c = backend->cublaslt;
    for (int i = 0; c != NULL && i < c->num_shapes; i++)
        if (!c->shapes[i].chosen && choose(backend, &c->shapes[i], err) != 0)
            return -1;
    return 0;
}

/* Adds an empty shape; NULL: no memory. */
static struct shape *append(struct cublaslt *c)
{
    size_t bytes = (size_t)(c->num_shapes + 1) * sizeof *c->shapes;
    struct shape *more = static_cast<struct shape *>(realloc(c->shapes, bytes));
    if (more == NULL)
        return NULL;
    c->shapes = more;
    memset(&more[c->num_shapes], 0, sizeof *more);
    return &more[c->num_shapes++];
}

/* The number of the weight's shape; -1: an error. */
static int find_shape(struct backend *backend, const struct weight *weight, struct error *err)
{
    struct cublaslt *c = backend->cublaslt;
    const int64_t width = (int64_t)weight->blocks * BLOCK_INPUTS;
    for (int i = 0; i < c->num_shapes; i++)
        if (c->shapes[i].format == weight->format && c->shapes[i].width == width &&
            c->shapes[i].out == weight->out)
            return i;
    struct shape *shape = append(c);
    if (shape == NULL)
        return error_set(err, ERROR_NO_MEMORY, "products: cublaslt: no memory");
    shape->format = weight->format;
    shape->width = width;
    shape->out = weight->out;
    const cudaDataType_t type = weight->format == WEIGHTS_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    const struct {
        cublasLtMatrixLayout_t *layout;
        cudaDataType_t type;
        int64_t rows, columns, stride;
    } layouts[] = {{&shape->rows, type, width, weight->out, width},
                   {&shape->x, type, width, CHOSEN_ROWS, width},
                   {&shape->y, CUDA_R_32F, weight->out, CHOSEN_ROWS, any_stride(shape)}};
    for (const auto &l : layouts) {
        cublasStatus_t status = c->library.cublasLtMatrixLayoutCreate(
            l.layout, l.type, (uint64_t)l.rows, (uint64_t)l.columns, l.stride);
        if (status != CUBLAS_STATUS_SUCCESS)
            return refuse(c, status, "cublasLtMatrixLayoutCreate", err);
    }
    if (backend->limits.max_rows > 0 && choose(backend, shape, err) != 0)
        return -1;
    return c->num_shapes - 1;
}

/* ---- weights ---- */

/* [out][32 blocks] numbers, with zeros past the last input. */
size_t cublaslt_weight_bytes(const struct backend *backend, const struct weight *weight)
{
    if (backend->cublaslt == NULL || !products_fit(PRODUCTS_CUBLASLT, weight->format) ||
        weight->heads > 1)
        return 0;
    return (size_t)weight->out * (size_t)weight->blocks * BLOCK_INPUTS * sizeof(uint16_t);
}

size_t cublaslt_bytes(const struct backend *backend)
{
    return backend->cublaslt != NULL ? backend->cublaslt->bytes : 0;
}

enum { THREADS = 256 };

static unsigned blocks_of(int64_t threads)
{
    return (unsigned)((threads + THREADS - 1) / THREADS);
}

/* Each thread unpacks 8 inputs of an output: four registers of what a lane has (weights.h). */
__global__ static void unpack_kernel(const uint32_t *packed, int blocks, uint4 *rows)
{
    int output = (int)blockIdx.x, part = (int)(blockIdx.y * THREADS + threadIdx.x);
    grid_wait();
    if (part >= blocks * 4)
        return;
    int lane = output % 8 * 4 + part % 4, half = output / 8 % 2;
    const uint32_t *block =
        packed + ((int64_t)(output / FRAGMENT_OUTPUTS) * blocks + part / 4) * 256;
    const uint32_t *first = block + lane * 4 + half, *second = first + 128;
    rows[(int64_t)output * blocks * 4 + part] =
        make_uint4(first[0], first[2], second[0], second[2]);
}

int cublaslt_weight_add(struct backend *backend, struct weight *weight, struct error *err)
{
    weight->shape = find_shape(backend, weight, err);
    if (weight->shape < 0)
        return -1;
    launch(backend, unpack_kernel,
           dim3((unsigned)weight->out, blocks_of((int64_t)weight->blocks * 4)), dim3(THREADS), 0,
           reinterpret_cast<const uint32_t *>(weight->data), weight->blocks,
           reinterpret_cast<uint4 *>(weight->rows));
    backend->cublaslt->bytes += cublaslt_weight_bytes(backend, weight);
    return 0;
}

/* ---- products ---- */

/* Bytes of one number of each input. */
static size_t number_bytes(int64_t rows, int64_t width)
{
    return ((size_t)rows * (size_t)width * sizeof(uint16_t) + 255) / 256 * 256;
}

size_t cublaslt_scratch(const struct backend *backend)
{
    const struct ops_limits *limits = &backend->limits;
    if (backend->cublaslt == NULL || limits->max_rows < LEAST_ROWS)
        return 0;
    return WORKSPACE + 2 * number_bytes(limits->max_rows, limits->max_input);
}

/* out: for each number [rows][width], `distance` numbers apart. A thread splits four inputs. */
template <enum weight_format format, int numbers>
__global__ static void split_rows_kernel(product_call call, int width, uint16_t *out,
                                         int64_t distance)
{
    int row = (int)blockIdx.x, k = (int)(blockIdx.y * THREADS + threadIdx.x) * 4;
    grid_wait();
    if (k >= width)
        return;
    uint2 split[numbers];
    split_four<format>(load_four(call.x + row * call.x_stride, k, call.in, call.aligned), split);
#pragma unroll
    for (int i = 0; i < numbers; i++)
        *reinterpret_cast<uint2 *>(out + i * distance + (int64_t)row * width + k) = split[i];
}

/* Bias and activation of sums that are in y already. */
__global__ static void finish_kernel(product_call call)
{
    int row = (int)blockIdx.x, output = (int)(blockIdx.y * THREADS + threadIdx.x);
    grid_wait();
    if (output < call.out)
        finish_sum(call, row, output, load_end(call, row, output),
                   *place_of_sum(call, row, output));
}

bool cublaslt_expects(const struct weight *weight, int num_rows)
{
    return weight->rows != NULL && num_rows >= LEAST_ROWS;
}

/* y and its rows lie at multiples of 16 bytes. What adds to y is added to before the activation,
 * so an activation of the sum alone is not for us; no model has one. The library is asked where the
 * shape's last product had other rows, never while a graph is replayed. */
bool cublaslt_takes(const struct backend *backend, const struct ops_matmul *a)
{
    if (!cublaslt_expects(a->weight, a->num_rows) || (uintptr_t)a->y.data % Y_ALIGNMENT != 0 ||
        a->y.stride % 4 != 0 || (a->accumulate && a->activation != FORMULA_IDENTITY))
        return false;
    struct shape *shape = &backend->cublaslt->shapes[a->weight->shape];
    if (shape->last.rows != a->num_rows || shape->last.y_stride != a->y.stride)
        shape->last = {a->num_rows, a->y.stride,
                       does(backend->cublaslt, shape, &shape->algorithm, a->num_rows, a->y.stride)};
    return shape->last.does;
}

/* y = x W, or y += x W. */
static void multiply(struct backend *backend, const struct weight *weight,
                     const struct product_call *call, const void *x, void *workspace, bool add)
{
    const struct cublaslt *c = backend->cublaslt;
    const struct shape *shape = &c->shapes[weight->shape];
    const float alpha = 1.0f, beta = add ? 1.0f : 0.0f;
    if (backend->failure != cudaSuccess)
        return;
    cublasStatus_t status = set_rows(c, shape, call->num_rows, call->y_stride);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = c->library.cublasLtMatmul(
            c->handle, c->product, &alpha, weight->rows, shape->rows, x, shape->x, &beta, call->y,
            shape->y, call->y, shape->y, &shape->algorithm, workspace, WORKSPACE, backend->stream);
    device_check(backend, status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorInvalidValue,
                 c->library.cublasLtGetStatusName(status));
}

template <enum weight_format format, int numbers>
static void run(struct backend *backend, const struct weight *weight,
                const struct product_call *call)
{
    const int width = call->blocks * BLOCK_INPUTS;
    const size_t bytes = number_bytes(call->num_rows, width);
    char *workspace = static_cast<char *>(device_scratch(backend, WORKSPACE + numbers * bytes));
    char *x = workspace + WORKSPACE;
    launch(backend, split_rows_kernel<format, numbers>,
           dim3((unsigned)call->num_rows, blocks_of(width / 4)), dim3(THREADS), 0, *call, width,
           reinterpret_cast<uint16_t *>(x), (int64_t)(bytes / sizeof(uint16_t)));
    for (int i = numbers - 1; i >= 0; i--)
        multiply(backend, weight, call, x + i * bytes, workspace,
                 call->accumulate || i < numbers - 1);
    if (call->bias == NULL && call->activation == FORMULA_IDENTITY)
        return;
    struct product_call end = *call;
    end.accumulate = false;
    launch(backend, finish_kernel, dim3((unsigned)call->num_rows, blocks_of(call->out)),
           dim3(THREADS), 0, end);
}

void cublaslt_product(struct backend *backend, const struct weight *weight,
                      const struct product_call *call)
{
    if (weight->format == WEIGHTS_F16)
        run<WEIGHTS_F16, 2>(backend, weight, call);
    else if (weight->rounded)
        run<WEIGHTS_BF16, 1>(backend, weight, call);
    else
        run<WEIGHTS_BF16, 2>(backend, weight, call);
}
