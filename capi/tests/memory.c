/* Too little memory is a status: no call ends the program. A child process for each of 50 limits of
 * its address space, from none to more than the work takes, opens, builds, updates, saves and
 * searches, and changes a live index:
 * memory FOLDER
 */
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tagore.h>

enum { ROWS = 12000, DIM = 32, QUERIES = 1000, K = 50, LIMITS = 50, LIVE = 1500 };

/* Exit codes of a child. */
enum { DONE, REFUSED, WRONG };

static float *base;
static uint32_t *found;

/* A number of /proc/self/status, in bytes. Allocates nothing: a thread stays without an arena. */
static size_t status_of(const char *name) {
    char text[8192];
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    const char *found;
    if (file >= 0) {
        close(file);
    }
    text[length < 0 ? 0 : length] = 0;
    found = strstr(text, name);
    return found ? (size_t)strtoull(found + strlen(name), NULL, 10) << 10 : 0;
}

/* Ends the child at a status that is no lack of memory. */
static int refused(const char *call, tagore_status status) {
    if (status != TAGORE_OK && status != TAGORE_ERROR_MEMORY) {
        fprintf(stderr, "%s: status %d: %s\n", call, (int)status, tagore_last_error());
        _exit(WRONG);
    }
    return status != TAGORE_OK;
}

/* Changes of a live index in a new folder, and searches of it before and after it is closed. */
static int live_work(const tagore_builder *builder, const char *file) {
    static uint64_t own[LIVE], answers[QUERIES * K];
    int refusals = 0;
    char folder[600];
    tagore_matrix rows = {.size = sizeof rows, .data = base, .rows = LIVE, .dim = DIM};
    tagore_matrix asked = {.size = sizeof asked, .data = base, .rows = QUERIES, .dim = DIM};
    tagore_live_search_options search = {.size = sizeof search, .k = K};
    tagore_live_results room = {.size = sizeof room, .ids = answers, .slots = (size_t)QUERIES * K};
    tagore_vectors *vectors = NULL;
    tagore_live *live = NULL;
    for (size_t row = 0; row < LIVE; row++) {
        own[row] = row * row;
    }
    snprintf(folder, sizeof folder, "%s.%d.live", file, (int)getpid());
    refusals += refused("live rows", tagore_vectors_from_memory(&rows, NULL, NULL, &vectors));
    refusals += refused("live create", tagore_live_create(folder, builder, DIM, TAGORE_F32, &live));
    if (live && vectors) {
        refusals += refused("live insert", tagore_live_insert(live, vectors, own, LIVE, NULL));
        refusals += refused("live remove", tagore_live_remove(live, own, 100, NULL, NULL));
        refusals += refused("live search", tagore_live_search(live, &asked, &search, NULL, &room));
        refusals += refused("live consolidate", tagore_live_consolidate(live, NULL, NULL));
        tagore_live_free(live);
        live = NULL;
        refusals += refused("live open", tagore_live_open(folder, "cpu", &live));
    }
    if (live) {
        refusals += refused("live search", tagore_live_search(live, &asked, &search, NULL, &room));
    }
    tagore_live_free(live);
    tagore_vectors_free(vectors);
    return refusals;
}

/* All work on the rows, in which each call may be refused. A refused step is skipped, and so are
 * those that need it. */
static int work(const char *kind, const char *metric, const char *file) {
    int refusals = 0;
    tagore_matrix rows = {.size = sizeof rows, .data = base, .rows = ROWS, .dim = DIM};
    tagore_matrix asked = {.size = sizeof asked, .data = base, .rows = QUERIES, .dim = DIM};
    tagore_results results = {.size = sizeof results, .ids = found, .slots = (size_t)QUERIES * K};
    tagore_vectors *vectors = NULL;
    tagore_builder *builder = NULL;
    tagore_knn_graph *graph = NULL;
    tagore_index *index = NULL, *updated = NULL, *opened = NULL;
    tagore_searcher *searcher = NULL, *coded = NULL;

    refusals += refused("vectors", tagore_vectors_from_memory(&rows, NULL, NULL, &vectors));
    refusals += refused("builder", tagore_builder_create(kind, &builder));
    if (vectors && builder) {
        tagore_exact_options exact = {.size = sizeof exact, .k = K};
        refusals += refused("device", tagore_builder_set(builder, "device", "cpu"));
        refusals += refused("knn", tagore_builder_set(builder, "knn", "48"));
        refusals += refused("metric", tagore_builder_set(builder, "metric", metric));
        refusals += refused("exact search", tagore_exact_search(vectors, &asked, &exact, NULL, &results));
        refusals += refused("knn graph", tagore_builder_knn_graph(builder, vectors, NULL, &graph));
        refusals += refused("build", tagore_builder_build(builder, vectors, NULL, NULL, &index));
    }
    if (index) {
        tagore_id_set *others = NULL;
        const uint64_t words[] = {UINT64_MAX};
        tagore_index_update_options changes = {.size = sizeof changes, .device = "cpu"};
        refusals += refused("set", tagore_id_set_create(64, words, 1, &others));
        changes.replace = others;
        refusals += refused("update", tagore_index_update(index, vectors, &changes, NULL, &updated));
        tagore_id_set_free(others);
        refusals += refused("save", tagore_index_save(index, file));
        refusals += refused("open", tagore_index_open(file, &opened));
    }
    if (opened) {
        tagore_search_options search = {.size = sizeof search, .k = K, .beam = 100};
        tagore_searcher_options codes = {.size = sizeof codes, .vectors = "int8"};
        refusals += refused("searcher", tagore_searcher_create(opened, vectors, NULL, NULL, &searcher));
        refusals += refused("codes", tagore_searcher_create(opened, vectors, &codes, NULL, &coded));
        if (searcher) {
            refusals += refused("search", tagore_search(searcher, &asked, &search, NULL, &results));
        }
        if (coded) {
            refusals += refused("coded search", tagore_search(coded, &asked, &search, NULL, &results));
        }
    }
    if (builder) {
        refusals += live_work(builder, file);
    }
    tagore_searcher_free(coded);
    tagore_searcher_free(searcher);
    tagore_index_free(opened);
    tagore_index_free(updated);
    tagore_index_free(index);
    tagore_knn_graph_free(graph);
    tagore_builder_free(builder);
    tagore_vectors_free(vectors);
    return refusals;
}

