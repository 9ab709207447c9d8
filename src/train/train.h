// Training a model: everything that needs gradients. The work is done by the torch engine's library, see
// engine/torch/plugin.h.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "train/data.h"
#include "train/metrics.h"
#include "train/objective.h"
#include "train/options.h"

namespace refold {

// Logits [tokens, n_vocab] of a sequence of its own.
using SequenceLogits = std::function<std::vector<float>(std::span<const int32_t> tokens)>;

struct TrainRequest {
    const Model& model;
    const Model* teacher = nullptr;  // of distillation
    TrainOptions options;
    ObjectiveOptions objective;
    const TrainData& data;
    std::string folder;  // the checkpoint; a run that was interrupted goes on from what lies there
    // Of model, recipe and data, a line "what: value" for each: a checkpoint of another one is refused,
    // naming the lines that differ.
    std::string identity;
    int threads = 0;
    // Called by the process of rank 0. The library has its own copies of refold's lower layers, so progress
    // and signals come from here.
    std::function<void(const StepMetrics&)> report = {};
    std::function<bool()> stop = {};  // true: save, then throw Error(interrupted)
    // Long work before the first step (a teacher's logits): `done` of `total` sequences.
    std::function<void(const std::string& what, int64_t done, int64_t total)> prepare = {};
    std::string metrics = {};          // folder of metrics files; empty: none
    std::vector<HeadPair> pairs = {};  // of the objective `postshare`
    // Computes the teacher's logits in place of the torch engine.
    SequenceLogits teacher_logits = {};
};

// Trained tensors as float32, by name; the others are as they were.
struct TrainResult {
    std::map<std::string, std::vector<float>> tensors;
    int64_t steps = 0;           // that these weights have had: of the best ones, when `patience` is given
    bool stopped_early = false;  // by `patience`
    std::string device;          // that computed, by torch's name
    double loss = 0;             // of the last step; not a number without one
    double held_out_before = 0,
           held_out_after = 0;  // mean loss per token; not a number without held-out text
};

// One of RANK / WORLD_SIZE processes, or the only one. All processes get the result.
// Throws Error(usage) for options that do not fit the model, Error(input) for a checkpoint of another run or
// a loss that is no number (the last good state stays in the folder), Error(io) when the disk is full, a
// process is lost or does not arrive, Error(interrupted), Error(unsupported) in a build without libtorch.
TrainResult train(const TrainRequest& request);

// What `train` is in the library.
inline constexpr const char* kTrainSymbol = "refold_torch_train";
using TrainFunction = void(const TrainRequest& request, TrainResult& result);

}  // namespace refold
