#include "train/torch/objectives/postshare.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "train/torch/objectives/options.h"
#include "train/torch/objectives/uptrain.h"

namespace refold {
namespace {

at::Tensor rows_of(const TorchModel& model, const std::vector<WeightRows>& parts) {
    std::vector<at::Tensor> rows;
    for (const WeightRows& part : parts) {
        const at::Tensor& leaf = model.parameters().at(part.tensor);
        rows.push_back(leaf.reshape({-1, leaf.size(-1)}).narrow(0, part.first, part.count).to(at::kFloat));
    }
    return rows.size() == 1 ? rows[0] : at::cat(rows);
}

class PostShare : public Objective {
public:
    explicit PostShare(const TrainRequest& request) : pairs_(request.pairs), uptrain_(make_uptrain(request)) {
        if (pairs_.empty())
            fail(ErrorCode::usage, "train",
                 "postshare: got no pairs of heads to make alike, expected a larger ratio");
        // The authors' code takes the mean of both terms.
        const bool authors = text_option(request.objective, "weighting") == "authors";
        scale_ = authors ? 0.5 : 1;
        gamma_ = authors ? 0.5 : number_option(request.objective, "gamma");
    }

    BatchLoss loss(const TorchModel& model, const TrainBatch& batch) override {
        BatchLoss out = uptrain_->loss(model, batch);
        out.parts["cross_entropy"] = out.sum.item<double>();
        if (scale_ != 1) out.sum = scale_ * out.sum;
        return out;
    }

    at::Tensor penalty(const TorchModel& model) override {
        at::Tensor sum;
        for (const HeadPair& pair : pairs_) {
            for (const auto& [later, former] : pair.qkv) {
                const at::Tensor norm = (rows_of(model, later) - rows_of(model, former)).norm();
                sum = sum.defined() ? sum + norm : norm;
            }
        }
        return gamma_ / static_cast<double>(pairs_.size()) * sum;
    }

private:
    const std::vector<HeadPair>& pairs_;
    std::unique_ptr<Objective> uptrain_;
    double scale_ = 1, gamma_ = 0.5;
};

}  // namespace

std::unique_ptr<Objective> make_postshare(const TrainRequest& request) {
    return std::make_unique<PostShare>(request);
}

}  // namespace refold
