/*
 * The C interface of tagore: graph indexes for approximate nearest-neighbour search.
 *
 * Made by cbindgen from capi/src: TAGORE_WRITE_API=1 cargo test -p tagore-capi. How to use it:
 * docs/how-to-c.md.
 *
 * Statuses. A function that can fail returns TAGORE_OK or the kind of its error, and
 * tagore_last_error has the message. No call ends the program, or handles signals. Nothing is
 * printed but the message of a defect of the library, which is TAGORE_ERROR_INTERNAL.
 *
 * Handles. A call that makes a handle writes it to `out`, or a null pointer if it fails. The
 * matching _free function frees it; it may be null. A handle may be used by any number of threads
 * at the same time, but for its _free. Handles made from it do not need it any more.
 *
 * Structs begin with their size, which the program sets to sizeof, with all else zero: zero is the
 * default of every field. So a program runs with newer libraries, whose structs are longer.
 *
 * Pointers are null, which is refused unless a comment allows it, or valid. Memory that the program
 * lends must not change meanwhile. Texts are UTF-8 and end with a zero byte; paths are bytes.
 *
 * Callbacks must return: no exception, longjmp or exit. They may call this library.
 */


#ifndef TAGORE_H
#define TAGORE_H

#include <stddef.h>
#include <stdint.h>

/**
 * The version of this interface: it grows with every addition. The shared library's name changes
 * with every change that breaks programs.
 */
#define TAGORE_API_VERSION 1

/**
 * The settings of builds. Any number of threads may use one at the same time.
 */
typedef struct tagore_builder tagore_builder;

/**
 * A set of rows, read only: any number of threads use it at the same time.
 */
typedef struct tagore_id_set tagore_id_set;

/**
 * An index, read only: any number of threads use it at the same time. It holds no vectors.
 */
typedef struct tagore_index tagore_index;

/**
 * A k-NN graph, read only: for each row the same number of nearest others, nearest first. Any
 * number of threads use it at the same time.
 */
typedef struct tagore_knn_graph tagore_knn_graph;

/**
 * A live index: a folder whose rows come, go and change while searches run.
 *
 * Rows have ids of the program, any but UINT64_MAX. A change that has returned is on disk: after a
 * crash, tagore_live_open finds the index as its last change left it. Most rows are in a graph;
 * searches compare recent ones one by one, and skip those that were removed. From time to time a
 * change brings the graph up to date, and takes longer.
 *
 * Any number of threads search and change an index at the same time. Changes take turns, so a
 * callback that watches one must not make another. Searches do not wait: each sees the index as
 * it was when it began. One handle at a time has the folder open, in all processes.
 */
typedef struct tagore_live tagore_live;

/**
 * An index and its vectors, checked and prepared. Any number of threads search one at the same
 * time. It lives on without the handles it was made from.
 */
typedef struct tagore_searcher tagore_searcher;

/**
 * A data set, read only: any number of threads use it at the same time. Indexes need it beside
 * them, since they hold no vectors.
 */
typedef struct tagore_vectors tagore_vectors;

/**
 * The result of a call: `TAGORE_OK`, or the kind of its error.
 */
typedef int32_t tagore_status;

/**
 * The type of the components of vectors: one of TAGORE_F32, TAGORE_F16, TAGORE_U8, TAGORE_I8,
 * TAGORE_BF16, TAGORE_B1.
 */
typedef int32_t tagore_element;

/**
 * The kind of memory of a pointer: TAGORE_HOST or TAGORE_CUDA.
 */
typedef int32_t tagore_memory;

/**
 * Vectors in memory, one per row.
 */
typedef struct {
    /**
     * sizeof(tagore_matrix)
     */
    size_t size;
    /**
     * The first component of row 0, aligned for its type. Components are little-endian.
     */
    const void *data;
    /**
     * The number of rows, n: at most 4,294,967,294.
     */
    size_t rows;
    /**
     * Components per row, 1 to 4,096; of bits 1 to 32,768.
     */
    size_t dim;
    /**
     * Components, or bytes of bits, from the start of a row to the start of the next; 0 for rows
     * without gaps.
     */
    size_t stride;
    /**
     * The type of the components.
     */
    tagore_element element;
    /**
     * The kind of memory.
     */
    tagore_memory memory;
    /**
     * Of TAGORE_CUDA: the cudaStream_t or CUstream whose work writes the vectors, which the call
     * waits for; null for the default stream.
     */
    void *stream;
    /**
     * Of TAGORE_CUDA: the number of the device.
     */
    int32_t device;
    /**
     * 0
     */
    int32_t reserved;
} tagore_matrix;

