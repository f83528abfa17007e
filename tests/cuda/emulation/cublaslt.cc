/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cuBLASLt: d = alpha op(a) b + beta c, where op(a) is [m, k] and b [k, n].
 *
 * An algorithm is the product's m, k and type, a split of k and an alignment of c and d. One that
 * splits k needs workspace for a sum [m, n] of each part. The heuristic gives one that is not
 * supported first, then the split one, then the one without, so that a caller has to look. None
 * does UNSERVED_ROWS columns of b, as a library might leave a number out. */
#include "tests/cuda/emulation/cublasLt.h"

#include "lib/base/half.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/races.h"

#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <vector>

struct emulated_handle {
    uint64_t magic;
};
struct emulated_product {
    bool transposes_a;
};
struct emulated_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride;
};
struct emulated_preference {
    uint64_t workspace;
    uint32_t reductions, c_alignment, d_alignment;
};

namespace
{
enum {
    MAGIC = 0x4c74,
    SPLIT = 3,
    UNSERVED_ROWS = 137,
    INPUT_ALIGNMENT = 16,
    WORKSPACE_ALIGNMENT = 256
};
std::atomic<long> products;

struct algorithm {
    uint64_t magic, m, k, type, split, alignment;
};

struct sizes {
    uint64_t m, n, k;
};

size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

[[noreturn]] void refuse(const char *what)
{
    fprintf(stderr, "emulation: cublasLtMatmul: %s\n", what);
    abort();
}

bool strides_fit(const emulated_layout *layout)
{
    return layout->rows > 0 && layout->columns > 0 && layout->stride >= (int64_t)layout->rows;
}

/* False: the layouts do not fit each other. Inputs of two bytes, sums and result of f32. */
bool sizes_of(sizes *out, const emulated_product *product, const emulated_layout *a,
              const emulated_layout *b, const emulated_layout *c, const emulated_layout *d)
{
    out->m = product->transposes_a ? a->columns : a->rows;
    out->k = product->transposes_a ? a->rows : a->columns;
    out->n = b->columns;
    return strides_fit(a) && strides_fit(b) && strides_fit(c) && strides_fit(d) &&
           b->rows == out->k && d->rows == out->m && d->columns == out->n && c->rows == out->m &&
           c->columns == out->n && c->stride == d->stride && a->type == b->type &&
           a->type != CUDA_R_32F && c->type == CUDA_R_32F && d->type == CUDA_R_32F &&
           a->stride * 2 % INPUT_ALIGNMENT == 0 && b->stride * 2 % INPUT_ALIGNMENT == 0;
}

algorithm read(const cublasLtMatmulAlgo_t *from)
{
    algorithm out;
    static_assert(sizeof out <= sizeof from->data, "opaque");
    memcpy(&out, from->data, sizeof out);
    return out;
}

size_t workspace_of(const algorithm &how, const sizes &size)
{
    return how.split == 1 ? 0 : how.split * size.m * size.n * sizeof(float);
}

bool does(const algorithm &how, const sizes &size, const emulated_layout *a,
          const emulated_layout *d)
{
    return how.magic == MAGIC && how.m == size.m && how.k == size.k && size.n != UNSERVED_ROWS &&
           how.type == (uint64_t)a->type && (uint64_t)d->stride * 4 % how.alignment == 0;
}

void check(const void *memory, size_t alignment, const emulated_layout *layout, const char *what)
{
    if (reinterpret_cast<uintptr_t>(memory) % alignment != 0)
        refuse(what);
    emulation::check_device(memory,
                            ((layout->columns - 1) * (uint64_t)layout->stride + layout->rows) *
                                bytes_of(layout->type),
                            what);
}

/* A matrix of two-byte numbers, column by column. */
std::vector<float> widen(const void *memory, const emulated_layout &layout)
{
    std::vector<float> out(layout.rows * layout.columns);
    for (uint64_t j = 0; j < layout.columns; j++) {
        const uint16_t *from = static_cast<const uint16_t *>(memory) + j * (uint64_t)layout.stride;
        races::copy(nullptr, from, layout.rows * sizeof *from);
        for (uint64_t i = 0; i < layout.rows; i++)
            out[j * layout.rows + i] =
                layout.type == CUDA_R_16BF ? bf16_to_f32(from[i]) : f16_to_f32(from[i]);
    }
    return out;
}

/* [m, k], row by row. */
std::vector<float> rows_of(const std::vector<float> &a, const sizes &size, bool transposed)
{
    if (transposed)
        return a;
    std::vector<float> out(a.size());
    for (uint64_t i = 0; i < size.m; i++)
        for (uint64_t k = 0; k < size.k; k++)
            out[i * size.k + k] = a[k * size.m + i];
    return out;
}

struct call {
    emulated_product product;
    sizes size;
    algorithm how;
    const void *a, *b;
    emulated_layout of_a, of_b, of_d;
    const float *c;
    float *d, *workspace;
    float alpha, beta;
};

/* With beta 0 nobody reads c, whatever is in it. */
void run(const call &call)
{
    const sizes &size = call.size;
    std::vector<float> a = rows_of(widen(call.a, call.of_a), size, call.product.transposes_a);
    std::vector<float> b = widen(call.b, call.of_b);
    size_t workspace = workspace_of(call.how, size);
    races::copy(call.workspace, nullptr, workspace);
    memset(call.workspace, 0xff, workspace);
    for (uint64_t j = 0; j < size.n; j++) {
        float *d = call.d + j * (uint64_t)call.of_d.stride;
        const float *c = call.c + j * (uint64_t)call.of_d.stride;
        races::copy(d, call.beta != 0.0f ? c : nullptr, size.m * sizeof *d);
        for (uint64_t i = 0; i < size.m; i++) {
            float total = 0.0f;
            for (uint64_t s = 0; s < call.how.split; s++) {
                float sum = 0.0f;
                for (uint64_t k = size.k * s / call.how.split;
                     k < size.k * (s + 1) / call.how.split; k++)
                    sum += a[i * size.k + k] * b[j * size.k + k];
                total += sum;
            }
            d[i] = call.alpha * total + (call.beta != 0.0f ? call.beta * c[i] : 0.0f);
        }
    }
}

template <typename T> cublasStatus_t set(T *to, const void *value, size_t size)
{
    if (size != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
} // namespace

long emulation_products(void)
{
    return products;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = new emulated_handle{MAGIC};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = new emulated_product();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    delete product;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    int32_t operation;
    if (attribute != CUBLASLT_MATMUL_DESC_TRANSA ||
        set(&operation, value, size) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INVALID_VALUE;
    product->transposes_a = operation == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    *out = new emulated_layout{type, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(&layout->columns, value, size);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(&layout->stride, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = new emulated_preference{0, 7, 256, 256};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&preference->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&preference->reductions, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(&preference->c_alignment, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&preference->d_alignment, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    sizes size;
    *found = 0;
    if (handle->magic != MAGIC || !sizes_of(&size, product, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool splits = (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
    uint32_t alignment = std::min(preference->c_alignment, preference->d_alignment);
    for (uint64_t split : {0, (int)SPLIT, 1}) {
        algorithm how = {MAGIC, size.m, size.k, (uint64_t)a->type, split, alignment};
        cublasLtMatmulHeuristicResult_t result = {};
        memcpy(result.algo.data, &how, sizeof how);
        result.state = split == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        result.workspaceSize = workspace_of(how, size);
        if (*found < asked && does(how, size, a, d) && (split != SPLIT || splits) &&
            result.workspaceSize <= preference->workspace)
            results[(*found)++] = result;
    }
    return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *chosen,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    sizes size;
    algorithm how = read(chosen);
    if (handle->magic != MAGIC || !sizes_of(&size, product, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!does(how, size, a, d) || how.split == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = {};
    result->algo = *chosen;
    result->workspaceSize = workspace_of(how, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t of_a,
                              const void *b, cublasLtMatrixLayout_t of_b, const void *beta,
                              const void *c, cublasLtMatrixLayout_t of_c, void *d,
                              cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t *chosen,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> held(emulation::mutex);
    cublasLtMatmulHeuristicResult_t result;
    call call = {};
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, product, of_a, of_b, of_c, of_d, chosen, &result);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    sizes_of(&call.size, product, of_a, of_b, of_c, of_d);
    call.product = *product;
    call.how = read(chosen);
    if (result.workspaceSize > workspace_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (reinterpret_cast<uintptr_t>(workspace) % WORKSPACE_ALIGNMENT != 0)
        refuse("workspace that is not aligned to 256");
    emulation::check_device(workspace, workspace_bytes, "workspace");
    check(a, INPUT_ALIGNMENT, of_a, "a");
    check(b, INPUT_ALIGNMENT, of_b, "b");
    check(d, call.how.alignment, of_d, "d");
    memcpy(&call.alpha, alpha, sizeof call.alpha);
    memcpy(&call.beta, beta, sizeof call.beta);
    if (call.beta != 0.0f)
        check(c, call.how.alignment, of_c, "c");
    call.a = a;
    call.b = b;
    call.of_a = *of_a;
    call.of_b = *of_b;
    call.of_d = *of_d;
    call.c = static_cast<const float *>(c);
    call.d = static_cast<float *>(d);
    call.workspace = static_cast<float *>(workspace);
    products++;
    return emulation::enqueue(stream, [call] { run(call); }) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}
