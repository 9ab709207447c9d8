// Weights made of factors, sizes by layer and prefixes: every way of multiplying them gives the logits of
// the scalar reference and of the materialized model.
#include <ggml-cpu.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/ggml/weights.h"
#include "model/accounting.h"
#include "model/execution.h"
#include "model/filled_ranks.h"
#include "model/materialize.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

constexpr double kTolerance = 1e-4;
const std::vector<FactoredExecution> kExecutions = {FactoredExecution::automatic, FactoredExecution::factored,
                                                    FactoredExecution::reconstructed};

EngineOptions f32_options(int64_t chunk, FactoredExecution factored,
                          SharedExecution shared = SharedExecution::automatic) {
    return {.threads = 1, .context = 32, .chunk = chunk, .f32 = true, .shared = shared, .factored = factored};
}

std::vector<float> reference_logits(const Model& model, std::span<const int32_t> tokens) {
    const reference::Input input{{tokens.begin(), tokens.end()}, {}, {}};
    return reference::flat(reference::run(model, input).logits);
}

// Logits are up to some hundreds where random weights make them so.
double relative_difference(std::span<const float> got, std::span<const float> expected) {
    double largest = 1;
    for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
    return largest_difference(got, expected) / largest;
}

// Every token alone, as many as the own operations take, one more, and all at once.
void expect_reference(const Model& model, const std::string& name) {
    const auto tokens = random_tokens(11, model.config.n_vocab, 1);
    const auto expected = reference_logits(model, tokens);
    for (const FactoredExecution factored : kExecutions) {
        for (const int64_t chunk : {1, 4, 5, 11}) {
            EXPECT_LE(relative_difference(all_logits(model, tokens, f32_options(chunk, factored)), expected),
                      kTolerance)
                << name << ", execution " << static_cast<int>(factored) << ", chunk " << chunk;
        }
    }
    for (const int64_t chunk : {1, 11}) {
        const auto options = f32_options(chunk, FactoredExecution::factored, SharedExecution::composed);
        EXPECT_LE(relative_difference(all_logits(model, tokens, options), expected), kTolerance)
            << name << ", composed, chunk " << chunk;
    }
}

TEST(Factored, EveryExpressionIsTheReference) {
    for (const auto& [name, model, input] : expression_models()) expect_reference(model, name);
}

TEST(Factored, MixturesAreTheReference) {
    for (uint32_t seed = 1; seed <= 24; ++seed) {
        expect_reference(random_expression_model(seed, {.prefix = true}),
                         "random model " + std::to_string(seed));
    }
}

TEST(Factored, MaterialisedModelHasTheSameLogits) {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
        const Model model = random_expression_model(seed);
        const Model dense = without_sharing(model);
        const auto tokens = random_tokens(9, model.config.n_vocab, seed);
        for (const FactoredExecution factored : kExecutions) {
            for (const int64_t chunk : {1, 9}) {
                const auto options = f32_options(chunk, factored);
                EXPECT_LE(relative_difference(all_logits(model, tokens, options),
                                              all_logits(dense, tokens, options)),
                          kTolerance)
                    << seed;
            }
        }
    }
}

// Threads divide rows, columns, blocks and heads.
TEST(Factored, Threads) {
    for (const char* name : {"low rank, transposed", "attention tucker", "one head tucker", "lora"}) {
        const auto& all = expressions::cases();
        const auto build =
            std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.first == name; });
        ExpressionBuilder b("llama", 2);
        build->second(b);
        const Model model = b.finish();
        const auto tokens = random_tokens(4, model.config.n_vocab, 1);
        const auto expected = reference_logits(model, tokens);
        for (const int threads : {2, 3}) {
            for (const int64_t chunk : {1, 4}) {
                EngineOptions options = f32_options(chunk, FactoredExecution::factored);
                options.threads = threads;
                EXPECT_LE(relative_difference(all_logits(model, tokens, options), expected), kTolerance)
                    << name << ", threads " << threads;
            }
        }
    }
}

// Sizes that are whole blocks of every type, and ranks with whole blocks and without.
constexpr ExpressionShape kBlocks{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 64, .ff = 96, .vocab = 64};

