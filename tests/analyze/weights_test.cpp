// Similarities and spectra of weights, for every kind of expression.
#include "analyze/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analyze/checks.h"
#include "analyze/statistics.h"
#include "engine/expression_models.h"
#include "model/materialize.h"
#include "model/small_model.h"

namespace refold {
namespace {

std::vector<float> concatenated(const Model& model, size_t layer, const std::vector<Slot>& slots) {
    std::vector<float> out;
    for (const Slot slot : slots) {
        if (!model.topology.has(layer, slot)) continue;
        const auto part = materialize(model, model.topology.at(layer, slot), slot, layer);
        out.insert(out.end(), part.begin(), part.end());
    }
    return out;
}

// The rows of the unit's queries, then of its keys.
std::vector<float> unit_of(const Model& model, Unit unit) {
    std::vector<float> out;
    for (const Slot slot : {Slot::attn_q, Slot::attn_k}) {
        const auto rows = materialize(model, model.topology.at(unit.layer, slot), slot, unit.layer);
        const auto size = static_cast<ptrdiff_t>(rows.size()) / model.config.n_head_kv_of(unit.layer);
        out.insert(out.end(), rows.begin() + unit.index * size, rows.begin() + (unit.index + 1) * size);
    }
    return out;
}

// The slots that the layer has, and their sizes.
std::vector<std::pair<Slot, int64_t>> sizes_of(const Model& model, size_t layer,
                                               const std::vector<Slot>& slots) {
    std::vector<std::pair<Slot, int64_t>> sizes;
    for (const Slot slot : slots) {
        const SlotShape shape = slot_shape(slot, model.config, layer);
        if (model.topology.has(layer, slot)) sizes.emplace_back(slot, shape.in * shape.out);
    }
    return sizes;
}

TEST(Weights, EveryExpressionIsComparedByItsValue) {
    for (const auto& [name, model, input] : expression_models()) {
        const HeadSimilarity heads = head_similarity(model);
        size_t units = 0;
        for (size_t p = 0; p < model.topology.layers.size(); ++p) {
            if (model.topology.has(p, Slot::attn_q) && model.topology.has(p, Slot::attn_k))
                units += static_cast<size_t>(model.config.n_head_kv_of(p));
        }
        ASSERT_EQ(heads.units.size(), units) << name;
        for (size_t i = 0; i < units; ++i) {
            for (size_t j = 0; j <= i; ++j) {
                const double expected =
                    cosine(unit_of(model, heads.units[i]), unit_of(model, heads.units[j]));
                expect_number(heads.cosines(i, j), expected, 1e-6, name);
                expect_number(heads.cosines(j, i), expected, 1e-6, name);
            }
        }
        for (const auto& slots : {kQkvo, kFfnMatrices}) {
            const SquareMatrix modules = module_cosines(model, slots);
            for (size_t p = 0; p < modules.size(); ++p) {
                const auto own = concatenated(model, p, slots);
                for (size_t q = 0; q < modules.size(); ++q) {
                    const auto other = concatenated(model, q, slots);
                    if (own.empty() || sizes_of(model, p, slots) != sizes_of(model, q, slots)) {
                        EXPECT_TRUE(std::isnan(modules(p, q))) << name << " " << p << " " << q;
                    } else {
                        expect_number(modules(p, q), cosine(own, other), 1e-6, name);
                    }
                }
            }
        }
    }
}

TEST(Weights, OfOneHeadAndOfIdenticalLayers) {
    // Layer 2 is layer 0 again, layer 1 its negative.
    const Model model = small_model({}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return (layer == 1 ? -1.0F : 1.0F) * scattered(0, slot, row, column);
    });
    const HeadSimilarity heads = head_similarity(model);
    ASSERT_EQ(heads.units.size(), 6U);
    EXPECT_NEAR(heads.cosines(4, 0), 1, 1e-12);
    EXPECT_NEAR(heads.cosines(2, 0), -1, 1e-12);
    EXPECT_NEAR(heads.cosines(5, 3), -1, 1e-12);
    const SquareMatrix ffns = module_cosines(model, kFfnMatrices), attention = module_cosines(model, kQkvo);
    for (const auto* modules : {&ffns, &attention}) {
        EXPECT_NEAR((*modules)(0, 2), 1, 1e-12);
        EXPECT_NEAR((*modules)(0, 1), -1, 1e-12);
        EXPECT_NEAR((*modules)(1, 1), 1, 1e-12);
    }
    // No head is shared, so all are candidates of DirectShare.
    EXPECT_EQ(head_candidates(model).units, heads.units);
}

TEST(Weights, SharedHeadsAreOneCandidate) {
    Model model = small_model({}, scattered);
    for (const Slot slot : {Slot::attn_q, Slot::attn_k})
        model.topology.layers[2][slot] = model.topology.at(0, slot);
    EXPECT_EQ(head_candidates(model).units, (std::vector<Unit>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
    const HeadSimilarity heads = head_similarity(model);
    ASSERT_EQ(heads.units.size(), 6U);
    EXPECT_NEAR(heads.cosines(4, 0), 1, 1e-12);
    EXPECT_NEAR(heads.cosines(4, 2), heads.cosines(2, 0), 1e-12);
}

TEST(Weights, SpectrumOfADiagonalMatrix) {
    // Diagonal 4, 2, 1, 0 in attn.q of layer 1: squares 16, 4, 1 of 21.
    const Model model = small_model({}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (layer != 1 || slot != Slot::attn_q) return scattered(layer, slot, row, column);
        const float diagonal[] = {4, 2, 1, 0};
        return row == column ? diagonal[row] : 0.0F;
    });
    const auto all = spectra(model);
    EXPECT_EQ(all.size(), 3U * 7);
    const auto found = std::find_if(all.begin(), all.end(), [](const Spectrum& s) {
        return s.slot == Slot::attn_q && s.layers == std::vector<size_t>{1};
    });
    ASSERT_NE(found, all.end());
    ASSERT_EQ(found->values.size(), 4U);
    const double expected[] = {4, 2, 1, 0};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found->values[i], expected[i], 1e-6);
    EXPECT_EQ(found->rank_50, 1);
    EXPECT_EQ(found->rank_90, 2);
    EXPECT_EQ(found->rank_99, 3);
    EXPECT_NEAR(found->stable_rank, 21.0 / 16, 1e-6);
    for (const Spectrum& s : all)
        EXPECT_EQ(static_cast<int64_t>(s.values.size()), std::min(s.shape.in, s.shape.out));
}

TEST(Weights, ASharedMatrixHasOneSpectrum) {
    for (const auto& [name, model, input] : expression_models()) {
        size_t uses = 0, matrices = 0;
        const auto all = spectra(model);
        for (const Spectrum& s : all) {
            uses += s.layers.size();
            for (const size_t p : s.layers) {
                EXPECT_EQ(model.topology.at(p, s.slot), model.topology.at(s.layers[0], s.slot)) << name;
            }
            double squares = 0;
            for (const float w :
                 materialize(model, model.topology.at(s.layers[0], s.slot), s.slot, s.layers[0]))
                squares += static_cast<double>(w) * w;
            double sum = 0;
            for (const double value : s.values) sum += value * value;
            EXPECT_NEAR(sum, squares, 1e-5 * squares) << name;
        }
        for (const Slots& slots : model.topology.layers) {
            for (const auto& [slot, expression] : slots) matrices += is_matrix(slot);
        }
        EXPECT_EQ(uses, matrices) << name;
        if (name.find("loops") != std::string::npos && name.find("lora") == std::string::npos) {
            EXPECT_LE(all.size() * 2, matrices) << name;
        }
    }
}

TEST(Weights, ConfigurationAloneIsRefused) {
    Model model = small_model({}, scattered);
    model.shapes_only = true;
    expect_error(ErrorCode::input, {"no weights"}, [&] { head_similarity(model); });
    expect_error(ErrorCode::input, {"no weights"}, [&] { spectra(model); });
}

}  // namespace
}  // namespace refold