/**
 * Gives memory back to its owner. Called once, on any thread.
 */
typedef void (*tagore_release)(void *context);

/**
 * Writes rows `first_row`, `first_row` + 1 and so on to `out`: `rows` rows of the dimension and
 * type of the source, without gaps. Returns 0, or the program's code of a failure, which ends the
 * work with TAGORE_ERROR_CALLBACK.
 */
typedef int32_t (*tagore_fill)(void *context, size_t first_row, size_t rows, void *out);

/**
 * A store that copies its vectors into a buffer, such as a database.
 *
 * `fill` is called on the calling thread, for all rows in order, each once: a cursor is enough.
 */
typedef struct {
    /**
     * sizeof(tagore_source)
     */
    size_t size;
    /**
     * Reads rows.
     */
    tagore_fill fill;
    /**
     * Handed to `fill`.
     */
    void *context;
    /**
     * The number of rows, n: at most 4,294,967,294.
     */
    size_t rows;
    /**
     * Components per row, 1 to 4,096; of bits 1 to 32,768.
     */
    size_t dim;
    /**
     * The type of the components.
     */
    tagore_element element;
    /**
     * Null to keep the rows in memory. Otherwise a folder: the rows go to a file there, which has
     * no name and is mapped, and the system frees it with the handle.
     */
    const char *spool_folder;
} tagore_source;

/**
 * The progress of one stage, and of the work that it belongs to.
 */
typedef struct {
    /**
     * sizeof(tagore_update) of the library.
     */
    size_t size;
    /**
     * The name of the stage, such as "descent"; valid during the call.
     */
    const char *stage;
    /**
     * Units of the stage done.
     */
    uint64_t done;
    /**
     * Units of the stage in total. A stage that stops early ends below.
     */
    uint64_t total;
    /**
     * The share of the whole work done, 0 to 1, by estimated times.
     */
    double fraction;
} tagore_update;

/**
 * Takes an update. Any result but 0 cancels the work, which then returns
 * TAGORE_ERROR_CANCELLED soon. Called from several threads at the same time.
 */
typedef int32_t (*tagore_watch)(void *context, const tagore_update *update);

/**
 * A callback for long work. A null pointer in its place watches nothing.
 */
typedef struct {
    /**
     * sizeof(tagore_progress)
     */
    size_t size;
    /**
     * The callback; may be null.
     */
    tagore_watch watch;
    /**
     * Handed to the callback.
     */
    void *context;
} tagore_progress;

/**
 * Room for the answers of a search: k slots per query, nearest first. A query that finds fewer
 * rows has the id UINT32_MAX and the distance infinity in its last slots. A call that fails leaves
 * arrays of the host as they are, and undefined values in those of a device.
 */
typedef struct {
    /**
     * sizeof(tagore_results)
     */
    size_t size;
    /**
     * Rows of the base.
     */
    uint32_t *ids;
    /**
     * Their distances to the query; may be null. They order rows: squared under L2, 1 - cos under
     * cosine, the negative inner product.
     */
    float *distances;
    /**
     * Slots of each array: at least queries x k.
     */
    size_t slots;
    /**
     * The kind of memory of both arrays. A search on the device that holds them leaves its answers
     * there; tagore_search on several devices takes TAGORE_HOST alone.
     */
    tagore_memory memory;
    /**
     * Of TAGORE_CUDA: the number of the device.
     */
    int32_t device;
    /**
     * Of TAGORE_CUDA: the cudaStream_t or CUstream whose earlier work may use the arrays, which
     * the call waits for; null for the default stream. The answers are there when the call
     * returns.
     */
    void *stream;
    /**
     * Null, or where tagore_search and tagore_search_one write the number of queries that found
     * fewer than k rows; they do not count answers that stay on a device.
     */
    size_t *short_queries;
} tagore_results;

/**
 * A metric: one of TAGORE_L2, TAGORE_INNER_PRODUCT, TAGORE_COSINE.
 */
typedef int32_t tagore_metric;

/**
 * Limits of a build. Zero is the default of each.
 */
typedef struct {
    /**
     * sizeof(tagore_limits)
     */
    size_t size;
    /**
     * Bytes of host memory, without the mapped vectors; 0 for free memory less an eighth.
     */
    uint64_t host_memory;
    /**
     * Bytes of device memory; 0 for free memory less a sixteenth.
     */
    uint64_t gpu_memory;
    /**
     * The largest number of vectors in a cluster; 0 for no limit.
     */
    size_t cluster_size;
    /**
     * A folder for work files, empty or new; null for the file's name and ".work".
     */
    const char *work_folder;
    /**
     * Not 0: continues a build that was stopped, if its work files exist.
     */
    int32_t resume;
    /**
     * 0
     */
    int32_t reserved;
} tagore_limits;

