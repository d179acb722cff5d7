/* A live index: rows come, go and change, also while threads search; it is closed and opened again;
 * wrong calls are statuses. Compiled as C11 and as C++17: live FOLDER, an empty one. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tagore.h>

enum { ROWS = 2000, FIRST = 1500, DIM = 8, K = 5, KEPT = 400, ROUNDS = 12 };

static float base[ROWS * DIM];
static uint64_t own[ROWS];
static char folder[1024];
static tagore_vectors *first, *rest;
static tagore_builder *builder;
static tagore_live *live;

static void demand(int holds, const char *text, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: not so: %s: %s\n", line, text, tagore_last_error());
        exit(1);
    }
}

#define HOLDS(condition) demand(condition, #condition, __LINE__)
#define WORKS(call) demand((call) == TAGORE_OK, #call, __LINE__)
/* The message is `text`, after the name of the folder if it begins with a colon. */
#define FAILS(status, text, call) demand((call) == TAGORE_ERROR_##status && is_last(text), #call, __LINE__)

static int is_last(const char *text) {
    const char *last = tagore_last_error();
    if (*text == ':') {
        if (strncmp(last, folder, strlen(folder)) != 0) {
            return 0;
        }
        last += strlen(folder);
    }
    return strcmp(last, text) == 0;
}

/* A struct with its size set, and all else zero. */
#define SIZED(type, name)                                                                                           \
    type name;                                                                                                      \
    memset(&name, 0, sizeof name);                                                                                  \
    name.size = sizeof name

static tagore_matrix matrix_of(const float *data, size_t rows, size_t dim) {
    SIZED(tagore_matrix, matrix);
    matrix.data = data;
    matrix.rows = rows;
    matrix.dim = dim;
    return matrix;
}

static tagore_vectors *vectors_of(const float *data, size_t rows, size_t dim) {
    tagore_vectors *lent = NULL;
    tagore_matrix matrix = matrix_of(data, rows, dim);
    WORKS(tagore_vectors_from_memory(&matrix, NULL, NULL, &lent));
    return lent;
}

static void set_up(void) {
    uint32_t seed = 1;
    for (size_t i = 0; i < ROWS * DIM; i++) {
        seed = seed * 1664525u + 1013904223u;
        base[i] = (float)(seed >> 8);
    }
    for (size_t row = 0; row < ROWS; row++) {
        own[row] = UINT64_C(7000000000) + 3 * row;
    }
    first = vectors_of(base, FIRST, DIM);
    rest = vectors_of(base + FIRST * DIM, ROWS - FIRST, DIM);
    WORKS(tagore_builder_create("nsg", &builder));
    WORKS(tagore_builder_set(builder, "device", "cpu"));
    WORKS(tagore_builder_set(builder, "knn", "16"));
    WORKS(tagore_live_create(folder, builder, DIM, TAGORE_F32, &live));
    WORKS(tagore_live_set_search_device(live, "cpu"));
    FAILS(ARGUMENT, "device: found gpu, expected auto, cpu, cuda, cuda:N, emulated or emulated:8.9",
          tagore_live_set_search_device(live, "gpu"));
}

/* The rows, and those outside the graph. */
static void holds(size_t rows, size_t recent) {
    SIZED(tagore_live_info, info);
    WORKS(tagore_live_get_info(live, &info));
    HOLDS(info.rows == rows && info.recent == recent);
    HOLDS(info.dim == DIM && info.element == TAGORE_F32 && info.metric == TAGORE_L2);
}

static uint64_t ids[ROWS * K];
static float distances[ROWS * K];

/* Searches for `count` rows from `row`, and returns the number of queries that found fewer than K. */
static size_t find(size_t row, size_t count, const uint64_t *among, size_t among_count) {
    size_t short_queries = SIZE_MAX;
    tagore_matrix queries = matrix_of(base + row * DIM, count, DIM);
    SIZED(tagore_live_search_options, options);
    options.k = K;
    options.among = among;
    options.among_count = among_count;
    SIZED(tagore_live_results, results);
    results.ids = ids;
    results.distances = distances;
    results.slots = ROWS * K;
    results.short_queries = &short_queries;
    WORKS(tagore_live_search(live, &queries, &options, NULL, &results));
    return short_queries;
}

