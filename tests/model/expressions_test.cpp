// Weight expressions of whole models: meaning, costs, refusals, files and exports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "core/temp_folder.h"
#include "engine/expression_models.h"
#include "model/accounting.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/save.h"
#include "model/sizes.h"
#include "model/stock.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSeeds = 60;

// Every case of every family, then random ones; or only those that have a dense form.
std::vector<ExpressionModel> all_models(bool with_dense = false) {
    std::vector<ExpressionModel> models = expression_models();
    for (uint32_t seed = 1; seed <= kSeeds; ++seed)
        models.push_back(
            {fmt::format("seed {}", seed),
             random_expression_model(seed, {.sizes = true, .prefix = !with_dense, .sources = !with_dense}),
             expression_input()});
    if (!with_dense) return models;
    std::erase_if(models, [](const auto& entry) {
        const Topology& topology = entry.model.topology;
        bool compensated = false;
        for (const Slots& slots : topology.layers)
            for (const auto& [slot, expression] : slots) compensated |= is_compensation(slot);
        return entry.model.config.n_prefix > 0 || !topology.sources.empty() || compensated;
    });
    return models;
}

// Calls `visit` with layer, slot and expression of every slot.
template <typename Visit>
void for_each_slot(const Model& model, Visit&& visit) {
    for (size_t p = 0; p < model.topology.layers.size(); ++p)
        for (const auto& [slot, expression] : model.topology.layers[p]) visit(p, slot, expression);
    for (const auto& [slot, expression] : model.topology.globals) visit(kWholeModel, slot, expression);
}

ErrorCode refusal(const std::function<void()>& body, std::string& message) {
    try {
        body();
    } catch (const Error& error) {
        message = error.what();
        return error.code();
    }
    ADD_FAILURE() << "accepted";
    return ErrorCode::internal;
}

// ---- meaning ----

// The elements one by one, by the formulas of model/topology.h.
class Formula {
public:
    Formula(const Model& model, SlotShape shape) : model_(model), shape_(shape) {}

    double low_rank(const LowRank& e, int64_t row, int64_t column) const {
        if (e.transposed) std::swap(row, column);
        double sum = 0;
        const int64_t rank = model_.tensor(e.u).shape[0], in = model_.tensor(e.v).shape[0];
        for (int64_t r = 0; r < rank; ++r) {
            const double scale = e.scale.empty() ? 1.0 : value(e.scale, e.row * rank + r);
            sum += value(e.u, row * rank + r) * scale * value(e.v, r * in + column);
        }
        return sum;
    }

    double tucker(const Tucker& e, int64_t row, int64_t column) const {
        if (e.transposed) std::swap(row, column);
        const auto& core = model_.tensor(e.core).shape;
        const int64_t heads = core.size() == 4 ? core[3] : 1, width = model_.tensor(e.head).shape[0];
        const int64_t slot_heads = (e.transposed ? shape_.in : shape_.out) / width,
                      group = heads / slot_heads;
        double mean = 0;
        for (int64_t h = row / width * group; h < (row / width + 1) * group; ++h)
            mean += element(e, h, row % width, column) / static_cast<double>(group);
        return mean;
    }

private:
    double value(const std::string& tensor, int64_t i) const {
        auto& values = read_[tensor];
        if (values.empty()) values = floats_of(model_, tensor);
        return values.at(static_cast<size_t>(i));
    }
    // W_h[row][column] = sum over s, c, r of U2[row, s] U3[role, c] core[r, s, c, h] U1[column, r]
    double element(const Tucker& e, int64_t h, int64_t row, int64_t column) const {
        const auto& core = model_.tensor(e.core).shape;
        const int64_t r1 = core[0], r2 = core[1], r3 = core[2], width = model_.tensor(e.head).shape[0],
                      features = model_.tensor(e.model).shape[0], roles = model_.tensor(e.roles).shape[0];
        // Pairs (0, 1), (2, 3), ... of the rotation are rows i and i + width / 2 of the halves.
        if (e.halves) row = row / 2 + row % 2 * (width / 2);
        double sum = 0;
        for (int64_t s = 0; s < r2; ++s)
            for (int64_t c = 0; c < r3; ++c)
                for (int64_t r = 0; r < r1; ++r)
                    sum += value(e.head, s * width + row) * value(e.roles, c * roles + e.role) *
                           value(e.core, ((h * r3 + c) * r2 + s) * r1 + r) *
                           value(e.model, r * features + column);
        return sum;
    }