/**
 * Sizes of an index.
 */
typedef struct {
    /**
     * sizeof(tagore_index_info), set before the call.
     */
    size_t size;
    /**
     * The number of nodes, n.
     */
    size_t nodes;
    /**
     * The largest degree allowed.
     */
    size_t max_degree;
    /**
     * The mean degree.
     */
    double mean_degree;
    /**
     * The number of entry points.
     */
    size_t entries;
    /**
     * The number of layers above the graph.
     */
    size_t layers;
    /**
     * The number of rows that repeat an earlier row, and are found with it.
     */
    size_t repeated;
    /**
     * The number of rows that were left out of the build, or removed.
     */
    size_t left_out;
    /**
     * The metric.
     */
    tagore_metric metric;
    /**
     * 0
     */
    int32_t reserved;
} tagore_index_info;

/**
 * Takes the entry points, once, before all rows. Returns 0, or the program's code of a failure.
 */
typedef int32_t (*tagore_take_entries)(void *context, const uint32_t *entries, size_t count);

/**
 * Takes the neighbours of a node, for nodes 0 to n - 1 in this order. Returns 0, or the program's
 * code of a failure.
 */
typedef int32_t (*tagore_take_row)(void *context,
                                   uint32_t node,
                                   const uint32_t *neighbors,
                                   size_t count);

/**
 * A store that takes the rows of a graph, on the calling thread.
 */
typedef struct {
    /**
     * sizeof(tagore_row_sink)
     */
    size_t size;
    /**
     * Takes the entry points; null to leave them out.
     */
    tagore_take_entries entries;
    /**
     * Takes a row.
     */
    tagore_take_row row;
    /**
     * Handed to both.
     */
    void *context;
} tagore_row_sink;

/**
 * Changes of the rows of an index. Zero is the default of each.
 */
typedef struct {
    /**
     * sizeof(tagore_index_update_options)
     */
    size_t size;
    /**
     * Null, or the rows to remove: no search returns them. They keep their numbers.
     */
    const tagore_id_set *remove;
    /**
     * Null, or the rows with other vectors than before. Removed rows come back this way.
     */
    const tagore_id_set *replace;
    /**
     * The device: "auto" (the default, null), "cpu", "cuda" or "cuda:1". A GPU builds anew.
     */
    const char *device;
} tagore_index_update_options;

/**
 * Sizes of a live index.
 */
typedef struct {
    /**
     * sizeof(tagore_live_info), set before the call.
     */
    size_t size;
    /**
     * The number of rows.
     */
    size_t rows;
    /**
     * Those that searches compare one by one; the others are in the graph.
     */
    size_t recent;
    /**
     * Components per row.
     */
    size_t dim;
    /**
     * The type of the components.
     */
    tagore_element element;
    /**
     * The metric.
     */
    tagore_metric metric;
} tagore_live_info;

/**
 * Options of a search of a live index. Zero is the default of each but `k`.
 */
typedef struct {
    /**
     * sizeof(tagore_live_search_options)
     */
    size_t size;
    /**
     * Neighbours per query, at least 1. May exceed the rows.
     */
    size_t k;
    /**
     * As of tagore_search_options.
     */
    size_t beam;
    /**
     * Null, or a distance: only rows at it or nearer are found.
     */
    const float *radius;
    /**
     * Null, or the ids of the rows that may be found, in any order. Ids without a row are no
     * error. The call takes a pass over all ids of the index.
     */
    const uint64_t *among;
    /**
     * The number of these ids; 0 with an address finds nothing.
     */
    size_t among_count;
} tagore_live_search_options;

/**
 * Room in host memory for the answers of a search: k slots per query, nearest first. A query that
 * finds fewer rows has the id UINT64_MAX and the distance infinity in its last slots. A call that
 * fails leaves the arrays as they are.
 */
typedef struct {
    /**
     * sizeof(tagore_live_results)
     */
    size_t size;
    /**
     * Ids of rows.
     */
    uint64_t *ids;
    /**
     * Their distances to the query, as of tagore_results; may be null.
     */
    float *distances;
    /**
     * Slots of each array: at least queries x k.
     */
    size_t slots;
    /**
     * Null, or where the call writes the number of queries that found fewer than k rows.
     */
    size_t *short_queries;
} tagore_live_results;

