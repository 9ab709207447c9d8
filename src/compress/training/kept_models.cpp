#include "compress/training/kept_models.h"

#include <filesystem>

#include "compress/training/training.h"
#include "core/error.h"
#include "core/json_text.h"
#include "core/text.h"
#include "io/gguf.h"
#include "model/metadata_keys.h"
#include "model/save.h"
#include "train/schedule.h"

namespace refold {

std::string kept_model_path(const std::string& folder, size_t step, int64_t number, int64_t count) {
    const size_t digits = std::to_string(count).size();
    return fmt::format("{}/step-{}/kept-{:0{}}-of-{}.gguf", folder, step, number, digits, count);
}

static bool is_kept_model(const std::string& path) {
    try {
        return GgufFile::open(path)->metadata().string(kProvenanceKey, "").find("\"training_step\"") !=
               std::string::npos;
    } catch (const Error&) {  // another kind of file
        return false;
    }
}

KeptModels::KeptModels(const TrainedTensors& trained, const Step& step, const TrainOptions& options)
    : trained_(trained), step_(step), options_(options) {
    if (options.keep == 0) return;
    if (step.training->metrics.empty())
        fail(ErrorCode::usage, "train", "keep: there is no folder beside the output for models");
    provenance_ = parse_json(step.provenance(), "train", "the provenance");
    for (int64_t number = 1; number <= options.keep; ++number)
        if (std::filesystem::exists(path(number)) && !is_kept_model(path(number)))
            fail(ErrorCode::usage, "train",
                 "'{}' would be replaced, and is no model that a run has kept - move it away, or choose "
                 "another output",
                 path(number));
}

std::string KeptModels::path(int64_t number) const {
    return kept_model_path(step_.training->metrics, step_.number, number, options_.keep);
}

bool KeptModels::operator()(int64_t number, TensorValues tensors) const {
    Model model = trained_.with(std::move(tensors));
    auto provenance = provenance_;
    provenance["training_step"] = kept_step(options_, number);
    model.metadata.set(kProvenanceKey, GgufValue::string(provenance.dump()));
    try {
        save_model(model, path(number), true);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::interrupted) throw;
        return false;
    }
    return true;
}

void KeptModels::report(int64_t count, StepReport& report, nlohmann::json& details) const {
    if (count == 0) return;
    details["kept"] = nlohmann::json::array();
    std::vector<std::string> steps;
    for (int64_t number = 1; number <= count; ++number) {
        const int64_t step = kept_step(options_, number);
        steps.push_back(std::to_string(step));
        details["kept"].push_back({{"step", step}, {"file", path(number)}});
    }
    report.lines.push_back(fmt::format("kept are models after steps {}, in {}", join(steps, ", "),
                                       std::filesystem::path(path(1)).parent_path().string()));
}

}  // namespace refold
