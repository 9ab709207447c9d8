#include <string>
#include <vector>

#include "native/bindings.h"
#include "native/progress.h"

namespace refold::python {
namespace {

Facts dict_of(const CompressionResult& result) {
    nb::list steps;
    for (const CompressionStep& step : result.steps) {
        Facts out;
        out["method"] = step.method;
        out["cost"] = to_dict(step.cost);
        out["seconds"] = step.seconds;
        steps.append(out);
    }
    Facts out;
    out["before"] = to_dict(result.before);
    out["after"] = to_dict(result.after);
    out["steps"] = steps;
    out["recipe"] = result.recipe;
    return out;
}

}  // namespace

void bind_compression(nb::module_& module) {
    module.def("method_names", &method_names);
    module.def(
        "compress",
        [](const std::string& model, const std::string& recipe, const std::string& output,
           const std::vector<std::string>& calibration, int64_t calibration_tokens,
           const std::string& original, bool overwrite, int threads, const nb::object& progress) {
            CompressionOptions options;
            options.overwrite = overwrite;
            options.threads = threads;
            options.calibration_texts = calibration;
            options.calibration_tokens = calibration_tokens;
            options.original = original;
            return dict_of(run_with_progress(progress, [&](const Control& control) {
                options.on_progress = control.on_progress;
                options.stop = control.stop;
                return compress(model, recipe, output, options);
            }));
        },
        nb::arg("model"), nb::arg("recipe"), nb::arg("output"), nb::kw_only(), nb::arg("calibration"),
        nb::arg("calibration_tokens"), nb::arg("original"), nb::arg("overwrite"), nb::arg("threads"),
        nb::arg("progress").none());
    module.def(
        "plan",
        [](const std::string& model, const std::string& recipe, const std::string& original) {
            return dict_of(
                run([&](const std::stop_token&) { return plan_compression(model, recipe, original); }));
        },
        nb::arg("model"), nb::arg("recipe"), nb::kw_only(), nb::arg("original"));
}

}  // namespace refold::python