/**
 * Options of an export. Zero is the default of each.
 */
typedef struct {
    /**
     * sizeof(tagore_export_options)
     */
    size_t size;
    /**
     * The vectors of the index, for formats that hold them: "hnswlib", "faiss-nsg", "faiss-hnsw",
     * "diskann", "diskann-disk".
     */
    const tagore_vectors *vectors;
    /**
     * Chunks of the product quantizer of "diskann-disk"; 0 for its default.
     */
    size_t pq_chunks;
    /**
     * Not 0: builds the layers of HNSW ("hnswlib", "faiss-hnsw").
     */
    int32_t layers;
    /**
     * 0
     */
    int32_t reserved;
} tagore_export_options;

/**
 * Options of a searcher. Zero is the default of each.
 */
typedef struct {
    /**
     * sizeof(tagore_searcher_options)
     */
    size_t size;
    /**
     * The device: "cpu" (the default, null), "auto", "cuda" or "cuda:1"; or several that share the
     * queries: "cuda:0,1".
     */
    const char *device;
    /**
     * Nodes that a GPU expands per step, 1 to 8: at 1, the default, answers are those of the CPU.
     */
    size_t width;
    /**
     * Queries per batch on a GPU, 65,536 unless set.
     */
    size_t batch;
    /**
     * What searches walk on: "full" (the default, null), the vectors themselves; their codes,
     * "f16" or "int8", and the nearest nodes are then compared by the vectors; or "edges", codes
     * of a bit per component beside each edge.
     */
    const char *vectors;
    /**
     * Nodes that a search on codes compares by the vectors; 0 for 128, or 2 k if that is more.
     */
    size_t rerank;
} tagore_searcher_options;

/**
 * Options of a search. Zero is the default of each but `k`.
 */
typedef struct {
    /**
     * sizeof(tagore_search_options)
     */
    size_t size;
    /**
     * Neighbours per query: 1 to the rows of the base.
     */
    size_t k;
    /**
     * The nodes that a search expands, on average over queries, at least k; 0 for 100, or 2 k if
     * that is more, up to 512. A wider beam finds more and takes longer.
     */
    size_t beam;
    /**
     * Null, or a distance: only rows at it or nearer are found.
     */
    const float *radius;
    /**
     * Null, or the rows that may be found.
     */
    const tagore_id_set *among;
} tagore_search_options;

/**
 * Options of an exact search. Zero is the default of each but `k`.
 */
typedef struct {
    /**
     * sizeof(tagore_exact_options)
     */
    size_t size;
    /**
     * Neighbours per query: 1 to the rows that may be found.
     */
    size_t k;
    /**
     * The device: "auto" (the default, null), "cpu", "cuda" or "cuda:1"; or several that share the
     * search: "cuda:0,1".
     */
    const char *device;
    /**
     * Maximum bytes of memory of each device; 0 for all that is free.
     */
    uint64_t device_memory;
    /**
     * Null, or the rows that may be found.
     */
    const tagore_id_set *among;
    /**
     * The metric, TAGORE_L2 by default.
     */
    tagore_metric metric;
    /**
     * 0
     */
    int32_t reserved;
} tagore_exact_options;

/**
 * Done.
 */
#define TAGORE_OK 0

/**
 * An argument is a null pointer, out of its range, an unknown name, or at odds with another.
 */
#define TAGORE_ERROR_ARGUMENT 1

/**
 * A file could not be read or written.
 */
#define TAGORE_ERROR_IO 2

/**
 * A file has unexpected content.
 */
#define TAGORE_ERROR_FILE 3

/**
 * A value of a vector cannot be used: a NaN, an infinity, or too large for the metric.
 */
#define TAGORE_ERROR_VALUE 4

/**
 * Two inputs do not belong together, such as an index and other vectors than its own.
 */
#define TAGORE_ERROR_MISMATCH 5

/**
 * A callback of the program reported a failure.
 */
#define TAGORE_ERROR_CALLBACK 6

/**
 * A device, or its driver, is missing or failed.
 */
#define TAGORE_ERROR_DEVICE 7

/**
 * A device has too little memory.
 */
#define TAGORE_ERROR_DEVICE_MEMORY 8

/**
 * A progress callback cancelled the work.
 */
#define TAGORE_ERROR_CANCELLED 9

/**
 * The system refused memory of the host, or address space for it.
 */
#define TAGORE_ERROR_MEMORY 11

/**
 * A defect of the library, with a message for a report of it.
 */
#define TAGORE_ERROR_INTERNAL 10

/**
 * 32-bit floating point.
 */