Model typed_model(DType type, int64_t rank) {
    ExpressionBuilder b("llama", 5, kBlocks);
    b.attention_tucker(0, {32, 8, 3}, true);
    for (const Slot slot : expressions::matrices(b, 1)) b.at(1, slot) = b.low_rank(1, slot, rank, true);
    for (const Slot slot : expressions::matrices(b, 2)) {
        const Base base = consists_of_heads(slot) ? Base(b.heads(2, slot)) : std::get<Dense>(b.at(2, slot));
        b.at(2, slot) = b.plus(2, slot, base, rank);
    }
    b.at(3, Slot::attn_k) = b.low_rank(3, Slot::attn_k, rank, false, true);
    b.at(3, Slot::ffn_down) = b.one_head_tucker(3, Slot::ffn_down, true, {32, 6, 2});
    b.at(3, Slot::ffn_up) = b.plus(3, Slot::ffn_up, std::get<Dense>(b.at(3, Slot::ffn_up)), 4);
    return with_type(b.finish(), type);
}

// Stored numbers are the same, activations are rounded by quantized kernels: by ours as by ggml's.
TEST(Factored, StoredTypes) {
    const std::vector<std::pair<DType, double>> types = {
        {DType::F32, 1e-4},  {DType::F16, 5e-3},  {DType::BF16, 6e-2}, {DType::Q8_0, 8e-2},
        {DType::Q4_0, 8e-2}, {DType::Q4_1, 8e-2}, {DType::Q5_0, 8e-2}};
    for (const auto& [type, tolerance] : types) {
        for (const int64_t rank : {32, 5}) {
            const Model model = typed_model(type, rank);
            const auto tokens = random_tokens(11, model.config.n_vocab, 3);
            const auto expected = reference_logits(model, tokens);
            EngineOptions options{.threads = 1,
                                  .chunk = 11,
                                  .kv = KvType::f32,
                                  .shared = SharedExecution::composed,
                                  .factored = FactoredExecution::factored};
            const auto composed = all_logits(model, tokens, options);
            EXPECT_LE(relative_difference(composed, expected), tolerance) << name(type) << ", rank " << rank;
            options.shared = SharedExecution::automatic;
            for (const int64_t chunk : {1, 3, 4, 11}) {
                options.chunk = chunk;
                // ggml's sums of inputs for Q4_1 have the precision of F16, as those of F16's products where
                // the CPU (ARM) can add in F16; ours are exact.
                // Inputs of Q8_0 factors are rounded to 8 bits, which sums of another order move.
                const bool rough = type == DType::Q4_1 || type == DType::Q8_0 ||
                                   (type == DType::F16 && ggml_cpu_has_fp16_va() != 0);
                EXPECT_LE(relative_difference(all_logits(model, tokens, options), composed),
                          rough ? tolerance / 2 : tolerance / 4)
                    << name(type) << ", rank " << rank << ", chunk " << chunk;
            }
            for (const int64_t chunk : {1, 11}) {
                EXPECT_LE(
                    relative_difference(
                        all_logits(model, tokens, f32_options(chunk, FactoredExecution::factored)), expected),
                    kTolerance)
                    << name(type);
            }
        }
    }
}

// In panels, by one order of sums: alone, among a few, and among many.
TEST(Factored, QuantizedFactorsDoNotDependOnTheNumberOfTokens) {
    for (const DType type : {DType::Q8_0, DType::Q4_0, DType::Q5_1}) {
        ExpressionBuilder b("llama", 5, kBlocks);
        for (const Slot slot : expressions::matrices(b, 0)) b.at(0, slot) = b.low_rank(0, slot, 32, true);
        for (const Slot slot : expressions::matrices(b, 1))
            b.at(1, slot) = b.plus(1, slot, std::get<Dense>(b.at(1, slot)), 32);
        b.at(2, Slot::ffn_up) = b.plus(2, Slot::ffn_up, b.low_rank(2, Slot::ffn_up, 64), 32);
        const Model model = with_type(b.finish(), type);
        const auto tokens = random_tokens(40, model.config.n_vocab, 3);
        EngineOptions options{
            .threads = 1, .chunk = 40, .kv = KvType::f32, .factored = FactoredExecution::factored};
        const auto together = all_logits(model, tokens, options);
        for (const int threads : {1, 2}) {
            for (const int64_t chunk : {1, 3, 5}) {
                options.threads = threads;
                options.chunk = chunk;
                EXPECT_EQ(all_logits(model, tokens, options), together)
                    << name(type) << ", threads " << threads << ", chunk " << chunk;
            }
        }
    }
}

