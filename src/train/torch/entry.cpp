// What the torch engine's library offers for training: train/train.h, importance.h, range_fit.h.
#include "engine/torch/translated.h"
#include "train/torch/importance.h"
#include "train/torch/range_fit.h"
#include "train/torch/trainer.h"

extern "C" {
[[gnu::visibility("default")]] refold::TrainFunction refold_torch_train;
[[gnu::visibility("default")]] refold::ImportanceFunction refold_torch_importance;
[[gnu::visibility("default")]] refold::RangeFitFunction refold_torch_fit_ranges;
}

void refold_torch_train(const refold::TrainRequest& request, refold::TrainResult& result) {
    refold::translated([&] {
        refold::Processes processes;
        result = refold::train_by_steps(request, processes);
    });
}

void refold_torch_importance(const refold::ImportanceRequest& request, refold::Importance& result) {
    refold::translated([&] { result = refold::importance_by_gradients(request); });
}

void refold_torch_fit_ranges(const refold::RangeFitRequest& request, refold::RangeFitResult& result) {
    refold::translated([&] { result = refold::fit_by_gradients(request); });
}
