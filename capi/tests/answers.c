/* Builds and searches by the C interface, with the parameters of the commands in capi/tests/run.sh,
 * whose files must hold the same bytes: answers FOLDER KIND METRIC. Reads base.fbin and query.fbin
 * of the folder, and writes to its folder c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tagore.h>

enum { K = 10, BEAM = 64 };

static char folder[1024];

static const char *at(const char *name) {
    static char path[4][2048];
    static unsigned next;
    char *here = path[next++ % 4];
    snprintf(here, sizeof path[0], "%s/%s", folder, name);
    return here;
}

static void check(tagore_status status) {
    if (status != TAGORE_OK) {
        fprintf(stderr, "%s\n", tagore_last_error());
        exit(1);
    }
}

static void demand(int holds, const char *text) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", text);
        exit(1);
    }
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    demand(memory != NULL, "memory");
    return memory;
}

/* A struct with its size set, and all else zero. */
#define SIZED(type, name)                                                                                           \
    type name;                                                                                                      \
    memset(&name, 0, sizeof name);                                                                                  \
    name.size = sizeof name

static tagore_builder *builder_of(const char *kind, const char *metric) {
    tagore_builder *builder = NULL;
    check(tagore_builder_create(kind, &builder));
    check(tagore_builder_set(builder, "metric", metric));
    check(tagore_builder_set(builder, "knn", "48"));
    check(tagore_builder_set(builder, "seed", "5"));
    check(tagore_builder_set(builder, "device", "cpu"));
    return builder;
}

/* Builds and saves; frees the vectors. */
static void build(const tagore_builder *builder, tagore_vectors *vectors, const char *name) {
    tagore_index *index = NULL;
    check(tagore_builder_build(builder, vectors, NULL, NULL, &index));
    check(tagore_index_save(index, at(name)));
    tagore_index_free(index);
    tagore_vectors_free(vectors);
}

/* A store: rows one after another. */
static int32_t fill(void *context, size_t first_row, size_t rows, void *out) {
    const tagore_matrix *matrix = (const tagore_matrix *)context;
    const float *from = (const float *)matrix->data + first_row * matrix->dim;
    memcpy(out, from, rows * matrix->dim * sizeof *from);
    return 0;
}

/* The same rows from a file, from memory, with gaps, by callback, and through a spool file. */
static void build_each_way(const tagore_builder *builder, const tagore_matrix *rows) {
    tagore_vectors *vectors = NULL;
    check(tagore_vectors_open(at("base.fbin"), NULL, &vectors));
    build(builder, vectors, "c/file.tagore");

    float *copy = (float *)allocate(rows->rows * rows->dim * sizeof *copy);
    memcpy(copy, rows->data, rows->rows * rows->dim * sizeof *copy);
    tagore_matrix lent = *rows;
    lent.data = copy;
    check(tagore_vectors_from_memory(&lent, free, copy, &vectors));
    build(builder, vectors, "c/memory.tagore"); /* frees the copy */

    const size_t stride = rows->dim + 3;
    float *wide = (float *)allocate(rows->rows * stride * sizeof *wide);
    for (size_t row = 0; row < rows->rows; row++) {
        memcpy(wide + row * stride, (const float *)rows->data + row * rows->dim, rows->dim * sizeof *wide);
    }
    lent.data = wide;
    lent.stride = stride;
    check(tagore_vectors_from_memory(&lent, free, wide, &vectors));
    build(builder, vectors, "c/strided.tagore");

    SIZED(tagore_source, source);
    source.fill = fill;
    source.context = (void *)rows;
    source.rows = rows->rows;
    source.dim = rows->dim;
    check(tagore_vectors_from_source(&source, NULL, &vectors));
    build(builder, vectors, "c/callback.tagore");
    source.spool_folder = folder;
    check(tagore_vectors_from_source(&source, NULL, &vectors));
    build(builder, vectors, "c/spooled.tagore");
}

