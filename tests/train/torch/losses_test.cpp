// Compares losses in chunks with the plain formulas and with finite differences.
#include "train/torch/losses.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace refold {
namespace {

constexpr int64_t kRows = 11, kWidth = 5, kVocabulary = 13;

struct Fixture {
    at::Tensor hidden = random({kRows, kWidth}), weight = random({kVocabulary, kWidth});
    at::Tensor targets = at::randint(kVocabulary, {kRows}, at::kLong);
    at::Tensor scored = at::ones({kRows}, at::kBool);
    at::Tensor teacher = at::randn({kRows, kVocabulary}, at::kDouble) * 2;
    int64_t largest = 0;  // most rows of logits at a time

    explicit Fixture(bool all = false) {
        if (!all) scored.index_fill_(0, at::tensor({0, 4, 5, 6, 7}, at::kLong), false);
    }
    static at::Tensor random(std::vector<int64_t> shape) {
        return at::randn(shape, at::kDouble).set_requires_grad(true);
    }
    LogitsOf logits() {
        return [this](const at::Tensor& x) {
            largest = std::max(largest, x.size(0));
            return at::tanh(at::linear(x, weight) / 3) * 3;
        };
    }
    TeacherLogits teacher_logits() {
        return [this](int64_t first, int64_t count) { return teacher.narrow(0, first, count); };
    }
    std::vector<at::Tensor> gradients(const at::Tensor& loss) {
        hidden.mutable_grad() = weight.mutable_grad() = at::Tensor();
        loss.backward();
        return {hidden.grad().clone(), weight.grad().clone()};
    }
};

void expect_same(Fixture& f, const VocabularyLoss& loss, const at::Tensor& expected,
                 const std::string& what) {
    EXPECT_EQ(loss.count, f.scored.sum().item<int64_t>()) << what;
    EXPECT_NEAR(loss.sum.item<double>(), expected.item<double>(),
                1e-12 * (1 + std::abs(expected.item<double>())))
        << what;
    const auto found = f.gradients(loss.sum * 0.7), right = f.gradients(expected * 0.7);
    for (size_t i = 0; i < right.size(); ++i)
        EXPECT_LE((found[i] - right[i]).abs().max().item<double>(), 1e-12) << what << " input " << i;
}

TEST(Losses, CrossEntropyIsTheFormula) {
    for (const bool all : {true, false}) {
        for (const int64_t chunk : {1, 2, 3, 11, 100}) {
            Fixture f(all);
            const at::Tensor log_p = at::log_softmax(f.logits()(f.hidden), -1);
            const at::Tensor expected =
                -(log_p.gather(1, f.targets.unsqueeze(1)).squeeze(1) * f.scored.to(at::kDouble)).sum();
            f.largest = 0;
            const auto loss = cross_entropy(f.logits(), f.hidden, f.targets, f.scored, chunk);
            EXPECT_LE(f.largest, chunk);
            expect_same(f, loss, expected, "chunk " + std::to_string(chunk));
        }
    }
}

// The definitions, in probabilities.
at::Tensor plain_divergence(Divergence kind, const at::Tensor& p, const at::Tensor& q) {
    switch (kind) {
        case Divergence::forward_kl: return (p * (p / q).log()).sum(1);
        case Divergence::reverse_kl: return (q * (q / p).log()).sum(1);
        case Divergence::jensen_shannon: {
            const at::Tensor m = (p + q) / 2;
            return (p * (p / m).log()).sum(1) / 2 + (q * (q / m).log()).sum(1) / 2;
        }
        case Divergence::total_variation: return (p - q).abs().sum(1) / 2;
    }
    return {};
}

TEST(Losses, DivergencesAreTheFormulas) {
    for (const auto kind : {Divergence::forward_kl, Divergence::reverse_kl, Divergence::jensen_shannon,
                            Divergence::total_variation}) {
        for (const double temperature : {1.0, 2.5}) {
            for (const int64_t chunk : {2, 100}) {
                Fixture f;
                const at::Tensor p = at::softmax(f.teacher / temperature, -1);
                const at::Tensor q = at::softmax(f.logits()(f.hidden) / temperature, -1);
                const at::Tensor expected = (plain_divergence(kind, p, q) * f.scored.to(at::kDouble)).sum() *
                                            temperature * temperature;
                f.largest = 0;
                const auto loss =
                    divergence(kind, f.logits(), f.hidden, f.teacher_logits(), f.scored, temperature, chunk);
                EXPECT_LE(f.largest, chunk);
                expect_same(f, loss, expected,
                            "kind " + std::to_string(static_cast<int>(kind)) + " temperature " +
                                std::to_string(temperature) + " chunk " + std::to_string(chunk));
            }
        }
    }
}

TEST(Losses, GradientsAreFiniteDifferences) {
    for (int kind = -1; kind < 4; ++kind) {
        Fixture f;
        const auto loss = [&] {
            return (kind < 0 ? cross_entropy(f.logits(), f.hidden, f.targets, f.scored, 4)
                             : divergence(static_cast<Divergence>(kind), f.logits(), f.hidden,
                                          f.teacher_logits(), f.scored, 1.5, 4))
                .sum;
        };
        const auto gradients = f.gradients(loss());
        const std::vector<at::Tensor> inputs = {f.hidden, f.weight};
        const at::NoGradGuard guard;
        for (size_t i = 0; i < inputs.size(); ++i) {
            for (int64_t e = 0; e < inputs[i].numel(); e += 7) {
                const at::Tensor element = inputs[i].view({-1})[e];
                constexpr double kStep = 1e-5;
                element.add_(kStep);
                const double up = loss().item<double>();
                element.sub_(2 * kStep);
                const double down = loss().item<double>();
                element.add_(kStep);
                const double slope = (up - down) / (2 * kStep);
                EXPECT_NEAR(gradients[i].view({-1})[e].item<double>(), slope, 1e-7 * (1 + std::abs(slope)))
                    << kind << " input " << i;
            }
        }
    }
}

TEST(Losses, OfWhatIsFrozen) {
    Fixture f;
    f.weight.set_requires_grad(false);
    cross_entropy(f.logits(), f.hidden, f.targets, f.scored, 4).sum.backward();
    EXPECT_TRUE(f.hidden.grad().defined());
    EXPECT_FALSE(f.weight.grad().defined());
    f.weight.set_requires_grad(true);
    cross_entropy(f.logits(), f.hidden.detach(), f.targets, f.scored, 4).sum.backward();
    EXPECT_TRUE(f.weight.grad().defined());
    {
        const at::NoGradGuard guard;
        EXPECT_FALSE(cross_entropy(f.logits(), f.hidden, f.targets, f.scored, 4).sum.requires_grad());
    }
    const at::Tensor none = at::zeros({kRows}, at::kBool);
    const auto loss = cross_entropy(f.logits(), f.hidden, f.targets, none, 4);
    EXPECT_EQ(loss.count, 0);
    EXPECT_EQ(loss.sum.item<double>(), 0);
}

}  // namespace
}  // namespace refold