    const Model& model_;
    SlotShape shape_;
    mutable std::map<std::string, std::vector<float>> read_;
};

TEST(Expressions, AreTheirFormulas) {
    constexpr ExpressionShape kSmall{
        .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 12, .vocab = 40};
    int low_rank = 0, grouped = 0, halves = 0, transposed = 0;
    for (uint32_t seed = 1; seed <= 40; ++seed) {
        const Model model = random_expression_model(seed, {}, kSmall);
        for_each_slot(model, [&](size_t p, Slot slot, const Expression& expression) {
            const SlotShape shape = slot_shape(slot, model.config, p);
            const Formula formula(model, shape);
            const auto values = materialize(model, expression, slot, p);
            ASSERT_EQ(static_cast<int64_t>(values.size()), shape.in * shape.out);
            const auto* tucker = std::get_if<Tucker>(&expression);
            const auto* factors = std::get_if<LowRank>(&expression);
            if (tucker == nullptr && factors == nullptr) return;
            low_rank += factors != nullptr;
            if (tucker != nullptr) {
                grouped += slot == Slot::attn_k && model.config.q_per_kv() > 1;
                halves += tucker->halves;
                transposed += tucker->transposed;
            }
            for (int64_t row = 0; row < shape.out; ++row)
                for (int64_t column = 0; column < shape.in; ++column)
                    ASSERT_NEAR(values[static_cast<size_t>(row * shape.in + column)],
                                tucker != nullptr ? formula.tucker(*tucker, row, column)
                                                  : formula.low_rank(*factors, row, column),
                                1e-5)
                        << "seed " << seed << " layer " << p << " " << slot_name(slot);
        });
    }
    for (const int seen : {low_rank, grouped, halves, transposed}) EXPECT_GT(seen, 2);
}

TEST(Expressions, PlusIsASum) {
    ExpressionBuilder builder("llama", 3);
    const LowRank base = builder.low_rank(1, Slot::attn_o, 4);
    const Plus plus = builder.plus(1, Slot::attn_o, base, 3, true);
    builder.at(1, Slot::attn_o) = plus;
    const Model model = builder.finish();
    const auto sum = materialize(model, plus, Slot::attn_o, 1),
               first = materialize(model, base, Slot::attn_o),
               second = materialize(model, plus.term, Slot::attn_o);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_FLOAT_EQ(sum[i], first[i] + second[i]);
}

// ---- files ----

// Accounting = bytes written = bytes mapped, and a file reads back as it was written.
TEST(Expressions, SaveAndLoadIsTheIdentity) {
    const TempFolder folder;
    for (const auto& [name, model, input] : all_models()) {
        SCOPED_TRACE(name);
        const std::string path = folder / "model.gguf";
        save_model(model, path, true);
        const Model loaded = load_model(path);
        EXPECT_EQ(loaded.topology, model.topology);
        EXPECT_EQ(loaded.config.heads_kv, model.config.heads_kv);
        EXPECT_EQ(loaded.config.ffs, model.config.ffs);
        EXPECT_EQ(loaded.config.n_prefix, model.config.n_prefix);
        EXPECT_EQ(loaded.has_sharing(), model.has_sharing());
        uint64_t written = 0, mapped = 0, elements = 0;
        const auto file = GgufFile::open(path);
        for (const auto& tensor : file->tensors()) written += tensor.data.size();
        ASSERT_EQ(loaded.tensors.size(), model.tensors.size());
        for (const auto& [tensor_name, tensor] : loaded.tensors) {
            mapped += tensor.mapped.size();
            if (!lists_of_rows(model).contains(tensor_name))
                elements += static_cast<uint64_t>(tensor.elements());
            EXPECT_EQ(floats_of(loaded, tensor_name), floats_of(model, tensor_name)) << tensor_name;
        }
        const Accounting accounting = account(model), after = account(loaded);
        EXPECT_EQ(accounting.model.bytes, written);
        EXPECT_EQ(accounting.model.bytes, mapped);
        EXPECT_EQ(accounting.model.parameters, elements);
        EXPECT_EQ(after.model.bytes, accounting.model.bytes);
        EXPECT_EQ(after.dense.bytes, accounting.dense.bytes);
        EXPECT_EQ(after.model.flops_per_token, accounting.model.flops_per_token);
    }
}

