// The training functions that the torch engine's library exports: train/train.h, importance.h, range_fit.h.
#include <malloc.h>

#include <climits>

#include "engine/torch/translated.h"
#include "train/torch/importance.h"
#include "train/torch/range_fit.h"
#include "train/torch/trainer.h"

namespace {

// Every step allocates the same buffers of hundreds of megabytes (logits). If malloc returned them to the
// system in between, page faults would take up to half of a step's time.
void keep_freed_memory() {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, INT_MAX);
    mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

}  // namespace

extern "C" {
[[gnu::visibility("default")]] refold::TrainFunction refold_torch_train;
[[gnu::visibility("default")]] refold::ImportanceFunction refold_torch_importance;
[[gnu::visibility("default")]] refold::RangeFitFunction refold_torch_fit_ranges;
}

void refold_torch_train(const refold::TrainRequest& request, refold::TrainResult& result) {
    keep_freed_memory();
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