/* Writes results in the layout of a ground truth. */
static void write_results(const char *name, size_t queries, const tagore_results *results) {
    const uint32_t sizes[2] = {(uint32_t)queries, K};
    FILE *file = fopen(at(name), "wb");
    demand(file != NULL, name);
    demand(fwrite(sizes, sizeof sizes, 1, file) == 1 &&
               fwrite(results->ids, sizeof *results->ids, results->slots, file) == results->slots &&
               fwrite(results->distances, sizeof *results->distances, results->slots, file) == results->slots &&
               fclose(file) == 0,
           name);
}

/* Rows of the graph as a callback gets them, and where they lie in the mapped file. */
static int32_t take_row(void *context, uint32_t node, const uint32_t *neighbors, size_t count) {
    const tagore_index *index = (const tagore_index *)context;
    const uint32_t *ids = NULL;
    size_t length = 0;
    check(tagore_index_neighbors(index, node, &ids, &length));
    return length == count && memcmp(ids, neighbors, count * sizeof *ids) == 0 ? 0 : 1;
}

/* Filtered answers are those of exact search over the rows that pass, or nearly. */
static void search_some(const tagore_searcher *searcher, const tagore_matrix *queries, const tagore_matrix *rows) {
    const size_t words = (rows->rows + 63) / 64;
    uint64_t *bits = (uint64_t *)allocate(words * sizeof *bits);
    memset(bits, 0, words * sizeof *bits);
    for (size_t row = 0; row < rows->rows; row += 100) {
        bits[row / 64] |= (uint64_t)1 << row % 64;
    }
    tagore_id_set *set = NULL;
    check(tagore_id_set_create(rows->rows, bits, words, &set));
    free(bits);
    SIZED(tagore_search_options, options);
    options.k = K;
    options.among = set;
    SIZED(tagore_results, results);
    results.slots = queries->rows * K;
    results.ids = (uint32_t *)allocate(results.slots * sizeof *results.ids);
    check(tagore_search(searcher, queries, &options, NULL, &results));
    for (size_t slot = 0; slot < results.slots; slot++) {
        demand(results.ids[slot] % 100 == 0, "only rows of the set are found");
    }
    free(results.ids);
    tagore_id_set_free(set);
}

/* A build over some of the rows: no search returns another row. */
static void build_some(const tagore_vectors *base, const tagore_matrix *queries, const char *kind, const char *metric) {
    SIZED(tagore_matrix, rows);
    check(tagore_vectors_matrix(base, &rows));
    const size_t words = (rows.rows + 63) / 64;
    uint64_t *deleted = (uint64_t *)allocate(words * sizeof *deleted);
    memset(deleted, 0, words * sizeof *deleted);
    for (size_t row = 0; row < rows.rows; row += 3) {
        deleted[row / 64] |= (uint64_t)1 << row % 64;
    }
    tagore_id_set *without = NULL, *with = NULL;
    check(tagore_id_set_create(rows.rows, deleted, words, &without));
    check(tagore_id_set_complement(without, &with));
    free(deleted);
    tagore_builder *builder = NULL;
    tagore_index *index = NULL;
    tagore_searcher *searcher = NULL;
    check(tagore_builder_create(kind, &builder));
    check(tagore_builder_set(builder, "metric", metric));
    check(tagore_builder_set(builder, "device", "cpu"));
    check(tagore_builder_set_rows(builder, with));
    /* The rows themselves as a sample: the graph is fitted, or stays. */
    check(tagore_builder_set_queries(builder, base));
    check(tagore_builder_build(builder, base, NULL, NULL, &index));
    SIZED(tagore_index_info, info);
    check(tagore_index_get_info(index, &info));
    demand(info.nodes == rows.rows && info.left_out == (rows.rows + 2) / 3, "the index has all ids");
    check(tagore_searcher_create(index, base, NULL, NULL, &searcher));
    SIZED(tagore_search_options, options);
    options.k = K;
    SIZED(tagore_results, results);
    results.slots = queries->rows * K;
    results.ids = (uint32_t *)allocate(results.slots * sizeof *results.ids);
    check(tagore_search(searcher, queries, &options, NULL, &results));
    for (size_t slot = 0; slot < results.slots; slot++) {
        demand(results.ids[slot] % 3 != 0, "no row left out is found");
    }
    free(results.ids);
    tagore_searcher_free(searcher);
    tagore_index_free(index);
    tagore_builder_free(builder);
    tagore_id_set_free(with);
    tagore_id_set_free(without);
}

