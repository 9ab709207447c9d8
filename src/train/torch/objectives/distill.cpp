#include "train/torch/objectives/distill.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <optional>

#include "train/torch/objectives/options.h"
#include "train/torch/objectives/teacher_cache.h"
#include "train/torch/objectives/uptrain.h"

namespace refold {
namespace {

Divergence divergence_of(const std::string& name) {
    if (name == "fkl") return Divergence::forward_kl;
    if (name == "rkl") return Divergence::reverse_kl;
    if (name == "jsd") return Divergence::jensen_shannon;
    if (name == "tvd") return Divergence::total_variation;
    fail(ErrorCode::usage, "train", "divergence: got '{}', expected fkl, rkl, jsd or tvd", name);
}

class Distill : public Objective {
public:
    explicit Distill(const TrainRequest& request)
        : request_(request),
          alpha_(number_option(request.objective, "alpha")),
          kind_(divergence_of(text_option(request.objective, "divergence"))),
          temperature_(number_option(request.objective, "temperature")),
          cached_(static_cast<int64_t>(number_option(request.objective, "teacher_cache"))) {
        if (const int64_t own = request.model.config.n_vocab, other = request.teacher->config.n_vocab;
            own != other)
            fail(ErrorCode::usage, "train",
                 "the teacher has a vocabulary of {} tokens, got {} for the model trained: "
                 "expected the same",
                 other, own);
    }

    void prepare(const TorchModel& model, const std::vector<int64_t>& fit,
                 const std::vector<int64_t>& held_out) override {
        if (cached_ > 0) {
            cache_.emplace(request_, cached_, fit, held_out);
            if (cache_->complete()) return;
        }
        if (!request_.teacher_logits) {
            const bool rounded = request_.options.weights == TrainType::bf16;
            teacher_.emplace(*request_.teacher, false,
                             at::TensorOptions(rounded ? at::kBFloat16 : at::kFloat).device(model.device()));
            teacher_->set_execution({request_.options.products() == TrainType::bf16, false});
        }
        if (!cache_) return;
        cache_->fill([this](const at::Tensor& tokens) { return logits_now(tokens); }, model.device());
        teacher_.reset();
    }

    BatchLoss loss(const TorchModel& model, const TrainBatch& batch) override {
        const LogitsOf logits = logits_of(model);
        const at::Tensor hidden = model.hidden(batch.tokens).final;
        // With alpha = 1 the cross entropy is only reported.
        const auto entropy = [&] {
            const at::AutoGradMode gradients(alpha_ < 1 && at::GradMode::is_enabled());
            return cross_entropy(logits, hidden, batch.targets, batch.scored);
        }();
        const auto distance =
            divergence(kind_, logits, hidden, teacher_logits(batch), batch.scored, temperature_);
        BatchLoss out;
        out.sum = alpha_ < 1 ? (1 - alpha_) * entropy.sum + alpha_ * distance.sum : distance.sum;
        out.tokens = entropy.count;
        out.parts = {{"cross_entropy", entropy.sum.item<double>()},
                     {"divergence", distance.sum.item<double>()}};
        return out;
    }

private:
    TeacherLogits teacher_logits(const TrainBatch& batch) const {
        return cache_ ? cache_->logits(batch) : logits_now(batch.tokens);
    }

    TeacherLogits logits_now(const at::Tensor& tokens) const {
        const at::NoGradGuard without_gradients;
        if (request_.teacher_logits) {
            return [all = given_logits(tokens), device = tokens.device()](int64_t first, int64_t count) {
                return all.narrow(0, first, count).to(device);
            };
        }
        return [this, hidden = teacher_->hidden(tokens).final](int64_t first, int64_t count) {
            const at::NoGradGuard none;
            return teacher_->logits(hidden.narrow(0, first, count));
        };
    }

    at::Tensor given_logits(const at::Tensor& tokens) const {
        const at::Tensor ids = tokens.to(at::kCPU, at::kInt).contiguous();
        const auto length = static_cast<size_t>(ids.size(1));
        std::vector<at::Tensor> rows;
        for (int64_t s = 0; s < ids.size(0); ++s) {
            std::vector<float> logits = request_.teacher_logits({ids[s].data_ptr<int32_t>(), length});
            rows.push_back(
                at::from_blob(logits.data(), {ids.size(1), request_.teacher->config.n_vocab}).clone());
        }
        return at::cat(rows);
    }

    const TrainRequest& request_;
    double alpha_;
    Divergence kind_;
    double temperature_;
    int64_t cached_;
    std::optional<TorchModel> teacher_;
    std::optional<TeacherCache> cache_;
};

}  // namespace

std::unique_ptr<Objective> make_distill(const TrainRequest& request) {
    return std::make_unique<Distill>(request);
}

}  // namespace refold
