// Compares importance by gradients with finite differences.
#include "train/torch/importance.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compress/calibrated.h"
#include "engine/torch/model.h"

namespace refold {
namespace {

using Sequences = std::vector<std::vector<int32_t>>;

constexpr SmallShape kGqa{
    .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 12, .vocab = 24};
constexpr SmallShape kMha{
    .layers = 2, .heads = 3, .kv_heads = 3, .head_dim = 4, .embd = 12, .ff = 12, .vocab = 24};

// Derivatives of the mean loss of a sequence with respect to single weights, in float64.
class Differences {
public:
    explicit Differences(const Model& model) : torch_(model, false, at::kDouble) {}

    double slope(const std::string& tensor, int64_t row, int64_t column, const std::vector<int32_t>& tokens) {
        const at::Tensor at = leaf(tensor)[row][column];
        const auto before = at.item<double>();
        const auto moved = [&](double steps) {
            at.fill_(before + steps * kStep);
            return loss(tokens);
        };
        const double change = 8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2));
        at.fill_(before);
        return change / (12 * kStep);
    }
    at::Tensor leaf(const std::string& tensor) const { return torch_.parameters().at(tensor); }

private:
    double loss(const std::vector<int32_t>& tokens) const {
        const at::Tensor logits = torch_.forward(tokens).logits.log_softmax(-1);
        double sum = 0;
        for (size_t t = 0; t + 1 < tokens.size(); ++t)
            sum -= logits[static_cast<int64_t>(t)][tokens[t + 1]].item<double>();
        return sum / static_cast<double>(tokens.size() - 1);
    }

    static constexpr double kStep = 1e-3;
    TorchModel torch_;
};

double expected(Taylor kind, Differences& differences, const std::string& tensor, int64_t index, bool column,
                const Sequences& sequences) {
    const at::Tensor leaf = differences.leaf(tensor);
    double sum = 0;
    for (int64_t i = 0; i < leaf.size(column ? 0 : 1); ++i) {
        const int64_t r = column ? i : index, c = column ? index : i;
        const auto w = leaf[r][c].item<double>();
        double g = 0, h = 0;
        for (const auto& tokens : sequences) {
            const double slope = differences.slope(tensor, r, c, tokens);
            g += slope / static_cast<double>(sequences.size());
            h += slope * slope / static_cast<double>(sequences.size());
        }
        switch (kind) {
            case Taylor::vector: sum += w * g; break;
            case Taylor::element1: sum += std::abs(w * g); break;
            case Taylor::element2: sum += w * h * w; break;
            case Taylor::mix: sum += std::abs(w * g - w * h * w / 2); break;
        }
    }
    return std::abs(sum);
}

void expect_importance(const Model& model) {
    const Sequences sequences = random_text(model, 3, 6).fit;
    ASSERT_EQ(sequences.size(), 2U);
    Differences differences(model);
    ImportanceRequest request{.model = model, .sequences = sequences, .tensors = {}, .threads = 1};
    for (const Slot slot :
         {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o, Slot::ffn_up, Slot::ffn_down})
        request.tensors[tensor_of(model, 0, slot)] = slot == Slot::attn_o || slot == Slot::ffn_down;
    for (const Taylor kind : {Taylor::vector, Taylor::element1, Taylor::element2, Taylor::mix}) {
        request.taylor = kind;
        const Importance importance = importance_by_gradients(request);
        ASSERT_EQ(importance.size(), request.tensors.size());
        for (const auto& [name, columns] : request.tensors) {
            const auto& values = importance.at(name);
            EXPECT_EQ(static_cast<int64_t>(values.size()),
                      columns ? model.tensor(name).row_elements() : model.tensor(name).rows());
            for (const size_t i : {size_t{0}, values.size() - 1}) {
                const double right =
                    expected(kind, differences, name, static_cast<int64_t>(i), columns, sequences);
                EXPECT_NEAR(static_cast<double>(values[i]), right, 1e-7 + 2e-3 * right)
                    << name << " " << i << " " << static_cast<int>(kind);
            }
        }
    }
}

TEST(Importance, IsThatOfFiniteDifferences) {
    expect_importance(small_model(kGqa, scattered_small));
    expect_importance(small_model(kMha, scattered_small));
}

// The gradient of a shared tensor is the sum over its uses.
TEST(Importance, OfSharedWeights) {
    expect_importance(planned(small_model(kGqa, scattered_small), {"recursive loops=2"}).model);
}

TEST(Importance, StopsWhenAsked) {
    const Model model = small_model(kGqa, scattered_small);
    const Sequences sequences = random_text(model, 3, 6).fit;
    for (const Taylor taylor : {Taylor::element1, Taylor::element2}) {
        int64_t seen = 0;
        ImportanceRequest request{
            .model = model, .sequences = sequences, .taylor = taylor, .tensors = {}, .threads = 1};
        for (size_t p = 0; p < 2; ++p) request.tensors[tensor_of(model, p, Slot::attn_q)] = false;
        request.report = [&](int64_t done, int64_t total) {
            seen = done;
            EXPECT_EQ(total, 2);
        };
        request.stop = [&] { return seen == 1; };
        expect_error(ErrorCode::interrupted, {}, [&] { importance_by_gradients(request); });
        EXPECT_EQ(seen, 1);
    }
}

TEST(Importance, OfWeightsThatAreNoNumbers) {
    const Model model = small_model(kGqa, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return slot == Slot::ffn_up ? NAN : scattered_small(layer, slot, row, column);
    });
    const Sequences sequences = random_text(model, 3, 6).fit;
    expect_error(ErrorCode::input, {"small model", "no number"}, [&] {
        importance_by_gradients({.model = model, .sequences = sequences, .tensors = {}, .threads = 1});
    });
}

}  // namespace
}  // namespace refold
