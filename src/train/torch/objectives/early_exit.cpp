#include "train/torch/objectives/early_exit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <charconv>

#include "train/torch/objectives/options.h"
#include "train/torch/objectives/uptrain.h"

namespace refold {

std::vector<size_t> exits_of(const Topology& topology, const std::string& text) {
    const size_t layers = topology.layers.size();
    std::vector<size_t> exits;
    if (text == "loops") {
        const auto loops = static_cast<size_t>(topology.loops);
        if (loops < 2)
            fail(
                ErrorCode::usage, "train",
                "exits=loops: the model has no loops - name the exits by numbers of layers, such as exits={}",
                layers / 2);
        for (size_t loop = 1; loop < loops; ++loop) exits.push_back(layers / loops * loop);
        return exits;
    }
    const char* at = text.data();
    const char* const end = at + text.size();
    while (true) {
        size_t exit = 0;
        const auto [next, error] = std::from_chars(at, end, exit);
        const bool rising = exits.empty() || exit > exits.back();
        if (error != std::errc() || exit < 1 || exit >= layers || !rising || (next != end && *next != ','))
            fail(ErrorCode::usage, "train",
                 "exits: got '{}', expected 'loops' or rising numbers from 1 to {} with commas between", text,
                 layers - 1);
        exits.push_back(exit);
        if (next == end) return exits;
        at = next + 1;
    }
}

namespace {

class EarlyExit : public Objective {
public:
    explicit EarlyExit(const TrainRequest& request)
        : exits_(exits_of(request.model.topology, text_option(request.objective, "exits"))),
          entropy_(text_option(request.objective, "exit_target") != "kd"),
          distance_(text_option(request.objective, "exit_target") != "ce"),
          temperature_(number_option(request.objective, "temperature")) {
        // weighted: alpha_i = i / sum of i over all outputs, including the final one; else c, and 1 for the
        // final one.
        const bool weighted = text_option(request.objective, "coefficients") == "weighted";
        const double c = number_option(request.objective, "coefficient");
        const auto outputs = static_cast<double>(exits_.size() + 1);
        for (size_t i = 1; i <= exits_.size(); ++i)
            weights_.push_back(weighted ? 2 * static_cast<double>(i) / (outputs * (outputs + 1)) : c);
        final_weight_ = weighted ? 2 / (outputs + 1) : 1;
    }

    BatchLoss loss(const TorchModel& model, const TrainBatch& batch) override {
        const LogitsOf logits = logits_of(model);
        const auto hidden = model.hidden(batch.tokens, exits_);
        const auto final = cross_entropy(logits, hidden.final, batch.targets, batch.scored);
        BatchLoss out{final_weight_ * final.sum, final.count, {{"cross_entropy", final.sum.item<double>()}}};
        const TeacherLogits teacher = [&](int64_t first, int64_t count) {
            const at::NoGradGuard detached;
            return model.logits(hidden.final.narrow(0, first, count));
        };
        for (size_t e = 0; e < exits_.size(); ++e) {
            const at::Tensor& exit = hidden.exits[e];
            const LogitsOf own = [&, after = exits_[e]](const at::Tensor& h) {
                return model.logits(h, after);
            };
            const std::string name = fmt::format("exit_{}", exits_[e]);
            if (entropy_ || batch.held_out) {
                const auto ce = cross_entropy(own, exit, batch.targets, batch.scored);
                out.parts[name + "_cross_entropy"] = ce.sum.item<double>();
                if (entropy_) out.sum = out.sum + weights_[e] * ce.sum;
            }
            if (distance_) {
                const auto kd =
                    divergence(Divergence::forward_kl, own, exit, teacher, batch.scored, temperature_);
                out.parts[name + "_divergence"] = kd.sum.item<double>();
                out.sum = out.sum + weights_[e] * kd.sum;
            }
        }
        return out;
    }

private:
    std::vector<size_t> exits_;
    bool entropy_, distance_;
    double temperature_;
    std::vector<double> weights_;  // per exit
    double final_weight_ = 1;
};

}  // namespace

std::unique_ptr<Objective> make_early_exit(const TrainRequest& request) {
    return std::make_unique<EarlyExit>(request);
}

}  // namespace refold
