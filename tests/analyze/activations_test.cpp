// Compares statistics of activations with their definitions, applied to the float64 reference's activations.
#include "analyze/activations.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analyze/checks.h"
#include "analyze/weights.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"
#include "model/small_model.h"

namespace refold {
namespace {

// Activations are float32.
constexpr double kTolerance = 2e-4;

using Numbers = std::vector<double>;

double cosine_of(const Numbers& a, const Numbers& b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    return ab / std::sqrt(aa * bb);
}

Numbers flat(const reference::Matrix& rows) {
    Numbers out;
    for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
    return out;
}

struct Case {
    std::string name;
    Model model;
    std::vector<std::vector<int32_t>> sequences;
    std::vector<reference::Output> outputs;  // by sequence

    // The map of a layer, one row per head; nothing when it has no map.
    std::optional<reference::Matrix> map(size_t sequence, size_t layer) const {
        const size_t owner = model.topology.source(layer).probabilities.value_or(layer);
        const auto found = outputs[sequence].taps.find({owner, Tap::probabilities});
        if (found == outputs[sequence].taps.end() || found->second.empty()) return std::nullopt;
        const auto heads = static_cast<size_t>(model.config.n_head_of(owner));
        const size_t tokens = found->second.size() / heads;
        reference::Matrix out(heads);
        for (size_t i = 0; i < found->second.size(); ++i) {
            auto& head = out[i / tokens];
            head.insert(head.end(), found->second[i].begin(), found->second[i].end());
        }
        return out;
    }
};

std::vector<Case> cases() {
    std::vector<Case> out;
    const auto add = [&](const std::string& name, const Model& model, std::vector<int32_t> tokens) {
        if (!model.config.causal && !model.config.windows.empty()) return;
        if (model.config.n_stream > 1) return;  // their layers do not run apart
        Case entry{name, model, {tokens}, {}};
        std::reverse(tokens.begin(), tokens.end());
        tokens.pop_back();
        entry.sequences.push_back(tokens);
        std::swap(tokens[0], tokens[3]);
        entry.sequences.push_back(tokens);
        for (const auto& sequence : entry.sequences)
            entry.outputs.push_back(reference::run(model, {sequence, {}, {}}));
        out.push_back(std::move(entry));
    };
    for (const auto& [name, model, input] : expression_models()) add(name, model, input.tokens);
    for (const auto& [name, model, input] : synthetic_models()) add(name, model, input.tokens);
    return out;
}

PassOptions options(int64_t step_tokens) { return {.threads = 1, .f32 = true, .step_tokens = step_tokens}; }

// The mean of `value` over sequences; undefined when it is for the first.
double mean_over(const Case& entry, const std::function<double(size_t)>& value) {
    RunningMean mean;
    for (size_t s = 0; s < entry.sequences.size(); ++s) mean.add(value(s));
    return mean.mean();
}

Numbers mean_map(const reference::Matrix& heads) {
    Numbers mean(heads[0].size());
    for (const auto& head : heads) {
        for (size_t i = 0; i < head.size(); ++i) mean[i] += head[i] / static_cast<double>(heads.size());
    }
    return mean;
}

void expect_layers(const Case& entry, const MapSimilarity& got) {
    const size_t layers = entry.model.topology.layers.size();
    for (size_t p = 0; p < layers; ++p) {
        for (size_t q = 0; q < layers; ++q) {
            const std::string place = fmt::format("{}, layers {} and {}", entry.name, p, q);
            const auto a = entry.map(0, p), b = entry.map(0, q);
            const bool attends =
                entry.model.topology.has(p, Slot::attn_o) && entry.model.topology.has(q, Slot::attn_o);
            const bool comparable = attends && a && b;
            const auto by = [&](bool means) {
                return mean_over(entry, [&](size_t s) {
                    const auto x = *entry.map(s, p), y = *entry.map(s, q);
                    return means ? cosine_of(mean_map(x), mean_map(y)) : cosine_of(flat(x), flat(y));
                });
            };
            const bool alike = comparable && a->size() == b->size();
            expect_number(got.layers(p, q), alike ? by(false) : kUndefined, kTolerance, place);
            expect_number(got.layers_of_mean_maps(p, q), comparable ? by(true) : kUndefined, kTolerance,
                          place);
            if (p == q && comparable) expect_number(got.layers(p, q), 1, 1e-9, place);
        }
    }
}

TEST(Activations, MapsOfLayersAndHeadsAreTheDefinition) {
    size_t without = 0, borrowed = 0;
    for (const Case& entry : cases()) {
        for (const int64_t step_tokens : {3, 64}) {
            SCOPED_TRACE(fmt::format("{}, steps of {}", entry.name, step_tokens));
            AttentionMaps maps(entry.model, {}, {});
            run_text(entry.model, entry.sequences, options(step_tokens), &maps, nullptr);
            const MapSimilarity got = maps.similarity();
            EXPECT_EQ(got.sequences, 3);
            expect_layers(entry, got);
            for (size_t i = 0; i < got.heads.size(); ++i) {
                for (size_t j = 0; j <= i; ++j) {
                    const auto map = [&](size_t s, const Unit& head) {
                        return (*entry.map(s, head.layer))[static_cast<size_t>(head.index)];
                    };
                    const double expected = mean_over(entry, [&](size_t s) {
                        return cosine_of(map(s, got.heads[i]), map(s, got.heads[j]));
                    });
                    expect_number(got.head_cosines(i, j), expected, kTolerance, "heads");
                }
            }
            size_t heads = 0;
            for (size_t p = 0; p < entry.model.topology.layers.size(); ++p) {
                const bool attends = entry.model.topology.has(p, Slot::attn_o);
                const auto map = entry.map(0, p);
                heads += attends && map ? map->size() : 0;
                without += !attends;
                borrowed += attends && entry.model.topology.source(p).probabilities.has_value();
            }
            EXPECT_EQ(got.heads.size(), heads);
        }
    }
    EXPECT_GT(without, 0U);
    EXPECT_GT(borrowed, 0U);
}

TEST(Activations, DeviationsAreOverSequences) {
    const std::vector<Case> all = cases();
    const Case& entry = all.front();
    AttentionMaps maps(entry.model, {}, {});
    run_text(entry.model, entry.sequences, options(64), &maps, nullptr);
    RunningMean expected;
    for (size_t s = 0; s < entry.sequences.size(); ++s)
        expected.add(cosine_of(flat(*entry.map(s, 0)), flat(*entry.map(s, 1))));
    EXPECT_GT(expected.deviation(), 0);
    EXPECT_NEAR(maps.similarity().layer_deviations(1, 0), expected.deviation(), kTolerance);
}

TEST(Activations, SamplesOfGroups) {
    for (const Case& entry : cases()) {
        SCOPED_TRACE(entry.name);
        const auto units = head_candidates(entry.model).units;
        const std::vector<std::set<size_t>> samples = {{0, 2}, {1}};
        AttentionMaps maps(entry.model, units, samples);
        run_text(entry.model, entry.sequences, options(5), &maps, nullptr);
        const auto got = maps.sample_cosines();
        ASSERT_EQ(got.size(), 2U);
        const auto group = static_cast<size_t>(entry.model.config.q_per_kv());
        const auto map = [&](size_t s, const Unit& unit) {
            const auto heads = *entry.map(s, unit.layer);
            const auto first =
                heads.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(unit.index) * group);
            return flat({first, first + static_cast<ptrdiff_t>(group)});
        };
        for (size_t i = 0; i < units.size(); ++i) {
            for (size_t j = 0; j <= i; ++j) {
                for (size_t sample = 0; sample < 2; ++sample) {
                    RunningMean expected;
                    for (const size_t s : samples[sample])
                        expected.add(cosine_of(map(s, units[i]), map(s, units[j])));
                    EXPECT_NEAR(got[sample](i, j), expected.mean(), kTolerance);
                }
            }
        }
    }
}

// Mean cosine of rows over all tokens of all sequences.
double rows_cosine(const Case& entry,
                   const std::function<std::pair<reference::Matrix, reference::Matrix>(size_t)>& of) {
    RunningMean mean;
    for (size_t s = 0; s < entry.sequences.size(); ++s) {
        const auto [a, b] = of(s);
        for (size_t t = 0; t < a.size(); ++t) mean.add(cosine_of(a[t], b[t]));
    }
    return mean.mean();
}

TEST(Activations, ModulesAreTheDefinition) {
    size_t parallel = 0, no_ffn = 0, no_attention = 0;
    for (const Case& entry : cases()) {
        if (!entry.model.config.causal) continue;
        SCOPED_TRACE(entry.name);
        const Topology& topology = entry.model.topology;
        const size_t layers = topology.layers.size();
        const bool split = entry.model.config.parallel_residual;
        ModuleSimilarities modules(entry.model);
        run_text(entry.model, entry.sequences, options(4), nullptr, &modules);
        for (size_t p = 0; p < layers; ++p) {
            const auto tap = [&](size_t s, Tap what) { return entry.outputs[s].taps.at({p, what}); };
            const auto input = [&](size_t s) { return tap(s, Tap::layer_input); };
            const auto with = [&](const reference::Matrix& x, const reference::Matrix& f) {
                return std::pair(x, reference::sum(x, f));
            };
            const bool attends = topology.has(p, Slot::attn_o);
            double attention = kUndefined, ffn = kUndefined;
            if (split && attends) {
                attention =
                    rows_cosine(entry, [&](size_t s) { return with(input(s), tap(s, Tap::attn_output)); });
            } else if (!split && (attends || topology.has(p, Slot::attn_comp))) {
                attention =
                    rows_cosine(entry, [&](size_t s) { return std::pair(input(s), tap(s, Tap::residual)); });
            }
            if (topology.has(p, Slot::ffn_down) || topology.has(p, Slot::ffn_router)) {
                ffn = rows_cosine(entry, [&](size_t s) {
                    return with(split ? input(s) : tap(s, Tap::residual), tap(s, Tap::ffn_output));
                });
            }
            const double layer = rows_cosine(entry, [&](size_t s) {
                const auto& output = entry.outputs[s];
                return std::pair(
                    input(s), p + 1 < layers ? output.taps.at({p + 1, Tap::layer_input}) : output.residual);
            });
            const ModuleSimilarity& got = modules.layers()[p];
            expect_number(got.attention.mean(), attention, kTolerance, fmt::format("attention {}", p));
            expect_number(got.ffn.mean(), ffn, kTolerance, fmt::format("FFN {}", p));
            expect_number(got.layer.mean(), layer, kTolerance, fmt::format("layer {}", p));
            parallel += split;
            no_ffn += std::isnan(ffn);
            no_attention += std::isnan(attention);
        }
    }
    for (const size_t count : {parallel, no_ffn, no_attention}) EXPECT_GT(count, 0U);
}

TEST(Activations, IdenticalLayersWithoutEffectHaveSimilarityOne) {
    // No module adds to the residual stream, so all layers see the same.
    const Model model = small_model({}, [](size_t, Slot slot, int64_t row, int64_t column) {
        if (slot == Slot::attn_o || slot == Slot::ffn_down) return 0.0F;
        return is_vector(slot) ? 1.0F : scattered(0, slot, row, column);
    });
    AttentionMaps maps(model, {}, {});
    ModuleSimilarities modules(model);
    run_text(model, {{1, 2, 3, 4, 5, 6, 7}}, options(4), &maps, &modules);
    const MapSimilarity got = maps.similarity();
    for (size_t p = 0; p < 3; ++p) {
        for (size_t q = 0; q < 3; ++q) EXPECT_NEAR(got.layers(p, q), 1, 1e-9);
        EXPECT_NEAR(modules.layers()[p].attention.mean(), 1, 1e-12);
        EXPECT_NEAR(modules.layers()[p].ffn.mean(), 1, 1e-12);
        EXPECT_NEAR(modules.layers()[p].layer.mean(), 1, 1e-12);
    }
    EXPECT_TRUE(std::isnan(got.layer_deviations(1, 0)));  // one text
    EXPECT_LT(got.head_cosines(1, 0), 1 - 1e-6);
}

TEST(Activations, WhatCannotBeLookedAtIsRefused) {
    Model model = small_model({}, scattered);
    ModuleSimilarities modules(model);
    Model encoder = model;
    encoder.config.causal = false;
    expect_error(ErrorCode::unsupported, {"encoder", "--what modules"}, [&] {
        run_text(encoder, {{1, 2}}, options(4), nullptr, &modules);
    });
    for (Slots& slots : model.topology.layers)
        std::erase_if(slots, [](const auto& entry) { return belongs_to_attention(entry.first); });
    AttentionMaps none(model, {}, {});
    expect_error(ErrorCode::input, {"small model", "attention"}, [&] {
        run_text(model, {{1, 2}}, options(4), &none, nullptr);
    });
}

}  // namespace
}  // namespace refold
