// The C interface of tagore for C++17: handles that free themselves, and exceptions.
//
// Everything here calls tagore.h, whose comments hold. A failed call throws tagore::error.
// Callbacks may throw: the work stops, and the call that runs it throws the same exception. An
// empty text takes the default, such as the format of a file's extension.

#ifndef TAGORE_HPP
#define TAGORE_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tagore.h"

namespace tagore {

// A failed call: its status, and its message as what().
class error : public std::runtime_error {
public:
    explicit error(tagore_status status) : std::runtime_error(tagore_last_error()), status_(status) {}
    tagore_status status() const noexcept { return status_; }

private:
    tagore_status status_;
};

inline void check(tagore_status status) {
    if (status != TAGORE_OK) {
        throw error(status);
    }
}

// A struct of tagore.h with its size set, and all else zero.
template <class T>
T sized() {
    T value{};
    value.size = sizeof value;
    return value;
}

// 16-bit floating point, as its bits.
struct float16 {
    std::uint16_t bits;
};

// 16-bit floating point with the exponent of float, as its bits: the upper half of a float's.
struct bfloat16 {
    std::uint16_t bits;
};

// Watches work from several threads at the same time; false cancels it.
using watch = std::function<bool(const tagore_update &)>;

// Ids where they lie, valid as long as the object that lends them.
class ids {
public:
    ids(const std::uint32_t *data, std::size_t size) : data_(data), size_(size) {}
    const std::uint32_t *data() const noexcept { return data_; }
    const std::uint32_t *begin() const noexcept { return data_; }
    const std::uint32_t *end() const noexcept { return data_ + size_; }
    std::size_t size() const noexcept { return size_; }
    std::uint32_t operator[](std::size_t place) const { return data_[place]; }

private:
    const std::uint32_t *data_;
    std::size_t size_;
};

namespace detail {

template <class T, void (*Free)(T *)>
struct freer {
    void operator()(T *handle) const noexcept { Free(handle); }
};

template <class T, void (*Free)(T *)>
using handle = std::unique_ptr<T, freer<T, Free>>;

template <class T>
constexpr tagore_element element() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16> ||
                      std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::int8_t>,
                  "components are float, tagore::float16, tagore::bfloat16, std::uint8_t or std::int8_t");
    return std::is_same_v<T, float>      ? TAGORE_F32
           : std::is_same_v<T, float16>  ? TAGORE_F16
           : std::is_same_v<T, bfloat16> ? TAGORE_BF16
           : sizeof(T) == 1 && std::is_unsigned_v<T> ? TAGORE_U8
                                                     : TAGORE_I8;
}

// The first exception of callbacks, for the call that runs them.
class caught {
public:
    template <class Work>
    std::int32_t run(Work &&work) noexcept {
        try {
            return work();
        } catch (...) {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!exception_) {
                exception_ = std::current_exception();
            }
            return 1;
        }
    }

    void check(tagore_status status) {
        if (status != TAGORE_OK && exception_) {
            std::rethrow_exception(exception_);
        }
        tagore::check(status);
    }

private:
    std::mutex mutex_;
    std::exception_ptr exception_;
};

// A watch as the library calls it.
class watched {
public:
    watched(const watch &watch, caught &caught) : watch_(watch), caught_(caught) {
        progress_ = sized<tagore_progress>();
        progress_.watch = watch_ ? call : nullptr;
        progress_.context = this;
    }
    watched(const watched &) = delete;
    watched &operator=(const watched &) = delete;
    const tagore_progress *get() const noexcept { return &progress_; }

private:
    static std::int32_t call(void *context, const tagore_update *update) {
        auto &self = *static_cast<watched *>(context);
        return self.caught_.run([&] { return self.watch_(*update) ? 0 : 1; });
    }

    const watch &watch_;
    caught &caught_;
    tagore_progress progress_;
};

// Runs a call under a watch, and throws what its callbacks threw.
template <class Call>
void run(const watch &watch, Call &&call) {
    caught exceptions;
    watched progress(watch, exceptions);
    exceptions.check(call(progress.get()));
}