// K-quants have no other kernels here than ggml's for the base, which may have a layout of its own.
TEST(Factored, LoraOverKQuants) {
    constexpr ExpressionShape shape{
        .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .embd = 256, .ff = 512, .vocab = 64};
    const auto tokens = random_tokens(9, shape.vocab, 3);
    const auto error = [&](const Model& model, int64_t chunk) {
        const EngineOptions options{
            .threads = 1, .chunk = chunk, .kv = KvType::f32, .factored = FactoredExecution::factored};
        return relative_difference(all_logits(model, tokens, options), reference_logits(model, tokens));
    };
    for (const DType type : {DType::Q4_K, DType::Q6_K}) {
        ExpressionBuilder b("llama", 3, shape);
        b.model = with_type(b.model, type);
        const double rounding = error(b.finish(), 9);
        for (const Slot slot : expressions::matrices(b, 1))
            b.at(1, slot) = b.plus(1, slot, std::get<Dense>(b.at(1, slot)), 8);
        const Model model = b.finish();
        for (const int64_t chunk : {1, 9}) EXPECT_LE(error(model, chunk), 6 * rounding) << name(type);
        EXPECT_LE(relative_difference(all_logits(model, tokens, f32_options(1, FactoredExecution::factored)),
                                      reference_logits(model, tokens)),
                  kTolerance);
        for (const Slot slot : expressions::matrices(b, 1))
            b.at(1, slot) = std::get<Dense>(std::get<Plus>(b.at(1, slot)).base);
        EXPECT_GT(relative_difference(reference_logits(model, tokens), reference_logits(b.finish(), tokens)),
                  8 * rounding)
            << name(type);
    }
}

// Ranks are filled up to what vectors divide.
uint64_t unique_bytes(const Model& given, bool f32) {
    const Model model = with_filled_ranks(given, kRankUnit).value_or(given);
    std::set<std::string> seen;
    uint64_t bytes = 0;
    const auto add = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            const auto* parts = std::get_if<RowParts>(&expression);
            // Where every row is, for each use.
            if (parts != nullptr) bytes += static_cast<uint64_t>(model.config.n_vocab) * sizeof(int32_t);
            for (const auto& name : tensors_of(expression)) {
                if (is_prefix(slot) || (parts != nullptr && name == parts->ids) || !seen.insert(name).second)
                    continue;
                const Tensor& tensor = model.tensor(name);
                bytes += f32 ? static_cast<uint64_t>(tensor.elements()) * sizeof(float) : tensor.bytes();
            }
        }
    };
    for (const Slots& slots : model.topology.layers) add(slots);
    add(model.topology.globals);
    return bytes;
}

TEST(Factored, EveryTensorIsResidentOnce) {
    for (const auto& [name, model, input] : expression_models()) {
        const EngineOptions options{.threads = 1, .context = 16, .factored = FactoredExecution::factored};
        const EngineMemory memory = SingleSequence(model, options).memory();
        EXPECT_EQ(memory.weight_bytes, unique_bytes(model, false)) << name;
    }
    for (const DType type : {DType::F16, DType::Q8_0, DType::Q4_0}) {
        const Model model = typed_model(type, 32);
        EngineOptions options{.threads = 1, .context = 16, .factored = FactoredExecution::factored};
        EXPECT_EQ(SingleSequence(model, options).memory().weight_bytes, unique_bytes(model, false))
            << name(type);
        options.f32 = true;
        EXPECT_EQ(SingleSequence(model, options).memory().weight_bytes, unique_bytes(model, true))
            << name(type);
    }
}

