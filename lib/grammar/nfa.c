/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/nfa.h"

#include "lib/text/buffer.h"

#include <stdlib.h>

int nfa_begin(struct nfa *nfa, struct work *work, struct error *err)
{
    *nfa = (struct nfa){.work = work, .num_states = 2};
    return array_grow((void **)&nfa->edges, &nfa->edges_capacity, 16, sizeof *nfa->edges, err);
}

uint32_t nfa_state(struct nfa *nfa)
{
    return nfa->num_states++;
}

int nfa_edge(struct nfa *nfa, uint32_t from, uint32_t to, int32_t set, struct error *err)
{
    if (nfa->num_edges >= NFA_MOST_EDGES)
        return error_set(err, ERROR_UNSUPPORTED,
                         "expected an expression of at most %d steps, repetitions written out, got "
                         "a longer one",
                         NFA_MOST_EDGES);
    if (array_grow((void **)&nfa->edges, &nfa->edges_capacity, nfa->num_edges + 1,
                   sizeof *nfa->edges, err))
        return -1;
    nfa->edges[nfa->num_edges++] = (struct nfa_edge){from, to, set};
    return 0;
}

int32_t nfa_set(struct nfa *nfa, struct charset *set, struct error *err)
{
    if (work_add(nfa->work, nfa->num_sets + set->count + 16, err)) {
        charset_clear(set);
        return -1;
    }
    for (size_t i = 0; i < nfa->num_sets; i++)
        if (charset_equal(&nfa->sets[i], set)) {
            charset_clear(set);
            return (int32_t)i;
        }
    if (array_grow((void **)&nfa->sets, &nfa->sets_capacity, nfa->num_sets + 1, sizeof *nfa->sets,
                   err)) {
        charset_clear(set);
        return -1;
    }
    nfa->sets[nfa->num_sets] = *set;
    *set = (struct charset){0};
    return (int32_t)nfa->num_sets++;
}

int32_t nfa_character(struct nfa *nfa, uint32_t c, struct error *err)
{
    struct charset set = {0};
    if (charset_add(&set, c, c, err))
        return -1;
    return nfa_set(nfa, &set, err);
}

void nfa_clear(struct nfa *nfa)
{
    for (size_t i = 0; i < nfa->num_sets; i++)
        charset_clear(&nfa->sets[i]);
    free(nfa->sets);
    free(nfa->edges);
    *nfa = (struct nfa){0};
}
