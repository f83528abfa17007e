/* Feature maps: the matrix some of them have, and where their maxima lie in a slot. The maps
 * themselves are formula_features in engine/formulas.h. */
#include "engine/mixers/mixer.h"

#include <math.h>

/* Height of a head's matrix W, 0 for the maps without one. */
static int map_rows(const struct mixer *config)
{
    switch (config->feature_map) {
    case FEATURE_FAVOR:
    case FEATURE_COS_SIN:
        return config->feature_rows;
    case FEATURE_HEDGEHOG:
        return config->head_dim;
    default:
        return 0;
    }
}

static int pack_heads(struct mixer_layer *layer, struct mixer_context *context, const float *data,
                      struct weight **out, struct error *err)
{
    const struct mixer *config = layer->config;
    struct matrix matrix = {
        .rows = (int64_t)config->num_heads * map_rows(config),
        .cols = config->head_dim,
        .dtype = DTYPE_F32,
        .data = data,
    };
    if (context->ops->weight_create(context->backend, out, &matrix, 1, config->num_heads, err) != 0)
        return -1;
    context->weights_bytes += context->ops->weight_bytes(*out);
    return 0;
}

int mixer_features_create(struct mixer_layer *layer, struct mixer_context *context,
                          struct error *err)
{
    const struct mixer *config = layer->config;
    mixer_widen(&context->widths.features, (int64_t)config->num_heads * config->features);
    mixer_widen(&context->widths.mapped, (int64_t)config->num_heads * map_rows(config));
    const struct state_part maxima = {
        .kind = STATE_PART_MAXIMA,
        .layer = context->layer,
        .heads = config->num_kv_heads,
        .rows = 1,
        .features = 1,
        .head_bytes = sizeof(float),
    };
    if (formula_is_exponential(config->feature_map) &&
        state_layout_add(&context->layout, maxima, &layer->maxima_offset, err) != 0)
        return -1;
    switch (config->feature_map) {
    case FEATURE_FAVOR:
    case FEATURE_COS_SIN:
        if (pack_heads(layer, context, config->feature_weight, &layer->feature_q, err) != 0)
            return -1;
        layer->feature_k = layer->feature_q;
        return 0;
    case FEATURE_HEDGEHOG:
        if (pack_heads(layer, context, config->feature_q, &layer->feature_q, err) != 0)
            return -1;
        return pack_heads(layer, context, config->feature_k, &layer->feature_k, err);
    default:
        return 0;
    }
}

/* The factor of phi(q), by `query_scale`. */
static float query_factor(const struct mixer *config)
{
    double m = config->features, e = exp(1.0);
    switch (config->query_scale) {
    case QUERY_SCALE_NONE:
        return 1.0f;
    case QUERY_SCALE_SQRT_DIM:
        return (float)(1.0 / sqrt(m));
    case QUERY_SCALE_EXP_VARIANCE: /* ReGLA section 3.1 */
        return (float)(1.0 / (e * sqrt(m * (e * e - 1.0))));
    }
    return 1.0f;
}

void mixer_features_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, int num_rows,
                        bool keys, struct rows z, struct rows out)
{
    const struct mixer *config = layer->config;
    const struct weight *weight = keys ? layer->feature_k : layer->feature_q;
    if (weight != NULL)
        ops->matmul(backend,
                    &(struct ops_matmul){
                        .weight = weight, .num_rows = num_rows, .x = z, .y = workspace->mapped});
    ops->features(backend, &(struct ops_features){
                               .map = config->feature_map,
                               .keys = keys,
                               .scale = keys ? 1.0f : query_factor(config),
                               .num_heads = keys ? config->num_kv_heads : config->num_heads,
                               .head_dim = config->head_dim,
                               .feature_rows = map_rows(config),
                               .features = config->features,
                               .dpfp_nu = config->dpfp_nu,
                               .z = z,
                               .y = workspace->mapped,
                               .phi = out,
                               .rescale = workspace->rescale,
                               .maxima_offset = layer->maxima_offset,
                           });
}