TEST(Factored, RanksAreFilledWithZeros) {
    for (const bool transposed : {false, true}) {
        ExpressionBuilder b("llama", 5);
        b.at(1, Slot::ffn_up) = b.low_rank(1, Slot::ffn_up, 19, true, transposed);
        b.at(2, Slot::ffn_up) = b.at(1, Slot::ffn_up);
        b.at(3, Slot::attn_q) = b.plus(3, Slot::attn_q, b.low_rank(3, Slot::attn_q, 16), 3);
        const Model model = b.finish();
        const auto aligned = with_filled_ranks(model, kRankUnit);
        ASSERT_TRUE(aligned.has_value());
        validate(*aligned);
        const Expression& tied = aligned->topology.at(1, Slot::ffn_up);
        EXPECT_EQ(tied, aligned->topology.at(2, Slot::ffn_up));
        const auto& wide = std::get<LowRank>(tied);
        EXPECT_EQ(aligned->tensor(wide.u).shape[0], 32);
        EXPECT_EQ(aligned->tensor(wide.v).rows(), 32);
        EXPECT_EQ(aligned->tensor(wide.scale).shape[0], 32);
        // BLAS may add the products in another order.
        EXPECT_LE(largest_difference(materialize(*aligned, tied, Slot::ffn_up, 1),
                                     materialize(model, model.topology.at(1, Slot::ffn_up), Slot::ffn_up, 1)),
                  1e-6);
        const auto& plus = std::get<Plus>(aligned->topology.at(3, Slot::attn_q));
        EXPECT_EQ(plus.base, std::get<Plus>(model.topology.at(3, Slot::attn_q)).base);
        EXPECT_EQ(aligned->tensor(plus.term.u).shape[0], kRankUnit);
        EXPECT_FALSE(with_filled_ranks(*aligned, kRankUnit).has_value());
    }
}

TEST(Factored, AutomaticNeverTakesMoreMemory) {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
        const Model model = random_expression_model(seed);
        const EngineOptions options{.threads = 1, .context = 16};
        EXPECT_LE(SingleSequence(model, options).memory().weight_bytes, unique_bytes(model, false)) << seed;
    }
}

TEST(Factored, LoopsAreResidentOnce) {
    ExpressionBuilder b("gpt2", 2);
    b.loop(2);
    const Model looped = b.finish();
    const EngineOptions options{.threads = 1, .context = 16, .kv = KvType::f32};
    const SingleSequence sequence(looped, options);
    EXPECT_EQ(sequence.memory().weight_bytes, unique_bytes(looped, false));
    // A slot of the cache per layer, not per stored layer.
    const SingleSequence plain(without_sharing(looped), options);
    EXPECT_EQ(sequence.memory().kv_bytes, plain.memory().kv_bytes);
    const auto tokens = random_tokens(9, looped.config.n_vocab, 3);
    EXPECT_EQ(all_logits(looped, tokens, options), all_logits(without_sharing(looped), tokens, options));
}

TEST(Factored, CacheHasEachLayersHeads) {
    ExpressionBuilder b("llama", 2);
    const EngineOptions options{.threads = 1, .context = 256, .kv = KvType::f32};
    const uint64_t full = SingleSequence(b.model, options).memory().kv_bytes;
    b.prune_heads(0, 1);  // of 2
    b.prune_heads(1, 0);
    const Model pruned = b.finish();
    EXPECT_EQ(SingleSequence(pruned, options).memory().kv_bytes * 8, full * 5);
    for (size_t p = 0; p < b.n_layer(); ++p) b.prune_heads(p, 0);
    const Model blind = b.finish();
    EXPECT_EQ(SingleSequence(blind, options).memory().kv_bytes, 0U);
    expect_reference(blind, "no attention");
    for (size_t p = 0; p < b.n_layer(); ++p) b.prune_ffn(p, 0);
    expect_reference(b.finish(), "no layers");
}

TEST(Factored, PrefixSurvivesTruncation) {
    ExpressionBuilder b("llama", 4);
    b.prefix(3);
    const Model model = b.finish();
    const auto tokens = random_tokens(9, model.config.n_vocab, 3);
    const auto expected = reference_logits(model, tokens);
    SingleSequence sequence(model, f32_options(4, FactoredExecution::automatic));
    for (int round = 0; round < 2; ++round) {
        sequence.truncate(0);
        const auto logits = sequence.evaluate(tokens);
        EXPECT_LE(relative_difference(logits, std::span(expected).last(logits.size())), kTolerance);
    }
    sequence.truncate(4);
    const auto again = sequence.evaluate(std::span(tokens).subspan(4));
    EXPECT_LE(relative_difference(again, std::span(expected).last(again.size())), kTolerance);
    // Without it the logits are others.
    Model plain = model;
    plain.config.n_prefix = 0;
    EXPECT_GT(relative_difference(all_logits(plain, tokens, f32_options(4, FactoredExecution::automatic)),
                                  expected),
              1e-2);
}

