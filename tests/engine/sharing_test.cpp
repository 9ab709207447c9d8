// Shared execution equals the execution of the materialized model, whatever is shared.
#include <ggml-cpu.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/compare.h"
#include "engine/ggml/panel_kernels.h"
#include "engine/random_model.h"
#include "engine/tested_device.h"
#include "model/accounting.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

// Every layer after the first takes each of its heads from itself or, as likely, from a random earlier
// head.
Model share_randomly(Model model, uint32_t seed) {
    std::mt19937 random(seed);
    for (size_t p = 1; p < model.topology.layers.size(); ++p) {
        for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o}) {
            const bool kv = slot == Slot::attn_k || slot == Slot::attn_v;
            const int64_t heads = kv ? kRandomShape.kv_heads : kRandomShape.heads;
            std::vector<HeadRef> refs;
            for (int64_t h = 0; h < heads; ++h) {
                const size_t from = random() % 2 == 0 ? p : random() % p;
                refs.push_back({tensor_name(*model.family, slot, from),
                                from == p ? h : static_cast<int64_t>(random()) % heads});
            }
            model.topology.layers[p][slot] = collapse(refs);
        }
    }
    validate(model);
    return model;
}

struct Case {
    DType type;
    double tolerance;  // of logits of a few units
};
void PrintTo(const Case& c, std::ostream* out) { *out << name(c.type); }

// ggml rounds the inputs of F16 weights to F16, and ours does not. ggml multiplies whole matrices by AMX
// where the CPU has it, which rounds their inputs in a way of its own; and adds up products of F16 in F16
// where the CPU (ARM) can.
double tolerated(double tolerance) {
    return ggml_cpu_has_amx_int8() != 0 || ggml_cpu_has_fp16_va() != 0 ? 2 * tolerance : tolerance;
}

class SharingTest : public testing::TestWithParam<Case> {};
// Equal bits of weights; only the order of float32 sums differs, and where activations are quantized whole
// rows equal quantized parts.
INSTANTIATE_TEST_SUITE_P(Types, SharingTest,
                         testing::Values(Case{DType::F32, 2e-5}, Case{DType::F16, 1e-2},
                                         Case{DType::BF16, 2e-2}, Case{DType::Q8_0, 5e-2},
                                         Case{DType::Q4_0, 5e-2}, Case{DType::Q4_1, 5e-2},
                                         Case{DType::Q5_0, 5e-2}));

TEST_P(SharingTest, EqualsTheMaterialisedModel) {
    for (uint32_t seed = 1; seed <= 6; ++seed) {
        const Model shared = share_randomly(random_model(GetParam().type, seed), seed + 100);
        const Model dense = without_sharing(shared);
        const auto tokens = random_tokens(24, kRandomShape.vocab, seed);
        // One token, as many as are multiplied in place, and more than that.
        for (const int64_t chunk : {1, 3, 4, 5, 24}) {
            const EngineOptions options{.threads = 1, .chunk = chunk, .kv = KvType::f32};
            const auto expected = all_logits(dense, tokens, options);
            EXPECT_LE(largest_difference(all_logits(shared, tokens, options), expected),
                      tolerated(GetParam().tolerance))
                << "seed " << seed << " chunk " << chunk;
        }
    }
}

TEST_P(SharingTest, ComposedOperationsAgree) {
    const Model shared = share_randomly(random_model(GetParam().type, 9), 90);
    const auto tokens = random_tokens(24, kRandomShape.vocab, 9);
    for (const int64_t chunk : {1, 24}) {
        const auto fast = all_logits(shared, tokens, {.threads = 1, .chunk = chunk, .kv = KvType::f32});
        const auto composed = all_logits(
            shared, tokens,
            {.threads = 1, .chunk = chunk, .kv = KvType::f32, .shared = SharedExecution::composed});
        // ggml's sums of inputs for Q4_1 have the precision of F16, ours are exact. It rounds inputs for BF16
        // on every CPU.
        const bool rounds_more = GetParam().type == DType::BF16 && !kernels::has_bf16_pairs();
        const double times = GetParam().type == DType::Q4_1 ? 5 : rounds_more ? 3 : 1;
        EXPECT_LE(largest_difference(fast, composed), times * GetParam().tolerance) << chunk;
    }
}

TEST_P(SharingTest, TiedLayersAreEqualCopies) {
    Model tied = random_model(GetParam().type, 3);
    tied.topology.layers[2] = tied.topology.layers[1];
    tied.topology.layers.push_back(tied.topology.layers[0]);
    tied.drop_unreferenced();
    const auto tokens = random_tokens(20, kRandomShape.vocab, 3);
    const EngineOptions options{.threads = 2};
    EXPECT_EQ(all_logits(tied, tokens, options), all_logits(without_sharing(tied), tokens, options));
    EXPECT_EQ(SingleSequence(tied, options).memory().weight_bytes, account(tied).model.bytes);
    EXPECT_LT(account(tied).model.bytes, account(tied).dense.bytes);
}

