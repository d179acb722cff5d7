/* An index inside a program's own store: vectors are read from it by callback, and the rows of the
 * graph are written back to it. The store here is a file of records with a key each; in a database
 * they are a table and a cursor: store FOLDER
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tagore.h>

enum { ROWS = 3000, DIM = 16 };

/* A record of the store. */
struct record {
    char key[8];
    float vector[DIM];
};

/* The store: records, and the lists that a build writes back. */
struct store {
    FILE *records;
    uint32_t *lists[ROWS];
    size_t lengths[ROWS];
    uint32_t entry;
};

static void check(tagore_status status) {
    if (status != TAGORE_OK) {
        fprintf(stderr, "%s\n", tagore_last_error());
        exit(1);
    }
}

/* Reads the next rows: a cursor, since they come in order. */
static int32_t fill(void *context, size_t first_row, size_t rows, void *out) {
    struct store *store = context;
    float *vectors = out;
    (void)first_row;
    for (size_t row = 0; row < rows; row++) {
        struct record record;
        if (fread(&record, sizeof record, 1, store->records) != 1) {
            return 5; /* the store's own code: the message of the failed call has it */
        }
        memcpy(vectors + row * DIM, record.vector, sizeof record.vector);
    }
    return 0;
}

static int32_t take_entries(void *context, const uint32_t *entries, size_t count) {
    struct store *store = context;
    store->entry = count > 0 ? entries[0] : 0;
    return 0;
}

static int32_t take_row(void *context, uint32_t node, const uint32_t *neighbors, size_t count) {
    struct store *store = context;
    uint32_t *list = malloc(count * sizeof *list + 1);
    if (!list) {
        return 12;
    }
    memcpy(list, neighbors, count * sizeof *list);
    store->lists[node] = list;
    store->lengths[node] = count;
    return 0;
}

/* Writes the records, as a database that has been there for long. */
static FILE *records_in(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/records", folder);
    FILE *file = fopen(path, "w+b");
    uint32_t seed = 7;
    for (size_t row = 0; file && row < ROWS; row++) {
        struct record record;
        snprintf(record.key, sizeof record.key, "r%zu", row % 100000);
        for (size_t i = 0; i < DIM; i++) {
            seed = seed * 1664525u + 1013904223u;
            record.vector[i] = (float)(seed >> 8);
        }
        if (fwrite(&record, sizeof record, 1, file) != 1) {
            return NULL;
        }
    }
    if (file) {
        rewind(file);
    }
    return file;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : ".";
    static struct store store;
    store.records = records_in(folder);
    if (!store.records) {
        perror(folder);
        return 1;
    }

    /* The rows go to a file without a name in the folder: they may be more than memory holds. */
    tagore_source source = {.size = sizeof source, .fill = fill, .context = &store, .rows = ROWS, .dim = DIM,
                            .spool_folder = folder};
    tagore_vectors *vectors;
    check(tagore_vectors_from_source(&source, NULL, &vectors));

    tagore_builder *builder;
    tagore_index *index;
    check(tagore_builder_create("vamana", &builder));
    check(tagore_builder_set(builder, "layers", "false"));
    check(tagore_builder_build(builder, vectors, NULL, NULL, &index));

    tagore_row_sink sink = {.size = sizeof sink, .entries = take_entries, .row = take_row, .context = &store};
    check(tagore_index_write_rows(index, &sink, NULL));
    size_t edges = 0;
    for (size_t node = 0; node < ROWS; node++) {
        edges += store.lengths[node];
        free(store.lists[node]);
    }
    printf("%d rows of %.1f neighbours on average, entry point %u\n", ROWS, (double)edges / ROWS,
           (unsigned)store.entry);

    tagore_index_free(index);
    tagore_builder_free(builder);
    tagore_vectors_free(vectors);
    fclose(store.records);
    return 0;
}
