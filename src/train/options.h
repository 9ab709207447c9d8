// What a training run is told; the recipe step `train` fills it in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace refold {

enum class OptimiserKind { adamw, adam };
enum class ScheduleKind { cosine, constant };
enum class TrainType { f32, bf16 };  // of products; weights, gradients and optimiser state stay float32

struct TrainOptions {
    std::string objective = "uptrain";
    std::string train =
        "all";          // what is trained: all | lora | comp | norms | prefix | head, or patterns of names
    int64_t steps = 0;  // of the optimiser
    int64_t batch = 8;  // sequences of one step, over all processes
    int64_t micro_batch = 1;  // sequences of one forward pass; gradients are accumulated over the others
    int64_t context = 512;    // tokens of a sequence

    OptimiserKind optimiser = OptimiserKind::adamw;
    double learning_rate = 2e-4;  // at its peak
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
    ScheduleKind schedule = ScheduleKind::cosine;
    int64_t warmup = 0;       // steps of linear growth from 0
    double final_rate = 0.1;  // of the peak, where cosine ends
    double clip = 1;          // largest L2 norm of all gradients together; 0: any

    std::string device = "auto";  // auto (a CUDA device where there is one), cpu or cuda
    TrainType type = TrainType::f32;
    bool checkpointing = false;  // activations of a block are computed again in the backward pass
    uint64_t seed = 0;
    int64_t save_every = 0;      // steps; 0: about every five minutes, and at the end
    int64_t evaluate_every = 0;  // steps between losses on held-out text; 0: ten times in a run
    int64_t patience = 0;        // evaluations without a better one, after which training stops; 0: never
};

}  // namespace refold
