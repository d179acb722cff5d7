// tagore.hpp: handles that own, exceptions of the library and of callbacks. wrapper FOLDER
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <tagore.hpp>

static void demand(bool holds, const char *text) {
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", text);
        std::exit(1);
    }
}

// The message of what `work` throws.
template <class Error, class Work>
static std::string thrown(Work &&work) {
    try {
        work();
    } catch (const Error &error) {
        return error.what();
    }
    return "nothing";
}

int main(int argc, char **argv) {
    const std::string folder = argc > 1 ? argv[1] : ".";
    constexpr std::size_t rows = 2000, dim = 12;
    std::vector<float> values(rows * dim);
    std::uint32_t seed = 3;
    for (float &value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = float(seed >> 8);
    }

    const auto base = tagore::vectors::from(values, dim);
    demand(base.matrix().rows == rows && base.matrix().stride == dim, "a matrix of the rows");
    const auto read = tagore::vectors::read<float>(rows, dim, [&](std::size_t first, std::size_t count, float *out) {
        std::copy_n(values.begin() + std::ptrdiff_t(first * dim), count * dim, out);
    });
    const auto bytes = tagore::vectors::from(std::vector<std::uint8_t>(64, 1), 4);
    demand(bytes.matrix().element == TAGORE_U8 && bytes.matrix().rows == 16, "bytes");

    tagore::builder builder("nsg");
    builder.set("knn", 24).set("device", "cpu");
    const auto index = builder.build(read);
    const auto graph = builder.knn_graph(base);
    const auto same = builder.build(base, {}, &graph);
    demand(graph.neighbors(5).size() == 24, "a k-NN graph");
    demand(index.info().nodes == rows && index.entries().size() == 1, "an index");
    for (std::size_t node = 0; node < rows; node++) {
        const auto one = index.neighbors(node), other = same.neighbors(node);
        demand(std::vector<std::uint32_t>(one.begin(), one.end()) ==
                   std::vector<std::uint32_t>(other.begin(), other.end()),
               "a graph that is pruned gives the index");
    }
    auto limits = tagore::sized<tagore_limits>();
    limits.cluster_size = 500;
    builder.build_file(base, folder + "/clusters.tagore", limits);
    demand(tagore::index::open(folder + "/clusters.tagore").info().nodes == rows, "a build in clusters");
    index.save(folder + "/wrapper.tagore");
    const auto opened = tagore::index::open(folder + "/wrapper.tagore");
    opened.verify();
    demand(opened.describe().find("\"nsg\"") != std::string::npos, "a description");
    demand(opened.report(&base, "cpu").find("\"recall\"") != std::string::npos, "a report");
    demand(builder.plan(rows, dim, TAGORE_F32).find("host_bytes") != std::string::npos, "a plan");
    opened.save_as(folder + "/wrapper.nsg", {});
    const auto imported = tagore::index::import_from(folder + "/wrapper.nsg", {}, base, TAGORE_L2);
    std::size_t seen = 0;
    imported.write_rows([&](std::uint32_t node, tagore::ids neighbors) {
        seen += node < rows && neighbors.size() > 0;
    });
    demand(seen == rows, "every row is handed over");

    const tagore::searcher searcher(opened, base);
    tagore::searcher_options on_codes;
    on_codes.vectors = "f16";
    const tagore::searcher coded(opened, base, on_codes);
    const auto queries = tagore::matrix(values.data(), 50, dim);
    tagore::search_options options;
    options.k = 3;
    const auto found = searcher.search(queries, options);
    const auto truth = tagore::exact_search(base, queries, 3, TAGORE_L2, "cpu");
    demand(found.ids == truth.ids && found.distances == truth.distances, "the answers of exact search");
    demand(coded.search(queries, options).ids == truth.ids, "the answers of codes");
    options.radius = 0.0f;
    const auto near = searcher.search_one({values.begin(), values.begin() + dim}, options);
    demand(near.ids[0] == 0 && near.ids[1] == UINT32_MAX, "a radius");

    const auto first = tagore::vectors::borrow(tagore::matrix(values.data(), rows / 2, dim));
    const tagore::id_set gone(64, {1});
    tagore::update_options changes;
    changes.remove = &gone;
    changes.device = "cpu";
    const auto updated = builder.build(first).update(base, changes);
    demand(updated.info().nodes == rows && updated.info().left_out == 1, "an updated index");
    const auto second = tagore::vectors::borrow(tagore::matrix(values.data() + rows / 2 * dim, rows - rows / 2, dim));
    const auto one = builder.build(first), other = builder.build(second);
    const auto merged = tagore::index::merge({&one, &other}, base, "cpu");
    demand(merged.info().nodes == rows && merged.info().left_out == 0, "a merged index");
    options.radius = {};
    demand(tagore::searcher(merged, base).search(queries, options).ids == truth.ids, "the answers of a merged index");
    demand(tagore::searcher(updated, base).search(queries, options).ids[0] != 0, "a removed row is not found");

    {
        std::filesystem::remove_all(folder + "/wrapper-live");
        const auto live = tagore::live::create(folder + "/wrapper-live", builder, dim);
        std::vector<std::uint64_t> own(rows / 2);
        for (std::size_t row = 0; row < own.size(); row++) {
            own[row] = 1000000000000 + row;
        }
        live.set_synced(false);
        live.set_automatic(true);
        live.set_search_device("cpu");
        live.insert(first, own);
        demand(live.remove({own[1], 7}) == 1 && live.info().rows == own.size() - 1, "a row removed");
        tagore::live_search_options near_own;
        near_own.k = 2;
        const auto answers = live.search(queries, near_own);
        demand(answers.ids[0] == own[0] && answers.ids[2] != own[1] && answers.short_queries == 0, "own ids");
        near_own.among = std::vector<std::uint64_t>{own[1], own[5]};
        demand(live.search(queries, near_own).ids[0] == own[5], "among own ids");
        near_own.among->clear();
        demand(live.search(queries, near_own).short_queries == 50, "among none");
        const auto interrupt = [](const tagore_update &) -> bool { throw std::logic_error("not now"); };
        demand(thrown<std::logic_error>([&] { live.consolidate(interrupt); }) == "not now", "the watch of a change");
        demand(live.consolidate() && !live.consolidate() && live.info().recent == 0, "a graph");
    }
    const auto reopened = tagore::live::open(folder + "/wrapper-live", "cpu");
    demand(reopened.info().rows == rows / 2 - 1 && reopened.info().dim == dim, "an index opened again");

    // Errors of the library, and of callbacks.
    demand(thrown<tagore::error>([] { tagore::builder("hnsw"); }).find("hnsw") != std::string::npos, "an error");
    try {
        builder.set("degree", 0);
        demand(false, "a wrong degree throws");
    } catch (const tagore::error &error) {
        demand(error.status() == TAGORE_ERROR_ARGUMENT, "a status");
    }
    const auto fails = [](std::size_t, std::size_t, float *) { throw std::runtime_error("the store is closed"); };
    demand(thrown<std::runtime_error>([&] { tagore::vectors::read<float>(rows, dim, fails); }) == "the store is closed",
           "the exception of a store");
    const auto watch = [](const tagore_update &) -> bool { throw std::logic_error("enough"); };
    demand(thrown<std::logic_error>([&] { builder.build(base, watch); }) == "enough", "the exception of a watch");
    const auto cancel = [](const tagore_update &) { return false; };
    demand(thrown<tagore::error>([&] { builder.build(base, cancel); }) == "interrupted", "a watch cancels");
    const auto take = [](std::uint32_t, tagore::ids) { throw std::runtime_error("full"); };
    demand(thrown<std::runtime_error>([&] { index.write_rows(take); }) == "full", "the exception of a sink");
    demand(thrown<std::invalid_argument>([&] { tagore::vectors::from(std::vector<float>(5), 3); }) != "nothing",
           "values that are no rows");
    demand(thrown<tagore::error>([&] { tagore::vectors::from(std::vector<float>(5), 0); }) != "nothing", "no dimension");
    return 0;
}