// Empty for the default: a null pointer.
inline const char *text(const std::string &text) {
    return text.empty() ? nullptr : text.c_str();
}

template <class Call>
std::string make_text(Call &&call) {
    char *made = nullptr;
    check(call(&made));
    handle<char, tagore_text_free> owner(made);
    return made;
}

} // namespace detail

// Rows in memory, for queries; `stride` in components, 0 for `dim`.
template <class T>
tagore_matrix matrix(const T *data, std::size_t rows, std::size_t dim, std::size_t stride = 0) {
    auto matrix = sized<tagore_matrix>();
    matrix.data = data;
    matrix.rows = rows;
    matrix.dim = dim;
    matrix.stride = stride;
    matrix.element = detail::element<T>();
    return matrix;
}

// A data set.
class vectors {
public:
    // A file, mapped.
    static vectors open(const std::string &file, const std::string &format = {}) {
        return make([&](tagore_vectors **out) {
            check(tagore_vectors_open(file.c_str(), detail::text(format), out));
        });
    }

    // Values without a copy: the data set keeps the vector.
    template <class T>
    static vectors from(std::vector<T> values, std::size_t dim) {
        auto owner = std::make_unique<std::vector<T>>(std::move(values));
        if (dim != 0 && owner->size() % dim != 0) {
            throw std::invalid_argument("values: expected whole rows");
        }
        const auto rows = dim == 0 ? 0 : owner->size() / dim;
        const auto given = tagore::matrix(owner->data(), rows, dim);
        return make([&](tagore_vectors **out) {
            const auto release = [](void *context) { delete static_cast<std::vector<T> *>(context); };
            check(tagore_vectors_from_memory(&given, release, owner.get(), out));
            owner.release();
        });
    }

    // Memory of others without a copy, which must outlive the data set and its searchers.
    static vectors borrow(const tagore_matrix &matrix) {
        return make([&](tagore_vectors **out) {
            check(tagore_vectors_from_memory(&matrix, nullptr, nullptr, out));
        });
    }

    // Reads a store: `fill(first_row, rows, out)` writes the next rows to `out`. With a folder the
    // rows go to a file there without a name, else to memory.
    template <class T, class Fill>
    static vectors read(std::size_t rows, std::size_t dim, Fill fill, const watch &watch = {},
                        const std::string &spool_folder = {}) {
        struct store {
            Fill &fill;
            detail::caught exceptions;
        } store{fill, {}};
        auto source = sized<tagore_source>();
        source.rows = rows;
        source.dim = dim;
        source.element = detail::element<T>();
        source.spool_folder = detail::text(spool_folder);
        source.context = &store;
        source.fill = [](void *context, std::size_t first, std::size_t count, void *out) {
            auto &own = *static_cast<struct store *>(context);
            return own.exceptions.run([&] {
                own.fill(first, count, static_cast<T *>(out));
                return 0;
            });
        };
        detail::watched progress(watch, store.exceptions);
        return make([&](tagore_vectors **out) {
            store.exceptions.check(tagore_vectors_from_source(&source, progress.get(), out));
        });
    }

    // The rows where they lie.
    tagore_matrix matrix() const {
        auto matrix = sized<tagore_matrix>();
        check(tagore_vectors_matrix(get(), &matrix));
        return matrix;
    }

    void save(const std::string &file, const std::string &format = {}, const watch &watch = {}) const {
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_vectors_save(get(), file.c_str(), detail::text(format), progress);
        });
    }

    const tagore_vectors *get() const noexcept { return handle_.get(); }

private:
    template <class Make>
    static vectors make(Make &&make) {
        tagore_vectors *made = nullptr;
        make(&made);
        vectors vectors;
        vectors.handle_.reset(made);
        return vectors;
    }

    vectors() = default;
    detail::handle<tagore_vectors, tagore_vectors_free> handle_;
};

