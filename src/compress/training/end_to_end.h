// Training of the whole model on the calibration text, so that it predicts what the original predicts.
#pragma once

#include "compress/method/method.h"
#include "train/options.h"

namespace refold {

struct EndToEnd {
    Model model;
    int64_t steps = 0;                     // after which the divergence was smallest
    double before = 0, after = 0;          // on the held-out sequences, in nats per token; after <= before
    uint64_t tensors = 0, parameters = 0;  // trained
};

// Minimizes the Kullback-Leibler divergence of the next token's distribution from step.original's on the
// sequences of step.calibration to train on, options.steps steps, and returns the weights with the smallest
// divergence on the held-out ones: those of `model` when no step lowered it. A stored tensor is one parameter
// with the sum of its layers' gradients. Types stay. Memory: both models and what train() needs. An
// interrupted run goes on in step.work. Throws as train() and trained_tensors(), Error(unsupported) for
// encoders.
EndToEnd train_end_to_end(const Model& model, Step& step, TrainOptions options);

}  // namespace refold
