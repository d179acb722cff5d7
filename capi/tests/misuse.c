/* Wrong calls: each must return the status of its fault, with a message that names it. Compiled as
 * C11 and as C++17: misuse FOLDER, an empty one. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tagore.h>

enum { ROWS = 300, DIM = 8, K = 5, QUERIES = 4, WORDS = (ROWS + 63) / 64 };

static int calls, faults;
static char folder[1024];

/* Counts a call whose status or message is another. */
static void expect(tagore_status expected, const char *part, tagore_status found, const char *call, int line) {
    const char *message = tagore_last_error();
    calls++;
    if (found != expected) {
        printf("line %d: status %d, expected %d: %s: %s\n", line, (int)found, (int)expected, call, message);
        faults++;
    } else if (found != TAGORE_OK && (!strstr(message, part) || strchr(message, '\n'))) {
        printf("line %d: no \"%s\" in the message: %s: %s\n", line, part, call, message);
        faults++;
    }
}

#define FAILS(status, part, call) expect(TAGORE_ERROR_##status, part, call, #call, __LINE__)
#define WORKS(call) expect(TAGORE_OK, "", call, #call, __LINE__)
#define HOLDS(condition) holds(condition, #condition, __LINE__)

static void holds(int condition, const char *text, int line) {
    if (!condition) {
        printf("line %d: not so: %s\n", line, text);
        faults++;
    }
}

/* A struct with its size set, and all else zero. */
#define SIZED(type, name)                                                                                           \
    type name;                                                                                                      \
    memset(&name, 0, sizeof name);                                                                                  \
    name.size = sizeof name

static float base[ROWS * DIM], asked[QUERIES * DIM];

/* The handles that wrong calls are made with. */
static tagore_vectors *vectors, *others;
static tagore_builder *builder;
static tagore_index *made;
static tagore_searcher *searcher;
static tagore_knn_graph *graph;
static tagore_id_set *set;

static const char *at(const char *name) {
    static char path[4][2048];
    static unsigned next;
    char *here = path[next++ % 4];
    snprintf(here, sizeof path[0], "%s/%s", folder, name);
    return here;
}

static tagore_matrix matrix_of(const void *data, size_t rows) {
    SIZED(tagore_matrix, matrix);
    matrix.data = data;
    matrix.rows = rows;
    matrix.dim = DIM;
    return matrix;
}

static int32_t stop(void *context, const tagore_update *update) {
    int *seen = (int *)context;
    (*seen)++;
    return update->size == sizeof *update && strlen(update->stage) > 0 ? 1 : 0;
}

static int released;

static void release(void *context) {
    (void)context;
    released++;
}

static void set_up(void) {
    uint32_t seed = 1;
    for (size_t i = 0; i < ROWS * DIM; i++) {
        seed = seed * 1664525u + 1013904223u;
        base[i] = (float)(seed >> 8);
    }
    memcpy(asked, base, sizeof asked);
    tagore_matrix matrix = matrix_of(base, ROWS);
    tagore_matrix fewer = matrix_of(base, ROWS - 1);
    WORKS(tagore_vectors_from_memory(&matrix, NULL, NULL, &vectors));
    WORKS(tagore_vectors_from_memory(&fewer, NULL, NULL, &others));
    WORKS(tagore_builder_create("nsg", &builder));
    WORKS(tagore_builder_set(builder, "device", "cpu"));
    WORKS(tagore_builder_set(builder, "knn", "16"));
    WORKS(tagore_builder_build(builder, vectors, NULL, NULL, &made));
    WORKS(tagore_builder_knn_graph(builder, vectors, NULL, &graph));
    WORKS(tagore_searcher_create(made, vectors, NULL, NULL, &searcher));
    uint64_t words[WORDS] = {1, 0, 1, 0, 0};
    WORKS(tagore_id_set_create(ROWS, words, WORDS, &set));
}