// A k-NN graph.
class knn_graph {
public:
    explicit knn_graph(tagore_knn_graph *handle) : handle_(handle) {}

    static knn_graph open(const std::string &file, const vectors &base, tagore_metric metric, const watch &watch = {}) {
        tagore_knn_graph *made = nullptr;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_knn_graph_open(file.c_str(), base.get(), metric, progress, &made);
        });
        return knn_graph(made);
    }

    void save(const std::string &file) const { check(tagore_knn_graph_save(get(), file.c_str())); }

    // The neighbours of a row, nearest first.
    ids neighbors(std::size_t row) const {
        const std::uint32_t *data = nullptr;
        std::size_t count = 0;
        check(tagore_knn_graph_neighbors(get(), row, &data, nullptr, &count));
        return ids(data, count);
    }

    const tagore_knn_graph *get() const noexcept { return handle_.get(); }

private:
    detail::handle<tagore_knn_graph, tagore_knn_graph_free> handle_;
};

struct update_options;

// An index.
class index {
public:
    explicit index(tagore_index *handle) : handle_(handle) {}

    static index open(const std::string &file) {
        tagore_index *made = nullptr;
        check(tagore_index_open(file.c_str(), &made));
        return index(made);
    }

    // Reads the file of another system.
    static index import_from(const std::string &file, const std::string &format, const vectors &base,
                        tagore_metric metric, const watch &watch = {}) {
        tagore_index *made = nullptr;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_index_import(file.c_str(), detail::text(format), base.get(), metric, progress, &made);
        });
        return index(made);
    }

    void save(const std::string &file) const { check(tagore_index_save(get(), file.c_str())); }

    // Writes the file of another system. Formats that hold vectors need `base`.
    void save_as(const std::string &file, const std::string &format, const vectors *base = nullptr,
                 bool layers = false, const watch &watch = {}) const {
        auto options = sized<tagore_export_options>();
        options.vectors = base ? base->get() : nullptr;
        options.layers = layers ? 1 : 0;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_index_export(get(), file.c_str(), detail::text(format), &options, progress);
        });
    }

    // The index of `base`: the rows of this index first, then the rows to insert.
    index update(const vectors &base, const update_options &given, const watch &watch = {}) const;

    // The index of `base` from indexes of its rows: those of the first come first.
    static index merge(const std::vector<const index *> &parts, const vectors &base, const std::string &device = {},
                       const watch &watch = {}) {
        std::vector<const tagore_index *> handles;
        for (const auto *part : parts) {
            handles.push_back(part->get());
        }
        tagore_index *made = nullptr;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_index_merge(handles.data(), handles.size(), base.get(), detail::text(device), progress, &made);
        });
        return index(made);
    }

    tagore_index_info info() const {
        auto info = sized<tagore_index_info>();
        check(tagore_index_get_info(get(), &info));
        return info;
    }

    // Kind, metric, seed and parameters as JSON.
    std::string describe() const {
        return detail::make_text([&](char **out) { return tagore_index_describe(get(), out); });
    }

    // The report as JSON; with `base` it has the recall of searches.
    std::string report(const vectors *base = nullptr, const std::string &device = {}) const {
        return detail::make_text([&](char **out) {
            return tagore_index_report(get(), base ? base->get() : nullptr, detail::text(device), nullptr, out);
        });
    }

    ids neighbors(std::size_t node) const {
        return lent([&](auto data, auto count) { return tagore_index_neighbors(get(), node, data, count); });
    }

    ids entries() const {
        return lent([&](auto data, auto count) { return tagore_index_entries(get(), data, count); });
    }

    // Hands each row to `take(node, neighbors)`, in order.
    template <class Take>
    void write_rows(Take take, const watch &watch = {}) const {
        struct store {
            Take &take;
            detail::caught exceptions;
        } store{take, {}};
        auto sink = sized<tagore_row_sink>();
        sink.context = &store;
        sink.row = [](void *context, std::uint32_t node, const std::uint32_t *neighbors, std::size_t count) {
            auto &own = *static_cast<struct store *>(context);
            return own.exceptions.run([&] {
                own.take(node, ids(neighbors, count));
                return 0;
            });
        };
        detail::watched progress(watch, store.exceptions);
        store.exceptions.check(tagore_index_write_rows(get(), &sink, progress.get()));
    }

    void verify(const watch &watch = {}) const {
        detail::run(watch, [&](const tagore_progress *progress) { return tagore_index_verify(get(), progress); });
    }

    const tagore_index *get() const noexcept { return handle_.get(); }

