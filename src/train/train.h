// Training a model. The torch engine's library does the work, see engine/torch/plugin.h.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "train/data.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/objective.h"
#include "train/options.h"

namespace refold {

// Logits [tokens, n_vocab] of one sequence.
using SequenceLogits = std::function<std::vector<float>(std::span<const int32_t> tokens)>;

// Values of tensors, by name.
using TensorValues = std::map<std::string, std::vector<float>>;

struct TrainRequest {
    const Model& model;
    const Model* teacher = nullptr;  // for distillation
    TrainOptions options;
    ObjectiveOptions objective;
    const TrainData& data;
    std::string folder;  // of the checkpoint, from which an interrupted run resumes
    // Identifies model, recipe and data by lines "what: value". A checkpoint with another identity is
    // refused, naming the lines that differ.
    std::string identity;
    int threads = 0;
    // Called by the process of rank 0. Callbacks report progress and signals, because the library has its own
    // copies of refold's lower folders.
    std::function<void(const StepMetrics&)> report = {};
    std::function<bool()> stop = {};  // true: save, then throw Error(interrupted)
    // Reports long work before the first step (a teacher's logits): `done` of `total` sequences.
    std::function<void(const std::string& what, int64_t done, int64_t total)> prepare = {};
    // Writes model `number` of the run (TrainOptions::keep) with these values of the trained tensors, again
    // when it was there before an interruption. False: interrupted, so save, then throw Error(interrupted).
    std::function<bool(int64_t number, TensorValues tensors)> keep = {};
    std::string metrics = {};          // folder for metrics files; empty: none
    std::vector<HeadPair> pairs = {};  // for the objective `postshare`
    // Computes the teacher's logits in place of the torch engine.
    SequenceLogits teacher_logits = {};
};

// The trained tensors as float32, by name. All others are unchanged.
struct TrainResult {
    TensorValues tensors;
    int64_t steps = 0;           // steps that produced these weights (the best ones, when `patience` is set)
    bool stopped_early = false;  // by `patience`
    int64_t kept = 0;            // models that were kept
    std::string device;          // torch's name of the device
    TrainMemory memory;
    double loss = 0;                                 // of the last step; NaN when there was none
    double held_out_before = 0, held_out_after = 0;  // mean loss per token; NaN without held-out text
};

// Trains as one of WORLD_SIZE data-parallel processes, or as the only one. All processes get the result.
// Throws Error(usage) for options that do not fit the model, Error(input) for a checkpoint of another run or
// a loss that is not finite (the last good state stays in the folder), Error(io) when the disk is full or a
// process is lost or does not arrive, Error(interrupted), Error(unsupported) in a build without libtorch.
TrainResult train(const TrainRequest& request);

// The symbol of train() in the library.
inline constexpr const char* kTrainSymbol = "refold_torch_train";
using TrainFunction = void(const TrainRequest& request, TrainResult& result);

}  // namespace refold
