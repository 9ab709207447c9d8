// The torch engine against the definition in reference.h and against the ggml engine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"
#include "engine/torch/factors.h"
#include "engine/torch/model.h"
#include "model/load.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

const std::string kFixtures = REFOLD_FIXTURES;

EngineOptions torch_options(int64_t chunk = 512) {
    return {.kind = EngineKind::torch, .threads = 1, .chunk = chunk};
}

std::vector<double> numbers(const at::Tensor& x) {
    if (!x.defined()) return {};
    const at::Tensor values = x.detach().to(at::kDouble).contiguous();
    return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

std::vector<double> numbers(const reference::Matrix& x) {
    std::vector<double> out;
    for (const auto& row : x) out.insert(out.end(), row.begin(), row.end());
    return out;
}

double largest_double_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double largest = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        const double difference = std::abs(a[i] - b[i]);
        if (!(difference <= largest)) largest = difference;
    }
    return largest;
}

TEST(TorchModel, IsTheReference) {
    for (const auto& [name, model, input] : synthetic_models()) {
        const auto expected = reference::run(model, input);
        for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-4)}) {
            const TorchModel torch(model, false, type);
            const TorchOutput out = torch.forward(input.tokens, input.token_types, input.mask);
            EXPECT_LE(largest_double_difference(numbers(out.hidden), numbers(expected.hidden)), tolerance)
                << name;
            EXPECT_LE(largest_double_difference(numbers(out.logits), numbers(expected.logits)), tolerance)
                << name;
            EXPECT_LE(largest_double_difference(numbers(out.pooled), expected.pooled), tolerance) << name;
        }
    }
}

TEST(TorchModel, OfExpressionsIsTheReference) {
    for (const auto& [name, model, input] : expression_models()) {
        const auto expected = numbers(reference::run(model, input).logits);
        for (const auto factored :
             {FactoredExecution::automatic, FactoredExecution::factored, FactoredExecution::reconstructed}) {
            // The reference has its weights in float32.
            for (const auto& [type, tolerance] :
                 {std::pair(at::kDouble, 3e-5), std::pair(at::kFloat, 1e-4)}) {
                const TorchModel torch(model, false, type, factored);
                EXPECT_LE(largest_double_difference(numbers(torch.forward(input.tokens).logits), expected),
                          tolerance)
                    << name << ", execution " << static_cast<int>(factored);
            }
        }
    }
}

TEST(TorchModel, OfExpressionsIsTheMaterialisedModel) {
    for (uint32_t seed = 1; seed <= 40; ++seed) {
        const Model model = random_expression_model(seed);
        const auto tokens = random_tokens(11, model.config.n_vocab, seed);
        const auto expected = numbers(TorchModel(without_sharing(model), false).forward(tokens).logits);
        EXPECT_LE(
            largest_double_difference(numbers(TorchModel(model, false).forward(tokens).logits), expected),
            1e-4)
            << "seed " << seed;
    }
}

TEST(TorchEngine, DecodesExpressionsInStepsOfAnySize) {
    for (const auto& [name, model, input] : expression_models()) {
        const auto expected = reference::flat(reference::run(model, input).logits);
        for (const int64_t chunk : {1, 4}) {
            EXPECT_LE(largest_difference(all_logits(model, input.tokens, torch_options(chunk)), expected),
                      1e-4)
                << name << " chunk " << chunk;
        }
    }
}

TEST(TorchEngine, CachesWhatLayersHave) {
    ExpressionBuilder builder("llama");
    builder.prune_heads(1, 1);
    builder.prune_heads(2, 0);
    SingleSequence sequence(builder.finish(), torch_options());
    sequence.evaluate(std::vector<int32_t>{1, 2, 3});
    // 2 + 1 + 0 + 2 heads of 16 keys and values, of the first 64 tokens: the context.
    EXPECT_EQ(sequence.memory().kv_bytes, uint64_t{5 * 16 * 2 * 64 * sizeof(float)});
}