static void matrices(void) {
    tagore_vectors *out = vectors;
    tagore_matrix good = matrix_of(base, ROWS), wrong = good;
    FAILS(ARGUMENT, "tagore_matrix", tagore_vectors_from_memory(NULL, NULL, NULL, &out));
    HOLDS(out == NULL);
    FAILS(ARGUMENT, "out", tagore_vectors_from_memory(&good, NULL, NULL, NULL));
    wrong.size = 0;
    FAILS(ARGUMENT, "sizeof(tagore_matrix)", tagore_vectors_from_memory(&wrong, NULL, NULL, &out));
    wrong.size = 8;
    FAILS(ARGUMENT, "size: found 8", tagore_vectors_from_memory(&wrong, NULL, NULL, &out));
    wrong.size = SIZE_MAX;
    FAILS(ARGUMENT, "size", tagore_vectors_from_memory(&wrong, NULL, NULL, &out));
    wrong = good;
    wrong.data = NULL;
    FAILS(ARGUMENT, "data: found a null pointer", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.data = (const char *)base + 1;
    FAILS(ARGUMENT, "a multiple of 4", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong = good;
    wrong.rows = SIZE_MAX;
    FAILS(ARGUMENT, "rows", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.rows = SIZE_MAX / DIM / 4;
    FAILS(ARGUMENT, "memory", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.rows = 4294967295u;
    FAILS(ARGUMENT, "rows: found 4294967295", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong = good;
    wrong.dim = 0;
    FAILS(ARGUMENT, "dim: found 0", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.dim = 4097;
    FAILS(ARGUMENT, "dim: found 4097", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.dim = SIZE_MAX;
    FAILS(ARGUMENT, "rows", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong = good;
    wrong.stride = DIM - 1;
    FAILS(ARGUMENT, "stride: found 7", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.stride = SIZE_MAX;
    FAILS(ARGUMENT, "fit memory", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong = good;
    wrong.element = TAGORE_B1 + 1;
    FAILS(ARGUMENT, "element: found 6", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.element = -1;
    FAILS(ARGUMENT, "element", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong = good;
    wrong.memory = 2;
    FAILS(ARGUMENT, "TAGORE_HOST or TAGORE_CUDA", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.memory = TAGORE_CUDA;
    wrong.device = -1;
    FAILS(ARGUMENT, "device: found -1", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.device = 0;
    wrong.dim = 0;
    FAILS(ARGUMENT, "dim: found 0", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.dim = DIM;
    wrong.stride = DIM - 1;
    FAILS(ARGUMENT, "stride: found 28", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    wrong.stride = 0;
    wrong.device = 1 << 20;
    FAILS(DEVICE, "cuda:1048576", tagore_vectors_from_memory(&wrong, release, NULL, &out));
    HOLDS(released == 0 && out == NULL);

    /* A newer program's longer struct is taken if the library knows all that it uses. */
    struct {
        tagore_matrix known;
        uint64_t later;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known = good;
    newer.known.size = sizeof newer;
    WORKS(tagore_vectors_from_memory(&newer.known, release, NULL, &out));
    tagore_vectors_free(out);
    HOLDS(released == 1);
    newer.later = 1;
    FAILS(ARGUMENT, "newer libtagore", tagore_vectors_from_memory(&newer.known, release, NULL, &out));

    SIZED(tagore_matrix, read);
    FAILS(ARGUMENT, "vectors", tagore_vectors_matrix(NULL, &read));
    FAILS(ARGUMENT, "tagore_matrix", tagore_vectors_matrix(vectors, NULL));
    read.size = 1;
    FAILS(ARGUMENT, "size: found 1", tagore_vectors_matrix(vectors, &read));
    read.size = sizeof read;
    WORKS(tagore_vectors_matrix(vectors, &read));
    HOLDS(read.data == base && read.rows == ROWS && read.stride == DIM && read.element == TAGORE_F32);
}

/* What a source does: fails at a row, and counts its calls. */
struct filling {
    size_t fails_at;
    int calls;
};

static int32_t fill(void *context, size_t first_row, size_t rows, void *out) {
    struct filling *filling = (struct filling *)context;
    filling->calls++;
    if (first_row <= filling->fails_at && filling->fails_at < first_row + rows) {
        return 5;
    }
    memcpy(out, base + first_row * DIM, rows * DIM * sizeof(float));
    return 0;
}

static void sources(void) {
    tagore_vectors *out = NULL;
    struct filling filling = {SIZE_MAX, 0};
    SIZED(tagore_source, good);
    good.fill = fill;
    good.context = &filling;
    good.rows = ROWS;
    good.dim = DIM;
    tagore_source wrong = good;
    FAILS(ARGUMENT, "tagore_source", tagore_vectors_from_source(NULL, NULL, &out));
    FAILS(ARGUMENT, "out", tagore_vectors_from_source(&good, NULL, NULL));
    wrong.fill = NULL;
    FAILS(ARGUMENT, "fill", tagore_vectors_from_source(&wrong, NULL, &out));
    wrong = good;
    wrong.dim = 0;
    FAILS(ARGUMENT, "dim", tagore_vectors_from_source(&wrong, NULL, &out));
    wrong = good;
    wrong.rows = SIZE_MAX;
    FAILS(ARGUMENT, "rows", tagore_vectors_from_source(&wrong, NULL, &out));
    wrong = good;
    wrong.element = 99;
    FAILS(ARGUMENT, "element: found 99", tagore_vectors_from_source(&wrong, NULL, &out));
    wrong = good;
    wrong.spool_folder = at("no/such/folder");
    FAILS(IO, "no/such/folder", tagore_vectors_from_source(&wrong, NULL, &out));
    HOLDS(filling.calls == 0);
    wrong = good;
    filling.fails_at = 17;
    FAILS(CALLBACK, "the callback returned 5", tagore_vectors_from_source(&wrong, NULL, &out));
    HOLDS(filling.calls == 1);
    wrong.spool_folder = folder;
    FAILS(CALLBACK, "source: row 0", tagore_vectors_from_source(&wrong, NULL, &out));
    HOLDS(out == NULL);

    /* 64 TiB: memory is short, or the callback fails before it is touched. */
    filling.fails_at = 0;
    wrong = good;
    wrong.rows = 4294967294u;
    wrong.dim = 4096;
    const tagore_status huge = tagore_vectors_from_source(&wrong, NULL, &out);
    calls++;
    HOLDS(huge == TAGORE_ERROR_MISMATCH || huge == TAGORE_ERROR_CALLBACK);

    int seen = 0;
    SIZED(tagore_progress, cancel);
    cancel.watch = stop;
    cancel.context = &seen;
    filling.fails_at = SIZE_MAX;
    FAILS(CANCELLED, "interrupted", tagore_vectors_from_source(&good, &cancel, &out));
    HOLDS(seen > 0);
    cancel.size = 2;
    FAILS(ARGUMENT, "sizeof(tagore_progress)", tagore_vectors_from_source(&good, &cancel, &out));
    WORKS(tagore_vectors_from_source(&good, NULL, &out));
    tagore_vectors_free(out);
}

static void files(void) {
    tagore_vectors *read = vectors;
    tagore_index *opened = made;
    FAILS(ARGUMENT, "file", tagore_vectors_open(NULL, NULL, &read));
    FAILS(IO, "missing.fbin", tagore_vectors_open(at("missing.fbin"), NULL, &read));
    HOLDS(read == NULL);
    FAILS(ARGUMENT, "out", tagore_vectors_open(at("missing.fbin"), NULL, NULL));
    FAILS(FILE, "a folder", tagore_vectors_open(folder, NULL, &read));
    FAILS(ARGUMENT, "format: found xyz", tagore_vectors_open(at("x.fbin"), "xyz", &read));
    FAILS(ARGUMENT, "UTF-8", tagore_vectors_open(at("x.fbin"), "\xff", &read));
    FAILS(ARGUMENT, "vectors", tagore_vectors_save(NULL, at("x.fbin"), NULL, NULL));
    FAILS(ARGUMENT, "file", tagore_vectors_save(vectors, NULL, NULL, NULL));
    FAILS(FILE, "no/x.fbin", tagore_vectors_save(vectors, at("no/x.fbin"), NULL, NULL));
    WORKS(tagore_vectors_save(vectors, at("x.fbin"), NULL, NULL));
    FAILS(IO, "missing.tagore", tagore_index_open(at("missing.tagore"), &opened));
    HOLDS(opened == NULL);
    FAILS(FILE, "x.fbin", tagore_index_open(at("x.fbin"), &opened));
    FAILS(ARGUMENT, "file", tagore_index_open(NULL, &opened));
    FAILS(ARGUMENT, "out", tagore_index_open(at("x.tagore"), NULL));
    FAILS(ARGUMENT, "index", tagore_index_save(NULL, at("x.tagore")));
    FAILS(ARGUMENT, "file", tagore_index_save(made, NULL));
    FAILS(FILE, "no/x.tagore", tagore_index_save(made, at("no/x.tagore")));

    SIZED(tagore_export_options, options);
    FAILS(ARGUMENT, "index", tagore_index_export(NULL, at("x.nsg"), NULL, NULL, NULL));
    FAILS(FILE, "extension", tagore_index_export(made, at("x.what"), NULL, NULL, NULL));
    FAILS(ARGUMENT, "format: found what", tagore_index_export(made, at("x.nsg"), "what", NULL, NULL));
    FAILS(ARGUMENT, "base", tagore_index_export(made, at("x.hnswlib"), NULL, &options, NULL));
    options.vectors = others;
    FAILS(MISMATCH, "299", tagore_index_export(made, at("x.hnswlib"), NULL, &options, NULL));
    options.vectors = NULL;
    options.layers = 1;
    FAILS(ARGUMENT, "layers", tagore_index_export(made, at("x.nsg"), NULL, &options, NULL));
    WORKS(tagore_index_export(made, at("x.nsg"), NULL, NULL, NULL));
    FAILS(ARGUMENT, "vectors", tagore_index_import(at("x.nsg"), NULL, NULL, TAGORE_L2, NULL, &opened));
    FAILS(ARGUMENT, "metric: found 3", tagore_index_import(at("x.nsg"), NULL, vectors, 3, NULL, &opened));
    FAILS(FILE, "x.fbin", tagore_index_import(at("x.fbin"), "hnswlib", vectors, TAGORE_L2, NULL, &opened));
    WORKS(tagore_index_import(at("x.nsg"), NULL, vectors, TAGORE_L2, NULL, &opened));
    tagore_index_free(opened);
}

/* A k-NN graph into arrays of the program. */
static void lists_into(void) {
    static uint32_t ids[ROWS * 16];
    static float distances[ROWS * 16];
    const uint32_t *expected = NULL;
    const float *far = NULL;
    size_t count = 0;
    SIZED(tagore_results, results);
    results.ids = ids;
    results.distances = distances;
    results.slots = ROWS * 16;
    WORKS(tagore_builder_knn_graph_into(builder, vectors, NULL, &results));
    WORKS(tagore_knn_graph_neighbors(graph, ROWS - 1, &expected, &far, &count));
    HOLDS(count == 16 && memcmp(ids + (ROWS - 1) * 16, expected, 16 * sizeof *ids) == 0);
    HOLDS(memcmp(distances + (ROWS - 1) * 16, far, 16 * sizeof *far) == 0);
    FAILS(ARGUMENT, "builder", tagore_builder_knn_graph_into(NULL, vectors, NULL, &results));
    FAILS(ARGUMENT, "vectors", tagore_builder_knn_graph_into(builder, NULL, NULL, &results));
    FAILS(ARGUMENT, "tagore_results", tagore_builder_knn_graph_into(builder, vectors, NULL, NULL));
    results.memory = TAGORE_CUDA;
    results.device = 1 << 20;
    FAILS(DEVICE, "cuda:1048576", tagore_builder_knn_graph_into(builder, vectors, NULL, &results));
    results.memory = TAGORE_HOST;
    results.slots--;
    FAILS(ARGUMENT, "slots: found 4799", tagore_builder_knn_graph_into(builder, vectors, NULL, &results));
}

static void builders(void) {
    tagore_builder *out = builder;
    tagore_index *built = NULL;
    tagore_knn_graph *lists = NULL;
    char *text = NULL;
    FAILS(ARGUMENT, "index: found hnsw", tagore_builder_create("hnsw", &out));
    HOLDS(out == NULL);
    FAILS(ARGUMENT, "kind", tagore_builder_create(NULL, &out));
    FAILS(ARGUMENT, "out", tagore_builder_create("nsg", NULL));
    FAILS(ARGUMENT, "builder", tagore_builder_set(NULL, "knn", "8"));
    FAILS(ARGUMENT, "name", tagore_builder_set(builder, NULL, "8"));
    FAILS(ARGUMENT, "value", tagore_builder_set(builder, "knn", NULL));
    FAILS(ARGUMENT, "parameter: found degre", tagore_builder_set(builder, "degre", "8"));
    FAILS(ARGUMENT, "degree: found 0", tagore_builder_set(builder, "degree", "0"));
    FAILS(ARGUMENT, "degree: found -1", tagore_builder_set(builder, "degree", "-1"));
    FAILS(ARGUMENT, "degree", tagore_builder_set(builder, "degree", "99999999999999999999999999"));
    FAILS(ARGUMENT, "device: found gpu", tagore_builder_set(builder, "device", "gpu"));
    FAILS(ARGUMENT, "metric", tagore_builder_set(builder, "metric", "L2"));
    FAILS(ARGUMENT, "angle", tagore_builder_set(builder, "angle", "60"));
    FAILS(ARGUMENT, "builder", tagore_builder_plan(NULL, ROWS, DIM, TAGORE_F32, &text));
    FAILS(ARGUMENT, "n: found", tagore_builder_plan(builder, SIZE_MAX, DIM, TAGORE_F32, &text));
    FAILS(ARGUMENT, "dim", tagore_builder_plan(builder, ROWS, SIZE_MAX, TAGORE_F32, &text));
    FAILS(ARGUMENT, "element", tagore_builder_plan(builder, ROWS, DIM, 17, &text));
    FAILS(ARGUMENT, "out", tagore_builder_plan(builder, ROWS, DIM, TAGORE_F32, NULL));
    HOLDS(text == NULL);
    WORKS(tagore_builder_plan(builder, 1000000, 128, TAGORE_U8, &text));
    HOLDS(text && strstr(text, "\"host_bytes\":") && strstr(text, "\"seconds\":{"));
    tagore_text_free(text);

    FAILS(ARGUMENT, "builder", tagore_builder_build(NULL, vectors, NULL, NULL, &built));
    FAILS(ARGUMENT, "vectors", tagore_builder_build(builder, NULL, NULL, NULL, &built));
    FAILS(ARGUMENT, "out", tagore_builder_build(builder, vectors, NULL, NULL, NULL));
    FAILS(MISMATCH, "k-NN graph", tagore_builder_build(builder, others, graph, NULL, &built));
    FAILS(ARGUMENT, "vectors", tagore_builder_knn_graph(builder, NULL, NULL, &lists));
    lists_into();
    WORKS(tagore_builder_create("nsg", &out));
    WORKS(tagore_builder_set(out, "knn", "300"));
    FAILS(ARGUMENT, "knn: found 300", tagore_builder_build(out, vectors, NULL, NULL, &built));
    FAILS(ARGUMENT, "knn: found 300", tagore_builder_knn_graph(out, vectors, NULL, &lists));
    WORKS(tagore_builder_set(out, "device", "cuda:99"));
    FAILS(DEVICE, "cuda:99", tagore_builder_build(out, vectors, NULL, NULL, &built));
    FAILS(DEVICE, "cuda:99", tagore_builder_plan(out, ROWS, DIM, TAGORE_F32, &text));
    tagore_builder_free(out);

    float wrong[ROWS * DIM];
    memcpy(wrong, base, sizeof wrong);
    wrong[100] = NAN;
    tagore_matrix matrix = matrix_of(wrong, ROWS);
    tagore_vectors *unfit = NULL;
    WORKS(tagore_vectors_from_memory(&matrix, NULL, NULL, &unfit));
    FAILS(VALUE, "NaN", tagore_builder_build(builder, unfit, NULL, NULL, &built));
    tagore_vectors_free(unfit);
    matrix.rows = 0;
    WORKS(tagore_vectors_from_memory(&matrix, NULL, NULL, &unfit));
    FAILS(MISMATCH, "", tagore_builder_build(builder, unfit, NULL, NULL, &built));
    tagore_vectors_free(unfit);

    SIZED(tagore_limits, limits);
    const char *file = at("clusters.tagore");
    FAILS(ARGUMENT, "builder", tagore_builder_build_file(NULL, vectors, file, NULL, NULL));
    FAILS(ARGUMENT, "vectors", tagore_builder_build_file(builder, NULL, file, NULL, NULL));
    FAILS(ARGUMENT, "file", tagore_builder_build_file(builder, vectors, NULL, NULL, NULL));
    FAILS(FILE, "no such folder", tagore_builder_build_file(builder, vectors, at("no/x"), NULL, NULL));
    limits.host_memory = 1;
    FAILS(ARGUMENT, "host_memory", tagore_builder_build_file(builder, vectors, file, &limits, NULL));
    limits.size--;
    FAILS(ARGUMENT, "sizeof(tagore_limits)", tagore_builder_build_file(builder, vectors, file, &limits, NULL));

    int seen = 0;
    SIZED(tagore_progress, cancel);
    cancel.watch = stop;
    cancel.context = &seen;
    FAILS(CANCELLED, "interrupted", tagore_builder_build_file(builder, vectors, file, NULL, &cancel));
    FAILS(CANCELLED, "interrupted", tagore_builder_build(builder, vectors, NULL, &cancel, &built));
    FAILS(CANCELLED, "interrupted", tagore_builder_knn_graph(builder, others, &cancel, &lists));
    HOLDS(built == NULL && lists == NULL && seen > 0);
}

static int32_t take(void *context, uint32_t node, const uint32_t *neighbors, size_t count) {
    uint32_t *fails_at = (uint32_t *)context;
    return node == *fails_at || (count > 0 && neighbors[0] >= ROWS) ? 7 : 0;
}

static int32_t refuse(void *context, const uint32_t *entries, size_t count) {
    (void)context;
    return count > 0 && entries[0] < ROWS ? -3 : 0;
}

static void indexes(void) {
    const uint32_t *ids = NULL;
    const float *distances = NULL;
    size_t count = 0;
    char *text = NULL;
    FAILS(ARGUMENT, "index", tagore_index_neighbors(NULL, 0, &ids, &count));
    FAILS(ARGUMENT, "node: found 300", tagore_index_neighbors(made, ROWS, &ids, &count));
    FAILS(ARGUMENT, "node", tagore_index_neighbors(made, SIZE_MAX, &ids, &count));
    FAILS(ARGUMENT, "ids", tagore_index_neighbors(made, 0, NULL, &count));
    FAILS(ARGUMENT, "count", tagore_index_neighbors(made, 0, &ids, NULL));
    FAILS(ARGUMENT, "index", tagore_index_entries(NULL, &ids, &count));
    FAILS(ARGUMENT, "count", tagore_index_entries(made, &ids, NULL));
    FAILS(ARGUMENT, "graph", tagore_knn_graph_neighbors(NULL, 0, &ids, &distances, &count));
    FAILS(ARGUMENT, "row: found 300", tagore_knn_graph_neighbors(graph, ROWS, &ids, &distances, &count));
    FAILS(ARGUMENT, "ids", tagore_knn_graph_neighbors(graph, 0, NULL, &distances, &count));
    WORKS(tagore_knn_graph_neighbors(graph, 0, &ids, NULL, &count));
    HOLDS(count == 16);
    FAILS(FILE, "x.npy", tagore_knn_graph_save(graph, at("x.npy")));
    FAILS(ARGUMENT, "graph", tagore_knn_graph_save(NULL, at("x.bin")));
    WORKS(tagore_knn_graph_save(graph, at("x.bin")));
    tagore_knn_graph *lists = graph;
    FAILS(FILE, "299", tagore_knn_graph_open(at("x.bin"), others, TAGORE_L2, NULL, &lists));
    FAILS(ARGUMENT, "metric", tagore_knn_graph_open(at("x.bin"), vectors, -2, NULL, &lists));
    HOLDS(lists == NULL);

    SIZED(tagore_index_info, info);
    FAILS(ARGUMENT, "index", tagore_index_get_info(NULL, &info));
    FAILS(ARGUMENT, "tagore_index_info", tagore_index_get_info(made, NULL));
    WORKS(tagore_index_get_info(made, &info));
    HOLDS(info.nodes == ROWS && info.max_degree == 50 && info.entries == 1 && info.mean_degree > 1);
    FAILS(ARGUMENT, "out", tagore_index_describe(made, NULL));
    FAILS(ARGUMENT, "index", tagore_index_verify(NULL, NULL));
    WORKS(tagore_index_verify(made, NULL));
    FAILS(ARGUMENT, "index", tagore_index_report(NULL, vectors, "cpu", NULL, &text));
    FAILS(ARGUMENT, "device", tagore_index_report(made, vectors, "gpu", NULL, &text));
    FAILS(MISMATCH, "299", tagore_index_report(made, others, "cpu", NULL, &text));

    uint32_t fails_at = 200;
    SIZED(tagore_row_sink, sink);
    FAILS(ARGUMENT, "tagore_row_sink", tagore_index_write_rows(made, NULL, NULL));
    FAILS(ARGUMENT, "row", tagore_index_write_rows(made, &sink, NULL));
    sink.row = take;
    sink.context = &fails_at;
    FAILS(ARGUMENT, "index", tagore_index_write_rows(NULL, &sink, NULL));
    FAILS(CALLBACK, "sink: row 200: the callback returned 7", tagore_index_write_rows(made, &sink, NULL));
    sink.entries = refuse;
    FAILS(CALLBACK, "returned -3", tagore_index_write_rows(made, &sink, NULL));
}

static void searches(void) {
    uint32_t ids[QUERIES * K];
    float distances[QUERIES * K];
    tagore_matrix queries = matrix_of(asked, QUERIES), few = queries;
    SIZED(tagore_search_options, options);
    options.k = K;
    SIZED(tagore_results, results);
    results.ids = ids;
    results.distances = distances;
    results.slots = QUERIES * K;
    tagore_results room = results;
    memset(ids, 1, sizeof ids);
    FAILS(ARGUMENT, "searcher", tagore_search(NULL, &queries, &options, NULL, &results));
    FAILS(ARGUMENT, "tagore_matrix", tagore_search(searcher, NULL, &options, NULL, &results));
    FAILS(ARGUMENT, "tagore_search_options", tagore_search(searcher, &queries, NULL, NULL, &results));
    FAILS(ARGUMENT, "tagore_results", tagore_search(searcher, &queries, &options, NULL, NULL));
    room.ids = NULL;
    FAILS(ARGUMENT, "ids", tagore_search(searcher, &queries, &options, NULL, &room));
    room = results;
    room.slots = QUERIES * K - 1;
    FAILS(ARGUMENT, "slots: found 19", tagore_search(searcher, &queries, &options, NULL, &room));
    room = results;
    room.memory = 2;
    FAILS(ARGUMENT, "memory: found 2", tagore_search(searcher, &queries, &options, NULL, &room));
    room.memory = TAGORE_CUDA;
    FAILS(ARGUMENT, "call tagore_search", tagore_search_one(searcher, asked, DIM, &options, &room));
    room.device = 1 << 20;
    FAILS(DEVICE, "cuda:1048576", tagore_search(searcher, &queries, &options, NULL, &room));
    room.ids = NULL;
    FAILS(ARGUMENT, "ids", tagore_search(searcher, &queries, &options, NULL, &room));
    few.dim = DIM - 1;
    FAILS(MISMATCH, "7", tagore_search(searcher, &few, &options, NULL, &results));
    few = queries;
    few.memory = TAGORE_CUDA;
    few.device = -1;
    FAILS(ARGUMENT, "device: found -1", tagore_search(searcher, &few, &options, NULL, &results));
    options.k = 0;
    FAILS(ARGUMENT, "k: found 0", tagore_search(searcher, &queries, &options, NULL, &results));
    options.k = SIZE_MAX;
    FAILS(ARGUMENT, "slots", tagore_search(searcher, &queries, &options, NULL, &results));
    options.k = ROWS + 1;
    few = matrix_of(asked, 0);
    FAILS(ARGUMENT, "k: found 301", tagore_search(searcher, &few, &options, NULL, &results));
    options.k = K;
    options.beam = K - 1;
    FAILS(ARGUMENT, "beam: found 4", tagore_search(searcher, &queries, &options, NULL, &results));
    options.beam = SIZE_MAX;
    WORKS(tagore_search(searcher, &queries, &options, NULL, &results));
    HOLDS(ids[0] == 0 && ids[K] == 1 && distances[0] == 0);
    options.beam = 0;
    float radius = NAN;
    options.radius = &radius;
    FAILS(ARGUMENT, "radius", tagore_search(searcher, &queries, &options, NULL, &results));
    options.radius = NULL;
    asked[3] = INFINITY;
    FAILS(VALUE, "inf", tagore_search(searcher, &queries, &options, NULL, &results));
    FAILS(VALUE, "inf", tagore_search_one(searcher, asked, DIM, &options, &results));
    memcpy(asked, base, sizeof asked);
    FAILS(ARGUMENT, "query", tagore_search_one(searcher, NULL, DIM, &options, &results));
    FAILS(ARGUMENT, "query", tagore_search_one(searcher, asked, SIZE_MAX, &options, &results));
    FAILS(MISMATCH, "3", tagore_search_one(searcher, asked, 3, &options, &results));
    FAILS(ARGUMENT, "searcher", tagore_search_one(NULL, asked, DIM, &options, &results));

    options.among = set;
    WORKS(tagore_search_one(searcher, asked, DIM, &options, &results));
    HOLDS(ids[0] == 0 && ids[1] == 128 && ids[2] == UINT32_MAX && distances[2] == INFINITY);
    tagore_id_set *rest = NULL, *wrong = set;
    WORKS(tagore_id_set_complement(set, &rest));
    options.among = rest;
    WORKS(tagore_search_one(searcher, asked, DIM, &options, &results));
    HOLDS(ids[0] != 0 && ids[K - 1] != UINT32_MAX);
    uint64_t words[WORDS] = {0, 0, 0, 0, 0};
    FAILS(ARGUMENT, "count: found 4", tagore_id_set_create(ROWS, words, WORDS - 1, &wrong));
    HOLDS(wrong == NULL);
    FAILS(ARGUMENT, "words", tagore_id_set_create(ROWS, NULL, WORDS, &wrong));
    FAILS(ARGUMENT, "rows", tagore_id_set_create(SIZE_MAX, words, SIZE_MAX / 64 + 1, &wrong));
    FAILS(ARGUMENT, "set", tagore_id_set_complement(NULL, &wrong));
    words[WORDS - 1] = UINT64_MAX;
    FAILS(ARGUMENT, "after the last row", tagore_id_set_create(ROWS, words, WORDS, &wrong));
    words[WORDS - 1] = 0;
    WORKS(tagore_id_set_create(ROWS - 64, words, WORDS - 1, &wrong));
    options.among = wrong;
    FAILS(MISMATCH, "236", tagore_search_one(searcher, asked, DIM, &options, &results));
    options.among = NULL;

    tagore_builder *builder = NULL;
    tagore_index *part = NULL;
    WORKS(tagore_builder_create("cagra", &builder));
    WORKS(tagore_builder_set_rows(builder, wrong));
    FAILS(MISMATCH, "rows: found a set of 236", tagore_builder_build(builder, vectors, NULL, NULL, &part));
    HOLDS(part == NULL);
    FAILS(ARGUMENT, "builder", tagore_builder_set_rows(NULL, rest));
    WORKS(tagore_builder_set_rows(builder, NULL));
    WORKS(tagore_builder_set_queries(builder, NULL));
    FAILS(ARGUMENT, "builder", tagore_builder_set_queries(NULL, NULL));
    WORKS(tagore_builder_build(builder, vectors, NULL, NULL, &part));
    tagore_index_free(part);
    tagore_builder_free(builder);
    tagore_id_set_free(wrong);
    tagore_id_set_free(rest);

    int seen = 0;
    SIZED(tagore_progress, cancel);
    cancel.watch = stop;
    cancel.context = &seen;
    FAILS(CANCELLED, "interrupted", tagore_search(searcher, &queries, &options, &cancel, &results));

    tagore_searcher *out = searcher;
    SIZED(tagore_searcher_options, where);
    FAILS(ARGUMENT, "index", tagore_searcher_create(NULL, vectors, NULL, NULL, &out));
    FAILS(ARGUMENT, "vectors", tagore_searcher_create(made, NULL, NULL, NULL, &out));
    FAILS(MISMATCH, "299", tagore_searcher_create(made, others, NULL, NULL, &out));
    where.width = 9;
    FAILS(ARGUMENT, "width: found 9", tagore_searcher_create(made, vectors, &where, NULL, &out));
    where.width = 0;
    where.device = "gpu";
    FAILS(ARGUMENT, "device", tagore_searcher_create(made, vectors, &where, NULL, &out));
    HOLDS(out == NULL);

    SIZED(tagore_exact_options, exact);
    exact.k = K;
    exact.device = "cpu";
    WORKS(tagore_exact_search(vectors, &queries, &exact, NULL, &results));
    HOLDS(ids[0] == 0 && ids[3 * K] == 3);
    FAILS(ARGUMENT, "vectors", tagore_exact_search(NULL, &queries, &exact, NULL, &results));
    FAILS(ARGUMENT, "tagore_exact_options", tagore_exact_search(vectors, &queries, NULL, NULL, &results));
    exact.metric = 3;
    FAILS(ARGUMENT, "metric: found 3", tagore_exact_search(vectors, &queries, &exact, NULL, &results));
    exact.metric = TAGORE_COSINE;
    exact.k = 0;
    FAILS(ARGUMENT, "k: found 0", tagore_exact_search(vectors, &queries, &exact, NULL, &results));
    exact.k = K;
    tagore_id_set *some = NULL;
    const uint64_t three[WORDS] = {1 << 5 | 1 << 7 | 1 << 9};
    WORKS(tagore_id_set_create(ROWS, three, WORDS, &some));
    exact.among = some;
    FAILS(ARGUMENT, "1 to the 3 rows in the set", tagore_exact_search(vectors, &queries, &exact, NULL, &results));
    exact.k = 3;
    WORKS(tagore_exact_search(vectors, &queries, &exact, NULL, &results));
    HOLDS(ids[0] + ids[1] + ids[2] == 21 && ids[3] >= 5 && ids[3] <= 9);
    tagore_id_set_free(some);
    exact.among = NULL;
    exact.k = K;
    FAILS(CANCELLED, "interrupted", tagore_exact_search(vectors, &queries, &exact, &cancel, &results));
}

static void lives(void) {
    tagore_live *live = NULL, *out = NULL;
    uint64_t ids[QUERIES * K], own[ROWS];
    const char *here = at("live");
    size_t removed = 9;
    for (uint64_t row = 0; row < ROWS; row++) {
        own[row] = row * row;
    }
    FAILS(ARGUMENT, "folder", tagore_live_create(NULL, builder, DIM, TAGORE_F32, &out));
    FAILS(ARGUMENT, "builder", tagore_live_create(here, NULL, DIM, TAGORE_F32, &out));
    FAILS(ARGUMENT, "dim: found 4097", tagore_live_create(here, builder, 4097, TAGORE_F32, &out));
    FAILS(ARGUMENT, "dim", tagore_live_create(here, builder, SIZE_MAX, TAGORE_F32, &out));
    FAILS(ARGUMENT, "element: found 6", tagore_live_create(here, builder, DIM, TAGORE_B1 + 1, &out));
    FAILS(ARGUMENT, "out", tagore_live_create(here, builder, DIM, TAGORE_F32, NULL));
    FAILS(IO, "no/live", tagore_live_create(at("no/live"), builder, DIM, TAGORE_F32, &out));
    FAILS(FILE, "no such folder", tagore_live_open(here, NULL, &out));
    FAILS(FILE, "a folder with files", tagore_live_create(folder, builder, DIM, TAGORE_F32, &out));
    FAILS(ARGUMENT, "folder", tagore_live_open(NULL, NULL, &out));
    FAILS(ARGUMENT, "out", tagore_live_open(here, NULL, NULL));
    HOLDS(out == NULL);
    /* The rows of a builder, of another number, do not count. */
    WORKS(tagore_builder_set_rows(builder, set));
    WORKS(tagore_live_create(here, builder, DIM, TAGORE_F32, &live));
    WORKS(tagore_builder_set_rows(builder, NULL));

    FAILS(ARGUMENT, "live", tagore_live_set_synced(NULL, 1));
    FAILS(ARGUMENT, "live", tagore_live_set_automatic(NULL, 1));
    FAILS(ARGUMENT, "live", tagore_live_set_search_device(NULL, "cpu"));
    FAILS(ARGUMENT, "device", tagore_live_set_search_device(live, NULL));
    FAILS(ARGUMENT, "live", tagore_live_insert(NULL, vectors, own, ROWS, NULL));
    FAILS(ARGUMENT, "vectors", tagore_live_insert(live, NULL, own, ROWS, NULL));
    FAILS(ARGUMENT, "ids: found a null pointer", tagore_live_insert(live, vectors, NULL, ROWS, NULL));
    FAILS(ARGUMENT, "a multiple of 8",
          tagore_live_insert(live, vectors, (const uint64_t *)(const void *)((const char *)own + 4), ROWS, NULL));
    FAILS(ARGUMENT, "values that fit memory", tagore_live_insert(live, vectors, own, SIZE_MAX, NULL));
    FAILS(MISMATCH, "found 299 ids, expected 300", tagore_live_insert(live, vectors, own, ROWS - 1, NULL));
    FAILS(ARGUMENT, "live", tagore_live_remove(NULL, own, 1, NULL, &removed));
    FAILS(ARGUMENT, "ids", tagore_live_remove(live, NULL, 1, NULL, &removed));
    FAILS(ARGUMENT, "live", tagore_live_consolidate(NULL, NULL, NULL));
    HOLDS(removed == 9);
    int seen = 0;
    SIZED(tagore_progress, cancel);
    cancel.watch = stop;
    cancel.context = &seen;
    WORKS(tagore_live_insert(live, vectors, own, ROWS, &cancel));
    FAILS(CANCELLED, "interrupted", tagore_live_consolidate(live, &cancel, NULL));
    HOLDS(seen > 0);
    cancel.size = 2;
    FAILS(ARGUMENT, "sizeof(tagore_progress)", tagore_live_consolidate(live, &cancel, NULL));
    WORKS(tagore_live_consolidate(live, NULL, NULL));

    SIZED(tagore_live_info, info);
    FAILS(ARGUMENT, "live", tagore_live_get_info(NULL, &info));
    FAILS(ARGUMENT, "tagore_live_info", tagore_live_get_info(live, NULL));
    info.size--;
    FAILS(ARGUMENT, "sizeof(tagore_live_info)", tagore_live_get_info(live, &info));
    info.size++;
    WORKS(tagore_live_get_info(live, &info));
    HOLDS(info.rows == ROWS && info.recent == 0);

    tagore_matrix queries = matrix_of(asked, QUERIES), none = matrix_of(asked, 0);
    SIZED(tagore_live_search_options, options);
    options.k = K;
    SIZED(tagore_live_results, results);
    results.ids = ids;
    results.slots = QUERIES * K;
    FAILS(ARGUMENT, "live", tagore_live_search(NULL, &queries, &options, NULL, &results));
    FAILS(ARGUMENT, "tagore_matrix", tagore_live_search(live, NULL, &options, NULL, &results));
    FAILS(ARGUMENT, "tagore_live_search_options", tagore_live_search(live, &queries, NULL, NULL, &results));
    FAILS(ARGUMENT, "tagore_live_results", tagore_live_search(live, &queries, &options, NULL, NULL));
    results.ids = NULL;
    FAILS(ARGUMENT, "ids", tagore_live_search(live, &queries, &options, NULL, &results));
    results.ids = ids;
    results.slots--;
    FAILS(ARGUMENT, "slots: found 19", tagore_live_search(live, &queries, &options, NULL, &results));
    results.slots++;
    options.k = SIZE_MAX;
    FAILS(ARGUMENT, "slots", tagore_live_search(live, &queries, &options, NULL, &results));
    WORKS(tagore_live_search(live, &none, &options, NULL, &results));
    options.k = K;
    options.among = own;
    options.among_count = SIZE_MAX;
    FAILS(ARGUMENT, "among: found", tagore_live_search(live, &queries, &options, NULL, &results));
    options.among_count = 2;
    WORKS(tagore_live_search(live, &queries, &options, NULL, &results));
    HOLDS(ids[0] == 0 && ids[1] == 1 && ids[2] == UINT64_MAX && ids[K] == 1);
    tagore_live_free(live);
    tagore_live_free(NULL);
}

/* The kernels, on the emulator: the answers of the CPU. */
static void emulated(void) {
    uint32_t on_cpu[QUERIES * K], on_device[QUERIES * K];
    tagore_matrix queries = matrix_of(asked, QUERIES);
    SIZED(tagore_searcher_options, where);
    where.device = "emulated";
    tagore_searcher *device = NULL;
    WORKS(tagore_searcher_create(made, vectors, &where, NULL, &device));
    SIZED(tagore_search_options, options);
    options.k = K;
    options.beam = 20;
    SIZED(tagore_results, results);
    results.slots = QUERIES * K;
    results.ids = on_cpu;
    WORKS(tagore_search(searcher, &queries, &options, NULL, &results));
    results.ids = on_device;
    WORKS(tagore_search(device, &queries, &options, NULL, &results));
    HOLDS(memcmp(on_cpu, on_device, sizeof on_cpu) == 0);
    tagore_searcher_free(device);
    where.device = "emulated,emulated:9.0";
    WORKS(tagore_searcher_create(made, vectors, &where, NULL, &device));
    memset(on_device, 0, sizeof on_device);
    WORKS(tagore_search(device, &queries, &options, NULL, &results));
    HOLDS(memcmp(on_cpu, on_device, sizeof on_cpu) == 0);
    tagore_searcher_free(device);
    device = NULL;
    where.device = "emulated";
    where.vectors = "int8";
    where.rerank = 20;
    WORKS(tagore_searcher_create(made, vectors, &where, NULL, &device));
    memset(on_device, 0, sizeof on_device);
    WORKS(tagore_search(device, &queries, &options, NULL, &results));
    HOLDS(memcmp(on_cpu, on_device, sizeof on_cpu) == 0);
    tagore_searcher_free(device);
    device = NULL;
    where.vectors = "int4";
    FAILS(ARGUMENT, "vectors: found int4, expected full, f16, int8 or edges",
          tagore_searcher_create(made, vectors, &where, NULL, &device));
    where.vectors = NULL;
    where.device = "emulated,emulated";
    FAILS(ARGUMENT, "device: found emulated twice", tagore_searcher_create(made, vectors, &where, NULL, &device));
    HOLDS(device == NULL);
}

/* A builder that two threads use: one sets, both build. Each has its own last message. */
static void *same_builder(void *context) {
    const char *name = (const char *)context;
    size_t wrong = 0;
    for (int i = 0; i < 20; i++) {
        tagore_index *built = NULL;
        wrong += tagore_builder_set(builder, "seed", i % 2 ? "3" : "4") != TAGORE_OK;
        wrong += tagore_builder_build(builder, vectors, NULL, NULL, &built) != TAGORE_OK;
        wrong += tagore_builder_set(builder, name, "1") != TAGORE_ERROR_ARGUMENT;
        wrong += strstr(tagore_last_error(), name) == NULL;
        tagore_index_free(built);
    }
    return wrong == 0 ? context : NULL;
}

static void *same_searcher(void *context) {
    const size_t row = *(const size_t *)context;
    uint32_t ids[K];
    SIZED(tagore_search_options, options);
    options.k = K;
    SIZED(tagore_results, results);
    results.ids = ids;
    results.slots = K;
    for (int i = 0; i < 200; i++) {
        const size_t asked_row = (row + (size_t)i) % ROWS;
        if (tagore_search_one(searcher, base + asked_row * DIM, DIM, &options, &results) != TAGORE_OK ||
            ids[0] != asked_row) {
            return NULL;
        }
    }
    return context;
}

static void threads(void) {
    static char names[2][8] = {"first", "second"};
    static size_t rows[2] = {0, 150};
    pthread_t started[4];
    HOLDS(pthread_create(&started[0], NULL, same_builder, names[0]) == 0);
    HOLDS(pthread_create(&started[1], NULL, same_builder, names[1]) == 0);
    HOLDS(pthread_create(&started[2], NULL, same_searcher, &rows[0]) == 0);
    HOLDS(pthread_create(&started[3], NULL, same_searcher, &rows[1]) == 0);
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        HOLDS(pthread_join(started[i], &result) == 0 && result != NULL);
    }
    FAILS(ARGUMENT, "threads", tagore_set_threads(SIZE_MAX));
    FAILS(ARGUMENT, "threads", tagore_set_threads(2)); /* too late: work has begun */
}

/* A searcher lives on without the handles it was made from, and memory is released after it. */
static void lifetimes(void) {
    tagore_vectors *lent = NULL;
    tagore_index *built = NULL;
    tagore_searcher *last = NULL;
    tagore_matrix matrix = matrix_of(base, ROWS);
    released = 0;
    WORKS(tagore_vectors_from_memory(&matrix, release, NULL, &lent));
    WORKS(tagore_builder_build(builder, lent, NULL, NULL, &built));
    WORKS(tagore_searcher_create(built, lent, NULL, NULL, &last));
    tagore_vectors_free(lent);
    tagore_index_free(built);
    HOLDS(released == 0);
    uint32_t ids[K];
    SIZED(tagore_search_options, options);
    options.k = K;
    SIZED(tagore_results, results);
    results.ids = ids;
    results.slots = K;
    WORKS(tagore_search_one(last, base, DIM, &options, &results));
    HOLDS(ids[0] == 0);
    tagore_searcher_free(last);
    HOLDS(released == 1);
    tagore_vectors_free(NULL);
    tagore_builder_free(NULL);
    tagore_index_free(NULL);
    tagore_knn_graph_free(NULL);
    tagore_searcher_free(NULL);
    tagore_id_set_free(NULL);
    tagore_text_free(NULL);
}

int main(int argc, char **argv) {
    snprintf(folder, sizeof folder, "%s", argc > 1 ? argv[1] : ".");
    HOLDS(strcmp(tagore_last_error(), "") == 0);
    HOLDS(tagore_api_version() == TAGORE_API_VERSION && strlen(tagore_version()) > 0);
    set_up();
    matrices();
    sources();
    files();
    builders();
    indexes();
    searches();
    lives();
    emulated();
    threads();
    lifetimes();
    tagore_id_set_free(set);
    tagore_knn_graph_free(graph);
    tagore_searcher_free(searcher);
    tagore_index_free(made);
    tagore_builder_free(builder);
    tagore_vectors_free(others);
    tagore_vectors_free(vectors);
    printf("%d calls, %d faults\n", calls, faults);
    return faults == 0 && calls >= 60 ? 0 : 1;
}
