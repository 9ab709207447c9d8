#include "compress/calibrated.h"
#include "compress/rewrite/units.h"
#include "train/importance.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr SmallShape kGqa{
    .layers = 3, .heads = 8, .kv_heads = 4, .head_dim = 4, .embd = 16, .ff = 16, .vocab = 24};
constexpr SmallShape kMha{
    .layers = 3, .heads = 4, .kv_heads = 4, .head_dim = 4, .embd = 16, .ff = 16, .vocab = 24};

Calibration text_of(const Model& model) { return random_text(model, 5, 8); }

Compression pruned(const Model& model, const std::string& settings) {
    return calibrated(model, {"llm_pruner multiple=1 " + settings}, text_of(model));
}

// Importance of a layer's heads and channels, computed from that of rows and columns.
class Expected {
public:
    Expected(const Model& model, Taylor taylor, std::string rule) : model_(model), rule_(std::move(rule)) {
        const Calibration text = text_of(model);
        ImportanceRequest request{
            .model = model, .sequences = text.fit, .taylor = taylor, .tensors = {}, .threads = 1};
        for (size_t p = 0; p < 3; ++p) {
            for (const auto& [slot, expression] : model.topology.layers[p]) {
                if (is_matrix(slot))
                    request.tensors[std::get<Dense>(expression).tensor] =
                        slot == Slot::attn_o || slot == Slot::ffn_down;
            }
        }
        importance_ = taylor_importance(request);
    }

    double group(size_t p, int64_t g) const {
        const int64_t queries = model_.config.q_per_kv(), width = model_.config.head_dim;
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) {
            double q = 0, o = 0;
            for (int64_t h = g * queries; h < (g + 1) * queries; ++h) {
                q += at(p, Slot::attn_q, h * width + c);
                o += at(p, Slot::attn_o, h * width + c);
            }
            sum += reduced({q, at(p, Slot::attn_k, g * width + c), at(p, Slot::attn_v, g * width + c), o});
        }
        return sum;
    }
    double channel(size_t p, int64_t c) const {
        return reduced({at(p, Slot::ffn_gate, c), at(p, Slot::ffn_up, c), at(p, Slot::ffn_down, c)});
    }

private:
    double at(size_t p, Slot slot, int64_t i) const {
        return static_cast<double>(importance_.at(tensor_of(model_, p, slot)).at(static_cast<size_t>(i)));
    }
    double reduced(const std::vector<double>& x) const {
        if (rule_ == "first") return x[0];
        double sum = 0, product = 1, largest = 0;
        for (const double value : x) {
            sum += value;
            product *= value;
            largest = std::max(largest, value);
        }
        return rule_ == "sum" ? sum : rule_ == "prod" ? product : largest;
    }

    const Model& model_;
    std::string rule_;
    Importance importance_;
};

// Indices of `count` that stay when the `gone` least important ones are removed.
std::vector<int64_t> kept(int64_t count, int64_t gone, const std::function<double(int64_t)>& importance) {
    std::vector<int64_t> order(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return importance(a) < importance(b); });
    order.erase(order.begin(), order.begin() + gone);
    std::sort(order.begin(), order.end());
    return order;
}

// Rows of a matrix [rows][columns].
std::vector<float> rows_of(const std::vector<float>& values, size_t columns,
                           const std::vector<int64_t>& rows) {
    std::vector<float> out;
    for (const int64_t row : rows) {
        const auto first = values.begin() + row * static_cast<int64_t>(columns);
        out.insert(out.end(), first, first + static_cast<int64_t>(columns));
    }
    return out;
}

