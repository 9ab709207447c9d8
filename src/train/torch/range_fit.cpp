#include "train/torch/range_fit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/error.h"
#include "core/parallel.h"
#include "engine/torch/device.h"
#include "engine/torch/model.h"
#include "train/data.h"
#include "train/schedule.h"
#include "train/torch/optimizer.h"

namespace refold {
namespace {

// |out - target|^2 / |target|^2 per token.
at::Tensor relative_errors(const at::Tensor& out, const at::Tensor& target) {
    const at::Tensor energy = target.square().sum(-1).clamp_min(1e-30);
    return (out - target).square().sum(-1) / energy;
}

class RangeFit {
public:
    explicit RangeFit(const RangeFitRequest& request)
        : request_(request),
          options_(request.options),
          device_(device_of(options_.device)),
          order_(static_cast<int64_t>(request.held_out), request.options.seed) {
        const size_t sequences = request.places.front().inputs.size();
        if (request.held_out == 0 || request.held_out >= sequences)
            fail(ErrorCode::internal, "layerwise", "{} of {} sequences are to be trained with",
                 request.held_out, sequences);
        for (const FitPlace& place : request.places) add(place);
        optimizer_ = std::make_unique<Optimizer>(leaves_, options_, processes_);
    }

    RangeFitResult run() {
        RangeFitResult result;
        result.held_out_before = result.held_out_after = held_out_error();
        if (!std::isfinite(result.held_out_before))
            fail(ErrorCode::input, "layerwise", "{}: activations after layer {} are not finite",
                 request_.model.label, request_.places.front().range.last - 1);
        const int64_t every =
            options_.evaluate_every > 0 ? options_.evaluate_every : std::max<int64_t>(1, options_.steps / 10);
        int64_t worse = 0;
        for (int64_t step = 0; step < options_.steps; ++step) {
            if (request_.stop && request_.stop()) fail(ErrorCode::interrupted, "layerwise", "interrupted");
            // A diverged step cannot be better than the best weights so far.
            result.stopped_early = !take_step(step);
            if (result.stopped_early) break;
            result.steps = step + 1;
            if (result.steps % every == 0 || result.steps == options_.steps) {
                const double error = held_out_error();
                worse = error < result.held_out_after ? 0 : worse + 1;
                if (worse == 0) {
                    result.held_out_after = error;
                    keep(result);
                }
            }
            if (request_.report) request_.report(result.steps, result.held_out_after);
            result.stopped_early = options_.patience > 0 && worse >= options_.patience;
            if (result.stopped_early) break;
        }
        return result;
    }

private:
    // A tensor that several models use is one leaf; the other models get copies of its values.
    void add(const FitPlace& place) {
        models_.push_back(std::make_unique<TorchModel>(request_.model, true,
                                                       at::TensorOptions(at::kFloat).device(device_),
                                                       FactoredExecution::automatic, place.range));
        TorchModel::Execution execution;
        execution.bf16 = options_.type == TrainType::bf16;
        execution.checkpointing = options_.checkpointing;
        models_.back()->set_execution(execution);
        for (const auto& [name, leaf] : models_.back()->parameters()) {
            const auto trained = request_.tensors.find(name);
            leaf.set_requires_grad(trained != request_.tensors.end());
            if (trained == request_.tensors.end()) continue;
            const auto [first, is_new] = leaves_.emplace(name, leaf);
            if (!is_new) {
                leaf.set_data(first->second.detach());
                others_.emplace_back(first->second, leaf);
            }
        }
    }

    // Errors of a place for these sequences [sequences * tokens].
    at::Tensor errors(size_t place, const std::vector<size_t>& sequences) const {
        const FitPlace& at = request_.places[place];
        return relative_errors(models_[place]->range(stacked(at.inputs, sequences)),
                               stacked(at.targets, sequences));
    }

    at::Tensor stacked(const Streams& streams, const std::vector<size_t>& sequences) const {
        std::vector<at::Tensor> out;
        for (const size_t s : sequences) {
            // The tensor is only read.
            auto* values = const_cast<float*>(streams[s].data());
            const auto tokens = static_cast<int64_t>(streams[s].size()) / request_.model.config.n_embd;
            out.push_back(at::from_blob(values, {tokens, request_.model.config.n_embd}, at::kFloat));
        }
        return at::stack(out).to(device_);
    }

    double held_out_error() const {
        const at::NoGradGuard guard;
        double sum = 0;
        int64_t tokens = 0;
        for (size_t place = 0; place < request_.places.size(); ++place) {
            for (size_t s = request_.held_out; s < request_.places[place].inputs.size(); ++s) {
                const at::Tensor e = errors(place, {s});
                sum += e.sum(at::kDouble).item<double>();
                tokens += e.numel();
            }
        }
        return sum / static_cast<double>(tokens);
    }

    // Returns false when the gradient is not finite.
    bool take_step(int64_t step) {
        const auto count = static_cast<double>(request_.places.size()) * static_cast<double>(options_.batch);
        for (int64_t done = 0; done < options_.batch; done += options_.micro_batch) {
            std::vector<size_t> sequences;
            for (int64_t i = done; i < std::min(done + options_.micro_batch, options_.batch); ++i)
                sequences.push_back(static_cast<size_t>(order_(step * options_.batch + i)));
            for (size_t place = 0; place < request_.places.size(); ++place) {
                const at::Tensor e = errors(place, sequences);
                const auto tokens = static_cast<double>(e.numel()) / static_cast<double>(sequences.size());
                (e.sum() / (tokens * count)).backward();
            }
        }
        const at::NoGradGuard guard;
        gather_gradients();
        const double norm = optimizer_->gradient_norm();
        if (!std::isfinite(norm)) return false;
        const double scale = options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1;
        optimizer_->step(learning_rate_at(options_, step), scale);
        optimizer_->zero_gradients();
        return true;
    }

    void gather_gradients() {
        for (auto& [leaf, other] : others_) {
            if (!other.grad().defined()) continue;
            at::Tensor& sum = leaf.mutable_grad();
            sum = sum.defined() ? sum.add_(other.grad()) : other.grad().clone();
            other.mutable_grad().zero_();
        }
        for (const auto& [name, parts] : request_.tensors) {
            const at::Tensor& gradient = leaves_.at(name).grad();
            if (!gradient.defined()) continue;
            for (const FrozenPart& part : parts)
                gradient.narrow(part.columns ? 1 : 0, part.first, part.count).zero_();
        }
    }

    void keep(RangeFitResult& result) const {
        for (const auto& [name, leaf] : leaves_) {
            const at::Tensor values = leaf.detach().to(at::kCPU).contiguous();
            result.tensors[name].assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
        }
    }

    const RangeFitRequest& request_;
    TrainOptions options_;
    at::Device device_;
    SequenceOrder order_;
    std::vector<std::unique_ptr<TorchModel>> models_;  // per place
    std::map<std::string, at::Tensor> leaves_;
    std::vector<std::pair<at::Tensor, at::Tensor>> others_;  // a leaf, and its copy in another model
    Processes processes_{Rendezvous{}};                      // each process does the same work on its own
    std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

RangeFitResult fit_by_gradients(const RangeFitRequest& request) {
    at::set_num_threads(request.threads > 0 ? request.threads : default_threads());
    return RangeFit(request).run();
}

}  // namespace refold
