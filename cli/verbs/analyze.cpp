#include <algorithm>
#include <filesystem>
#include <optional>

#include "analyze/activations.h"
#include "analyze/output.h"
#include "analyze/stored_analysis.h"
#include "cli/calibration.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_file.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/group.h"
#include "core/output_folder.h"
#include "hub/resolve.h"
#include "model/finite.h"
#include "model/load.h"
#include "train/launch.h"
#include "train/records.h"

namespace refold::cli::analyze_verb {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kSequenceLength = 512;

struct Arguments {
    std::string model, original;
    std::vector<std::string> texts, parts;
    CalibrationOptions calibration{.tokens = 16384, .length = 0};
    AnalysisOptions analysis;
    bool no_cache = false;
    OutputOptions output;
    ReportOptions report;
    ReportFile report_file;
};

std::set<AnalysisPart> wanted_parts(const Arguments& a, const Model& model) {
    std::set<AnalysisPart> parts;
    for (const auto& name : a.parts) parts.insert(part_from_name(name));
    if (parts.contains(AnalysisPart::modules)) need_decoder_for_modules(model);
    if (!parts.empty()) return parts;
    parts = all_parts(!a.texts.empty());
    if (!model.config.causal) parts.erase(AnalysisPart::modules);
    if (!a.original.empty() && !a.texts.empty()) parts.insert(AnalysisPart::sharing);
    return parts;
}

std::optional<Calibration> read_calibration(const Arguments& a, const std::string& path, const Model& model) {
    if (a.texts.empty()) return std::nullopt;
    CalibrationOptions options = a.calibration;
    if (options.length == 0) options.length = std::min(kSequenceLength, model.config.context_length);
    const auto records = std::ranges::count_if(a.texts, holds_records);
    if (records == 0) return load_calibration(a.texts, path, options);
    if (static_cast<size_t>(records) < a.texts.size())
        fail(ErrorCode::usage, "analyze", "--calib: give texts, or records (.jsonl, .json), not both");
    return load_samples(a.texts, path, options);
}

Json text_json(const Calibration& text) {
    const size_t sequences = text.fit.size() + text.held_out.size();
    size_t tokens = 0;
    for (const auto* part : {&text.fit, &text.held_out})
        for (const auto& sequence : *part) tokens += sequence.size();
    return {{"name", text.name()},
            {"sha256", text.hash},
            {"sequences", sequences},
            {"sequence_length", text.options.length},
            {"tokens", tokens}};
}

Json to_json(const Analysis& analysis, const Model& model, const Calibration* text) {
    Json out = {{"model", model.label},
                {"architecture", model.family->name},
                {"layers", model.topology.layers.size()},
                {"query_heads", model.config.n_head},
                {"kv_heads", model.config.n_head_kv},
                {"text", text != nullptr ? text_json(*text) : Json()}};
    for (const auto& [part, result] : analysis) out[part_name(part)] = result;
    return out;
}

void run(const Arguments& a) {
    join_group();
    const bool first = group().first();
    AnalysisOptions options = a.analysis;
    const std::string path = resolve_model(a.model);
    if (first) a.report_file.check();
    std::optional<OutputFolder> folder;
    if (first && !a.output.path.empty()) folder.emplace(a.output.path, FolderRules{a.output.overwrite});
    for (const auto& name : a.parts) part_from_name(name);  // fails before the model is read
    const Model model = load_model(path);
    check_finite(model);
    std::optional<Model> original;
    if (!a.original.empty()) {
        options.original_path = resolve_model(a.original);
        options.original = &original.emplace(load_model(options.original_path));
        check_finite(*original);
    }
    options.parts = wanted_parts(a, model);
    const auto text = read_calibration(a, path, model);
    const std::string cache = a.no_cache ? "" : (cache_directory() / "analyze").string();
    const Analysis analysis = stored_analysis(model, path, text ? &*text : nullptr, options, cache);
    if (!first) return;
    const Json json = to_json(analysis, model, text ? &*text : nullptr);
    if (folder) {
        write_csv(analysis, folder->path());
        write_file((fs::path(folder->path()) / "analysis.json").string(), json.dump(1) + "\n");
        folder->commit();
    }
    if (a.report.json) {
        print_json(json, true);
    } else {
        print(summary_text(analysis));
    }
    if (folder && !a.report.quiet) log("wrote {}", a.output.path);
    a.report_file.write({named_model(a.model, path)}, json);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--calib", a->texts,
                   "UTF-8 text whose activations are looked at, or records (.jsonl, .json), each a sequence "
                   "of its own; "
                   "without one only weights are. May be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option("--calib-tokens", a->calibration.tokens,
                   "Tokens of all texts together, from their beginnings")
        ->type_name("N")
        ->check(at_least(2))
        ->capture_default_str();
    app.add_option("--sequence-length", a->calibration.length,
                   "Tokens of a sequence; memory and time of attention maps grow with its square")
        ->type_name("N")
        ->check(at_least(2))
        ->default_str("512");
    app.add_option(
           "--what", a->parts,
           "Any of: weights (cosines of heads and modules), spectra (singular values); with a text also "
           "softmax (cosines of layers' attention maps), heads (of heads' attention maps, and Degree), "
           "modules (cosine of input and output); with an original too sharing (what layers lose whose "
           "attention is "
           "another one's or left out, without and with W_c, and how far it follows the layer's depth)")
        ->type_name("PART,PART,...")
        ->delimiter(',')
        ->default_str("all");
    app.add_option("--original", a->original, "For sharing: the model that MODEL was made of")
        ->type_name("MODEL");
    app.add_option("--degree-ratio", a->analysis.ratio, "Part of all heads that Degree selects")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0))
        ->default_str("0.3");
    app.add_option("--degree-repeats", a->analysis.repeats,
                   "Random samples of the sequences, for the spread of Degree")
        ->type_name("N")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--degree-sample", a->analysis.sample, "Sequences of each such sample [half of all]")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    app.add_option("-o,--output", a->output.path, "Folder for analysis.json and a CSV file per matrix")
        ->type_name("FOLDER");
    app.add_flag("--overwrite", a->output.overwrite,
                 "Replace what an earlier run has written into the folder; other files stay");
    app.add_option("-t,--threads", a->analysis.pass.threads, "Threads for running the model")
        ->type_name("N")
        ->check(CLI::Range(1, 512))
        ->default_str("all cores");
    app.add_flag("--f32", a->analysis.pass.f32, "Compute with float32 weights and activations");
    app.add_flag("--no-cache", a->no_cache, "Neither use nor keep results of earlier runs");
    add_report_options(app, a->report);
    a->report_file.declare(app);
    add_examples(app, {"refold analyze smollm2-135m-instruct",
                       "refold analyze smollm2-135m-instruct --calib wikitext.txt -o analysis",
                       "refold analyze small.gguf --calib wikitext.txt --what softmax,modules --json",
                       "refold analyze shared.gguf --original dense.gguf --calib wikitext.txt --what sharing",
                       "refold analyze bert.gguf --calib questions.jsonl --what heads --degree-sample 100"});
    return [a] { run(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"analyze", VerbGroup::measurement,
                   "Show what in a model resembles what: weights, attention maps, modules", declare};

}  // namespace refold::cli::analyze_verb