/* Whether the nearest row of each is itself. */
static int are_there(size_t row, size_t count) {
    size_t wrong = find(row, count, NULL, 0);
    for (size_t query = 0; query < count; query++) {
        wrong += ids[query * K] != own[row + query] || distances[query * K] != 0;
    }
    return wrong == 0;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int32_t count_updates(void *context, const tagore_update *update) {
    pthread_mutex_lock(&lock);
    ++*(int *)context;
    pthread_mutex_unlock(&lock);
    return update->size != sizeof *update;
}

static int32_t stop(void *context, const tagore_update *update) {
    count_updates(context, update);
    return 1;
}

static int seen, stopped;
static tagore_progress counting, stopping;

static void changes(void) {
    size_t removed = 0;
    int32_t changed = -1;
    holds(0, 0);
    HOLDS(find(0, 2, NULL, 0) == 2 && ids[0] == UINT64_MAX && distances[0] == INFINITY);
    WORKS(tagore_live_consolidate(live, NULL, &changed));
    HOLDS(changed == 0);
    /* As many rows as these go into the graph at once. */
    WORKS(tagore_live_insert(live, first, own, FIRST, &counting));
    holds(FIRST, 0);
    HOLDS(seen > 0 && are_there(0, FIRST));
    WORKS(tagore_live_insert(live, rest, own + FIRST, ROWS - FIRST, NULL));
    holds(ROWS, ROWS - FIRST);
    HOLDS(are_there(0, ROWS));

    /* A row of the graph, a recent one, one twice, and one that is not there. */
    const uint64_t gone[] = {own[3], own[FIRST + 3], own[3], 5};
    WORKS(tagore_live_remove(live, gone, 4, NULL, &removed));
    HOLDS(removed == 2);
    WORKS(tagore_live_remove(live, gone, 4, NULL, NULL));
    WORKS(tagore_live_remove(live, NULL, 0, NULL, &removed));
    HOLDS(removed == 0);
    holds(ROWS - 2, ROWS - FIRST - 1);
    HOLDS(find(3, 1, NULL, 0) == 0 && ids[0] != own[3] && distances[0] > 0);
    find(FIRST + 3, 1, NULL, 0);
    HOLDS(ids[0] != own[FIRST + 3]);

    /* Row 10 gets the vector of row 3 under its own id. */
    tagore_vectors *other = vectors_of(base + 3 * DIM, 1, DIM);
    WORKS(tagore_live_insert(live, other, &own[10], 1, NULL));
    holds(ROWS - 2, ROWS - FIRST);
    find(3, 1, NULL, 0);
    HOLDS(ids[0] == own[10] && distances[0] == 0);
    find(10, 1, NULL, 0);
    HOLDS(ids[0] != own[10] && distances[0] > 0);
    tagore_vectors_free(other);
    other = vectors_of(base + 10 * DIM, 1, DIM);
    WORKS(tagore_live_insert(live, other, &own[10], 1, NULL));
    tagore_vectors_free(other);

    /* Own ids that may be found, of which one has no row. */
    const uint64_t among[] = {own[FIRST + 9], own[3], own[20]};
    HOLDS(find(20, 1, among, 3) == 1 && ids[0] == own[20] && ids[1] == own[FIRST + 9]);
    HOLDS(ids[2] == UINT64_MAX && distances[2] == INFINITY);
    HOLDS(find(20, 1, among, 0) == 1 && ids[0] == UINT64_MAX);

    WORKS(tagore_live_consolidate(live, NULL, &changed));
    HOLDS(changed == 1);
    holds(ROWS - 2, 0);
    WORKS(tagore_live_consolidate(live, NULL, &changed));
    HOLDS(changed == 0 && are_there(4, FIRST - 4) && are_there(FIRST + 4, ROWS - FIRST - 4));
}

/* A cancelled consolidation changes nothing, nor does a change that needs one; a change before one
 * stands. */
static void cancellations(void) {
    int32_t changed = -1;
    size_t removed = 7;
    tagore_vectors *three = vectors_of(base + 3 * DIM, 1, DIM);
    WORKS(tagore_live_insert(live, three, &own[3], 1, &stopping));
    HOLDS(stopped == 0);
    FAILS(CANCELLED, "interrupted", tagore_live_consolidate(live, &stopping, &changed));
    HOLDS(stopped > 0 && changed == -1);
    holds(ROWS - 1, 1);
    HOLDS(are_there(0, FIRST));
    WORKS(tagore_live_insert(live, first, own, FIRST, &stopping));
    holds(ROWS - 1, FIRST);
    FAILS(CANCELLED, "interrupted", tagore_live_insert(live, three, &own[FIRST + 3], 1, &stopping));
    FAILS(CANCELLED, "interrupted", tagore_live_remove(live, own, 9, &stopping, &removed));
    HOLDS(removed == 7);
    holds(ROWS - 1, FIRST);
    HOLDS(are_there(0, FIRST));
    /* Without a callback none is left of the calls before. */
    stopped = 0;
    WORKS(tagore_live_consolidate(live, NULL, &changed));
    HOLDS(changed == 1 && stopped == 0);
    holds(ROWS - 1, 0);
    tagore_vectors_free(three);
    /* Changes that leave the graph to others. */
    WORKS(tagore_live_set_automatic(live, 0));
    WORKS(tagore_live_insert(live, first, own, FIRST, NULL));
    holds(ROWS - 1, FIRST);
    WORKS(tagore_live_set_automatic(live, 1));
    WORKS(tagore_live_remove(live, own, 1, NULL, NULL));
    WORKS(tagore_live_insert(live, first, own, FIRST, NULL));
    holds(ROWS - 1, 0);
}

static void wrong_calls(void) {
    float wrong[2 * DIM], radius = 0;
    uint64_t two[] = {1, 1};
    tagore_live *out = live;
    tagore_vectors *flat = vectors_of(base, 2, DIM / 2), *pair = vectors_of(base, 2, DIM), *unfit = NULL;
    FAILS(FILE, ": found an open live index, expected a live index that no one has open: close it there first",
          tagore_live_open(folder, NULL, &out));
    HOLDS(out == NULL);
    FAILS(FILE, ": found a folder with files, expected an empty folder, or a new name",
          tagore_live_create(folder, builder, DIM, TAGORE_F32, &out));
    FAILS(ARGUMENT, "dim: found 0, expected 1 to 4096", tagore_live_create("no", builder, 0, TAGORE_F32, &out));
    FAILS(ARGUMENT, "device: found gpu, expected auto, cpu, cuda, cuda:N, emulated or emulated:8.9",
          tagore_live_open(folder, "gpu", &out));

    FAILS(MISMATCH, "ids: found 1 ids, expected 2, one per row", tagore_live_insert(live, pair, two, 1, NULL));
    FAILS(ARGUMENT, "ids: found 1 twice, expected each id once", tagore_live_insert(live, pair, two, 2, NULL));
    two[1] = UINT64_MAX;
    FAILS(ARGUMENT, "ids: found 18446744073709551615, expected below 18446744073709551615",
          tagore_live_insert(live, pair, two, 2, NULL));
    two[1] = 2;
    FAILS(MISMATCH, "vectors: found rows of 4 f32, expected 8 f32 as in the index",
          tagore_live_insert(live, flat, two, 2, NULL));
    memcpy(wrong, base, sizeof wrong);
    wrong[DIM + 3] = NAN;
    unfit = vectors_of(wrong, 2, DIM);
    FAILS(VALUE, "vectors: row 1, dimension 3: found NaN, expected a finite number", tagore_live_insert(live, unfit, two, 2, NULL));
    holds(ROWS - 1, 0);

    tagore_matrix queries = matrix_of(base, 2, DIM / 2);
    SIZED(tagore_live_search_options, options);
    options.k = K;
    SIZED(tagore_live_results, results);
    results.ids = ids;
    results.slots = ROWS * K;
    FAILS(MISMATCH, "vectors: found dimension 4, expected 8 as in the index",
          tagore_live_search(live, &queries, &options, NULL, &results));
    queries.dim = DIM;
    options.k = 0;
    FAILS(ARGUMENT, "k: found 0, expected at least 1", tagore_live_search(live, &queries, &options, NULL, &results));
    options.k = ROWS * K;
    FAILS(ARGUMENT, "slots: found 10000, expected at least 2 x 10000",
          tagore_live_search(live, &queries, &options, NULL, &results));
    options.k = K;
    options.beam = 4;
    FAILS(ARGUMENT, "beam: found 4, expected at least k = 5",
          tagore_live_search(live, &queries, &options, NULL, &results));
    options.beam = 0;
    options.among_count = 1;
    FAILS(ARGUMENT, "among: found a null pointer, expected an address",
          tagore_live_search(live, &queries, &options, NULL, &results));
    options.among_count = 0;
    FAILS(CANCELLED, "interrupted", tagore_live_search(live, &queries, &options, &stopping, &results));
    /* Only rows at the radius or nearer, and more slots than rows. */
    options.radius = &radius;
    options.k = ROWS + 7;
    WORKS(tagore_live_search(live, &queries, &options, NULL, &results));
    HOLDS(ids[0] == own[0] && ids[1] == UINT64_MAX && ids[ROWS + 7] == own[1] && ids[2 * ROWS + 13] == UINT64_MAX);
    tagore_vectors_free(unfit);
    tagore_vectors_free(pair);
    tagore_vectors_free(flat);
}

/* Closed and opened, the index has the rows that it had, in the graph and outside it. */
static void again(void) {
    static uint64_t before[ROWS * K];
    size_t removed = 0;
    WORKS(tagore_live_set_synced(live, 0));
    WORKS(tagore_live_insert(live, rest, own + FIRST, ROWS - FIRST, NULL));
    WORKS(tagore_live_remove(live, own, 3, NULL, &removed));
    HOLDS(removed == 3);
    find(0, ROWS, NULL, 0);
    memcpy(before, ids, sizeof before);
    tagore_live_free(live);
    live = NULL;
    WORKS(tagore_live_open(folder, "cpu", &live));
    holds(ROWS - 3, ROWS - FIRST);
    find(0, ROWS, NULL, 0);
    HOLDS(memcmp(ids, before, sizeof before) == 0);
    HOLDS(are_there(3, ROWS - 3));
    WORKS(tagore_live_set_synced(live, 1));
    WORKS(tagore_live_insert(live, first, own, FIRST, NULL));
    holds(ROWS, 0);
}

static int is_over;

static int over(int ends) {
    pthread_mutex_lock(&lock);
    is_over |= ends;
    const int now = is_over;
    pthread_mutex_unlock(&lock);
    return now;
}

/* Searches for rows that stay, until the changes are over: each is found, in an index of a state
 * between two changes. */
static void *search(void *context) {
    uint64_t found[K];
    float far[K];
    size_t row = *(const size_t *)context, wrong = 0, searches = 0;
    SIZED(tagore_live_search_options, options);
    options.k = K;
    SIZED(tagore_live_results, results);
    results.ids = found;
    results.distances = far;
    results.slots = K;
    SIZED(tagore_live_info, info);
    while (!over(0) || searches < 20) {
        const size_t asked = row++ % KEPT;
        tagore_matrix query = matrix_of(base + asked * DIM, 1, DIM);
        wrong += tagore_live_search(live, &query, &options, NULL, &results) != TAGORE_OK;
        wrong += found[0] != own[asked] || far[0] != 0 || found[K - 1] == UINT64_MAX;
        wrong += tagore_live_get_info(live, &info) != TAGORE_OK;
        wrong += info.rows != ROWS && info.rows != ROWS - 50;
        searches++;
    }
    return wrong == 0 ? context : NULL;
}

/* Consolidates under a callback that cancels, which ends no change of another thread. */
static void *cancel(void *context) {
    size_t wrong = 0;
    while (!over(0)) {
        const tagore_status status = tagore_live_consolidate(live, &stopping, NULL);
        wrong += status != TAGORE_OK && status != TAGORE_ERROR_CANCELLED;
        sched_yield();
    }
    return wrong == 0 ? context : NULL;
}

static void threads(void) {
    static size_t rows[3] = {0, 200, 0};
    pthread_t started[3];
    tagore_vectors *last = vectors_of(base + (ROWS - 50) * DIM, 50, DIM);
    for (int i = 0; i < 3; i++) {
        HOLDS(pthread_create(&started[i], NULL, i < 2 ? search : cancel, &rows[i]) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        WORKS(tagore_live_remove(live, own + ROWS - 50, 50, &counting, NULL));
        WORKS(tagore_live_insert(live, last, own + ROWS - 50, 50, &counting));
        if (round % 4 == 3) {
            WORKS(tagore_live_consolidate(live, &counting, NULL));
        }
    }
    over(1);
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        HOLDS(pthread_join(started[i], &result) == 0 && result != NULL);
    }
    HOLDS(are_there(0, ROWS));
    tagore_vectors_free(last);
}

int main(int argc, char **argv) {
    snprintf(folder, sizeof folder, "%s/live", argc > 1 ? argv[1] : ".");
    counting.size = stopping.size = sizeof counting;
    counting.watch = count_updates;
    counting.context = &seen;
    stopping.watch = stop;
    stopping.context = &stopped;
    set_up();
    changes();
    cancellations();
    wrong_calls();
    again();
    threads();
    tagore_live_free(live);
    strcat(folder, "-not");
    FAILS(FILE, ": found no such folder, expected the folder of a live index: create one, or correct the path",
          tagore_live_open(folder, NULL, &live));
    tagore_builder_free(builder);
    tagore_vectors_free(rest);
    tagore_vectors_free(first);
    return 0;
}