#define TAGORE_F32 0

/**
 * 16-bit floating point (IEEE 754 binary16), as uint16_t.
 */
#define TAGORE_F16 1

/**
 * uint8_t
 */
#define TAGORE_U8 2

/**
 * int8_t
 */
#define TAGORE_I8 3

/**
 * 16-bit floating point with the exponent of 32-bit (bfloat16), as uint16_t.
 */
#define TAGORE_BF16 4

/**
 * Bits, eight to a byte, as uint8_t: component j of a row is bit j % 8, from the least, of its
 * byte j / 8. Each row begins at a byte, and bits past the dimension are 0. Their metric is
 * TAGORE_L2, the Hamming distance.
 */
#define TAGORE_B1 5

/**
 * Memory of the CPU.
 */
#define TAGORE_HOST 0

/**
 * Memory of a CUDA device, as of cudaMalloc. Builds and searches on that device use it there; all
 * else copies it to the host.
 */
#define TAGORE_CUDA 1

/**
 * Squared Euclidean distance.
 */
#define TAGORE_L2 0

/**
 * Inner product; distances are its negative.
 */
#define TAGORE_INNER_PRODUCT 1

/**
 * Cosine; distances are 1 - cos.
 */
#define TAGORE_COSINE 2

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that runs, such as "0.1.0".
 */
const char *tagore_version(void);

/**
 * TAGORE_API_VERSION of the library that runs.
 */
uint32_t tagore_api_version(void);

/**
 * Sets the threads of all work of the process, 0 for one per core. Must come before the first
 * work, and only once. Without it, the environment variable RAYON_NUM_THREADS sets them. More than
 * four per core are as four per core: they only slow the work down. If the system refuses threads
 * to the first work, it fails, and later work tries again.
 */
tagore_status tagore_set_threads(size_t threads);

/**
 * The message of the last call that failed on this thread: one line, in UTF-8, empty if none has
 * failed. It is valid until the next call fails on this thread, or the thread ends.
 */
const char *tagore_last_error(void);

/**
 * Frees a text that a call made. Null is allowed; a text freed twice is undefined behaviour.
 */
void tagore_text_free(char *text);

/**
 * A data set of vectors in the program's memory, of the host or of a device, which is neither
 * copied nor changed. It must stay
 * as it is until `release` is called, when the last handle that uses it is freed: this one, and
 * every searcher made from it. A null `release` is not called. A call that fails takes nothing,
 * and does not call `release`.
 */
tagore_status tagore_vectors_from_memory(const tagore_matrix *matrix,
                                         tagore_release release,
                                         void *context,
                                         tagore_vectors **out);

/**
 * Reads a data set by callback.
 */
tagore_status tagore_vectors_from_source(const tagore_source *source,
                                         const tagore_progress *progress,
                                         tagore_vectors **out);

/**
 * Maps a file of vectors: fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy. A
 * null `format` takes the file's extension. The file must not change or shrink while a handle
 * uses it.
 */
tagore_status tagore_vectors_open(const char *file, const char *format, tagore_vectors **out);

/**
 * Writes vectors to a file, which appears when it is complete. A null `format` takes the file's
 * extension.
 */
tagore_status tagore_vectors_save(const tagore_vectors *vectors,
                                  const char *file,
                                  const char *format,
                                  const tagore_progress *progress);

/**
 * The rows of a data set where they lie: `matrix->size` is set before, all other fields after. The
 * pointer is valid as long as the handle. Vectors of a device are copied to the host.
 */
tagore_status tagore_vectors_matrix(const tagore_vectors *vectors, tagore_matrix *matrix);

/**
 * Frees a handle; null is allowed. A handle is freed once, by one thread, when no call uses it:
 * freed twice, or used after, it is undefined behaviour. Handles made from it stay valid.
 */
void tagore_vectors_free(tagore_vectors *vectors);

/**
 * A builder of a kind of index: "cagra", "nsg", "nssg", "vamana", "dpg", "tau-mng" or
 * "alpha-cng", with the defaults of the kind.
 */
tagore_status tagore_builder_create(const char *kind, tagore_builder **out);

/**
 * Sets a parameter by the name and with the values that `tagore build --help` shows: "metric",
 * "knn", "iterations", "start", "expand", "nodes-per-cell", "probes", "clusterings", "seed",
 * "device", "degree", "candidates", "collect", "filter", "alpha", "angle", "threshold" or
 * "strict-detours"; "layers", "true" unless set; and "vectors": "full", "f16" or "int8".
 *
 * A later call replaces what an earlier one set. "filter" also sets its default threshold, so it
 * goes before "alpha", "angle" and "threshold".
 */
