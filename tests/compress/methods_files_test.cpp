// Every method of heads and FFNs on every architecture: the file has the accounted bytes, reads back as the
// same model, and has the same weights without sharing.
#include <numeric>

#include "compress/compress.h"
#include "compress/fixtures.h"
#include "compress/small_model.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/save.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

Model fixture(const std::string& name) { return load_model(std::string(REFOLD_FIXTURES) + "/hf/" + name); }

const std::vector<std::pair<std::string, std::vector<std::string>>> kSettings = {
    {"direct_share", {"ratio=0.34"}},
    {"direct_share", {"ratio=0.34", "keep=latter"}},
    {"direct_share", {"ratio=0.34", "match=separate", "share=qkv"}},
    {"direct_share", {"ratio=0.34", "match=random", "seed=1"}},
    {"direct_share", {"ratio=0.34", "match=none"}},
    {"ffn_share", {"ratio=0.5"}},
    {"ffn_share", {"ratio=0.5", "slots=ffn.up"}},
    {"ffn_share", {"ratio=0.5", "match=none"}},
    {"gqa", {"group=2"}},
    {"seq", {"part=1"}},
    {"seq", {"part=1", "share=layer"}},
    {"prune_magnitude", {"ratio=0.34", "what=both", "multiple=8"}},
    {"prune_magnitude", {"ratio=0.5", "what=both", "rank=layer", "p=1"}},
    {"drop", {"layers=1"}},
    {"drop", {"layers=1", "modules=ffn"}},
    {"drop", {"layers=0", "modules=block"}},
};

// A model of one key/value head cannot lose half of them.
bool fits(const Model& model, const std::string& method) {
    if (method == "gqa") return model.config.n_head_kv % 2 == 0;
    if (has_experts(model) && (method == "ffn_share" || method == "seq" || method == "prune_magnitude"))
        return false;
    return method != "seq" || model.topology.layers.size() % 2 == 0;
}

// Row (or column) of a pruned layer's weight that is `along` in full size; past its end where it was left
// out.
size_t own_place(const Model& model, size_t layer, Slot slot, size_t along, bool columns) {
    const auto& kept = model.config.alibi_heads_of(layer);
    const auto units = properties(slot).units;
    if (kept.empty() || !units || unit_extent(slot) == Extent::n_ff ||
        (units == UnitAxis::columns) != columns)
        return along;
    const auto width =
        static_cast<size_t>(model.config.head_dim * (has_query_heads(slot) ? model.config.q_per_kv() : 1));
    const auto found = std::find(kept.begin(), kept.end(), static_cast<int64_t>(along / width));
    return static_cast<size_t>(found - kept.begin()) * width + along % width;
}

// Gains of a norm over all queries, or all keys, at once.
bool normalizes_heads_together(Slot slot, const Model& model) {
    return (slot == Slot::attn_q_norm_all || slot == Slot::attn_k_norm_all) && !model.config.norm_by_head;
}

// The weight of a layer's slot in full size, with zeros for parts that were left out.
void expect_same_weights(const Model& dense, const Model& model) {
    std::map<std::pair<size_t, Slot>, float> common;  // factors of gains
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            const auto own = materialize(model, expression, slot, p);
            const auto full = materialize(dense, dense.topology.at(p, slot), slot);
            const auto in = static_cast<size_t>(slot_shape(slot, model.config, p).in),
                       wide = static_cast<size_t>(slot_shape(slot, dense.config).in);
            const auto place = [&, slot = slot](size_t along, bool columns) {
                return own_place(model, p, slot, along, columns);
            };
            for (size_t i = 0; i < full.size(); ++i) {
                const size_t row = place(i / wide, false), column = place(i % wide, true);
                const size_t at = row * in + column;
                const float kept = column < in && at < own.size() ? own[at] : 0.0F;
                if (normalizes_heads_together(slot, dense) && kept != 0 && full[i] != 0) {
                    // Fewer heads have another size together, which the gains make up for.
                    const float factor = kept / full[i];
                    ASSERT_NEAR(factor, common.emplace(std::pair(p, slot), factor).first->second, 1e-5)
                        << "layer " << p << " " << slot_name(slot) << " " << i;
                    continue;
                }
                ASSERT_EQ(full[i], kept) << "layer " << p << " " << slot_name(slot) << " " << i;
            }
        }
    }
}

