/* Updates: an index over the first rows of a data set gets the others, loses some and has some
 * replaced; wrong calls are statuses. Compiled as
 * C11 and as C++17: update FOLDER */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tagore.h>

enum { ROWS = 2000, FIRST = 1600, DIM = 8, K = 10, WORDS = (ROWS + 63) / 64 };

static float before[ROWS * DIM], after[ROWS * DIM];
static tagore_vectors *vectors, *changed;
static tagore_index *made;
static tagore_id_set *removed, *replaced;

static void demand(int holds, const char *text, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: not so: %s: %s\n", line, text, tagore_last_error());
        exit(1);
    }
}

#define HOLDS(condition) demand(condition, #condition, __LINE__)
#define WORKS(call) demand((call) == TAGORE_OK, #call, __LINE__)
#define FAILS(status, part, call)                                                                                   \
    demand((call) == TAGORE_ERROR_##status && strstr(tagore_last_error(), part), #call, __LINE__)

/* A struct with its size set, and all else zero. */
#define SIZED(type, name)                                                                                           \
    type name;                                                                                                      \
    memset(&name, 0, sizeof name);                                                                                  \
    name.size = sizeof name

static tagore_vectors *vectors_of(const float *data, size_t rows, size_t dim) {
    tagore_vectors *lent = NULL;
    SIZED(tagore_matrix, matrix);
    matrix.data = data;
    matrix.rows = rows;
    matrix.dim = dim;
    WORKS(tagore_vectors_from_memory(&matrix, NULL, NULL, &lent));
    return lent;
}

/* Every `step`-th row below `end`, from `first`. */
static tagore_id_set *every(size_t first, size_t step, size_t end) {
    uint64_t words[WORDS] = {0};
    tagore_id_set *set = NULL;
    for (size_t row = first; row < end; row += step) {
        words[row / 64] |= (uint64_t)1 << row % 64;
    }
    WORKS(tagore_id_set_create(ROWS, words, WORDS, &set));
    return set;
}

/* Rows 0, 20, 40 ... of the first rows are removed, and rows 7, 27, 47 ... replaced. */
static int is_removed(size_t row) {
    return row < FIRST && row % 20 == 0;
}

static void set_up(void) {
    uint32_t seed = 1;
    for (size_t i = 0; i < ROWS * DIM; i++) {
        seed = seed * 1664525u + 1013904223u;
        before[i] = (float)(seed >> 8);
        after[i] = before[i];
    }
    for (size_t row = 7; row < FIRST; row += 20) {
        for (size_t i = 0; i < DIM; i++) {
            after[row * DIM + i] = before[(row + 1) * DIM + i] + (float)(100 * i);
        }
    }
    tagore_builder *builder = NULL;
    vectors = vectors_of(before, ROWS, DIM);
    changed = vectors_of(after, ROWS, DIM);
    tagore_vectors *first = vectors_of(before, FIRST, DIM);
    WORKS(tagore_builder_create("nsg", &builder));
    WORKS(tagore_builder_set(builder, "device", "cpu"));
    WORKS(tagore_builder_build(builder, first, NULL, NULL, &made));
    tagore_builder_free(builder);
    tagore_vectors_free(first);
    removed = every(0, 20, FIRST);
    replaced = every(7, 20, FIRST);
}

/* Searches for each row of `base`: those of the index are found, and no removed row. */
static void find(const tagore_index *index, const tagore_vectors *base, const float *rows, int removes) {
    static uint32_t ids[ROWS * K];
    tagore_searcher *searcher = NULL;
    SIZED(tagore_matrix, queries);
    queries.data = rows;
    queries.rows = ROWS;
    queries.dim = DIM;
    SIZED(tagore_search_options, options);
    options.k = K;
    SIZED(tagore_results, results);
    results.ids = ids;
    results.slots = ROWS * K;
    WORKS(tagore_searcher_create(index, base, NULL, NULL, &searcher));
    WORKS(tagore_search(searcher, &queries, &options, NULL, &results));
    tagore_searcher_free(searcher);
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t slot = 0; slot < K; slot++) {
            const uint32_t id = ids[row * K + slot];
            HOLDS(id < ROWS && !(removes && is_removed(id)));
        }
        HOLDS(ids[row * K] == row || (removes && is_removed(row)));
    }
}

static void updates(void) {
    tagore_index *grown = NULL, *updated = NULL, *back = NULL;
    SIZED(tagore_index_info, info);
    WORKS(tagore_index_update(made, vectors, NULL, NULL, &grown));
    WORKS(tagore_index_get_info(grown, &info));
    HOLDS(info.nodes == ROWS && info.left_out == 0);
    find(grown, vectors, before, 0);

    SIZED(tagore_index_update_options, options);
    options.remove = removed;
    options.replace = replaced;
    options.device = "cpu";
    WORKS(tagore_index_update(made, changed, &options, NULL, &updated));
    WORKS(tagore_index_get_info(updated, &info));
    HOLDS(info.nodes == ROWS && info.left_out == FIRST / 20);
    WORKS(tagore_index_verify(updated, NULL));
    find(updated, changed, after, 1);

    /* The index before the update stays as it was. */
    WORKS(tagore_index_get_info(made, &info));
    HOLDS(info.nodes == FIRST && info.left_out == 0);
    /* Removed rows come back. */
    options.remove = NULL;
    options.replace = removed;
    WORKS(tagore_index_update(updated, changed, &options, NULL, &back));
    WORKS(tagore_index_get_info(back, &info));
    HOLDS(info.nodes == ROWS && info.left_out == 0);
    find(back, changed, after, 0);
    tagore_index_free(back);
    tagore_index_free(updated);
    tagore_index_free(grown);
}

