// Quantizing models whose weights are shared, factored or pruned.
#include "model/quantized.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temp_folder.h"
#include "engine/expression_models.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/save.h"

namespace refold {
namespace {

bool is_fallback(const Quantized& quantized, const std::string& tensor) {
    return std::ranges::find(quantized.fallbacks, tensor, &TypeFallback::tensor) != quantized.fallbacks.end();
}

// Every matrix has the quantized type, or a type that fits and is reported; other tensors are unchanged.
void check_types(const Model& before, const Quantized& after, DType type) {
    const auto visit = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            for (const auto& name : tensors_of(expression)) {
                const DType got = after.model.tensor(name).type;
                const bool table = slot == Slot::token_embd || is_matrix(slot);
                if (!table || is_small_factor(expression, name)) {
                    EXPECT_EQ(got, before.tensor(name).type) << name;
                } else if (!is_fallback(after, name)) {
                    EXPECT_EQ(got, type) << name;
                } else {
                    EXPECT_GT(row_bytes(got, 256), row_bytes(type, 256)) << name;
                }
            }
        }
    };
    for (const Slots& slots : before.topology.layers) visit(slots);
    visit(before.topology.globals);
}

TEST(Quantize, EveryExpressionGoesThroughAFile) {
    const TempFolder folder;
    const std::string path = folder / "m.gguf";
    for (const auto& family : kExpressionFamilies) {
        for (const auto& [name, build] : expressions::cases()) {
            for (const DType type : {DType::Q8_0, DType::Q4_0}) {
                SCOPED_TRACE(family + ", " + name + ", " + refold::name(type));
                ExpressionBuilder builder(family);
                build(builder);
                const Model model = builder.finish();
                const Quantized quantized = quantize_model(model, {type, type, 1});
                check_types(model, quantized, type);
                save_model(quantized.model, path, true);
                const Model again = load_model(path);
                EXPECT_EQ(again.topology, quantized.model.topology);
                EXPECT_EQ(account(again).model.bytes, account(quantized.model).model.bytes);
                EXPECT_LT(account(again).model.bytes, account(model).model.bytes);
                for (const auto& [tensor, given] : quantized.model.tensors)
                    EXPECT_EQ(again.tensor(tensor).type, given.type) << tensor;
            }
        }
    }
}

// Largest difference over the largest weight.
double difference(const Model& a, const Model& b, size_t layer, Slot slot) {
    const auto x = materialize(a, a.topology.at(layer, slot), slot, layer),
               y = materialize(b, b.topology.at(layer, slot), slot, layer);
    double most = 0, largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        most = std::max<double>(most, std::abs(x[i] - y[i]));
        largest = std::max<double>(largest, std::abs(x[i]));
    }
    return most / largest;
}

TEST(Quantize, FactoredWeightsStayWhatTheyAre) {
    ExpressionBuilder b("llama");
    b.at(1, Slot::ffn_down) = b.low_rank(1, Slot::ffn_down, 32, true);
    b.attention_tucker(2, {32, 16, 3});
    b.at(1, Slot::ffn_up) = b.low_rank(1, Slot::ffn_up, 30, true);
    b.at(3, Slot::ffn_up) = b.plus(3, Slot::ffn_up, Dense{"blk.0.ffn_up.weight"}, 6);
    const Model model = b.finish();
    const Quantized quantized = quantize_model(model, {DType::Q8_0, {}, 1});
    for (const auto& [layer, slot] : {std::pair{size_t{1}, Slot::ffn_down},
                                      {size_t{1}, Slot::ffn_up},
                                      {size_t{2}, Slot::attn_q},
                                      {size_t{2}, Slot::attn_k},
                                      {size_t{2}, Slot::attn_o},
                                      {size_t{3}, Slot::ffn_up}}) {
        const double d = difference(model, quantized.model, layer, slot);
        EXPECT_GT(d, 0) << slot_name(slot);
        EXPECT_LT(d, 0.03) << slot_name(slot);
    }
    // Rank 32 is one block. 30 is filled up to a block. 6 is not, because it would grow.
    const auto& filled = std::get<LowRank>(quantized.model.topology.at(1, Slot::ffn_up));
    EXPECT_EQ(quantized.model.tensor(filled.u).shape[0], 32);
    EXPECT_EQ(quantized.model.tensor(filled.u).type, DType::Q8_0);
    EXPECT_EQ(quantized.model.tensor(filled.v).rows(), 32);
    const auto& low_rank = std::get<LowRank>(model.topology.at(1, Slot::ffn_down));
    EXPECT_EQ(quantized.model.tensor(low_rank.u).type, DType::Q8_0);
    EXPECT_EQ(quantized.model.tensor(low_rank.scale).type, DType::F32);
    const auto& tucker = std::get<Tucker>(model.topology.at(2, Slot::attn_q));
    EXPECT_EQ(quantized.model.tensor(tucker.core).type, DType::Q8_0);
    EXPECT_EQ(quantized.model.tensor(tucker.head).type, DType::F32);
    EXPECT_EQ(quantized.model.tensor(tucker.roles).type, DType::F32);
    const auto& lora = std::get<Plus>(model.topology.at(3, Slot::ffn_up)).term;
    EXPECT_EQ(quantized.model.tensor(lora.u).type, DType::F16);
    EXPECT_EQ(quantized.model.tensor(lora.v).type, DType::Q8_0);
    ASSERT_EQ(quantized.fallbacks.size(), 1u);
    EXPECT_EQ(quantized.fallbacks[0].text(), lora.u + ": F16");
}

}  // namespace
}  // namespace refold
