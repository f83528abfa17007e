/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/info_program.h"

#include "engine/cost.h"
#include "lib/base/size_text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const norms[] = {MODEL_NORMS(MODEL_NAME)};
static const char *const positions[] = {MODEL_POSITIONS(MODEL_NAME)};
static const char *const windows[] = {MODEL_WINDOWS(MODEL_NAME)};
static const char *const activations[] = {MODEL_ACTIVATIONS(MODEL_NAME)};
static const char *const maps[] = {MODEL_FEATURE_MAPS(MODEL_NAME)};

enum { ROWS_BYTES = 40, FORMULA_BYTES = 48 };

/* An operation that is told of. */
struct teller {
    const struct program *program;
    int number;
    const char *between; /* what it does and what it does it with */
    FILE *out;
};

/* "b3", or "b3+64" of its columns from 64 on; "weights" for what is the same for all rows. */
static const char *rows_text(const struct teller *teller, struct rows rows, char text[ROWS_BYTES])
{
    int64_t column = 0;
    if (rows.stride == 0) {
        snprintf(text, ROWS_BYTES, "weights");
        return text;
    }
    const int buffer = program_buffer_of(teller->program, teller->number, &rows, &column);
    if (column == 0)
        snprintf(text, ROWS_BYTES, "b%d", buffer);
    else
        snprintf(text, ROWS_BYTES, "b%d+%lld", buffer, (long long)column);
    return text;
}

/* "silu" of FORMULA_SILU */
static const char *formula_text(enum formula formula, char text[FORMULA_BYTES])
{
#define FORMULA_TEXT(value) &#value[sizeof "FORMULA"],
    static const char *const names[] = {FORMULA_OF_ONE(FORMULA_TEXT) FORMULA_OF_TWO(FORMULA_TEXT)};
#undef FORMULA_TEXT
    snprintf(text, FORMULA_BYTES, "%s", names[formula]);
    for (char *c = text; *c != 0; c++)
        *c = (char)tolower((unsigned char)*c);
    return text;
}

/* "rmsnorm(b1) * silu(b2+64)" */
static void tell_norm(const struct teller *teller, const struct ops_norm *norm)
{
    char x[ROWS_BYTES], gate[ROWS_BYTES], formula[FORMULA_BYTES];
    FILE *out = teller->out;
    const bool normed = norm->kind != NORM_NONE, gated = norm->gate.data != NULL;
    rows_text(teller, norm->x, x);
    if (gated) {
        rows_text(teller, norm->gate, gate);
        formula_text(norm->formula, formula);
    }
    fprintf(out, "%s", normed ? norms[norm->kind] : "");
    if (gated && norm->gate_first)
        fprintf(out, "(%s * %s(%s))", x, formula, gate);
    else
        fprintf(out, normed ? "(%s)" : "%s", x);
    if (gated && !norm->gate_first)
        fprintf(out, " * %s(%s)", formula, gate);
    if (norm->groups > 1)
        fprintf(out, ", in %d parts", norm->groups);
}

static void tell_matmul(const struct teller *teller, const struct operation *operation)
{
    const struct ops_matmul *matmul = &operation->matmul;
    const struct program_weight *weight = operation->weight;
    const int64_t rows = matmul->chosen > 0 ? weight->rows / weight->heads : weight->rows;
    char y[ROWS_BYTES], x[ROWS_BYTES], choices[ROWS_BYTES], formula[FORMULA_BYTES];
    FILE *out = teller->out;
    fprintf(out, "%s %s ", rows_text(teller, matmul->y, y), matmul->accumulate ? "+=" : "=");
    if (matmul->activation != FORMULA_IDENTITY)
        fprintf(out, "%s of ", formula_text(matmul->activation, formula));
    fprintf(out, "%s [%lld, %lld] ", weight->name, (long long)rows, (long long)weight->cols);
    if (matmul->chosen > 0)
        fprintf(out, "of %d of %d experts, by %s, ", matmul->chosen, weight->heads,
                rows_text(teller, matmul->choices, choices));
    else if (weight->heads > 1)
        fprintf(out, "in %d heads ", weight->heads);
    fprintf(out, "x %s", matmul->by_part ? "parts of " : "");
    if (matmul->norm != NULL)
        tell_norm(teller, &operation->first);
    else
        fprintf(out, "%s", rows_text(teller, matmul->x, x));
}