// More or fewer layers than stored layers.
TEST(Expressions, LayersNeedNotBeAsManyAsBlocks) {
    const TempFolder folder;
    for (const bool more : {true, false}) {
        ExpressionBuilder builder("llama");
        auto& layers = builder.model.topology.layers;
        if (more) {
            layers.push_back(layers[1]);
            // Named like a tensor of a layer beyond the file's block count.
            builder.model.tensors["blk.4.ffn_norm.weight"] = builder.model.tensor("blk.0.ffn_norm.weight");
            layers[4][Slot::ffn_norm] = Dense{"blk.4.ffn_norm.weight"};
        } else {
            layers.pop_back();
        }
        const Model model = builder.finish();
        const std::string path = folder / (more ? "more.gguf" : "fewer.gguf");
        save_model(model, path, false);
        EXPECT_EQ(load_model(path).topology, model.topology);
    }
}

// ---- without sharing ----

TEST(Expressions, WithoutSharingHasTheSameWeights) {
    for (const auto& [name, model, input] : all_models(true)) {
        SCOPED_TRACE(name);
        const Model dense = without_sharing(model);
        EXPECT_FALSE(dense.has_sharing());
        EXPECT_EQ(dense.topology.layers.size(), model.topology.layers.size());
        for_each_slot(dense, [&](size_t p, Slot slot, const Expression& expression) {
            const Slots& given = p == kWholeModel ? model.topology.globals : model.topology.layers[p];
            const SlotShape own = slot_shape(slot, model.config, p), full = slot_shape(slot, dense.config, p);
            const auto values = materialize(dense, expression, slot, p);
            std::vector<float> expected(values.size(), is_norm(slot) ? 1.0F : 0.0F);
            if (const auto found = given.find(slot); found != given.end()) {
                std::fill(expected.begin(), expected.end(), 0.0F);
                const auto weights = materialize(model, found->second, slot, p);
                for (int64_t r = 0; r < own.out; ++r)
                    for (int64_t c = 0; c < own.in; ++c)
                        expected[static_cast<size_t>(r * full.in + c)] =
                            weights[static_cast<size_t>(r * own.in + c)];
            }
            EXPECT_EQ(values, expected) << "layer " << p << " " << slot_name(slot);
        });
    }
}

TEST(Expressions, WithoutSharingIsTheSameFunction) {
    for (const auto& [name, model, input] : all_models(true)) {
        const auto expected = reference::flat(reference::run(model, input).logits);
        const auto values = reference::flat(reference::run(without_sharing(model), input).logits);
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], 1e-5) << name;
    }
}