private:
    template <class Lend>
    static ids lent(Lend &&lend) {
        const std::uint32_t *data = nullptr;
        std::size_t count = 0;
        check(lend(&data, &count));
        return ids(data, count);
    }

    detail::handle<tagore_index, tagore_index_free> handle_;
};

// A set of rows from a bitmap, for searches and builds.
class id_set {
public:
    explicit id_set(tagore_id_set *handle) : handle_(handle) {}

    id_set(std::size_t rows, const std::vector<std::uint64_t> &words) {
        tagore_id_set *made = nullptr;
        check(tagore_id_set_create(rows, words.data(), words.size(), &made));
        handle_.reset(made);
    }

    // All rows that are not in this set.
    id_set complement() const {
        tagore_id_set *made = nullptr;
        check(tagore_id_set_complement(get(), &made));
        return id_set(made);
    }

    const tagore_id_set *get() const noexcept { return handle_.get(); }

private:
    detail::handle<tagore_id_set, tagore_id_set_free> handle_;
};

// Changes of the rows of an index: rows to remove, and rows with other vectors than before.
struct update_options {
    const id_set *remove = nullptr;
    const id_set *replace = nullptr;
    std::string device = {};
};

inline index index::update(const vectors &base, const update_options &given, const watch &watch) const {
    auto options = sized<tagore_index_update_options>();
    options.remove = given.remove ? given.remove->get() : nullptr;
    options.replace = given.replace ? given.replace->get() : nullptr;
    options.device = detail::text(given.device);
    tagore_index *made = nullptr;
    detail::run(watch, [&](const tagore_progress *progress) {
        return tagore_index_update(get(), base.get(), &options, progress, &made);
    });
    return index(made);
}

// The settings of builds.
class builder {
public:
    // A kind of index, such as "nsg".
    explicit builder(const std::string &kind) {
        tagore_builder *made = nullptr;
        check(tagore_builder_create(kind.c_str(), &made));
        handle_.reset(made);
    }

    // Sets a parameter by its name on the command line.
    builder &set(const std::string &name, const std::string &value) {
        check(tagore_builder_set(get(), name.c_str(), value.c_str()));
        return *this;
    }

    template <class Number, class = std::enable_if_t<std::is_integral_v<Number> && !std::is_same_v<Number, bool>>>
    builder &set(const std::string &name, Number value) {
        return set(name, std::to_string(value));
    }

    // Builds over these rows only: the index has the ids of the whole base.
    builder &set_rows(const id_set &rows) {
        check(tagore_builder_set_rows(get(), rows.get()));
        return *this;
    }

    // Memory, disk and time of a build as JSON.
    std::string plan(std::size_t rows, std::size_t dim, tagore_element element) const {
        return detail::make_text(
            [&](char **out) { return tagore_builder_plan(get(), rows, dim, element, out); });
    }

    index build(const vectors &base, const watch &watch = {}, const knn_graph *graph = nullptr) const {
        tagore_index *made = nullptr;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_builder_build(get(), base.get(), graph ? graph->get() : nullptr, progress, &made);
        });
        return index(made);
    }

    // Builds into a file, cluster by cluster where memory is short.
    void build_file(const vectors &base, const std::string &file,
                    const tagore_limits &limits = sized<tagore_limits>(), const watch &watch = {}) const {
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_builder_build_file(get(), base.get(), file.c_str(), &limits, progress);
        });
    }

    tagore::knn_graph knn_graph(const vectors &base, const watch &watch = {}) const {
        tagore_knn_graph *made = nullptr;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_builder_knn_graph(get(), base.get(), progress, &made);
        });
        return tagore::knn_graph(made);
    }

    const tagore_builder *get() const noexcept { return handle_.get(); }