void expect_pruned(const SmallShape& shape) {
    const Model model = small_model(shape, scattered_small);
    for (const auto& [text, taylor] : std::map<std::string, Taylor>{{"vector", Taylor::vector},
                                                                    {"element1", Taylor::element1},
                                                                    {"element2", Taylor::element2},
                                                                    {"mix", Taylor::mix}}) {
        for (const char* rule : {"sum", "max", "prod", "first"}) {
            SCOPED_TRACE(text + " " + rule);
            const Expected expected(model, taylor, rule);
            const Compression done =
                pruned(model, fmt::format("ratio=0.5 layers=1-2 taylor={} reduction={}", text, rule));
            const Model& out = done.model;
            EXPECT_EQ(out.topology.layers[0], model.topology.layers[0]);
            for (const size_t p : {1, 2}) {
                EXPECT_EQ(out.config.n_head_kv_of(p), 2);
                EXPECT_EQ(out.config.n_ff_of(p), 8);
                const auto groups = kept(4, 2, [&](int64_t g) { return expected.group(p, g); });
                const auto channels = kept(16, 8, [&](int64_t c) { return expected.channel(p, c); });
                EXPECT_EQ(weight(out, p, Slot::ffn_up),
                          rows_of(weight(model, p, Slot::ffn_up), 16, channels));
                std::vector<int64_t> rows;
                for (const int64_t g : groups) {
                    for (int64_t i = 0; i < 4; ++i) rows.push_back(g * 4 + i);
                }
                EXPECT_EQ(weight(out, p, Slot::attn_k), rows_of(weight(model, p, Slot::attn_k), 16, rows));
            }
            // Queries, outputs; keys, values; gate, up, down.
            const auto width = static_cast<uint64_t>(shape.heads * 4), wide_kv = uint64_t{16};
            EXPECT_EQ(parameters(model) - parameters(out),
                      2 * 16 * (2 * width / 2 + 2 * wide_kv / 2 + 3 * 8));
        }
    }
}

TEST(LlmPruner, LeavesOutTheLeastImportantStructures) {
    if (!has_torch_engine()) GTEST_SKIP();
    expect_pruned(kGqa);
    expect_pruned(kMha);
}

TEST(LlmPruner, OverTheWholeModel) {
    if (!has_torch_engine()) GTEST_SKIP();
    const Model model = small_model(kMha, scattered_small);
    const Expected expected(model, Taylor::element1, "sum");
    const Compression done = pruned(model, "ratio=0.4 rank=global what=heads");  // 4 of 12
    const auto left =
        kept(12, 4, [&](int64_t i) { return expected.group(static_cast<size_t>(i / 4), i % 4); });
    json gone = json::array();
    for (int64_t i = 0; i < 12; ++i) {
        if (!std::binary_search(left.begin(), left.end(), i)) gone.push_back({i / 4, i % 4});
    }
    EXPECT_EQ(details_of(done)["heads"], gone);
    EXPECT_EQ(done.model.config.ffs, model.config.ffs);
}

TEST(LlmPruner, OfSharedHeads) {
    if (!has_torch_engine()) GTEST_SKIP();
    const Model model = small_model(kGqa, scattered_small);
    const Compression done = calibrated(
        model, {"direct_share ratio=0.25", "llm_pruner ratio=0.5 rank=global what=heads"}, text_of(model));
    EXPECT_LT(parameters(done.model), parameters(model));
    saved_and_loaded(done.model);
}

TEST(LlmPruner, APlanHasTheSizes) {
    const Model model = small_model(kGqa, scattered_small);
    const Compression plan = planned(model, {"llm_pruner ratio=0.5 multiple=4"});
    EXPECT_TRUE(details_of(plan)["placeholders"].get<bool>());
    if (!has_torch_engine()) GTEST_SKIP();
    const Compression done = calibrated(model, {"llm_pruner ratio=0.5 multiple=4"}, text_of(model));
    EXPECT_EQ(done.after().parameters, plan.after().parameters);
    EXPECT_EQ(done.after().kv_bytes_per_token, plan.after().kv_bytes_per_token);
}

TEST(LlmPruner, GradientsAreComputedOnce) {
    if (!has_torch_engine()) GTEST_SKIP();
    const Model model = small_model(kGqa, scattered_small);
    const Calibration text = text_of(model);
    const TempFolder folder;
    const auto run = [&](size_t reused) {
        Work work(folder / "work");
        const Compression done =
            compress(model, recipe_of({"llm_pruner ratio=0.5"}), "test", work, {&text, 1});
        EXPECT_EQ(work.reused(), reused);
        return details_of(done);
    };
    const json first = run(0);
    EXPECT_EQ(run(1), first);
}

TEST(LlmPruner, WhatDoesNotFitIsRefused) {
    const Model model = small_model(kGqa, scattered_small);
    Work work;
    expect_error(ErrorCode::usage, {"llm_pruner", "--calib"},
                 [&] { compress(model, recipe_of({"llm_pruner"}), "test", work); });
    expect_error(ErrorCode::unsupported, {"encoder"},
                 [&] { planned(fixture_model("bert_encoder"), {"llm_pruner"}); });
}

}  // namespace
}  // namespace refold