// Stored types: copies keep their type, products take the widest type of their large factors.
TEST(Expressions, WithoutSharingKeepsTypes) {
    constexpr ExpressionShape kBlocks{
        .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 64, .ff = 96, .vocab = 40};
    ExpressionBuilder builder("llama", 5, kBlocks);
    builder.at(1, Slot::attn_q) = builder.heads(1, Slot::attn_q);
    builder.at(1, Slot::ffn_up) = builder.low_rank(1, Slot::ffn_up, 32, true);
    builder.attention_tucker(2, {32, 5, 3});
    builder.at(3, Slot::ffn_down) =
        builder.plus(3, Slot::ffn_down, std::get<Dense>(builder.at(3, Slot::ffn_down)), 4);
    const Model dense = without_sharing(with_type(builder.finish(), DType::Q8_0));
    const auto type = [&](const char* name) { return dense.tensor(name).type; };
    EXPECT_EQ(type("blk.1.attn_q.weight"), DType::Q8_0);
    EXPECT_EQ(type("blk.1.ffn_up.weight"), DType::Q8_0);
    EXPECT_EQ(type("blk.2.attn_output.weight"), DType::Q8_0);
    EXPECT_EQ(type("blk.3.ffn_down.weight"), DType::F32);  // U of rank 4 is no whole block
    EXPECT_EQ(type("blk.3.attn_norm.weight"), DType::F32);
}

// ---- exports ----

void expect_same_weights(const Model& loaded, const Model& dense) {
    ASSERT_EQ(loaded.topology.layers.size(), dense.topology.layers.size());
    EXPECT_FALSE(loaded.has_sharing());
    for_each_slot(dense, [&](size_t p, Slot slot, const Expression& expression) {
        const Slots& slots = p == kWholeModel ? loaded.topology.globals : loaded.topology.layers[p];
        ASSERT_TRUE(slots.contains(slot)) << p << " " << slot_name(slot);
        EXPECT_EQ(materialize(loaded, slots.at(slot), slot, p), materialize(dense, expression, slot, p))
            << "layer " << p << " " << slot_name(slot);
    });
}

TEST(Expressions, ExportsHaveTheSameWeights) {
    const TempFolder folder;
    for (const auto& [name, model, input] : all_models(true)) {
        SCOPED_TRACE(name);
        const Model dense = without_sharing(model);
        save_model(for_stock(model).model, folder / "stock.gguf", true);
        expect_same_weights(load_model(folder / "stock.gguf"), dense);
        save_hf_model(model, folder / "hf", {.overwrite = true, .type = std::nullopt});
        expect_same_weights(load_model(folder / "hf"), dense);
    }
}

TEST(Expressions, PrefixesHaveNoExport) {
    const TempFolder folder;
    ExpressionBuilder builder("llama");
    builder.prefix(3);
    const Model model = builder.finish();
    std::string message;
    EXPECT_EQ(refusal([&] { for_stock(model); }, message), ErrorCode::unsupported);
    EXPECT_THAT(message, HasSubstr("prefix"));
    EXPECT_EQ(refusal([&] { save_hf_model(model, folder / "hf", {}); }, message), ErrorCode::unsupported);
    EXPECT_THAT(message, HasSubstr("prefix"));
    EXPECT_FALSE(std::filesystem::exists(folder / "hf"));
}

// ---- accounting ----

uint64_t flops_of(const Model& model) { return account(model).model.flops_per_token; }

