// Streaming statistics, similarity matrices and Degree, on small cases worked out by hand.
#include "analyze/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analyze/degree.h"
#include "analyze/layer_summary.h"
#include "core/error.h"
#include "engine/synthetic_models.h"

namespace refold {
namespace {

TEST(Statistics, MeanAndDeviationOfAStream) {
    RunningMean mean;
    EXPECT_TRUE(std::isnan(mean.mean()));
    mean.add(2);
    EXPECT_EQ(mean.mean(), 2);
    EXPECT_TRUE(std::isnan(mean.deviation()));
    for (const double x : {4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0}) mean.add(x);
    EXPECT_DOUBLE_EQ(mean.mean(), 5);
    EXPECT_DOUBLE_EQ(mean.deviation(), std::sqrt(32.0 / 7));
    EXPECT_EQ(mean.count(), 8);
}

TEST(Statistics, CosinesOfVectorsAndRows) {
    const std::vector<float> a = {3, 4}, b = {4, 3}, zero = {0, 0};
    EXPECT_DOUBLE_EQ(cosine(a, b), 24.0 / 25);
    EXPECT_DOUBLE_EQ(cosine(a, a), 1);
    EXPECT_TRUE(std::isnan(cosine(a, zero)));
    const std::vector<float> rows = {3, 4, 1, 0, 0, 0}, others = {4, 3, -1, 0, 1, 1};
    RunningMean mean;
    add_row_cosines(rows, others, 2, mean);
    EXPECT_EQ(mean.count(), 2);  // a row of zeros has no direction
    EXPECT_DOUBLE_EQ(mean.mean(), (24.0 / 25 - 1) / 2);
}

TEST(Statistics, ResidualCosinesAreOfInputAndSum) {
    const std::vector<float> x = {1, 0, 3, 4}, f = {0, 1, 1, -1};
    RunningMean mean, direct;
    add_residual_cosines(x, f, 2, mean);
    add_row_cosines(x, std::vector<float>{1, 1, 4, 3}, 2, direct);
    EXPECT_DOUBLE_EQ(mean.mean(), (std::sqrt(0.5) + 24.0 / 25) / 2);
    EXPECT_DOUBLE_EQ(mean.mean(), direct.mean());
    RunningMean unchanged;
    add_residual_cosines(x, std::vector<float>(4), 2, unchanged);
    EXPECT_DOUBLE_EQ(unchanged.mean(), 1);
}

TEST(Statistics, StreamedDotProductsAreTheDirectOnes) {
    constexpr size_t kVectors = 5, kLength = 41;
    std::vector<std::vector<float>> vectors(kVectors);
    std::mt19937 random(1);
    for (auto& vector : vectors) {
        for (size_t i = 0; i < kLength; ++i)
            vector.push_back(static_cast<float>(random() % 2001) / 1000.0F - 1);
    }
    DotProducts streamed(kVectors);
    for (size_t first = 0; first < kLength;) {
        const size_t count = std::min<size_t>(first + 1, kLength - first);
        std::vector<float> chunk;
        for (const auto& vector : vectors) chunk.insert(chunk.end(), &vector[first], &vector[first] + count);
        streamed.add(chunk);
        first += count;
    }
    for (size_t i = 0; i < kVectors; ++i) {
        for (size_t j = 0; j < kVectors; ++j) {
            double direct = 0;
            for (size_t k = 0; k < kLength; ++k) direct += static_cast<double>(vectors[i][k]) * vectors[j][k];
            EXPECT_NEAR(streamed(i, j), direct, 1e-12);
        }
    }
    const SquareMatrix cosines = cosines_of(streamed.lower(), kVectors);
    EXPECT_NEAR(cosines(3, 1), cosine(vectors[3], vectors[1]), 1e-12);
    EXPECT_NEAR(cosines(1, 3), cosines(3, 1), 0);
    EXPECT_THROW(streamed.add(std::vector<float>(kVectors + 1)), Error);
    streamed.clear();
    EXPECT_EQ(streamed(2, 2), 0);
}

TEST(Statistics, BestMatchIsOfAnEarlierLayer) {
    SquareMatrix cosines(5);
    const auto set = [&](size_t i, size_t j, double value) { cosines(i, j) = cosines(j, i) = value; };
    set(1, 0, 0.9);  // same layer
    set(2, 0, 0.3);
    set(2, 1, 0.3);
    set(3, 1, -0.5);
    set(4, 2, 0.1);
    set(4, 3, 0.99);
    const auto best = best_of_earlier(cosines, std::vector<size_t>{0, 0, 1, 2, 2});
    EXPECT_FALSE(best[0]);
    EXPECT_FALSE(best[1]);
    ASSERT_TRUE(best[2] && best[3] && best[4]);
    EXPECT_EQ(best[2]->index, 0U);  // the first one on ties
    EXPECT_EQ(best[3]->index, 1U);
    EXPECT_EQ(best[3]->cosine, -0.5);
    EXPECT_EQ(best[4]->index, 2U);
}

TEST(Statistics, LayersInAFewNumbers) {
    // Pairs (1,0) 0.1; (2,0) 0.2; (2,1) 0.3; (3,0) undefined; (3,1) 0.5; (3,2) 0.6.
    SquareMatrix layers(4, 1.0);
    double value = 0.1;
    for (size_t i = 0; i < 4; ++i) {
        for (size_t j = 0; j < i; ++j, value += 0.1) layers(i, j) = layers(j, i) = value;
    }
    layers(3, 0) = layers(0, 3) = kUndefined;
    const LayerSummary summary = summarize(layers);
    EXPECT_NEAR(summary.average, 1.7 / 5, 1e-12);
    EXPECT_NEAR(summary.maximum, 0.6, 1e-12);
    EXPECT_NEAR(summary.minimum, 0.1, 1e-12);
    EXPECT_NEAR(summary.top_half, 0.6, 1e-12);
    EXPECT_NEAR(summary.bottom_half, 0.1, 1e-12);
    EXPECT_NEAR(summary.difference(), 0.5, 1e-12);
    EXPECT_NEAR(summary.deviation, std::sqrt((0.75 - 1.7 * 1.7 / 5) / 4), 1e-12);
    EXPECT_TRUE(std::isnan(summarize(SquareMatrix(1, 1.0)).average));
}

// ---- Degree ----

// Four layers of one head.
HeadCandidates four_heads(const SquareMatrix& cosines) {
    HeadCandidates out;
    for (size_t p = 0; p < 4; ++p) out.units.push_back({p, 0});
    for (size_t i = 0; i < 4; ++i) {
        for (size_t j = 0; j < 4; ++j) out.gram.push_back(i == j ? 1 : cosines(i, j));
    }
    return out;
}

// Best matches 1-0 (a), 2-0 (b) and 3-2 (c).
SquareMatrix ranking(double a, double b, double c) {
    SquareMatrix out(4, 0.0);
    for (size_t i = 0; i < 4; ++i) out(i, i) = 1;
    out(1, 0) = out(0, 1) = a;
    out(2, 0) = out(0, 2) = b;
    out(3, 2) = out(2, 3) = c;
    return out;
}

Degree degree_of(const SquareMatrix& weights, const std::vector<SquareMatrix>& maps, double ratio) {
    Model model;
    model.label = "model";
    return degree(model, four_heads(weights), maps, ratio);
}

TEST(Degree, IdenticalRankingsGiveOne) {
    const SquareMatrix same = ranking(0.3, 0.2, 0.1);
    for (const double ratio : {0.0, 0.25, 0.5, 1.0}) {
        const Degree found = degree_of(same, {same, same}, ratio);
        EXPECT_EQ(found.pairs, (std::vector<double>{1, 1})) << ratio;
        EXPECT_EQ(found.heads, (std::vector<double>{1, 1})) << ratio;
        EXPECT_EQ(found.candidates, 3U);
    }
    EXPECT_EQ(degree_of(same, {same}, 0.5).k, 2U);
    EXPECT_EQ(degree_of(same, {same}, 0.0).k, 1U);
    EXPECT_EQ(degree_of(same, {same}, 1.0).k, 3U);  // the first layer's head has nothing to match
}

TEST(Degree, CountsWhatBothSelect) {
    const SquareMatrix weights = ranking(0.3, 0.2, 0.1);
    SquareMatrix other = ranking(0.3, 0.2, 0.1);
    other(2, 1) = other(1, 2) = 0.25;  // head 2 matches 1 now
    // Selected by weights: 1-0 and 2-0. By maps: 2-0 and 3-2; 1-0 and 2-1; the same as by weights.
    const Degree found = degree_of(weights, {ranking(0.1, 0.2, 0.3), other, weights}, 0.5);
    EXPECT_EQ(found.pairs, (std::vector<double>{0.5, 0.5, 1}));
    EXPECT_EQ(found.heads, (std::vector<double>{0.5, 1, 1}));
}

TEST(Degree, HeadsWithoutMapsAreLeftOut) {
    const SquareMatrix weights = ranking(0.3, 0.2, 0.1);
    SquareMatrix maps = ranking(0.1, 0.2, 0.3);
    for (size_t i = 0; i < 4; ++i) maps(1, i) = maps(i, 1) = kUndefined;
    const Degree found = degree_of(weights, {maps}, 1.0);
    EXPECT_EQ(found.candidates, 2U);
    EXPECT_EQ(found.pairs, std::vector<double>{1});
    EXPECT_TRUE(degree_of(weights, {SquareMatrix(4)}, 0.5).pairs.empty());
}

TEST(Degree, SamplesAreHalvesAndTheSameInEveryRun) {
    const auto samples = random_samples(9, 20);
    EXPECT_EQ(samples, random_samples(9, 20));
    std::set<std::set<size_t>> different;
    std::set<size_t> seen;
    for (const auto& sample : samples) {
        EXPECT_EQ(sample.size(), 4U);
        EXPECT_LT(*sample.rbegin(), 9U);
        different.insert(sample);
        seen.insert(sample.begin(), sample.end());
    }
    EXPECT_GT(different.size(), 10U);
    EXPECT_EQ(seen.size(), 9U);
    EXPECT_EQ(random_samples(1, 1).front(), std::set<size_t>{0});
    EXPECT_EQ(random_samples(9, 1, 6).front().size(), 6U);
    EXPECT_EQ(random_samples(9, 1, 100).front().size(), 9U);
}

}  // namespace
}  // namespace refold
