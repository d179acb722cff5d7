/* Builds an NSG index of random vectors, saves it, opens it again, searches it and prints the
 * recall: build_and_search FILE
 *
 *     cc build_and_search.c $(pkg-config --cflags --libs tagore) -o build_and_search
 */
#include <stdio.h>
#include <stdlib.h>

#include <tagore.h>

enum { ROWS = 5000, QUERIES = 200, DIM = 24, K = 10 };

/* Ends the program with the message of a failed call. */
static void check(tagore_status status) {
    if (status != TAGORE_OK) {
        fprintf(stderr, "%s\n", tagore_last_error());
        exit(1);
    }
}

/* Values from 0 to 1, the same in every run. */
static void draw(float *values, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1u << 24);
    }
}

/* Stops at nothing, and prints each stage once it is done. */
static int32_t watch(void *context, const tagore_update *update) {
    (void)context;
    if (update->done == update->total) {
        fprintf(stderr, "%s, %.0f %%\n", update->stage, 100 * update->fraction);
    }
    return 0;
}

/* The share of the true neighbours that a search found. */
static double recall(const uint32_t *found, const uint32_t *truth) {
    size_t hits = 0;
    for (size_t query = 0; query < QUERIES; query++) {
        for (size_t i = 0; i < K; i++) {
            for (size_t j = 0; j < K; j++) {
                hits += found[query * K + i] == truth[query * K + j];
            }
        }
    }
    return (double)hits / (QUERIES * K);
}

int main(int argc, char **argv) {
    const char *file = argc > 1 ? argv[1] : "example.tagore";
    float *base = malloc(sizeof(float) * ROWS * DIM), *queries = malloc(sizeof(float) * QUERIES * DIM);
    uint32_t *ids = malloc(sizeof(uint32_t) * QUERIES * K), *truth = malloc(sizeof(uint32_t) * QUERIES * K);
    if (!base || !queries || !ids || !truth) {
        return 1;
    }
    draw(base, ROWS * DIM, 1);
    draw(queries, QUERIES * DIM, 2);

    tagore_matrix rows = {.size = sizeof rows, .data = base, .rows = ROWS, .dim = DIM};
    tagore_vectors *vectors;
    check(tagore_vectors_from_memory(&rows, NULL, NULL, &vectors)); /* not copied */

    tagore_builder *builder;
    check(tagore_builder_create("nsg", &builder));
    check(tagore_builder_set(builder, "degree", "32"));
    tagore_progress progress = {.size = sizeof progress, .watch = watch};
    tagore_index *index;
    check(tagore_builder_build(builder, vectors, NULL, &progress, &index));
    check(tagore_index_save(index, file));
    tagore_index_free(index);
    check(tagore_index_open(file, &index));

    tagore_searcher *searcher;
    check(tagore_searcher_create(index, vectors, NULL, NULL, &searcher));
    tagore_matrix asked = {.size = sizeof asked, .data = queries, .rows = QUERIES, .dim = DIM};
    tagore_search_options search = {.size = sizeof search, .k = K, .beam = 100};
    tagore_results found = {.size = sizeof found, .ids = ids, .slots = QUERIES * K};
    check(tagore_search(searcher, &asked, &search, NULL, &found));

    tagore_exact_options exact = {.size = sizeof exact, .k = K};
    tagore_results true_ids = {.size = sizeof true_ids, .ids = truth, .slots = QUERIES * K};
    check(tagore_exact_search(vectors, &asked, &exact, NULL, &true_ids));
    printf("recall@%d %.4f\n", K, recall(ids, truth));

    tagore_searcher_free(searcher);
    tagore_index_free(index);
    tagore_builder_free(builder);
    tagore_vectors_free(vectors);
    free(truth);
    free(ids);
    free(queries);
    free(base);
    return 0;
}