// Multiply-adds of a 64-wide model with 4 heads of 16, 2 of keys and values, and an FFN of 96.
TEST(Expressions, OperationsByHand) {
    ExpressionBuilder builder("llama");
    const uint64_t dense = flops_of(builder.finish());
    const uint64_t layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96;
    EXPECT_EQ(dense, 2 * (4 * layer + 64 * 40));

    ExpressionBuilder low_rank = builder;
    low_rank.at(1, Slot::ffn_up) = low_rank.low_rank(1, Slot::ffn_up, 5, true);
    EXPECT_EQ(flops_of(low_rank.finish()), dense - 2 * 64 * 96 + 2 * 5 * (64 + 96));

    ExpressionBuilder plus = builder;
    plus.at(1, Slot::ffn_up) =
        plus.plus(1, Slot::ffn_up, std::get<Dense>(plus.at(1, Slot::ffn_up)), 5, false, true);
    EXPECT_EQ(flops_of(plus.finish()), dense + 2 * 5 * (64 + 96));

    // Ranks 7, 5, 3. q, k and v share t = U1^T x and its products with the core.
    ExpressionBuilder tucker = builder;
    tucker.attention_tucker(1);
    const uint64_t t = 64 * 7, z = 4 * 7 * 5 * 3, roles = 4 * 5 * 3;
    const uint64_t qkv = t + z + 3 * roles + (64 + 32 + 32) * 5, o = t + z + roles + 64 * 5;
    EXPECT_EQ(flops_of(tucker.finish()), dense - 2 * (64 * 64 * 2 + 64 * 32 * 2) + 2 * (qkv + o));

    // Gate and up read one input, down another. Ranks 6, 9, 2 of one head with 96 rows.
    ExpressionBuilder ffn = builder;
    ffn.ffn_tucker(1);
    const uint64_t common = 64 * 6 + 6 * 9 * 2, own = 9 * 2 + 96 * 9;
    EXPECT_EQ(flops_of(ffn.finish()), dense - 2 * 3 * 64 * 96 + 2 * (2 * common + 3 * own));

    // Transposed, U2 comes first, so two roles of one input share nothing. Ranks 7, 5, 3.
    ExpressionBuilder turned = builder;
    Tucker role = turned.one_head_tucker(1, Slot::ffn_gate, true);
    turned.at(1, Slot::ffn_gate) = role;
    role.role = 0;
    turned.at(1, Slot::ffn_up) = role;
    const uint64_t each = 64 * 5 + 5 * 3 + 7 * 5 * 3 + 96 * 7;
    EXPECT_EQ(flops_of(turned.finish()), dense - 2 * 2 * 64 * 96 + 2 * 2 * each);
}

TEST(Expressions, PrunedModelsCostLess) {
    ExpressionBuilder builder("llama");
    builder.prune_heads(1, 1);
    builder.prune_heads(2, 0);
    builder.prune_ffn(3, 32);
    const Accounting accounting = account(builder.finish());
    EXPECT_EQ(accounting.model.kv_bytes_per_token, 2u * 16 * (2 + 1 + 0 + 2) * 2);
    EXPECT_EQ(accounting.dense.kv_bytes_per_token, 2u * 16 * 8 * 2);
    EXPECT_EQ(accounting.model.attention_flops_per_context_token, 4u * 16 * (4 + 2 + 0 + 4));
    const uint64_t attention = 64 * 64 * 2 + 64 * 32 * 2, norm = 64;
    EXPECT_EQ(accounting.dense.parameters - accounting.model.parameters,
              attention / 2 + attention + norm + 3 * 64 * 64);
}

// ---- what is refused ----

struct Misfit {
    const char* what;
    std::function<void(ExpressionBuilder&)> change;
    std::vector<std::string> message;
    ErrorCode code = ErrorCode::input;
};

// Gives a tensor another shape.
void reshape(ExpressionBuilder& b, const std::string& name, std::vector<int64_t> shape,
             DType type = DType::F32) {
    Tensor& tensor = b.model.tensors.at(name);
    tensor.shape = std::move(shape);
    tensor.type = type;
}

LowRank& put_low_rank(ExpressionBuilder& b, Slot slot, bool scaled = false, bool transposed = false) {
    b.at(1, slot) = b.low_rank(1, slot, 4, scaled, transposed);
    return std::get<LowRank>(b.at(1, slot));
}

Tucker& put_tucker(ExpressionBuilder& b, Slot slot) {
    b.attention_tucker(1);
    return std::get<Tucker>(b.at(1, slot));
}