static void tell_map(const struct teller *teller, const struct ops_map *map)
{
    char to[ROWS_BYTES], u[ROWS_BYTES], w[ROWS_BYTES], formula[FORMULA_BYTES];
    FILE *out = teller->out;
    fprintf(out, "%s = %s(%s", rows_text(teller, map->out, to), formula_text(map->formula, formula),
            rows_text(teller, map->u, u));
    if (map->w.data != NULL)
        fprintf(out, ", %s", rows_text(teller, map->w, w));
    if (map->constant != 0)
        fprintf(out, ", %g", (double)map->constant);
    fprintf(out, ")%s%s of %d columns", map->weight != NULL ? " * weight" : "",
            map->bias != NULL ? " + bias" : "", map->num_cols);
}

/* "a = sigmoid(b2+64)" */
static void tell_factor(const struct teller *teller, const char *name,
                        const struct ops_factor *factor)
{
    char u[ROWS_BYTES], w[ROWS_BYTES], formula[FORMULA_BYTES];
    if (factor->u.data == NULL)
        return;
    fprintf(teller->out, "%s%s = %s(%s", teller->between, name,
            formula_text(factor->formula, formula), rows_text(teller, factor->u, u));
    if (factor->w.data != NULL)
        fprintf(teller->out, ", %s", rows_text(teller, factor->w, w));
    fprintf(teller->out, ")");
}

static void tell_recurrence(const struct teller *teller, const struct operation *operation)
{
    const struct ops_recurrence *a = &operation->recurrence;
    char h[ROWS_BYTES], q[ROWS_BYTES], k[ROWS_BYTES], v[ROWS_BYTES];
    FILE *out = teller->out;
    const bool mapped = a->phi.y_q.data != NULL;
    fprintf(out, "%s = recurrence(q %s, k %s, v %s)", rows_text(teller, a->h, h),
            rows_text(teller, mapped ? a->phi.y_q : a->q, q),
            rows_text(teller, mapped ? a->phi.y_k : a->k, k), rows_text(teller, a->v, v));
    fprintf(out, "%s%d heads (%d of q, %d of v), state [%d, %d]; %s features", teller->between,
            a->num_heads, a->num_qk_heads, a->num_kv_heads, a->value_dim + a->sum_norm, a->features,
            maps[a->phi.map]);
    if (a->phi.before != NULL)
        fprintf(out, " of %s", positions[operation->before.kind]);
    if (a->phi.after != NULL)
        fprintf(out, ", %s", positions[operation->after.kind]);
    tell_factor(teller, "a", &a->row_decay);
    tell_factor(teller, "f", &a->feature_decay);
    tell_factor(teller, "b", &a->input_scale);
    tell_factor(teller, "delta", &a->delta);
    if (a->erase.data != NULL)
        fprintf(out, "%s- (s.%s) %s", teller->between, rows_text(teller, a->erase, q),
                rows_text(teller, a->write, k));
    if (a->skip != NULL)
        fprintf(out, "; + D v");
    if (a->sum_norm)
        fprintf(out, "; over c");
    if (a->chunk_size > 0)
        fprintf(out, "; chunks of %d", a->chunk_size);
}

