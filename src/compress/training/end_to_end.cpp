#include "compress/training/end_to_end.h"

#include "compress/method/lazy.h"
#include "compress/method/work.h"
#include "compress/training/trained_types.h"
#include "compress/training/training.h"
#include "compress/training/training_progress.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "train/train.h"
#include "train/trained.h"

namespace refold {
namespace {

constexpr Computation kTraining{"end to end", 1};
constexpr const char* kFigures = "figures";

Arrays compute(const Model& model, const Step& step, const TrainOptions& options) {
    const Calibration& text = *step.calibration;
    const TrainData data = TrainData::of(text.fit, text.held_out, text.hash);
    TrainRequest request{
        .model = model,
        .teacher = &step.original,
        .options = options,
        // The divergence alone, from distributions as they are.
        .objective = {{"alpha", "1"}, {"divergence", "fkl"}, {"temperature", "1"}, {"teacher_cache", "0"}},
        .data = data,
        .folder = step.work->subfolder(fmt::format("end-to-end-{}", step.number)),
        .identity = fmt::format("step: {}\n", step.identity),
        .threads = step.threads,
    };
    if (step.training != nullptr && !step.training->metrics.empty())
        request.metrics = fmt::format("{}/step-{}/end-to-end", step.training->metrics, step.number);
    TrainingProgress progress(options);
    request.report = std::ref(progress);
    request.stop = [] { return interrupted(); };
    const TrainResult result = train(request);
    progress.finish();
    Arrays out = {{kFigures,
                   {{3},
                    {static_cast<float>(result.steps), static_cast<float>(result.held_out_before),
                     static_cast<float>(result.held_out_after)}}}};
    if (result.steps == 0) return out;
    for (const auto& [name, values] : result.tensors) out[name] = {model.tensor(name).shape, values};
    return out;
}

}  // namespace

EndToEnd train_end_to_end(const Model& model, Step& step, TrainOptions options) {
    if (!model.config.causal)
        fail(ErrorCode::unsupported, "refine", "{} is an encoder: it predicts no next token", model.label);
    EndToEnd out{.model = model};
    const auto names = trained_tensors(model, options.train);
    out.tensors = names.size();
    for (const auto& name : names) out.parameters += static_cast<uint64_t>(model.tensor(name).elements());
    const TrainedTypes type_of(model, "same");
    const auto install = [&](const std::string& name, const Tensor& tensor) {
        out.model.tensors.at(name) = as_type(tensor, type_of(name));
    };
    if (step.dry_run()) {
        for (const auto& name : names) install(name, lazy::constant(DType::F32, model.tensor(name).shape, 0));
        return out;
    }
    options.objective = "distill";
    options.context = step.calibration->options.length - 1;  // every token but the first is predicted
    options.keep_best = true;
    const ResultKey key{kTraining, {{"step", step.identity}}};
    const auto stored = step.work->results_of_all(key, [&] { return compute(model, step, options); });
    const auto figures = lazy::numbers(stored.at(kFigures));
    out.steps = static_cast<int64_t>(figures[0]);
    out.before = figures[1];
    out.after = figures[2];
    for (const auto& [name, tensor] : stored)
        if (name != kFigures) install(name, tensor);
    return out;
}

}  // namespace refold