const std::vector<Misfit>& misfits() {
    static const std::vector<Misfit> all = {
        {"missing tensor",
         [](ExpressionBuilder& b) { put_low_rank(b, Slot::attn_q).u = "nowhere"; },
         {"layer 1 attn.q", "nowhere"}},
        {"ranks of u and v",
         [](ExpressionBuilder& b) {
             reshape(b, put_low_rank(b, Slot::attn_q).v, {64, 3});
         },
         {"layer 1 attn.q", "[64, 3]", "[64, 4]"}},
        {"rows of u",
         [](ExpressionBuilder& b) {
             reshape(b, put_low_rank(b, Slot::attn_k).u, {4, 64});
         },
         {"layer 1 attn.k", "[4, 64]", "[4, 32]"}},
        {"transposed as not transposed",
         [](ExpressionBuilder& b) { put_low_rank(b, Slot::ffn_up, false, true).transposed = false; },
         {"layer 1 ffn.up", "expected [4, 96]"}},
        {"scale's length",
         [](ExpressionBuilder& b) {
             reshape(b, put_low_rank(b, Slot::attn_q, true).scale, {5, 3});
         },
         {"layer 1 attn.q", "[5, 3]"}},
        {"scale's row",
         [](ExpressionBuilder& b) { put_low_rank(b, Slot::attn_q, true).row = 3; },
         {"layer 1 attn.q", "row 3"}},
        {"scale's negative row",
         [](ExpressionBuilder& b) { put_low_rank(b, Slot::attn_q, true).row = -1; },
         {"layer 1 attn.q", "row -1"}},
        {"scale's type",
         [](ExpressionBuilder& b) {
             const LowRank& e = put_low_rank(b, Slot::attn_q, true);
             reshape(b, e.scale, {4, 3}, DType::F16);
         },
         {"layer 1 attn.q", "F16", "F32"},
         ErrorCode::unsupported},
        {"low rank norm",
         [](ExpressionBuilder& b) {
             b.model.topology.layers[1][Slot::attn_norm] = b.low_rank(1, Slot::attn_norm, 2);
         },
         {"layer 1 attn.norm", "only matrices"}},
        {"low rank embeddings",
         [](ExpressionBuilder& b) {
             b.model.topology.globals[Slot::token_embd] = b.low_rank(kWholeModel, Slot::token_embd, 2);
         },
         {"token_embd", "only matrices"}},
        {"LoRA of a norm",
         [](ExpressionBuilder& b) {
             b.at(1, Slot::ffn_norm) = b.plus(1, Slot::ffn_norm, std::get<Dense>(b.at(1, Slot::ffn_norm)), 2);
         },
         {"layer 1 ffn.norm", "only matrices"}},
        {"LoRA's rank",
         [](ExpressionBuilder& b) {
             Plus e = b.plus(1, Slot::ffn_up, std::get<Dense>(b.at(1, Slot::ffn_up)), 2);
             reshape(b, e.term.u, {3, 96});
             b.at(1, Slot::ffn_up) = e;
         },
         {"layer 1 ffn.up", "[64, 3]"}},
        {"heads of the FFN",
         [](ExpressionBuilder& b) {
             b.at(1, Slot::ffn_up) = Heads{{{"blk.1.ffn_up.weight", 0, 6}}};
         },
         {"layer 1 ffn.up", "heads"}},
        {"too few heads",
         [](ExpressionBuilder& b) {
             b.at(1, Slot::attn_q) = Heads{{{"blk.1.attn_q.weight", 0, 3}}};
         },
         {"layer 1 attn.q", "3 heads", "4 needed"}},
        {"core's dimensions",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).core, {7, 60});
         },
         {"layer 1 attn.q", "[7, 60]"}},
        {"core's heads",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).core, {7, 5, 3, 3});
         },
         {"layer 1 attn.q", "3 heads"}},
        {"core's heads of a transposed slot",
         [](ExpressionBuilder& b) {
             Tucker& e = put_tucker(b, Slot::attn_o);
             b.model.tensors["wide"] = b.model.tensors.at(e.core);
             e.core = "wide";
             reshape(b, "wide", {7, 5, 3, 8});
         },
         {"layer 1 attn.o", "8 heads"}},
        {"core with heads in the FFN",
         [](ExpressionBuilder& b) {
             Tucker e = put_tucker(b, Slot::attn_q);
             b.at(1, Slot::ffn_up) = e;
         },
         {"layer 1 ffn.up", "heads"}},
        {"U1",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).model, {64, 6});
         },
         {"layer 1 attn.q", "[64, 6]", "[64, 7]"}},
        {"U2",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).head, {15, 5});
         },
         {"layer 1 attn.q", "[15, 5]", "[16, 5]"}},
        {"U2's type",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).head, {16, 5}, DType::F16);
         },
         {"layer 1 attn.q", "F16"},
         ErrorCode::unsupported},
        {"U3",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).roles, {4, 2});
         },
         {"layer 1 attn.q", "[4, 2]", "[4, 3]"}},
        {"U3's type",
         [](ExpressionBuilder& b) {
             reshape(b, put_tucker(b, Slot::attn_q).roles, {4, 3}, DType::BF16);
         },
         {"layer 1 attn.q", "BF16"},
         ErrorCode::unsupported},
        {"role",
         [](ExpressionBuilder& b) { put_tucker(b, Slot::attn_v).role = 4; },
         {"layer 1 attn.v", "role 4"}},
        {"negative role",
         [](ExpressionBuilder& b) { put_tucker(b, Slot::attn_v).role = -1; },
         {"layer 1 attn.v", "role -1"}},
        {"tucker norm",
         [](ExpressionBuilder& b) { b.at(1, Slot::attn_norm) = put_tucker(b, Slot::attn_q); },
         {"layer 1 attn.norm", "only matrices"}},
        {"prefix without rows",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             b.model.config.n_prefix = 0;
         },
         {"layer 0 attn.prefix_k"}},
        {"prefix that a layer lacks",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             b.model.topology.layers[2].erase(Slot::attn_prefix_v);
         },
         {"layer 2 attn.prefix_v", "missing"}},
        {"two prefixes",
         [](ExpressionBuilder& b) {
             b.prefix(2, {Slot::attn_prefix, Slot::attn_prefix_v});
         },
         {"layer 0 attn.prefix_v", "attn.prefix already"}},
        {"prefix of other length",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             b.model.config.n_prefix = 3;
         },
         {"layer 0 attn.prefix_k", "[32, 2]", "[32, 3]"}},
        {"prefix's type",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             reshape(b, std::get<Dense>(b.at(1, Slot::attn_prefix_k)).tensor, {32, 2}, DType::F16);
         },
         {"layer 1 attn.prefix_k", "F16"},
         ErrorCode::unsupported},
        {"factors of a prefix",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             b.at(1, Slot::attn_prefix_k) = b.low_rank(1, Slot::attn_prefix_k, 1);
         },
         {"layer 1 attn.prefix_k", "only matrices"}},
        {"prefix with windows",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             b.model.config.windows = {8};
         },
         {"prefix"},
         ErrorCode::unsupported},
        {"sizes of other layers",
         [](ExpressionBuilder& b) {
             b.model.config.heads_kv = {2, 2, 2};
         },
         {"3", "4"}},
        {"more heads than the model",
         [](ExpressionBuilder& b) {
             b.model.config.heads_kv = {2, 2, 3, 2};
         },
         {"layer 2", "3 key/value heads"}},
        {"negative channels",
         [](ExpressionBuilder& b) {
             b.model.config.ffs = {96, -32, 96, 96};
         },
         {"layer 1", "-32 FFN channels"}},
        {"weights of a smaller layer",
         [](ExpressionBuilder& b) {
             b.model.config.heads_kv = {2, 1, 2, 2};
         },
         {"layer 1 attn.q", "[64, 64]", "[64, 32]"}},
        {"attention that the size denies",
         [](ExpressionBuilder& b) {
             b.model.config.heads_kv = {2, 0, 2, 2};
         },
         {"layer 1 attn.q", "no such module"}},
        {"FFN that the size denies",
         [](ExpressionBuilder& b) {
             b.model.config.ffs = {96, 96, 96, 0};
         },
         {"layer 3 ffn.gate", "no such module"}},
        {"attention that is missing",
         [](ExpressionBuilder& b) { b.model.topology.layers[2].erase(Slot::attn_o); },
         {"layer 2 attn.o", "missing"}},
        {"loops", [](ExpressionBuilder& b) { b.model.topology.loops = 3; }, {"3 loops", "4 layers"}},
        {"no loops", [](ExpressionBuilder& b) { b.model.topology.loops = 0; }, {"0 loops"}},
    };
    return all;
}