static void tell_attention(const struct teller *teller, const struct operation *operation)
{
    const struct ops_attention *a = &operation->attention;
    char h[ROWS_BYTES], q[ROWS_BYTES], k[ROWS_BYTES], v[ROWS_BYTES];
    FILE *out = teller->out;
    fprintf(out, "%s = %s(%g q.k) v of q %s, k %s, v %s", rows_text(teller, a->h, h),
            activations[a->activation], (double)a->scale, rows_text(teller, a->q, q),
            rows_text(teller, a->k, k), a->values_in_keys ? "in k" : rows_text(teller, a->v, v));
    fprintf(out, "%s%d heads (%d of k and v) of %d and %d; %s window", teller->between,
            a->num_heads, a->num_kv_heads, a->key_dim, a->value_dim, windows[a->window]);
    if (!window_has(a->window, KEEPS_ALL_KEYS))
        fprintf(out, " of %d", a->window_size);
    if (a->softcap != 0)
        fprintf(out, "; softcap %g", (double)a->softcap);
    if (a->biases != NULL)
        fprintf(out, "; bias %s", positions[a->bias]);
    if (a->sinks != NULL)
        fprintf(out, "; sinks");
}

static void tell_positions(const struct teller *teller, const struct ops_positions *a)
{
    char to[ROWS_BYTES], x[ROWS_BYTES];
    fprintf(teller->out, "%s = %s(%s) of %d heads of q and %d of k, of %d",
            rows_text(teller, a->out, to), positions[a->kind], rows_text(teller, a->x, x),
            a->num_heads, a->num_kv_heads, a->dim);
}

static void tell_segments(const struct teller *teller, const struct ops_segments *a)
{
    char to[ROWS_BYTES], scores[ROWS_BYTES], k[ROWS_BYTES], v[ROWS_BYTES];
    fprintf(teller->out, "%s = %d vectors of each %d tokens of scores %s, k %s, v %s",
            rows_text(teller, a->vectors, to), a->rank, a->length,
            rows_text(teller, a->scores, scores), rows_text(teller, a->k, k),
            rows_text(teller, a->v, v));
}

static void tell_combine(const struct teller *teller, const struct ops_combine *combine)
{
    char to[ROWS_BYTES], from[ROWS_BYTES], choices[ROWS_BYTES];
    fprintf(teller->out, "%s %s sum of %d parts of %s, of %d columns, with the weights of %s",
            rows_text(teller, combine->out, to), combine->accumulate ? "+=" : "=", combine->chosen,
            rows_text(teller, combine->x, from), combine->num_cols,
            rows_text(teller, combine->choices, choices));
}

/* What it computes, without its costs. */
static void tell(const struct teller *teller, const struct operation *operation)
{
    char to[ROWS_BYTES], from[ROWS_BYTES];
    FILE *out = teller->out;
    switch (operation->kind) {
    case OPERATION_EMBED:
        fprintf(out, "%s = embeddings of tokens%s", rows_text(teller, operation->embed.x, to),
                operation->embed.position_embedding == POSITION_EMBEDDING_NONE ? ""
                                                                               : " and positions");
        break;
    case OPERATION_NORM:
        fprintf(out, "%s = ", rows_text(teller, operation->norm.y, to));
        tell_norm(teller, &operation->norm);
        break;
    case OPERATION_MATMUL:
        tell_matmul(teller, operation);
        break;
    case OPERATION_ROUTE:
        fprintf(out, "%s = %d of %d experts by scores %s%s%s",
                rows_text(teller, operation->route.choices, to), operation->route.chosen,
                operation->route.num_experts, rows_text(teller, operation->route.scores, from),
                operation->route.rule.renormalize ? ", weights renormalized" : "",
                operation->route.scale != NULL ? ", times factors" : "");
        break;
    case OPERATION_COMBINE:
        tell_combine(teller, &operation->combine);
        break;
    case OPERATION_MAP:
        tell_map(teller, &operation->map);
        break;
    case OPERATION_CONV:
        fprintf(out, "%s convolved, %d tokens of %d channels, %s",
                rows_text(teller, operation->conv.x, to), operation->conv.width,
                operation->conv.channels,
                operation->conv.activation == FORMULA_SILU ? "silu" : "as it is");
        break;
    case OPERATION_ANGLES:
        fprintf(out, "%s, %s = cos and sin of %d angles",
                rows_text(teller, operation->angles.cosines, to),
                rows_text(teller, operation->angles.sines, from), operation->angles.count);
        break;
    case OPERATION_POSITIONS:
        tell_positions(teller, &operation->positions);
        break;
    case OPERATION_RECURRENCE:
        tell_recurrence(teller, operation);
        break;
    case OPERATION_SEGMENTS:
        tell_segments(teller, &operation->segments);
        break;
    case OPERATION_ATTENTION:
        tell_attention(teller, operation);
        break;
    case OPERATION_GATHER:
        fprintf(out, "%s = the rows of %s that want logits",
                rows_text(teller, operation->gather.out, to),
                rows_text(teller, operation->gather.x, from));
        break;
    }
    if (operation->when == WHEN_SOME_LOGITS)
        fprintf(out, " (where some rows want logits)");
    if (operation->when == WHEN_ALL_LOGITS)
        fprintf(out, " (where all do)");
    if (operation->when == WHEN_HIDDEN)
        fprintf(out, " (where hidden rows are wanted)");
}