// Operations by hand, for a 6 x 10 matrix.
TEST(TorchFactors, CostsOfExecution) {
    const auto ones = [](std::vector<int64_t> shape) { return at::ones(shape); };
    const LowRankFactors low_rank{ones({6, 2}), ones({2, 10}), {}, false};
    EXPECT_EQ(low_rank.factored_cost(3), 3 * 2 * (6 + 10));
    EXPECT_EQ(low_rank.reconstructed_cost(3), 6 * 10 * 2 + 3 * 6 * 10);
    // 2 heads of 3 rows, R1 = 4, R2 = 2
    const TuckerFactors tucker{ones({2, 2, 4}), ones({4, 10}), ones({2, 3}), false};
    EXPECT_EQ(tucker.factored_cost(3), 3 * (10 * 4 + 2 * 2 * 4 + 6 * 2));
    EXPECT_EQ(tucker.reconstructed_cost(3), 2 * (2 * 4 * 10 + 3 * 2 * 10) + 3 * 6 * 10);
}

TEST(TorchFactors, ProductsAreThoseOfTheMatrices) {
    const auto random = [](std::vector<int64_t> shape) { return at::randn(shape, at::kDouble); };
    for (const bool transposed : {false, true}) {
        const LowRankFactors low_rank{random({6, 2}), random({2, 10}), random({2}), transposed};
        const at::Tensor x = random({5, transposed ? 6 : 10});
        EXPECT_TRUE(at::allclose(low_rank.product(x), at::matmul(x, low_rank.matrix().t())));
        const TuckerFactors tucker{random({2, 2, 4}), random({4, 10}), random({2, 3}), transposed};
        const at::Tensor product = tucker.product(transposed ? x : tucker.projection(x));
        EXPECT_TRUE(at::allclose(product, at::matmul(x, tucker.matrix().t())));
    }
}

TEST(TorchEngine, DecodesAsTheReferenceInStepsOfAnySize) {
    for (const auto& [name, model, input] : synthetic_models()) {
        if (!model.config.causal) continue;
        const auto expected = reference::flat(reference::run(model, input).logits);
        for (const int64_t chunk : {1, 4, 64}) {
            EXPECT_LE(largest_difference(all_logits(model, input.tokens, torch_options(chunk)), expected),
                      1e-4)
                << name << " chunk " << chunk;
        }
    }
}

TEST(TorchEngine, EncodesAsTheReference) {
    for (const auto& [name, model, input] : synthetic_models()) {
        if (model.config.causal) continue;
        const auto expected = reference::run(model, input);
        SingleSequence sequence(model, torch_options());
        const Encoding encoding = sequence.encode({input.tokens, input.token_types, input.mask});
        EXPECT_LE(largest_difference(encoding.last_hidden_state, reference::flat(expected.hidden)), 1e-4)
            << name;
        EXPECT_LE(largest_difference(encoding.logits, reference::flat(expected.logits)), 1e-4) << name;
        EXPECT_LE(largest_difference(encoding.pooled,
                                     std::vector<float>(expected.pooled.begin(), expected.pooled.end())),
                  1e-4)
            << name;
    }
}

// Heads of every layer but the first come, as likely, from the layer itself or a random earlier head.
Model share_randomly(Model model, uint32_t seed) {
    std::mt19937 random(seed);
    const Topology dense = model.topology;
    for (size_t p = 1; p < dense.layers.size(); ++p) {
        for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o}) {
            const bool kv = slot == Slot::attn_k || slot == Slot::attn_v;
            const int64_t heads = kv ? model.config.n_head_kv : model.config.n_head;
            std::vector<HeadRef> refs;
            for (int64_t h = 0; h < heads; ++h) {
                const size_t from = random() % 2 == 0 ? p : random() % p;
                refs.push_back({std::get<Dense>(dense.at(from, slot)).tensor,
                                from == p ? h : static_cast<int64_t>(random()) % heads});
            }
            model.topology.layers[p][slot] = collapse(refs);
        }
    }
    validate(model);
    return model;
}

TEST(TorchEngine, AgreesWithGgml) {
    for (const char* name : {"llama/model", "llama_gqa/model", "llama_bf16_sharded/model", "quantized/f16",
                             "quantized/q8_0", "quantized/q4_1"}) {
        const Model plain = load_model(kFixtures + "/" + name + ".gguf");
        const auto tokens = random_tokens(80, plain.config.n_vocab, 3);
        for (const bool shared : {false, true}) {
            // Columns of quantized heads would have to be whole blocks.
            if (shared && std::string(name).starts_with("quantized/q")) continue;
            const Model model = shared ? share_randomly(plain, 4) : plain;
            const auto expected = all_logits(model, tokens, {.threads = 2, .f32 = true});
            for (const int64_t chunk : {512, 33, 1}) {
                EXPECT_LE(largest_difference(all_logits(model, tokens, torch_options(chunk)), expected), 1e-4)
                    << name << " chunk " << chunk << " shared " << shared;
            }
        }
    }
}