private:
    detail::handle<tagore_builder, tagore_builder_free> handle_;
};

// Options of a search. A beam of 0 is 100, or 2 k if that is more, up to 512.
struct search_options {
    std::size_t k = 10;
    std::size_t beam = 0;
    std::optional<float> radius = {};
    const id_set *among = nullptr;
};

// Options of a searcher. Several devices, "cuda:0,1", share the queries. Searches walk on the vectors
// themselves, "full", or on their codes, "f16" or "int8", and then rerank by the vectors: 32 nodes, or
// 2 k if that is more, unless given.
struct searcher_options {
    std::string device = "cpu";
    std::size_t width = 1;
    std::size_t batch = 0;
    std::string vectors = "full";
    std::size_t rerank = 0;
};

// Answers: k ids and distances per query, nearest first; UINT32_MAX in empty slots.
struct results {
    std::size_t k = 0;
    std::vector<std::uint32_t> ids = {};
    std::vector<float> distances = {};
    // Queries of a search that found fewer than k rows.
    std::size_t short_queries = 0;

    results(std::size_t queries, std::size_t k) : k(k), ids(queries * k), distances(queries * k) {}

    tagore_results room() {
        auto room = sized<tagore_results>();
        room.ids = ids.data();
        room.distances = distances.data();
        room.slots = ids.size();
        room.short_queries = &short_queries;
        return room;
    }
};

// An index and its vectors, for searches by any number of threads.
class searcher {
public:
    searcher(const index &index, const vectors &base, const searcher_options &given = {},
             const watch &watch = {}) {
        auto options = sized<tagore_searcher_options>();
        options.device = given.device.c_str();
        options.width = given.width;
        options.batch = given.batch;
        options.vectors = given.vectors.c_str();
        options.rerank = given.rerank;
        tagore_searcher *made = nullptr;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_searcher_create(index.get(), base.get(), &options, progress, &made);
        });
        handle_.reset(made);
    }

    tagore::results search(const tagore_matrix &queries, const search_options &options,
                           const watch &watch = {}) const {
        tagore::results found(queries.rows, options.k);
        const auto given = given_of(options);
        const auto room = found.room();
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_search(get(), &queries, &given, progress, &room);
        });
        return found;
    }

    tagore::results search_one(const std::vector<float> &query, const search_options &options) const {
        tagore::results found(1, options.k);
        const auto given = given_of(options);
        const auto room = found.room();
        check(tagore_search_one(get(), query.data(), query.size(), &given, &room));
        return found;
    }

    const tagore_searcher *get() const noexcept { return handle_.get(); }

private:
    static tagore_search_options given_of(const search_options &options) {
        auto given = sized<tagore_search_options>();
        given.k = options.k;
        given.beam = options.beam;
        given.radius = options.radius ? &*options.radius : nullptr;
        given.among = options.among ? options.among->get() : nullptr;
        return given;
    }

    detail::handle<tagore_searcher, tagore_searcher_free> handle_;
};

// The exact nearest rows of each query. Several devices, "cuda:0,1", share the search.
inline results exact_search(const vectors &base, const tagore_matrix &queries, std::size_t k,
                            tagore_metric metric = TAGORE_L2, const std::string &device = "auto",
                            const watch &watch = {}) {
    results found(queries.rows, k);
    auto options = sized<tagore_exact_options>();
    options.k = k;
    options.metric = metric;
    options.device = device.c_str();
    const auto room = found.room();
    detail::run(watch, [&](const tagore_progress *progress) {
        return tagore_exact_search(base.get(), &queries, &options, progress, &room);
    });
    return found;
}

