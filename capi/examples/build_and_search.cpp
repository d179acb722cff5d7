// Builds a CAGRA index of random vectors, searches some of the rows, and writes an hnswlib file:
// build_and_search FILE.hnswlib
//
//     c++ -std=c++17 build_and_search.cpp $(pkg-config --cflags --libs tagore) -o build_and_search
#include <cstdio>
#include <random>
#include <set>

#include <tagore.hpp>

int main(int argc, char **argv) try {
    constexpr std::size_t rows = 5000, dim = 24, queries = 200, k = 10;
    std::mt19937 random(1);
    std::uniform_real_distribution<float> value;
    std::vector<float> values(rows * dim), asked(queries * dim);
    for (auto *drawn : {&values, &asked}) {
        for (float &x : *drawn) {
            x = value(random);
        }
    }

    const auto base = tagore::vectors::from(std::move(values), dim);
    const auto index = tagore::builder("cagra").set("degree", 32).build(base, [](const tagore_update &update) {
        return update.fraction >= 0; // false cancels
    });

    // Rows that are multiples of 3 were deleted since: only the others are found.
    std::vector<std::uint64_t> deleted((rows + 63) / 64);
    for (std::size_t row = 0; row < rows; row += 3) {
        deleted[row / 64] |= std::uint64_t(1) << row % 64;
    }
    const auto left = tagore::id_set(rows, deleted).complement();
    const tagore::searcher searcher(index, base);
    const auto matrix = tagore::matrix(asked.data(), queries, dim);
    tagore::search_options options;
    options.k = k;
    const auto found = searcher.search(matrix, options);
    options.among = &left;
    const auto filtered = searcher.search(matrix, options);

    const auto truth = tagore::exact_search(base, matrix, k);
    std::size_t hits = 0, wrong = 0;
    for (std::size_t query = 0; query < queries; query++) {
        const auto *first = truth.ids.data() + query * k;
        const std::set<std::uint32_t> nearest(first, first + k);
        for (std::size_t slot = query * k; slot < (query + 1) * k; slot++) {
            hits += nearest.count(found.ids[slot]);
            wrong += filtered.ids[slot] % 3 == 0;
        }
    }
    std::printf("recall@%zu %.4f, %zu deleted rows found\n", k, double(hits) / (queries * k), wrong);
    index.save_as(argc > 1 ? argv[1] : "example.hnswlib", "hnswlib", &base, true);
    return wrong == 0 ? 0 : 1;
} catch (const tagore::error &error) {
    std::fprintf(stderr, "%s (status %d)\n", error.what(), int(error.status()));
    return 1;
}