TEST(TorchEngine, TruncateForgets) {
    const Model model = synthetic_model(synthetic::decoder());
    const auto tokens = random_tokens(24, model.config.n_vocab, 1);
    const auto expected = all_logits(model, tokens, torch_options());
    SingleSequence sequence(model, torch_options());
    sequence.evaluate(std::span(tokens).first(16));
    sequence.evaluate(std::vector<int32_t>{1, 2, 3});
    sequence.truncate(9);
    const auto last = sequence.evaluate(std::span(tokens).subspan(9));
    EXPECT_LE(largest_difference(last, std::span(expected).last(last.size())), 1e-5);
}

TEST(TorchEngine, StoresEveryTensorOnce) {
    const Model model = share(synthetic_model(synthetic::decoder()));
    int64_t elements = 0;
    for (const auto& [name, tensor] : model.tensors) elements += tensor.elements();
    EXPECT_EQ(SingleSequence(model, torch_options()).memory().weight_bytes,
              static_cast<uint64_t>(elements) * 4);
    EXPECT_EQ(TorchModel(model, true).parameters().size(), model.tensors.size());
    for (const auto& [name, shared, input] : expression_models()) {
        const TorchModel torch(shared, true);
        ASSERT_EQ(torch.parameters().size(), shared.tensors.size() - lists_of_rows(shared).size()) << name;
        for (const auto& [tensor, leaf] : torch.parameters())
            EXPECT_EQ(leaf.numel(), shared.tensors.at(tensor).elements()) << name << " " << tensor;
    }
}

TEST(TorchEngine, GrowsItsCacheUpToTheContext) {
    const Model model = synthetic_model(synthetic::decoder());
    EngineOptions options = torch_options();
    options.context = 700;
    SingleSequence sequence(model, options);
    EXPECT_EQ(sequence.memory().kv_bytes, 0);
    const auto token_bytes = static_cast<uint64_t>(3 * 2 * 2 * 8 * sizeof(float));
    const auto tokens = random_tokens(700, model.config.n_vocab, 1);
    sequence.evaluate(std::span(tokens).first(100));
    EXPECT_EQ(sequence.memory().kv_bytes, 256 * token_bytes);
    const auto last = sequence.evaluate(std::span(tokens).subspan(100));
    EXPECT_EQ(sequence.memory().kv_bytes, 700 * token_bytes);
    const auto whole = all_logits(model, tokens, torch_options(700));
    EXPECT_LE(largest_difference(last, std::span(whole).last(last.size())), 1e-5);
}

TEST(TorchEngine, BadInputIsRefused) {
    const Model decoder = synthetic_model(synthetic::decoder());
    const TorchModel torch(decoder, false);
    EXPECT_EQ(code_of([&] { torch.forward({}); }), ErrorCode::input);
    const std::vector<int32_t> outside = {1, 17}, tokens = {1, 2}, one = {1};
    EXPECT_EQ(code_of([&] { torch.forward(outside); }), ErrorCode::input);
    EXPECT_EQ(code_of([&] { torch.forward(tokens, {}, one); }), ErrorCode::input);
    EXPECT_EQ(code_of([&] { torch.forward(tokens, tokens); }), ErrorCode::input);
    const TorchModel learned(synthetic_model(synthetic::learned_positions()), false);
    EXPECT_EQ(code_of([&] { learned.forward(std::vector<int32_t>(25, 1)); }), ErrorCode::input);
    // Errors cross from the library that holds the engine.
    SyntheticShape headless = synthetic::decoder();
    headless.model_slots.pop_back();
    SingleSequence sequence(synthetic_model(headless), torch_options());
    EXPECT_EQ(code_of([&] { sequence.evaluate(tokens); }), ErrorCode::unsupported);
}

}  // namespace
}  // namespace refold
