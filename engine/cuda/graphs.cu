/* SPDX-License-Identifier: Apache-2.0 */
/* Records the launches of repeated decode steps once, and then launches each such step as one
 * graph: a step of some hundred small kernels is bound by their launches.
 *
 * A graph contains a step's launches with their arguments. These depend only on the model, the
 * number of rows, whether all of them draw, and the longest context, rounded up to a power of two
 * (as far as windows reach). Steps are of one kind when these are equal; to have few kinds, steps
 * are padded to certain numbers of rows. The first step of a kind runs as it is, since it may be
 * the only one; the second is recorded; later ones are one launch. Where kernels read the host's
 * images, of which there are two that alternate, a kind has two graphs: the third step is recorded,
 * too. */
#include "engine/cuda/step.h"

enum { MOST_KINDS = 64 };

struct kind {
    struct graph_key key;
    cudaGraphExec_t graphs[2]; /* by image; NULL: not recorded yet */
};

struct graphs {
    struct kind kinds[MOST_KINDS];
    int num_kinds;
    cudaGraphExec_t *current; /* of the step that is being recorded or replayed */
    bool recording;
};

int graphs_bucket(const struct backend *backend, int rows)
{
    static const int buckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
    int most = backend->limits.max_rows < backend->limits.max_logits ? backend->limits.max_rows
                                                                     : backend->limits.max_logits;
    if (rows > most || backend->profiler != NULL)
        return 0;
    for (int bucket : buckets)
        if (bucket >= rows)
            return bucket < most ? bucket : most;
    return 0;
}

static void forget(struct graphs *graphs)
{
    for (int i = 0; i < graphs->num_kinds; i++)
        for (cudaGraphExec_t graph : graphs->kinds[i].graphs)
            if (graph != NULL)
                cudaGraphExecDestroy(graph);
    graphs->num_kinds = 0;
    graphs->current = NULL;
}

void graphs_close(struct backend *backend)
{
    if (backend->graphs != NULL)
        forget(backend->graphs);
    free(backend->graphs);
    backend->graphs = NULL;
}

static struct kind *find(struct graphs *graphs, const struct graph_key *key)
{
    for (int i = 0; i < graphs->num_kinds; i++) {
        const struct graph_key *other = &graphs->kinds[i].key;
        if (other->rows == key->rows && other->draws == key->draws &&
            other->max_end == key->max_end)
            return &graphs->kinds[i];
    }
    return NULL;
}

void graphs_begin(struct backend *backend, const struct graph_key *key)
{
    backend->replaying = false;
    if (key->rows == 0 || backend->failure != cudaSuccess)
        return;
    if (backend->graphs == NULL)
        backend->graphs = static_cast<struct graphs *>(calloc(1, sizeof *backend->graphs));
    struct graphs *graphs = backend->graphs;
    if (graphs == NULL)
        return; /* the step runs without */
    struct kind *kind = find(graphs, key);
    if (kind == NULL) {
        if (graphs->num_kinds == MOST_KINDS)
            forget(graphs);
        graphs->kinds[graphs->num_kinds++] = {*key, {NULL, NULL}};
        return;
    }
    graphs->current = &kind->graphs[key->image];
    backend->replaying = *graphs->current != NULL;
    if (!backend->replaying)
        graphs->recording = device_check(
            backend, cudaStreamBeginCapture(backend->stream, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
}

static void end_recording(struct backend *backend, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    if (!device_check(backend, cudaStreamEndCapture(backend->stream, &graph),
                      "cudaStreamEndCapture"))
        return;
    if (out != NULL)
        device_check(backend, cudaGraphInstantiate(out, graph, 0), "cudaGraphInstantiate");
    device_check(backend, cudaGraphDestroy(graph), "cudaGraphDestroy");
}

void graphs_finish(struct backend *backend)
{
    struct graphs *graphs = backend->graphs;
    backend->replaying = false;
    if (graphs == NULL)
        return;
    if (graphs->recording) {
        graphs->recording = false;
        end_recording(backend, graphs->current);
    }
    if (graphs->current != NULL && *graphs->current != NULL)
        device_check(backend, cudaGraphLaunch(*graphs->current, backend->stream),
                     "cudaGraphLaunch");
    graphs->current = NULL;
}
