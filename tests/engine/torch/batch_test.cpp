// Batches of sequences, exits, ranges of layers, recomputation and bfloat16 in the torch engine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/all_models.h"
#include "engine/compare.h"
#include "engine/engine.h"
#include "engine/expression_models.h"
#include "engine/gradient_checks.h"
#include "engine/looped_models.h"
#include "engine/synthetic_models.h"
#include "engine/torch/attention.h"
#include "engine/torch/model.h"

namespace refold {
namespace {

std::vector<int32_t> row_of(const at::Tensor& tokens, int64_t row) {
    std::vector<int32_t> out;
    for (int64_t t = 0; t < tokens.size(1); ++t)
        out.push_back(static_cast<int32_t>(tokens[row][t].item<int64_t>()));
    return out;
}

double largest(const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : INFINITY;
}

bool has_output(const Model& model) { return model.topology.globals.contains(Slot::output); }

TEST(TorchBatch, IsItsSequences) {
    for (const auto& [name, model] : all_cases()) {
        const TorchModel torch(model, false, at::kDouble);
        const at::Tensor tokens = batch_of(model.config, 3, 7);
        const at::Tensor hidden = torch.hidden(tokens).final;
        std::vector<at::Tensor> expected, logits;
        for (int64_t s = 0; s < 3; ++s) {
            const TorchOutput out = torch.forward(row_of(tokens, s));
            expected.push_back(out.hidden);
            logits.push_back(out.logits);
        }
        EXPECT_LE(largest(hidden, at::cat(expected)), 1e-12) << name;
        if (has_output(model)) {
            EXPECT_LE(largest(torch.logits(hidden), at::cat(logits)), 1e-12) << name;
        }
    }
}

// The model without the layers behind an exit.
TEST(TorchBatch, ExitsAreModelsThatEndThere) {
    for (const auto& [name, model] : all_cases()) {
        const size_t n = model.topology.layers.size();
        const at::Tensor tokens = batch_of(model.config, 2, 5);
        std::vector<size_t> exits;
        for (size_t e = n; e > 0; --e) exits.push_back(e);
        const auto hidden = TorchModel(model, false, at::kDouble).hidden(tokens, exits);
        for (size_t e = 0; e < exits.size(); ++e) {
            Model shorter = model;
            shorter.topology.layers.resize(exits[e]);
            std::erase_if(shorter.topology.sources, [&](const auto& s) { return s.first >= exits[e]; });
            const at::Tensor expected = TorchModel(shorter, false, at::kDouble).hidden(tokens).final;
            EXPECT_LE(largest(hidden.exits[e], expected), 1e-12) << name << " exit " << exits[e];
        }
    }
}

// As the ggml engine, whose own test has them by hand.
TEST(TorchBatch, ExitsThroughMapsAndOutputs) {
    const Model model =
        looped_model("llama", {.loops = 3, .layers = 2, .exit_maps = true, .exit_outputs = true});
    const auto text = random_tokens(9, model.config.n_vocab, 1);
    const auto batch = make_engine(
        model, {.threads = 1, .context = 9, .f32 = true, .sequences = 0, .kv_tokens = 9, .by_loop = true});
    const TorchModel torch(model, false, at::kDouble);
    const at::Tensor tokens = at::tensor(std::vector<int64_t>(text.begin(), text.end())).unsqueeze(0);
    const std::vector<size_t> exits = {2, 4, 6};
    const auto hidden = torch.hidden(tokens, exits);
    EXPECT_TRUE(at::equal(hidden.exits[2], hidden.final));
    const int32_t id = batch->open(9).value();
    for (int32_t loop = 0; loop < 3; ++loop) {
        std::vector<Row> rows;
        for (size_t t = 0; t < text.size(); ++t)
            rows.push_back({.sequence = id,
                            .position = static_cast<int64_t>(t),
                            .loop = loop,
                            .token = loop == 0 ? text[t] : -1,
                            .logits = true});
        const auto logits = batch->step({.rows = rows}).logits;
        const at::Tensor expected =
            torch.logits(hidden.exits[static_cast<size_t>(loop)], exits[static_cast<size_t>(loop)])
                .to(at::kFloat)
                .contiguous();
        EXPECT_LE(scaled_difference(logits, {expected.data_ptr<float>(), logits.size()}), 1e-4) << loop;
    }
}

at::Tensor loss_of(const TorchModel& torch, const at::Tensor& tokens, std::span<const size_t> exits) {
    const auto hidden = torch.hidden(tokens, exits);
    std::vector<at::Tensor> results = hidden.exits;
    results.push_back(hidden.final);
    if (torch.topology().globals.contains(Slot::output)) results.push_back(torch.logits(hidden.final));
    return mixed(results);
}

// The pooler, token types and so on have no part in these results.
std::map<std::string, at::Tensor> gradients_of(const TorchModel& torch, const at::Tensor& loss) {
    loss.backward();
    std::map<std::string, at::Tensor> out;
    for (const auto& [name, leaf] : torch.parameters()) {
        out[name] = leaf.grad().defined() ? leaf.grad().clone() : at::zeros_like(leaf.detach());
        leaf.mutable_grad() = at::Tensor();
    }
    return out;
}

TEST(TorchBatch, RecomputationChangesNothing) {
    const std::vector<size_t> exits = {1, 2};
    for (const auto& [name, model] : all_cases()) {
        TorchModel torch(model, true, at::kDouble);
        const at::Tensor tokens = batch_of(model.config, 2, 6);
        const at::Tensor loss = loss_of(torch, tokens, exits);
        const auto expected = gradients_of(torch, loss);
        torch.set_execution({false, true});
        const at::Tensor again = loss_of(torch, tokens, exits);
        EXPECT_EQ(loss.item<double>(), again.item<double>()) << name;
        for (const auto& [tensor, gradient] : gradients_of(torch, again))
            EXPECT_LE(largest(gradient, expected.at(tensor)),
                      1e-12 * (1 + gradient.abs().max().item<double>()))
                << name << " " << tensor;
    }
}

TEST(TorchBatch, RecomputationOfFrozenWeights) {
    const Model model = synthetic_model(synthetic::decoder());
    TorchModel torch(model, false, at::kDouble);
    torch.set_execution({false, true});
    const at::Tensor tokens = batch_of(model.config, 2, 6);
    EXPECT_FALSE(torch.hidden(tokens).final.requires_grad());
    const at::Tensor& leaf = torch.parameters().begin()->second;
    leaf.set_requires_grad(true);
    loss_of(torch, tokens, {}).backward();
    EXPECT_TRUE(leaf.grad().defined());
    EXPECT_FALSE(torch.parameters().rbegin()->second.grad().defined());
}

TEST(TorchBatch, GradientsAreFiniteDifferences) {
    const std::vector<size_t> exits = {1, 2};
    bool checkpointing = false;
    for (const auto& [name, model] : all_cases()) {
        if (model.config.n_token_types > 0) continue;  // has parts without gradients here
        TorchModel torch(model, true, at::kDouble);
        torch.set_execution({false, checkpointing = !checkpointing});
        const at::Tensor tokens = batch_of(model.config, 2, 4);
        expect_finite_differences(
            name, torch, [&] { return loss_of(torch, tokens, exits); }, 1);
    }
}

TEST(TorchBatch, RangesAddUp) {
    for (const auto& [name, model] : all_cases()) {
        const size_t n = model.topology.layers.size();
        const at::Tensor x = at::randn({2, 6, model.config.n_embd}, at::kDouble);
        if (model.config.n_stream > 1) {
            EXPECT_THROW(TorchModel(model, false, at::kDouble).range(x), Error);
            EXPECT_THROW(
                TorchModel(model, false, at::kDouble, FactoredExecution::automatic, LayerRange{0, 1}), Error);
            continue;
        }
        const at::Tensor expected = TorchModel(model, false, at::kDouble).range(x);
        for (size_t cut = 1; cut < n; ++cut) {
            const auto crosses = [&](const auto& s) {
                return s.first >= cut && s.second.from(s.first) < cut;
            };
            if (std::ranges::any_of(model.topology.sources, crosses)) continue;
            const auto part = [&](size_t first, size_t last) {
                return TorchModel(model, true, at::kDouble, FactoredExecution::automatic,
                                  LayerRange{first, last});
            };
            const TorchModel front = part(0, cut), back = part(cut, n);
            EXPECT_LE(largest(back.range(front.range(x)), expected), 1e-12) << name << " cut at " << cut;
            std::set<std::string> names;
            for (const auto& [slot, expression] : model.topology.layers[0])
                for (const auto& tensor : tensors_of(expression)) names.insert(tensor);
            if (cut == 1) {
                EXPECT_EQ(front.parameters().size(), names.size()) << name;
            }
        }
    }
}

TEST(TorchBatch, RangesMustHoldTheirSources) {
    ExpressionBuilder builder("llama", 1, kSmall);
    builder.share_probabilities(2, 1);
    const Model model = builder.finish();
    const auto load = [&](size_t first, size_t last) {
        return TorchModel(model, true, at::kFloat, FactoredExecution::automatic, LayerRange{first, last});
    };
    EXPECT_NO_THROW(load(1, 3));
    EXPECT_THROW(load(2, 4), Error);
    EXPECT_THROW(load(3, 5), Error);
}

TEST(TorchBatch, RefusesWhatDoesNotFit) {
    const Model model = synthetic_model(synthetic::decoder());
    const TorchModel torch(model, false);
    const at::Tensor tokens = batch_of(model.config, 2, 4);
    EXPECT_THROW(torch.hidden(tokens.reshape({-1})), Error);
    EXPECT_THROW(torch.hidden(tokens.to(at::kInt)), Error);
    EXPECT_THROW(torch.hidden(tokens + model.config.n_vocab), Error);
    EXPECT_THROW(torch.hidden(tokens - model.config.n_vocab), Error);
    EXPECT_THROW(torch.hidden(tokens, std::vector<size_t>{0}), Error);
    EXPECT_THROW(torch.hidden(tokens, std::vector<size_t>{model.topology.layers.size() + 1}), Error);
    EXPECT_THROW(torch.range(at::zeros({2, 3, 1})), Error);
    const Model learned = synthetic_model(synthetic::learned_positions());
    EXPECT_THROW(TorchModel(learned, false)
                     .hidden(batch_of(learned.config, 1, learned.config.n_learned_positions + 1)),
                 Error);
}

// Results in bfloat16's three digits, weights and gradients in float32.
TEST(TorchBatch, Bfloat16) {
    for (const auto& [name, model] : all_cases()) {
        TorchModel torch(model, true);
        const at::Tensor tokens = batch_of(model.config, 2, 5);
        const at::Tensor expected = torch.hidden(tokens).final;
        torch.set_execution({true, true});
        const at::Tensor hidden = torch.hidden(tokens).final;
        EXPECT_EQ(hidden.scalar_type(), at::kFloat) << name;
        const double error = ((hidden - expected).norm() / expected.norm()).item<double>();
        EXPECT_LE(error, 0.05) << name;
        EXPECT_GT(error, 0) << name;
        hidden.sum().backward();
        for (const auto& [tensor, leaf] : torch.parameters()) {
            EXPECT_EQ(leaf.scalar_type(), at::kFloat) << name << " " << tensor;
            if (leaf.grad().defined()) {
                EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat) << name << " " << tensor;
            }
        }
    }
}

// The definition, all queries at once.
at::Tensor plain_attention(const AttentionRule& rule, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v) {
    const int64_t heads = rule.groups * rule.per_group;
    const auto by_head = [&](const at::Tensor& x, int64_t repeated) {
        return x.reshape({rule.sequences, -1, x.size(1) / rule.head_dim, rule.head_dim})
            .transpose(1, 2)
            .repeat_interleave(repeated, 1);
    };
    const at::Tensor keys = by_head(k, rule.per_group), values = by_head(v, rule.per_group);
    at::Tensor scores = at::matmul(by_head(q, 1), keys.transpose(2, 3));
    const int64_t n = scores.size(2), m = scores.size(3);
    if (rule.softcap > 0) scores = at::tanh(scores / rule.softcap) * rule.softcap;
    const at::Tensor distance = at::arange(m - n, m).unsqueeze(1) - at::arange(m).unsqueeze(0);
    if (rule.slopes.defined()) scores = scores - rule.slopes.reshape({heads, 1, 1}) * distance.abs();
    at::Tensor hidden = at::zeros({n, m}, at::kBool);
    if (rule.causal || rule.window > 0) hidden = hidden.logical_or(distance < 0);
    if (rule.window > 0) hidden = hidden.logical_or(distance >= rule.window);
    if (rule.padding.defined()) hidden = hidden.logical_or(rule.padding);
    const at::Tensor p = at::softmax(scores.masked_fill(hidden, -1e30), -1);
    return at::matmul(p, values).transpose(1, 2).reshape({-1, heads * rule.head_dim});
}

// Longer than the queries that are taken at a time.
TEST(TorchAttention, IsItsDefinitionInBlocks) {
    AttentionRule plain;
    plain.sequences = plain.groups = 2;
    plain.per_group = 3;
    plain.head_dim = 4;
    std::vector<AttentionRule> rules(7, plain);
    rules[1].window = 50;
    rules[2].softcap = 1.5;
    rules[3].slopes = at::rand({6}, at::kDouble);
    rules[4].causal = false;
    rules[5].causal = false;
    rules[5].padding = at::arange(300).ge(290);
    rules[6].prefix = 5;
    for (size_t r = 0; r < rules.size(); ++r) {
        const AttentionRule& rule = rules[r];
        for (const int64_t queries : {300, 129, 1}) {
            const auto random = [&](int64_t tokens, int64_t heads) {
                return at::randn({2 * tokens, heads * 4}, at::kDouble).set_requires_grad(true);
            };
            const int64_t keys = 300 + rule.prefix;
            const at::Tensor q = random(queries, 6), k = random(keys, 2), v = random(keys, 2);
            const at::Tensor out = attention(rule, q, k, v), expected = plain_attention(rule, q, k, v);
            EXPECT_LE(largest(out, expected), 1e-12) << r << " queries " << queries;
            const auto gradients = [&](const at::Tensor& result) {
                mixed({result}).backward();
                const std::vector<at::Tensor> found = {q.grad().clone(), k.grad().clone(), v.grad().clone()};
                for (const at::Tensor& x : {q, k, v}) x.mutable_grad() = at::Tensor();
                return found;
            };
            const auto own = gradients(out), right = gradients(expected);
            for (size_t i = 0; i < right.size(); ++i)
                EXPECT_LE(largest(own[i], right[i]), 1e-11) << r << " queries " << queries << " input " << i;
        }
    }
}

}  // namespace
}  // namespace refold
