// What the torch engine's library offers for training: train/train.h.
#include "engine/torch/translated.h"
#include "train/torch/trainer.h"

extern "C" {
[[gnu::visibility("default")]] refold::TrainFunction refold_torch_train;
}

void refold_torch_train(const refold::TrainRequest& request, refold::TrainResult& result) {
    refold::translated([&] {
        refold::Processes processes;
        result = refold::train_by_steps(request, processes);
    });
}