static int32_t stop(void *context, const tagore_update *update) {
    ++*(int *)context;
    return update->size == sizeof *update;
}

static void wrong_calls(const char *folder) {
    char file[1024];
    int seen = 0;
    tagore_index *out = made, *foreign = NULL;
    tagore_vectors *fewer = vectors_of(before, FIRST - 1, DIM), *flat = vectors_of(before, ROWS, DIM / 2);
    FAILS(ARGUMENT, "index", tagore_index_update(NULL, vectors, NULL, NULL, &out));
    HOLDS(out == NULL);
    FAILS(ARGUMENT, "vectors", tagore_index_update(made, NULL, NULL, NULL, &out));
    FAILS(ARGUMENT, "out", tagore_index_update(made, vectors, NULL, NULL, NULL));
    FAILS(MISMATCH, "1599 rows", tagore_index_update(made, fewer, NULL, NULL, &out));
    FAILS(MISMATCH, "rows of 4", tagore_index_update(made, flat, NULL, NULL, &out));
    /* Other vectors in rows that are not replaced. */
    FAILS(MISMATCH, "", tagore_index_update(made, changed, NULL, NULL, &out));

    SIZED(tagore_index_update_options, options);
    options.size = 2;
    FAILS(ARGUMENT, "sizeof(tagore_index_update_options)", tagore_index_update(made, vectors, &options, NULL, &out));
    options.size = sizeof options;
    options.device = "gpu";
    FAILS(ARGUMENT, "device: found gpu", tagore_index_update(made, vectors, &options, NULL, &out));
    options.device = "cuda:99";
    FAILS(DEVICE, "cuda:99", tagore_index_update(made, vectors, &options, NULL, &out));
    options.device = NULL;
    tagore_id_set *late = every(FIRST, 1, ROWS), *all = every(0, 1, FIRST);
    options.remove = late;
    FAILS(ARGUMENT, "remove: found 1999", tagore_index_update(made, vectors, &options, NULL, &out));
    options.remove = removed;
    options.replace = removed;
    FAILS(ARGUMENT, "remove: found 0", tagore_index_update(made, vectors, &options, NULL, &out));
    options.remove = all;
    options.replace = NULL;
    tagore_vectors *first = vectors_of(before, FIRST, DIM);
    FAILS(ARGUMENT, "remove: found every row", tagore_index_update(made, first, &options, NULL, &out));

    SIZED(tagore_progress, cancel);
    cancel.watch = stop;
    cancel.context = &seen;
    FAILS(CANCELLED, "interrupted", tagore_index_update(made, vectors, NULL, &cancel, &out));
    HOLDS(seen > 0);
    snprintf(file, sizeof file, "%s/update.nsg", folder);
    WORKS(tagore_index_export(made, file, NULL, NULL, NULL));
    WORKS(tagore_index_import(file, NULL, first, TAGORE_L2, NULL, &foreign));
    FAILS(ARGUMENT, "from another system", tagore_index_update(foreign, vectors, NULL, NULL, &out));
    HOLDS(out == NULL);
    tagore_index_free(foreign);
    tagore_id_set_free(all);
    tagore_id_set_free(late);
    tagore_vectors_free(first);
    tagore_vectors_free(flat);
    tagore_vectors_free(fewer);
}

static void merges(void) {
    tagore_index *rest = NULL, *merged = NULL;
    tagore_builder *builder = NULL;
    tagore_vectors *last = vectors_of(before + FIRST * DIM, ROWS - FIRST, DIM);
    WORKS(tagore_builder_create("nsg", &builder));
    WORKS(tagore_builder_build(builder, last, NULL, NULL, &rest));
    tagore_builder_free(builder);
    const tagore_index *parts[] = {made, rest, NULL};
    SIZED(tagore_index_info, info);
    WORKS(tagore_index_merge(parts, 2, vectors, NULL, NULL, &merged));
    WORKS(tagore_index_get_info(merged, &info));
    HOLDS(info.nodes == ROWS && info.left_out == 0);
    find(merged, vectors, before, 0);
    tagore_index_free(merged);
    FAILS(ARGUMENT, "indexes", tagore_index_merge(parts, 3, vectors, NULL, NULL, &merged));
    FAILS(ARGUMENT, "indexes", tagore_index_merge(NULL, 2, vectors, NULL, NULL, &merged));
    FAILS(ARGUMENT, "count: found 0", tagore_index_merge(parts, 0, vectors, NULL, NULL, &merged));
    FAILS(ARGUMENT, "vectors", tagore_index_merge(parts, 2, NULL, NULL, NULL, &merged));
    FAILS(ARGUMENT, "device: found gpu", tagore_index_merge(parts, 2, vectors, "gpu", NULL, &merged));
    FAILS(MISMATCH, "expected the 1600 of 1 indexes", tagore_index_merge(parts, 1, vectors, NULL, NULL, &merged));
    FAILS(MISMATCH, "other values", tagore_index_merge(parts, 2, changed, NULL, NULL, &merged));
    HOLDS(merged == NULL);
    tagore_index_free(rest);
    tagore_vectors_free(last);
}

int main(int argc, char **argv) {
    set_up();
    updates();
    merges();
    wrong_calls(argc > 1 ? argv[1] : ".");
    tagore_id_set_free(replaced);
    tagore_id_set_free(removed);
    tagore_index_free(made);
    tagore_vectors_free(changed);
    tagore_vectors_free(vectors);
    return 0;
}