/* between: see struct teller. NULL: no memory. The caller frees it. */
static char *text_of(const struct program *program, int number, const char *between)
{
    char *text = NULL;
    size_t size;
    const struct teller teller = {program, number, between, open_memstream(&text, &size)};
    if (teller.out == NULL)
        return NULL;
    tell(&teller, &program->operations[number]);
    if (fclose(teller.out) == 0)
        return text;
    free(text);
    return NULL;
}

static void print_place(const struct program *program, int number)
{
    const int layer = program->operations[number].layer;
    if (number > 0 && layer == program->operations[number - 1].layer)
        return;
    if (layer != OPERATION_OF_NO_LAYER)
        printf("  layer %d\n", layer);
    else
        printf("  %s the layers\n", number == 0 ? "before" : "behind");
}

int info_program_print(const struct engine *engine, struct error *err)
{
    const struct program *program = engine_program(engine);
    char a[SIZE_TEXT], b[SIZE_TEXT];
    printf("program            %d operations on %d buffers (b0, b1, ...), which share %s\n"
           "                   b1+64: from column 64 on; operations and state are those of a "
           "text's first token\n",
           program->num_operations, program->num_buffers,
           size_text((double)program->memory_bytes, a));
    for (int i = 0; i < program->num_operations; i++) {
        const struct operation *operation = &program->operations[i];
        const struct cost cost = cost_of_operation(operation);
        char *text = text_of(program, i, "\n                     ");
        if (text == NULL)
            return error_set(err, ERROR_NO_MEMORY, "program: no memory");
        print_place(program, i);
        printf("    %3d %-10s %s", i, operation_name(operation->kind), text);
        if (operation->weight != NULL)
            printf("; weights %s", size_text(operation->weight->bytes, a));
        if (cost.bytes > 0)
            printf("; state %s", size_text(cost.bytes, b));
        if (cost.operations > 0)
            printf("; %.3f million operations", cost.operations / 1e6);
        printf("\n");
        free(text);
    }
    return 0;
}

static json_t *operation_json(const struct program *program, int number)
{
    const struct operation *operation = &program->operations[number];
    const struct cost cost = cost_of_operation(operation);
    const bool counts = operation->weight != NULL && operation->when != WHEN_ALL_LOGITS;
    char *text = text_of(program, number, "; ");
    json_t *json = json_pack(
        "{ss so ss sI sI sI}", "operation", operation_name(operation->kind), "layer",
        operation->layer == OPERATION_OF_NO_LAYER ? json_null() : json_integer(operation->layer),
        "text", text, "weights_bytes", (json_int_t)(counts ? operation->weight->bytes : 0),
        "state_bytes", (json_int_t)cost.bytes, "operations", (json_int_t)cost.operations);
    free(text);
    return json;
}

json_t *info_program_json(const struct engine *engine)
{
    const struct program *program = engine_program(engine);
    json_t *operations = json_array();
    for (int i = 0; operations && i < program->num_operations; i++)
        if (json_array_append_new(operations, operation_json(program, i)) != 0) {
            json_decref(operations);
            return NULL;
        }
    return operations;
}