tagore_status tagore_builder_set(const tagore_builder *builder,
                                 const char *name,
                                 const char *value);

/**
 * Builds over the `rows` of a set only, which is copied; over all rows if it is null. The index is
 * that of these rows alone, with the ids of the whole base. Rows left out have no neighbours, no
 * edge leads to them, and no search returns them. Not for a build from a k-NN graph, nor out of
 * core.
 */
tagore_status tagore_builder_set_rows(const tagore_builder *builder, const tagore_id_set *rows);

/**
 * Fits indexes to queries that do not look like the base, such as texts among images, by a
 * `sample` of them: at least 100, about one for each ten rows for the whole gain. Edges and entry
 * points are added where searches for a part of the sample that is held out find more by them.
 * None if it is null. The memory of the sample stays in use until the builder is freed or gets
 * another one.
 */
tagore_status tagore_builder_set_queries(const tagore_builder *builder,
                                         const tagore_vectors *sample);

/**
 * Plans a build in memory of `rows` x `dim` components on the builder's device: bytes of memory
 * and disk, and seconds, as JSON in UTF-8. `tagore_text_free` frees the text.
 */
tagore_status tagore_builder_plan(const tagore_builder *builder,
                                  size_t rows,
                                  size_t dim,
                                  tagore_element element,
                                  char **out);

/**
 * Builds the index of `vectors`, from `graph` if that is not null. The same vectors, parameters
 * and seed give the same bytes on any number of threads, and those of `tagore build`.
 */
tagore_status tagore_builder_build(const tagore_builder *builder,
                                   const tagore_vectors *vectors,
                                   const tagore_knn_graph *graph,
                                   const tagore_progress *progress,
                                   tagore_index **out);

/**
 * Builds the k-NN graph of `vectors` alone, which tagore_builder_build prunes.
 */
tagore_status tagore_builder_knn_graph(const tagore_builder *builder,
                                       const tagore_vectors *vectors,
                                       const tagore_progress *progress,
                                       tagore_knn_graph **out);

/**
 * Builds the k-NN graph of `vectors` into arrays of the program: for each row as many slots as the
 * builder's "knn" says, or its default for these vectors, nearest first. A graph that is built on
 * the device of the arrays stays there.
 */
tagore_status tagore_builder_knn_graph_into(const tagore_builder *builder,
                                            const tagore_vectors *vectors,
                                            const tagore_progress *progress,
                                            const tagore_results *results);

/**
 * Frees a handle, as tagore_vectors_free does.
 */
void tagore_builder_free(tagore_builder *builder);

/**
 * Reads a graph of `vectors` that tagore_knn_graph_save or `tagore knn` wrote.
 */
tagore_status tagore_knn_graph_open(const char *file,
                                    const tagore_vectors *vectors,
                                    tagore_metric metric,
                                    const tagore_progress *progress,
                                    tagore_knn_graph **out);

/**
 * Writes a graph to a file in the layout of a ground truth, which appears when it is complete.
 */
tagore_status tagore_knn_graph_save(const tagore_knn_graph *graph, const char *file);

/**
 * The neighbours of a row, nearest first, and their distances, where they lie: valid as long as
 * the handle. `distances` may be null.
 */
tagore_status tagore_knn_graph_neighbors(const tagore_knn_graph *graph,
                                         size_t row,
                                         const uint32_t **ids,
                                         const float **distances,
                                         size_t *count);

/**
 * Frees a handle, as tagore_vectors_free does.
 */
void tagore_knn_graph_free(tagore_knn_graph *graph);

/**
 * Builds the index of `vectors` into a file, which appears when it is complete: in memory if that
 * fits the limits, else cluster by cluster with work files. `limits` may be null.
 */
tagore_status tagore_builder_build_file(const tagore_builder *builder,
                                        const tagore_vectors *vectors,
                                        const char *file,
                                        const tagore_limits *limits,
                                        const tagore_progress *progress);

/**
 * Maps an index file, which tagore_index_save or `tagore build` wrote. The file must not change or
 * shrink while a handle uses it.
 */
tagore_status tagore_index_open(const char *file, tagore_index **out);

/**
 * Writes an index to a file, which appears when it is complete.
 */
tagore_status tagore_index_save(const tagore_index *index, const char *file);

/**
 * Sizes of an index.
 */
tagore_status tagore_index_get_info(const tagore_index *index, tagore_index_info *info);