TEST_P(SharingTest, HeadsInPlaceAreTheDenseModel) {
    const Model dense = random_model(GetParam().type, 4);
    Model same = dense;
    for (size_t p = 0; p < same.topology.layers.size(); ++p) {
        for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o}) {
            const bool kv = slot == Slot::attn_k || slot == Slot::attn_v;
            same.topology.layers[p][slot] = Heads{
                {{tensor_name(*same.family, slot, p), 0, kv ? kRandomShape.kv_heads : kRandomShape.heads}}};
        }
    }
    const auto tokens = random_tokens(20, kRandomShape.vocab, 4);
    EXPECT_EQ(all_logits(same, tokens, {.threads = 1}), all_logits(dense, tokens, {.threads = 2}));
}

// One product of blocks of a bank for few tokens, one with the gathered matrix for more; with LoRA as well.
TEST(Sharing, HeadsOfSeveralTensorsOnADevice) {
    const double times = tested_device().starts_with("cuda") ? 3 : 1;  // products of F32 in TF32
    for (const auto& [type, tolerance] :
         {Case{DType::F32, 2e-3}, Case{DType::F16, 1e-2}, Case{DType::Q8_0, 5e-2}, Case{DType::Q4_0, 5e-2}}) {
        const Model shared = share_randomly(random_model(type, 3), 30);
        const Model dense = without_sharing(shared);
        const auto tokens = random_tokens(24, kRandomShape.vocab, 3);
        for (const int64_t chunk : {1, 5, 8, 9, 24}) {
            const EngineOptions options = on_tested_device({.threads = 1, .chunk = chunk, .kv = KvType::f32});
            EXPECT_LE(
                largest_difference(all_logits(shared, tokens, options), all_logits(dense, tokens, options)),
                times * tolerated(tolerance))
                << name(type) << " chunk " << chunk;
        }
        const EngineOptions options = on_tested_device({.threads = 1});
        const auto bytes = [&](const Model& model) {
            return SingleSequence(model, options).memory().weight_bytes;
        };
        EXPECT_LT(bytes(shared), bytes(dense)) << name(type);
    }
}

// K-quants come in blocks of 256, so only rows can be shared without requantizing.
TEST(Sharing, RowsOfKQuants) {
    constexpr SmallShape shape{
        .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 64, .embd = 256, .ff = 256, .vocab = 96};
    for (const DType type : {DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
        Model model = random_model(type, 7, shape);
        model.topology.layers[2][Slot::attn_q] =
            Heads{{{"blk.2.attn_q.weight", 0, 2}, {"blk.0.attn_q.weight", 2, 2}}};
        model.topology.layers[2][Slot::attn_k] =
            Heads{{{"blk.2.attn_k.weight", 0, 1}, {"blk.0.attn_k.weight", 1, 1}}};
        model.topology.layers[2][Slot::attn_v] =
            Heads{{{"blk.1.attn_v.weight", 1, 1}, {"blk.0.attn_v.weight", 0, 1}}};
        const auto tokens = random_tokens(24, shape.vocab, 7);
        for (const int64_t chunk : {1, 24}) {
            const EngineOptions options{.threads = 1, .chunk = chunk, .kv = KvType::f32};
            EXPECT_LE(largest_difference(all_logits(model, tokens, options),
                                         all_logits(without_sharing(model), tokens, options)),
                      tolerated(0.1))
                << name(type);
        }
    }
}

TEST(Sharing, MixedTypesAreComposed) {
    Model model = random_model(DType::Q8_0, 5);
    const Model other = random_model(DType::Q4_0, 5);
    for (const char* slot_tensor : {"blk.0.attn_v.weight", "blk.0.attn_output.weight"})
        model.tensors[slot_tensor] = other.tensor(slot_tensor);
    model = share_randomly(model, 55);
    model.topology.layers[3][Slot::attn_v] =
        Heads{{{"blk.0.attn_v.weight", 1, 1}, {"blk.3.attn_v.weight", 1, 1}}};
    model.topology.layers[3][Slot::attn_o] =
        Heads{{{"blk.0.attn_output.weight", 2, 1}, {"blk.3.attn_output.weight", 0, 3}}};
    const auto tokens = random_tokens(24, kRandomShape.vocab, 5);
    // In float32 the engine and the materialized weights hold the same numbers only before requantization, so
    // compare with the float32 engine: mixed types are dequantized there.
    const auto expected = all_logits(model, tokens, {.threads = 1, .f32 = true});
    for (const int64_t chunk : {1, 24}) {
        EXPECT_LE(largest_difference(
                      all_logits(model, tokens, {.threads = 1, .chunk = chunk, .kv = KvType::f32}), expected),
                  0.3)
            << chunk;
    }
}

}  // namespace
}  // namespace refold