TEST(Expressions, WhatDoesNotFitIsRefused) {
    const TempFolder folder;
    for (const Misfit& misfit : misfits()) {
        SCOPED_TRACE(misfit.what);
        ExpressionBuilder builder("llama");
        misfit.change(builder);
        std::string message;
        EXPECT_EQ(refusal([&] { validate(builder.model); }, message), misfit.code) << message;
        for (const auto& part : misfit.message) EXPECT_THAT(message, HasSubstr(part));
        EXPECT_EQ(refusal([&] { save_model(builder.model, folder / "x.gguf", false); }, message),
                  misfit.code);
        EXPECT_FALSE(std::filesystem::exists(folder / "x.gguf"));
    }
}

TEST(Expressions, SizesAreRead) {
    ModelConfig config;
    config.n_head_kv = 4;
    config.n_ff = 96;
    sizes_from_json(R"({"kv_heads":[4,0,1],"ffn":[0,96,32],"alibi_heads":[[],[],[3]],"prefix":7})", 3,
                    config);
    EXPECT_EQ(config.alibi_heads, (std::vector<std::vector<int64_t>>{{}, {}, {3}}));
    EXPECT_EQ(config.heads_kv, (std::vector<int64_t>{4, 0, 1}));
    EXPECT_EQ(config.ffs, (std::vector<int64_t>{0, 96, 32}));
    EXPECT_EQ(config.n_prefix, 7);
    ModelConfig again;
    again.n_head_kv = 4;
    again.n_ff = 96;
    sizes_from_json(sizes_to_json(config), 3, again);
    EXPECT_EQ(again.heads_kv, config.heads_kv);
    EXPECT_EQ(again.ffs, config.ffs);
    EXPECT_EQ(again.alibi_heads, config.alibi_heads);
    EXPECT_EQ(again.n_prefix, config.n_prefix);
    EXPECT_EQ(sizes_to_json(ModelConfig()), "");
}

