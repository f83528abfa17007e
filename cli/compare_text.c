/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/compare.h"

#include "engine/engine.h"

static int predicted(void *context, const struct prediction *prediction, struct error *err)
{
    struct comparison *c = context;
    return divergences_add(&c->divergences, prediction->logits[0], prediction->logits[1],
                           engine_info(c->models[0].engine)->vocab_size, err);
}

int compare_open_text(struct comparison *c, struct error *err)
{
    c->scoring = (struct scoring){.options = &c->options->scoring,
                                  .models = c->models,
                                  .num_models = COMPARED,
                                  .context = c,
                                  .predicted = predicted};
    return scoring_open(&c->scoring, c->text, err);
}

int compare_text(struct comparison *c, struct error *err)
{
    if (scoring_run(&c->scoring, err) != 0)
        return -1;
    c->divergence = divergences_summary(&c->divergences);
    return 0;
}
