#include "compress/training/training_progress.h"

#include "core/interrupt.h"
#include "core/text.h"

namespace refold {

void TrainingProgress::operator()(const StepMetrics& metrics) {
    const auto& values = metrics.values;
    const auto held_out = values.find("held_out_loss");
    if (held_out != values.end()) held_out_ = fmt::format("  held-out {:.4f}", held_out->second);
    if (!values.contains("loss")) return;
    const int64_t per_step = options_.batch * options_.context;
    if (!progress_) {
        const int64_t left = options_.steps - metrics.step + 1;
        progress_.emplace("training", static_cast<uint64_t>(left * per_step), "tokens");
    }
    // The library handles signals itself, since it saves first.
    if (interrupted()) return;
    progress_->advance(
        static_cast<uint64_t>(per_step),
        fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  {:.0f} tokens/s{}", metrics.step, options_.steps,
                    values.at("loss"), values.at("learning_rate"), values.at("tokens_per_s"), held_out_));
}

void TrainingProgress::finish() {
    if (progress_) progress_->finish(held_out_);
}

}  // namespace refold
