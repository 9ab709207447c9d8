#include "train/torch/objectives/uptrain.h"

namespace refold {
namespace {

class Uptrain : public Objective {
public:
    BatchLoss loss(const TorchModel& model, const TrainBatch& batch) override {
        const auto entropy =
            cross_entropy(logits_of(model), model.hidden(batch.tokens).final, batch.targets, batch.scored);
        return {entropy.sum, entropy.count, {}};
    }
};

}  // namespace

std::unique_ptr<Objective> make_uptrain(const TrainRequest&) { return std::make_unique<Uptrain>(); }

}  // namespace refold