/* The first work finds no room for threads, and the next work finds it. */
static int retry(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {status_of("VmSize:") + (1 << 20), RLIM_INFINITY};
        tagore_matrix rows = {.size = sizeof rows, .data = base, .rows = 1000, .dim = DIM};
        tagore_results results = {.size = sizeof results, .ids = found, .slots = 1000 * 10};
        tagore_exact_options exact = {.size = sizeof exact, .k = 10, .device = "cpu"};
        tagore_vectors *vectors = NULL;
        alarm(120);
        if (tagore_vectors_from_memory(&rows, NULL, NULL, &vectors) != TAGORE_OK || setrlimit(RLIMIT_AS, &limit) ||
            !refused("first work", tagore_exact_search(vectors, &rows, &exact, NULL, &results))) {
            _exit(WRONG);
        }
        limit.rlim_cur = RLIM_INFINITY;
        if (setrlimit(RLIMIT_AS, &limit) ||
            refused("next work", tagore_exact_search(vectors, &rows, &exact, NULL, &results))) {
            _exit(WRONG);
        }
        tagore_vectors_free(vectors);
        _exit(DONE);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

/* What a child does. */
struct task {
    int number;
    size_t bytes;
    const char *folder;
    int refusals;
    size_t taken;
};

/* Sets the limit of a task, and does the work. */
static void *limited(void *argument) {
    const char *const kinds[] = {"nsg", "cagra", "vamana", "nssg"};
    const char *const metrics[] = {"l2", "cosine", "ip"};
    struct task *task = argument;
    char file[512];
    size_t before = status_of("VmSize:");
    struct rlimit limit = {before + task->bytes, before + task->bytes};
    snprintf(file, sizeof file, "%s/memory-%d.tagore", task->folder, task->number);
    if (task->bytes && setrlimit(RLIMIT_AS, &limit)) {
        _exit(WRONG);
    }
    task->refusals = work(kinds[task->number / 2 % 4], metrics[task->number % 3], file);
    task->taken = status_of("VmPeak:") - before;
    return NULL;
}

/* Runs the work in a child with `bytes` more than it has, or without a limit if 0, and with one
 * arena of the allocator or as many as it likes. Returns how it ended, and the bytes that it took
 * at most. */
static int run(int number, size_t bytes, int one_arena, const char *folder, size_t *taken) {
    int ends[2], status = 0;
    pid_t child;
    if (pipe(ends)) {
        return -1;
    }
    child = fork();
    if (child == 0) {
        struct task task = {.number = number, .bytes = bytes, .folder = folder};
        pthread_t thread;
        /* A child that hangs is killed. */
        alarm(120);
        if (one_arena) {
            mallopt(M_ARENA_MAX, 1);
        }
        /* In a thread of its own: where the allocator has no room for an arena of that thread, each
         * small allocation takes a page. */
        if (pthread_create(&thread, NULL, limited, &task) || pthread_join(thread, NULL) ||
            write(ends[1], &task.taken, sizeof task.taken) != (ssize_t)sizeof task.taken) {
            _exit(WRONG);
        }
        _exit(task.refusals ? REFUSED : DONE);
    }
    close(ends[1]);
    if (read(ends[0], taken, sizeof *taken) != (ssize_t)sizeof *taken) {
        *taken = 0;
    }
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return -1;
    }
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "limit %d, %zu bytes: killed by signal %d\n", number, bytes, WTERMSIG(status));
        return -1;
    }
    return WEXITSTATUS(status) == WRONG ? -1 : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : ".";
    size_t most[2], unused;
    int faults = 0, done = 0, refusals = 0;
    uint32_t seed = 1;
    base = malloc(sizeof(float) * ROWS * DIM);
    found = malloc(sizeof(uint32_t) * QUERIES * K);
    if (!base || !found) {
        return 1;
    }
    for (size_t i = 0; i < (size_t)ROWS * DIM; i++) {
        seed = seed * 1664525u + 1013904223u;
        base[i] = (float)(seed >> 8) / (float)(1u << 24);
    }
    if (retry()) {
        fprintf(stderr, "work after work without threads: failed\n");
        return 1;
    }
    for (int one_arena = 0; one_arena < 2; one_arena++) {
        if (run(0, 0, one_arena, folder, &most[one_arena]) != DONE) {
            fprintf(stderr, "without a limit: the work failed\n");
            return 1;
        }
    }
    for (int number = 0; number < LIMITS; number++) {
        /* Half of the limits with one arena: else address space for arenas is most of all. */
        int one_arena = number % 2;
        size_t bytes = most[one_arena] / (LIMITS - 10) * (size_t)number + 4096;
        int ended = run(number, bytes, one_arena, folder, &unused);
        faults += ended < 0;
        done += ended == DONE;
        refusals += ended == REFUSED;
    }
    printf("%d limits of memory: %d refused, %d done, %d faults\n", LIMITS, refusals, done, faults);
    /* Both ends are met: else the limits say nothing. */
    return faults || !done || !refusals;
}