void expect_written_as_counted(const Compression& result) {
    const TempFolder folder;
    save_model(result.model, folder / "small.gguf", false);
    const Model loaded = load_model(folder / "small.gguf");
    EXPECT_EQ(loaded.topology, result.model.topology);
    EXPECT_EQ(loaded.config.heads_kv, result.model.config.heads_kv);
    EXPECT_EQ(loaded.config.ffs, result.model.config.ffs);
    EXPECT_EQ(loaded.config.alibi_heads, result.model.config.alibi_heads);
    EXPECT_EQ(loaded.config.n_head_kv, result.model.config.n_head_kv);
    EXPECT_EQ(account(loaded).model.bytes, result.after().bytes);
    EXPECT_EQ(account(loaded).model.parameters, result.after().parameters);
    const size_t written =
        std::accumulate(loaded.tensors.begin(), loaded.tensors.end(), size_t{0},
                        [](size_t sum, const auto& t) { return sum + t.second.mapped.size(); });
    EXPECT_EQ(written, result.after().bytes);
    for (const auto& [name, tensor] : result.model.tensors)
        ASSERT_EQ(bytes_of(loaded, name), bytes_of(result.model, name)) << name;
}

class MethodFiles : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, MethodFiles, testing::ValuesIn(unshared_fixtures()),
                         [](const auto& test) { return test.param; });

TEST_P(MethodFiles, EveryMethod) {
    const Model dense = fixture(GetParam());
    size_t tried = 0;
    for (const auto& [method, settings] : kSettings) {
        if (!fits(dense, method)) continue;
        SCOPED_TRACE(fmt::format("{} {}", method, fmt::join(settings, " ")));
        const Compression result = plan(dense, recipe_from_method(method, settings));
        EXPECT_LT(result.after().parameters, result.before.parameters);
        expect_written_as_counted(result);
        expect_same_weights(without_sharing(result.model), result.model);
        ++tried;
    }
    EXPECT_GE(tried, has_experts(dense) ? 8U : 9U);
}

// Pairs of steps in a sensible order: the second works on the first one's result, also from a file.
TEST_P(MethodFiles, StepsStack) {
    const Model dense = fixture(GetParam());
    const std::vector<std::pair<size_t, size_t>> pairs = {{0, 5},  {5, 0},  {8, 0},  {0, 9},  {9, 0}, {13, 0},
                                                          {0, 13}, {10, 0}, {11, 0}, {0, 11}, {9, 12}};
    for (const auto& [a, b] : pairs) {
        const auto& [first, one] = kSettings[a];
        const auto& [second, two] = kSettings[b];
        if (!fits(dense, first) || !fits(dense, second)) continue;
        SCOPED_TRACE(fmt::format("{} {}, {} {}", first, fmt::join(one, " "), second, fmt::join(two, " ")));
        const Compression once = plan(dense, recipe_from_method(first, one));
        const Compression twice = plan(once.model, recipe_from_method(second, two));
        EXPECT_LE(twice.after().parameters, once.after().parameters);
        expect_written_as_counted(twice);
        expect_same_weights(without_sharing(twice.model), twice.model);

        const TempFolder folder;
        save_model(once.model, folder / "once.gguf", false);
        const Compression again = plan(load_model(folder / "once.gguf"), recipe_from_method(second, two));
        EXPECT_EQ(again.model.topology, twice.model.topology);
        EXPECT_EQ(again.after().parameters, twice.after().parameters);
    }
}

}  // namespace
}  // namespace refold
