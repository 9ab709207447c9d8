// Options of a training run, which the recipe step `train` fills in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace refold {

enum class ScheduleKind { cosine, constant };
enum class TrainType { f32, bf16 };

struct TrainOptions {
    std::string objective = "uptrain";
    std::string train = "all";  // tensors to train, as trained_tensors() takes them
    int64_t steps = 0;          // optimizer steps
    int64_t batch = 8;          // sequences per step, over all processes
    int64_t micro_batch = 1;    // sequences per forward pass; gradients accumulate over a step
    int64_t context = 512;      // tokens per sequence

    double learning_rate = 2e-4;  // peak
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
    ScheduleKind schedule = ScheduleKind::cosine;
    int64_t warmup = 0;       // steps of linear warmup from 0
    double final_rate = 0.1;  // fraction of the peak at which cosine ends
    double clip = 1;          // maximum L2 norm of all gradients together; 0: no clipping

    std::string device = "auto";      // auto (a CUDA device if there is one), cpu or cuda
    TrainType type = TrainType::f32;  // of matrix products
    // Of matrices and their gradients. BF16: products as well; the optimizer has master weights in float32,
    // and gradients are summed in float32 by their shares, as with zero = 2.
    TrainType weights = TrainType::f32;
    // What of it every process has for its share of the weights alone (ZeRO's stages): 1: the optimizer's
    // state; 2: the summed gradients as well.
    int zero = 1;
    bool checkpointing = false;  // recompute a block's activations in the backward pass
    uint64_t seed = 0;
    int64_t save_every = 0;      // steps; 0: about every five minutes, and at the end
    int64_t evaluate_every = 0;  // steps between losses on held-out text; 0: ten times in a run
    int64_t patience = 0;        // stop after this many evaluations without improvement; 0: never
    int64_t keep = 0;            // models of the run, evenly over its steps: kept_step()
    // Return the weights with the smallest held-out loss, as with `patience`. A run that diverges ends early.
    bool keep_best = false;

    TrainType products() const { return weights == TrainType::bf16 ? weights : type; }
    bool shares_gradients() const { return zero >= 2 || weights == TrainType::bf16; }
};

}  // namespace refold