// Options of a search of a live index. `among`: own ids of the rows that may be found.
struct live_search_options {
    std::size_t k = 10;
    std::size_t beam = 0;
    std::optional<float> radius = {};
    std::optional<std::vector<std::uint64_t>> among = {};
};

// Answers: k own ids and distances per query, nearest first; UINT64_MAX in empty slots.
struct live_results {
    std::size_t k = 0;
    std::vector<std::uint64_t> ids = {};
    std::vector<float> distances = {};
    // Queries that found fewer than k rows.
    std::size_t short_queries = 0;

    live_results(std::size_t queries, std::size_t k) : k(k), ids(queries * k), distances(queries * k) {}

    tagore_live_results room() {
        auto room = sized<tagore_live_results>();
        room.ids = ids.data();
        room.distances = distances.data();
        room.slots = ids.size();
        room.short_queries = &short_queries;
        return room;
    }
};

// An index in a folder, whose rows come, go and change while searches run; closed with the object.
class live {
public:
    // Makes an empty one in a new or empty folder; the builder gives kind, metric and parameters.
    static live create(const std::string &folder, const builder &builder, std::size_t dim,
                       tagore_element element = TAGORE_F32) {
        tagore_live *made = nullptr;
        check(tagore_live_create(folder.c_str(), builder.get(), dim, element, &made));
        return live(made);
    }

    // Opens the one in a folder; the device, "auto" unless given, makes the graphs.
    static live open(const std::string &folder, const std::string &device = {}) {
        tagore_live *made = nullptr;
        check(tagore_live_open(folder.c_str(), detail::text(device), &made));
        return live(made);
    }

    explicit live(tagore_live *handle) : handle_(handle) {}

    // Whether a change waits until it is on disk.
    void set_synced(bool synced) const { check(tagore_live_set_synced(get(), synced ? 1 : 0)); }

    // The device of searches, "cpu" unless set.
    void set_search_device(const std::string &device) const {
        check(tagore_live_set_search_device(get(), device.c_str()));
    }

    // Whether changes bring the graph up to date by themselves now and then.
    void set_automatic(bool automatic) const { check(tagore_live_set_automatic(get(), automatic ? 1 : 0)); }

    // Inserts rows, one for each id, in place of earlier ones of these ids.
    void insert(const vectors &rows, const std::vector<std::uint64_t> &ids, const watch &watch = {}) const {
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_live_insert(get(), rows.get(), ids.data(), ids.size(), progress);
        });
    }

    // Removes the rows of these ids, and returns how many there were.
    std::size_t remove(const std::vector<std::uint64_t> &ids, const watch &watch = {}) const {
        std::size_t removed = 0;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_live_remove(get(), ids.data(), ids.size(), progress, &removed);
        });
        return removed;
    }

    // Brings the graph up to date, and returns whether there was anything to do.
    bool consolidate(const watch &watch = {}) const {
        std::int32_t changed = 0;
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_live_consolidate(get(), progress, &changed);
        });
        return changed != 0;
    }

    tagore_live_info info() const {
        auto info = sized<tagore_live_info>();
        check(tagore_live_get_info(get(), &info));
        return info;
    }

    live_results search(const tagore_matrix &queries, const live_search_options &options,
                        const watch &watch = {}) const {
        // No ids lie somewhere too: a null pointer stands for all rows.
        static constexpr std::uint64_t none = 0;
        live_results found(queries.rows, options.k);
        auto given = sized<tagore_live_search_options>();
        given.k = options.k;
        given.beam = options.beam;
        given.radius = options.radius ? &*options.radius : nullptr;
        if (options.among) {
            given.among = options.among->empty() ? &none : options.among->data();
            given.among_count = options.among->size();
        }
        const auto room = found.room();
        detail::run(watch, [&](const tagore_progress *progress) {
            return tagore_live_search(get(), &queries, &given, progress, &room);
        });
        return found;
    }

    const tagore_live *get() const noexcept { return handle_.get(); }

private:
    detail::handle<tagore_live, tagore_live_free> handle_;
};

} // namespace tagore

#endif // TAGORE_HPP
