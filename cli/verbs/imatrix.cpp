#include "cli/calibration.h"
#include "cli/calibration_device.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "compress/quantization/measure_importance.h"
#include "core/group.h"
#include "core/parallel.h"
#include "hub/resolve.h"
#include "model/finite.h"
#include "model/load.h"
#include "train/launch.h"

namespace refold::cli::imatrix_verb {
namespace {

struct Arguments {
    std::string model;
    std::vector<std::string> texts;
    CalibrationOptions calibration{.tokens = 40960, .length = 512};
    int threads = 0;
    CalibrationDevice where;
    OutputOptions output;
    ReportOptions report;
};

void measure(const Arguments& a) {
    join_group();
    const std::string path = resolve_model(a.model);
    check_output(a.output, path);
    const OnDevice on(a.where);
    const Model model = load_model(path);
    check_finite(model, a.threads);
    const Calibration text = load_calibration(a.texts, path, a.calibration);
    const ImportanceMatrix matrix = measure_importance(model, text, a.threads);
    if (!group().first()) return;
    save_importance_matrix(matrix, a.output.path, a.output.overwrite);
    if (a.report.json) {
        nlohmann::ordered_json out = {{"output", a.output.path},
                                      {"tensors", matrix.tensors.size()},
                                      {"chunks", matrix.chunks},
                                      {"chunk_size", matrix.chunk_size},
                                      {"datasets", matrix.datasets}};
        add_calibration_device(out);
        print_json(out);
        return;
    }
    print(fmt::format("{}: {} tensors, {} chunks of {} tokens of {}\n{}", a.output.path,
                      matrix.tensors.size(), matrix.chunks, matrix.chunk_size, text.name(),
                      calibration_device_line()));
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--calib", a->texts, "UTF-8 text to measure on; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->required();
    app.add_option("--calib-tokens", a->calibration.tokens,
                   "Tokens of all texts together, from their beginnings")
        ->type_name("N")
        ->check(at_least(2))
        ->capture_default_str();
    app.add_option("--sequence-length", a->calibration.length, "Tokens of a sequence (a chunk of llama.cpp)")
        ->type_name("N")
        ->check(at_least(2))
        ->capture_default_str();
    add_threads(app, a->threads);
    add_calibration_device(app, a->where);
    add_output(app, a->output, "Importance matrix to write, in llama.cpp's GGUF form")->required();
    add_report_options(app, a->report);
    add_examples(app, {"refold imatrix smollm2-135m-instruct --calib wikitext.txt -o imatrix.gguf"});
    return [a] { measure(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"imatrix", VerbGroup::measurement,
                   "Measure an importance matrix, as llama.cpp's quantization uses", declare};

}  // namespace refold::cli::imatrix_verb