TEST(Expressions, MalformedSizesAreRefused) {
    for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
             {"[", "not valid JSON"},
             {"[]", "not a JSON object"},
             {R"({"heads":[1,1,1]})", "heads"},
             {R"({"kv_heads":3})", "kv_heads"},
             {R"({"kv_heads":[1,1]})", "3 layers"},
             {R"({"kv_heads":[1,1,1,1]})", "3 layers"},
             {R"({"kv_heads":[1,-1,1]})", "-1"},
             {R"({"kv_heads":[1,5,1]})", "0 to 4"},
             {R"({"kv_heads":[1,1.5,1]})", "1.5"},
             {R"({"kv_heads":[1,"1",1]})", "kv_heads"},
             {R"({"kv_heads":[1,18446744073709551615,1]})", "18446744073709551615"},
             {R"({"ffn":[97,1,1]})", "0 to 96"},
             {R"({"alibi_heads":[[],[]]})", "3 layers"},
             {R"({"alibi_heads":[[],[],3]})", "at most 4"},
             {R"({"alibi_heads":[[],[],[0,1,2,3,3]]})", "at most 4"},
             {R"({"alibi_heads":[[],[],[4]]})", "0 to 3"},
             {R"({"prefix":-1})", "prefix"},
             {R"({"prefix":true})", "prefix"},
             {R"({"prefix":65537})", "65537"},
             {R"({"prefix":18446744073709551615})", "18446744073709551615"}}) {
        ModelConfig config;
        config.n_head_kv = 4;
        config.n_ff = 96;
        std::string message;
        EXPECT_EQ(refusal([&] { sizes_from_json(text, 3, config); }, message), ErrorCode::input) << text;
        EXPECT_THAT(message, HasSubstr(part)) << text;
    }
}

}  // namespace
}  // namespace refold