TEST(Factored, LongContextsWithPrefix) {
    ExpressionBuilder b("llama", 4);
    b.prefix(5);
    b.attention_tucker(1);
    b.model.config.context_length = 400;
    const Model model = b.finish();
    const auto tokens = random_tokens(253, model.config.n_vocab, 3);  // the cache grows by 256 rows
    const EngineOptions options{.threads = 1, .context = 260, .chunk = 250, .f32 = true};
    EXPECT_LE(relative_difference(all_logits(model, tokens, options), reference_logits(model, tokens)),
              kTolerance);
}

// ---- the choice ----

ExecutionChoice choose(const Model& model, size_t layer, std::vector<Slot> slots) {
    return choose_execution(model, layer, slots);
}

TEST(ChooseExecution, SmallRanksStayFactored) {
    ExpressionBuilder b("llama", 1);
    b.at(1, Slot::ffn_up) = b.low_rank(1, Slot::ffn_up, 4);
    const Model model = b.finish();
    const ExecutionChoice choice = choose(model, 1, {Slot::ffn_up});
    EXPECT_EQ(choice.execution, Execution::factored);
    EXPECT_EQ(choice.factored.bytes, 4U * 4 * (64 + 96));
    EXPECT_EQ(choice.reconstructed.bytes, 4U * 64 * 96);
    EXPECT_EQ(choice.factored.operations, 4U * (64 + 96));
    EXPECT_EQ(choice.reconstructed.operations, 64U * 96);
}

TEST(ChooseExecution, LargeRanksAreReconstructedWhenLoading) {
    ExpressionBuilder b("llama", 1);
    b.at(1, Slot::attn_q) = b.low_rank(1, Slot::attn_q, 32);  // as many numbers as 64 x 64
    b.at(1, Slot::attn_o) = b.low_rank(1, Slot::attn_o, 31);
    const Model model = b.finish();
    EXPECT_EQ(choose(model, 1, {Slot::attn_q}).execution, Execution::reconstructed);
    EXPECT_EQ(choose(model, 1, {Slot::attn_o}).execution, Execution::factored);
}

TEST(ChooseExecution, SharedFactorsDecideTogether) {
    ExpressionBuilder b("llama", 1);
    b.common_low_rank(Slot::attn_q, 60);
    const Model model = b.finish();
    const ExecutionChoice one = choose(model, 2, {Slot::attn_q});
    EXPECT_EQ(one.execution, Execution::factored);
    EXPECT_EQ(one.factored.bytes, 4U * (60 * (64 + 64) + 60 * 4));
    EXPECT_EQ(one.reconstructed.bytes, 4U * 64 * 64 * 4);
}

TEST(ChooseExecution, RepeatedLayersCountOnce) {
    ExpressionBuilder b("llama", 1);
    for (const Slot slot : expressions::matrices(b, 0)) b.at(0, slot) = b.low_rank(0, slot, 50);
    b.loop(2);
    const Model model = b.finish();
    EXPECT_EQ(choose(model, 2, {Slot::attn_q}).execution, Execution::reconstructed);
    const EngineOptions options{.threads = 1, .context = 16};
    EXPECT_LT(SingleSequence(model, options).memory().weight_bytes, unique_bytes(model, false));
}

TEST(ChooseExecution, LoraOfALoopStaysFactored) {
    ExpressionBuilder b("llama", 1);
    b.loop(2);
    for (size_t p = 0; p < b.n_layer(); ++p)
        b.at(p, Slot::ffn_up) = b.plus(p, Slot::ffn_up, std::get<Dense>(b.at(p, Slot::ffn_up)), 8);
    const Model model = b.finish();
    const ExecutionChoice choice = choose(model, 0, {Slot::ffn_gate, Slot::ffn_up});
    EXPECT_EQ(choice.execution, Execution::factored);
    EXPECT_EQ(choice.factored.bytes, 4U * (64 * 96 + 2 * 8 * (64 + 96)));
    EXPECT_EQ(choice.reconstructed.bytes, 4U * 2 * 64 * 96);
}

}  // namespace
}  // namespace refold