int main(int argc, char **argv) {
    demand(argc == 4, "answers FOLDER KIND METRIC");
    snprintf(folder, sizeof folder, "%s", argv[1]);
    tagore_vectors *base = NULL, *query = NULL;
    check(tagore_set_threads(3)); /* the bytes do not depend on it */
    check(tagore_vectors_open(at("base.fbin"), NULL, &base));
    check(tagore_vectors_open(at("query.fbin"), "fbin", &query));
    SIZED(tagore_matrix, rows);
    SIZED(tagore_matrix, queries);
    check(tagore_vectors_matrix(base, &rows));
    check(tagore_vectors_matrix(query, &queries));
    tagore_builder *builder = builder_of(argv[2], argv[3]);
    build_each_way(builder, &rows);

    SIZED(tagore_limits, limits);
    limits.cluster_size = 2000;
    limits.work_folder = at("c/work");
    check(tagore_builder_build_file(builder, base, at("c/clusters.tagore"), &limits, NULL));
    check(tagore_builder_build_file(builder, base, at("c/limitless.tagore"), NULL, NULL));

    tagore_knn_graph *graph = NULL;
    check(tagore_builder_knn_graph(builder, base, NULL, &graph));
    check(tagore_knn_graph_save(graph, at("c/knn.bin")));
    tagore_knn_graph_free(graph);

    tagore_index *index = NULL;
    check(tagore_index_open(at("c/callback.tagore"), &index));
    SIZED(tagore_row_sink, sink);
    sink.row = take_row;
    sink.context = index;
    check(tagore_index_write_rows(index, &sink, NULL));
    SIZED(tagore_export_options, options);
    options.vectors = base;
    check(tagore_index_export(index, at("c/x.hnswlib"), NULL, &options, NULL));
    check(tagore_index_export(index, at("c/x.csr"), NULL, NULL, NULL));
    check(tagore_index_export(index, at("c/x.nsg"), NULL, NULL, NULL));

    tagore_searcher *searcher = NULL;
    check(tagore_searcher_create(index, base, NULL, NULL, &searcher));
    SIZED(tagore_search_options, search);
    search.k = K;
    search.beam = BEAM;
    SIZED(tagore_results, results);
    results.slots = queries.rows * K;
    results.ids = (uint32_t *)allocate(results.slots * sizeof *results.ids);
    results.distances = (float *)allocate(results.slots * sizeof *results.distances);
    check(tagore_search(searcher, &queries, &search, NULL, &results));
    write_results("c/found.bin", queries.rows, &results);
    for (size_t asked = 0; asked < queries.rows; asked++) {
        tagore_results one = results;
        one.ids = results.ids + asked * K;
        one.distances = results.distances + asked * K;
        one.slots = K;
        const float *row = (const float *)queries.data + asked * queries.stride;
        check(tagore_search_one(searcher, row, queries.dim, &search, &one));
    }
    write_results("c/found-one.bin", queries.rows, &results);
    search_some(searcher, &queries, &rows);
    build_some(base, &queries, argv[2], argv[3]);

    SIZED(tagore_exact_options, exact);
    exact.k = K;
    exact.device = "cpu";
    SIZED(tagore_index_info, info);
    check(tagore_index_get_info(index, &info));
    exact.metric = info.metric;
    check(tagore_exact_search(base, &queries, &exact, NULL, &results));
    write_results("c/truth.bin", queries.rows, &results);

    char *text = NULL;
    check(tagore_index_report(index, base, "cpu", NULL, &text));
    demand(strstr(text, "\"recall\":") != NULL && strstr(text, "\"reachable\":") != NULL, "a report");
    tagore_text_free(text);
    check(tagore_index_describe(index, &text));
    demand(strstr(text, argv[2]) != NULL && strstr(text, "\"fingerprint\":") != NULL, "a description");
    tagore_text_free(text);

    free(results.ids);
    free(results.distances);
    tagore_searcher_free(searcher);
    tagore_index_free(index);
    tagore_builder_free(builder);
    tagore_vectors_free(query);
    tagore_vectors_free(base);
    return 0;
}
