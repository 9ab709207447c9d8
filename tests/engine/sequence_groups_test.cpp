#include "engine/ggml/sequence_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace refold {
namespace {

using testing::ElementsAre;

constexpr int64_t kUnit = 256, kCached = 1 << 16;
constexpr AttentionCosts kGpu{1000, 0.125};

// Newest tokens of sequences with so many rows each.
std::vector<CacheRow> newest(std::span<const int32_t> firsts, int32_t rows) {
    std::vector<CacheRow> out;
    for (const int32_t first : firsts) out.push_back({first, first + rows - 1});
    return out;
}

GroupedSequences grouped(std::span<const CacheRow> tokens, const AttentionCosts& costs = kGpu,
                         const std::vector<CacheRow>& others = {}) {
    return group_sequences(tokens, {kCached, kUnit, others}, costs);
}

int64_t read(const GroupedSequences& groups) {
    int64_t rows = 0;
    for (const SequenceGroup& group : groups.shape.groups) rows += group.sequences * group.rows;
    return rows;
}

TEST(SequenceGroups, EqualDistancesAreOneOperation) {
    const auto groups = grouped(newest(std::array{512, 0, 1024, 1536}, 300));
    EXPECT_THAT(groups.shape.groups, ElementsAre(SequenceGroup{0, 512, 4, 1, 512}));
    EXPECT_THAT(groups.tokens, ElementsAre(1, 0, 2, 3));
    EXPECT_THAT(groups.queries, ElementsAre(1, 0, 2, 3));
    EXPECT_FALSE(groups.shape.in_order);
    EXPECT_TRUE(grouped(newest(std::array{0, 512}, 300)).shape.in_order);
}

TEST(SequenceGroups, SomebodyStandsForAGap) {
    const auto groups = grouped(newest(std::array{0, 256, 1024}, 200));
    EXPECT_THAT(groups.shape.groups, ElementsAre(SequenceGroup{0, 256, 5, 1, 256}));
    EXPECT_THAT(groups.tokens, ElementsAre(0, 1, 1, 1, 2));
    EXPECT_THAT(groups.queries, ElementsAre(0, 1, 4));
}

TEST(SequenceGroups, LongAndShortOnesLieApart) {
    std::vector<CacheRow> tokens = newest(std::array{0, 256, 512, 768}, 100);
    for (const CacheRow row : newest(std::array{16384, 32768}, 9000)) tokens.push_back(row);
    EXPECT_THAT(grouped(tokens).shape.groups,
                ElementsAre(SequenceGroup{0, 256, 4, 1, 256}, SequenceGroup{16384, 16384, 2, 1, 9216}));
}

// A piece of a prompt beside sequences that take a token each.
TEST(SequenceGroups, PromptsLieApart) {
    std::vector<CacheRow> tokens = newest(std::array{0, 2048, 4096}, 1500);
    for (int32_t t = 0; t < 100; ++t) tokens.push_back({6144, 6144 + t});
    const auto groups = grouped(tokens);
    EXPECT_THAT(groups.shape.groups,
                ElementsAre(SequenceGroup{0, 2048, 3, 1, 1536}, SequenceGroup{6144, 0, 1, 100, 256}));
    EXPECT_TRUE(groups.shape.in_order);
}

TEST(SequenceGroups, WhereOperationsAreDearRowsAreReadForOthersToo) {
    const auto tokens = newest(std::array{0, 301, 777}, 200);
    EXPECT_THAT(grouped(tokens, {1e6, 0.1}).shape.groups, ElementsAre(SequenceGroup{0, 0, 1, 3, 1024}));
    EXPECT_EQ(grouped(tokens, {1, 1}).shape.groups.size(), 2U);
}

TEST(SequenceGroups, AFewOperationsAtMost) {
    std::vector<CacheRow> tokens;
    for (int32_t i = 0; i < 40; ++i) tokens.push_back({i * i * 37, i * i * 37 + i});
    EXPECT_EQ(grouped(tokens, {1, 1}).shape.groups.size(), 8U);
}

TEST(SequenceGroups, SimilarStepsHaveEqualShapes) {
    const auto open = newest(std::array{256, 512, 768, 1024, 1280, 1536, 2560}, 100);
    const auto all = grouped(open, kGpu, open).shape,
               some = grouped(newest(std::array{512, 1280}, 200), kGpu, open).shape;
    EXPECT_THAT(all.groups, ElementsAre(SequenceGroup{0, 256, 16, 1, 256}));
    EXPECT_EQ(all, some);
}

// Beside long ones, and with long ones that do not run.
TEST(SequenceGroups, ShapesDoNotDependOnWhoRuns) {
    std::vector<int32_t> firsts(16);
    for (size_t i = 0; i < firsts.size(); ++i) firsts[i] = static_cast<int32_t>(4096 * i);
    std::vector<CacheRow> open = newest(std::span(firsts).first(8), 1000);
    for (const CacheRow row : newest(std::span(firsts).last(8), 3000)) open.push_back(row);
    const auto shape = [&](size_t first, size_t count) {
        return grouped(std::span(open).subspan(first, count), kGpu, open).shape.groups;
    };
    EXPECT_THAT(shape(0, 16),
                ElementsAre(SequenceGroup{0, 4096, 8, 1, 1024}, SequenceGroup{32768, 4096, 8, 1, 3072}));
    for (size_t first = 0; first < 16; ++first) EXPECT_EQ(shape(first, 1), shape(0, 16));
    EXPECT_EQ(shape(3, 9), shape(0, 16));
}

TEST(SequenceGroups, CopiesOfATokenShareItsQuery) {
    const std::array<CacheRow, 4> tokens = {CacheRow{0, 7}, {256, 300}, {256, 300}, {256, 300}};
    const auto groups = grouped(tokens);
    EXPECT_THAT(groups.queries, ElementsAre(0, 1, 1, 1));
    EXPECT_THAT(groups.tokens, ElementsAre(0, 1));
}

// Every token's query reads all rows that it sees, within the cache, and no two tokens share one.
TEST(SequenceGroups, EveryTokenSeesItsRows) {
    std::mt19937 random(1);
    const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
    for (int round = 0; round < 500; ++round) {
        const int64_t cached = 3000 + below(4000);
        std::vector<CacheRow> tokens;
        const bool regular = round % 3 == 0;
        for (int32_t first = below(20); first < cached;) {
            const int32_t room = regular ? 256 : 1 + below(700),
                          end = std::min(static_cast<int32_t>(cached), first + room);
            // Some sequences take no part.
            for (int32_t own = std::max(first, end - below(6)); own < end; ++own)
                tokens.push_back({first, own});
            first = end;
        }
        if (tokens.empty()) continue;
        std::shuffle(tokens.begin(), tokens.end(), random);
        const AttentionCosts costs{static_cast<double>(below(3000)), round % 2 == 0 ? 0.125 : 1};
        std::vector<CacheRow> others;
        for (size_t i = 0; round % 4 == 0 && i < tokens.size(); i += 2) others.push_back(tokens[i]);
        tokens.resize(tokens.size() - others.size() / 3);
        const auto groups = group_sequences(tokens, {cached, kUnit, others}, costs);
        ASSERT_EQ(groups.queries.size(), tokens.size());
        std::vector<int> asked(groups.tokens.size());
        for (size_t t = 0; t < tokens.size(); ++t) {
            auto query = static_cast<int64_t>(groups.queries[t]);
            EXPECT_EQ(groups.tokens[static_cast<size_t>(query)], static_cast<int32_t>(t));
            EXPECT_EQ(asked[static_cast<size_t>(query)]++, 0);
            size_t g = 0;
            while (query >= groups.shape.groups[g].queries()) query -= groups.shape.groups[g++].queries();
            const SequenceGroup& group = groups.shape.groups[g];
            const int64_t first = group.first_of(query / group.tokens);
            if (group.sequences > 1)
                EXPECT_EQ(first, tokens[t].first);
            else
                EXPECT_LE(first, tokens[t].first);
            EXPECT_LT(tokens[t].own, first + group.rows);
        }
        int64_t queries = 0;
        for (const SequenceGroup& group : groups.shape.groups) {
            for (int64_t q = 0; q < group.queries(); ++q, ++queries) {
                const auto query = static_cast<size_t>(queries);
                const CacheRow token = tokens[static_cast<size_t>(groups.tokens[query])],
                               seen = group.seen(q, token);
                EXPECT_LE(0, seen.first);
                EXPECT_LE(seen.first, seen.own);
                EXPECT_LT(seen.own, group.rows);
                if (asked[query] > 0) {
                    EXPECT_EQ(seen.own - seen.first, token.own - token.first);
                }
            }
            EXPECT_GE(group.first, 0);
            EXPECT_LE(group.first_of(group.sequences - 1) + group.rows, cached);
        }
        EXPECT_EQ(queries, static_cast<int64_t>(groups.tokens.size()));
    }
}

// What 128 sequences read grows with their number, not with its square.
TEST(SequenceGroups, ManySequencesReadTheirOwnRows) {
    std::vector<int32_t> firsts;
    for (int32_t i = 0; i < 128; ++i) firsts.push_back(i * 512);
    EXPECT_EQ(read(grouped(newest(firsts, 320))), 128 * 512);
}

}  // namespace
}  // namespace refold