/**
 * Kind, metric, seed and parameters of an index, and the fingerprint of its vectors, as JSON.
 * tagore_text_free frees the text.
 */
tagore_status tagore_index_describe(const tagore_index *index, char **out);

/**
 * The neighbours of a node where they lie, in memory or in the mapped file: valid as long as the
 * handle.
 */
tagore_status tagore_index_neighbors(const tagore_index *index,
                                     size_t node,
                                     const uint32_t **ids,
                                     size_t *count);

/**
 * The entry points, where searches begin: valid as long as the handle.
 */
tagore_status tagore_index_entries(const tagore_index *index, const uint32_t **ids, size_t *count);

/**
 * Checks the index, and hands its entry points and rows to a store. Rows of equal vectors are
 * linked to one another, as in an export to "csr"; layers are left out.
 */
tagore_status tagore_index_write_rows(const tagore_index *index,
                                      const tagore_row_sink *sink,
                                      const tagore_progress *progress);

/**
 * Reads and checks the whole index.
 */
tagore_status tagore_index_verify(const tagore_index *index, const tagore_progress *progress);

/**
 * The report of an index as JSON, with the keys of docs/report.md: degrees, reach, and the time of
 * its build if it was built by this program. With `vectors`, which may be null, it has the recall
 * of searches, measured on `device` ("auto", "cpu", "cuda:0"; null for "auto").
 * tagore_text_free frees the text.
 */
tagore_status tagore_index_report(const tagore_index *index,
                                  const tagore_vectors *vectors,
                                  const char *device,
                                  const tagore_progress *progress,
                                  char **out);

/**
 * Frees a handle, as tagore_vectors_free does. Pointers to its neighbours end with it, unless a
 * searcher made from it lives on.
 */
void tagore_index_free(tagore_index *index);

/**
 * Makes the index of `vectors` from that of its earlier state: the rows of the index come first,
 * then the rows to insert. Kind, metric, seed and parameters are those of the index, which stays
 * as it is, and so do its searchers. `options` may be null: rows are inserted alone. Not for an
 * index of another system.
 */
tagore_status tagore_index_update(const tagore_index *index,
                                  const tagore_vectors *vectors,
                                  const tagore_index_update_options *options,
                                  const tagore_progress *progress,
                                  tagore_index **out);

/**
 * Makes the index of `vectors` from `count` indexes of its rows: those of the first come first,
 * then those of the next. The indexes have one kind and metric, and stay as they are; the
 * parameters are those of the first. `device` is "auto" (the default, null), "cpu", "cuda" or
 * "cuda:1"; a GPU builds anew. Not for indexes of another system.
 */
tagore_status tagore_index_merge(const tagore_index *const *indexes,
                                 size_t count,
                                 const tagore_vectors *vectors,
                                 const char *device,
                                 const tagore_progress *progress,
                                 tagore_index **out);

/**
 * Makes an empty live index in a new or empty folder, for rows of `dim` components of a type.
 * Kind, metric, parameters and device are those of the builder now; the rows of
 * tagore_builder_set_rows do not count. The device makes the graphs.
 */
tagore_status tagore_live_create(const char *folder,
                                 const tagore_builder *builder,
                                 size_t dim,
                                 tagore_element element,
                                 tagore_live **out);

/**
 * Opens the live index in a folder, as its last change left it. `device` makes the graphs: "auto"
 * (the default, null), "cpu", "cuda" or "cuda:1".
 */
tagore_status tagore_live_open(const char *folder, const char *device, tagore_live **out);

/**
 * Sets whether a change waits until it is on disk: it does, unless `is_synced` is 0. A crash of
 * the system may then lose the last changes; a crash of the program does not.
 */
tagore_status tagore_live_set_synced(const tagore_live *live, int32_t is_synced);

/**
 * Sets the device of searches: "cpu", as unless set, "auto", "cuda" or "cuda:1". A GPU gets a copy
 * of each new graph and its rows.
 */
tagore_status tagore_live_set_search_device(const tagore_live *live, const char *device);

/**
 * Sets whether changes bring the graph up to date now and then: they do, unless `is_automatic` is
 * 0. Then call tagore_live_consolidate from time to time, in a thread of its own: no change waits
 * for it.
 */
tagore_status tagore_live_set_automatic(const tagore_live *live, int32_t is_automatic);

/**
 * Inserts the rows of `vectors`, which are copied, with `count` ids, one for each. A row of the
 * same id that is there goes: the new one replaces it. If the call fails, nothing is inserted. A
 * callback watches and cancels the work on the graph: before the change, which then fails, or
 * after it, which then stands.
 */
tagore_status tagore_live_insert(const tagore_live *live,
                                 const tagore_vectors *vectors,
                                 const uint64_t *ids,
                                 size_t count,
                                 const tagore_progress *progress);

/**
 * Removes the rows of `count` ids, and writes their number to `removed`, which may be null. Ids
 * without a row are no error. If the call fails, nothing is removed. Callbacks: as of
 * tagore_live_insert.
 */
tagore_status tagore_live_remove(const tagore_live *live,
                                 const uint64_t *ids,
                                 size_t count,
                                 const tagore_progress *progress,
                                 size_t *removed);

/**
 * Brings the graph up to date with the rows of now, as changes do from time to time; a service may
 * call it when it has time, while other threads insert, remove and search. Writes whether there
 * was anything to do, 1 or 0, to `has_changed`, which may be null. If the call fails, the index is
 * as before.
 */
tagore_status tagore_live_consolidate(const tagore_live *live,
                                      const tagore_progress *progress,
                                      int32_t *has_changed);

/**
 * Sizes of a live index, now.
 */
tagore_status tagore_live_get_info(const tagore_live *live, tagore_live_info *info);

/**
 * Finds the nearest rows of each query, on all threads: by beam search in the graph, and by
 * comparing the query with each recent row.
 */
tagore_status tagore_live_search(const tagore_live *live,
                                 const tagore_matrix *queries,
                                 const tagore_live_search_options *options,
                                 const tagore_progress *progress,
                                 const tagore_live_results *results);

/**
 * Closes a live index and frees its handle, as tagore_vectors_free does.
 */
void tagore_live_free(tagore_live *live);

/**
 * Writes an index in a format: "tagore", "nsg", "nssg", "kgraph", "hnswlib", "faiss-nsg",
 * "faiss-hnsw", "diskann", "diskann-disk", "ibin", "npy" or "csr"; null takes the file's
 * extension. `options` may be null. Files appear when they are complete.
 */
tagore_status tagore_index_export(const tagore_index *index,
                                  const char *file,
                                  const char *format,
                                  const tagore_export_options *options,
                                  const tagore_progress *progress);

/**
 * Reads an index of `vectors` in a format of another system, by the names of tagore_index_export.
 */
tagore_status tagore_index_import(const char *file,
                                  const char *format,
                                  const tagore_vectors *vectors,
                                  tagore_metric metric,
                                  const tagore_progress *progress,
                                  tagore_index **out);

/**
 * A set of the rows of a base of `rows` rows, from a bitmap, which is copied: row i is bit i % 64,
 * from the lowest, of word i / 64. `count` is the number of words, `rows` / 64 rounded up. Bits
 * after the last row are 0.
 */
tagore_status tagore_id_set_create(size_t rows,
                                   const uint64_t *words,
                                   size_t count,
                                   tagore_id_set **out);

/**
 * The complement of `set`: a search among it leaves out the rows of `set`.
 */
tagore_status tagore_id_set_complement(const tagore_id_set *set, tagore_id_set **out);

/**
 * Frees a handle, as tagore_vectors_free does.
 */
void tagore_id_set_free(tagore_id_set *set);

/**
 * Checks that an index was built over `vectors`, and prepares both for searches. `options` may be
 * null.
 */
tagore_status tagore_searcher_create(const tagore_index *index,
                                     const tagore_vectors *vectors,
                                     const tagore_searcher_options *options,
                                     const tagore_progress *progress,
                                     tagore_searcher **out);

/**
 * Finds the nearest rows of each query by beam search, on all threads or on the devices of the
 * searcher.
 */
tagore_status tagore_search(const tagore_searcher *searcher,
                            const tagore_matrix *queries,
                            const tagore_search_options *options,
                            const tagore_progress *progress,
                            const tagore_results *results);

/**
 * Finds the nearest rows of one query of `dim` components, on the calling thread or on the
 * searcher's first device: the answer of tagore_search, sooner.
 */
tagore_status tagore_search_one(const tagore_searcher *searcher,
                                const float *query,
                                size_t dim,
                                const tagore_search_options *options,
                                const tagore_results *results);

/**
 * Finds the exact nearest rows of each query, by comparing it with every row.
 */
tagore_status tagore_exact_search(const tagore_vectors *vectors,
                                  const tagore_matrix *queries,
                                  const tagore_exact_options *options,
                                  const tagore_progress *progress,
                                  const tagore_results *results);

/**
 * Frees a handle, as tagore_vectors_free does.
 */
void tagore_searcher_free(tagore_searcher *searcher);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TAGORE_H */
