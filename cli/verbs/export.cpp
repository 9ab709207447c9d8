#include "model/hf/export.h"

#include <filesystem>
#include <optional>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_file.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "core/written_files.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/export/lora.h"
#include "model/export/nanbeige.h"
#include "model/load.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/stock.h"
#include "report/model_card.h"

namespace refold::cli::export_verb {
namespace {

struct Arguments {
    std::string model, format = "gguf", type;
    std::vector<std::string> results;
    double shard_gb = 5;
    bool base = false, expand = false;
    OutputOptions output;
    ReportOptions report;
};

bool is_folder(const Arguments& a) { return a.format == "hf" || a.format == "peft"; }
bool is_adapter(const Arguments& a) { return a.format == "peft" || a.format == "lora-gguf"; }

struct Written {
    uint64_t bytes = 0, parameters = 0;
    int64_t loops = 1;  // executed by the written file's own architecture; 1: every layer is written out
};

uint64_t write_gguf_file(const Arguments& a, const Model& model) {
    save_model(model, a.output.path, a.output.overwrite);
    return std::filesystem::file_size(a.output.path);
}

// Where a model goes onto its own folder again, README.md is the card of the time before.
std::filesystem::path source_readme(const std::string& folder, const std::filesystem::path& output) {
    std::error_code none;
    const bool again =
        std::filesystem::equivalent(folder, output, none) && WrittenFiles(folder).contains(kReadme);
    return std::filesystem::path(folder) / (again ? kSourceReadme : kReadme);
}

// The files README.md (refold's model card) and README.source.md (the source's, if it has one), by name.
std::map<std::string, std::string> readmes(const Arguments& a, const Model& model) {
    namespace fs = std::filesystem;
    fs::path output(a.output.path);
    if (!output.has_filename()) output = output.parent_path();
    ModelCardOptions card{.name = output.filename().string(), .version = REFOLD_VERSION};
    std::map<std::string, std::string> out;
    if (const fs::path own = source_readme(model.label, output); fs::is_regular_file(own)) {
        const MappedFile file(own.string());  // its encoding is unknown
        card.source_readme.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
        out[kSourceReadme] = card.source_readme;
        log("note: {} is refold's model card, the source's is kept as {}", kReadme, kSourceReadme);
    }
    Comparison comparison;
    if (!a.results.empty()) {
        Runs runs{{named_model(a.model, model.label)}, {}, {}};
        for (const auto& result : a.results) runs.results.push_back(read_run(result));
        comparison = collect(runs, {.reconstruction = false});
        card.comparison = &comparison;
    }
    out[kReadme] = model_card(model, card);
    return out;
}

uint64_t write_hf(const Arguments& a, const Model& model) {
    HfExportOptions options{
        a.output.overwrite, {}, static_cast<uint64_t>(a.shard_gb * 1e9), readmes(a, model)};
    if (!a.type.empty()) {
        options.type = quantization_type(a.type);
        if (block_elements(*options.type) != 1)
            fail(ErrorCode::usage, "export", "--type must be f32, f16 or bf16 for --to hf, got {}", a.type);
    }
    return save_hf_model(model, a.output.path, options).bytes;
}

// The model in llama.cpp's looped architecture, if that can express it.
std::optional<LoopedStock> looped(const Arguments& a, const Model& model) {
    if (a.format != "gguf" || a.expand || a.base) return std::nullopt;
    LoopedStock found = looped_stock(model);
    if (!found.reason.empty()) log("note: every layer is written out: {}", found.reason);
    return found.stock ? std::optional(std::move(found)) : std::nullopt;
}

Written write(const Arguments& a, const Model& model) {
    if (is_adapter(a)) {
        const AdapterExport adapter = a.format == "peft"
                                          ? save_peft(model, a.output.path, a.output.overwrite)
                                          : save_lora_gguf(model, a.output.path, a.output.overwrite);
        const bool file = a.format == "lora-gguf";
        return {file ? std::filesystem::file_size(a.output.path) : adapter.bytes, adapter.parameters};
    }
    const Accounting accounting = account(model);
    if (a.format == "hf") return {write_hf(a, model), accounting.dense.parameters};
    if (a.format == "native") return {write_gguf_file(a, model), accounting.model.parameters};
    const std::optional<LoopedStock> loop = looped(a, model);
    const StockModel stock = loop ? *loop->stock : for_stock(model);
    if (!stock.note.empty()) log("note: {}", stock.note);
    const uint64_t bytes = write_gguf_file(a, stock.model);
    return {bytes, loop ? account(stock.model).model.parameters : accounting.dense.parameters,
            loop ? loop->loops : 1};
}

void check(const Arguments& a) {
    if (!a.type.empty() && a.format != "hf")
        fail(ErrorCode::usage, "export", "--type is for --to hf; use `refold quantize` for GGUF");
    if (a.base && is_adapter(a))
        fail(ErrorCode::usage, "export",
             "--base is for --to gguf, hf and native: an adapter has no base in it");
    if (!a.results.empty() && a.format != "hf")
        fail(ErrorCode::usage, "export", "--results is for --to hf: figures for its model card");
    if (a.expand && a.format != "gguf") fail(ErrorCode::usage, "export", "--expand is for --to gguf");
}

void export_model(const Arguments& a) {
    const std::string path = resolve_model(a.model);
    check(a);
    const Model loaded = load_model(path);
    const Model model = a.base ? without_lora(loaded) : loaded;
    if (!is_folder(a)) check_output(a.output, path);
    const Written written = write(a, model);
    const uint64_t before = account(loaded).model.parameters;
    if (a.report.json) {
        print_json({{"output", a.output.path},
                    {"format", a.format},
                    {"file_bytes", written.bytes},
                    {"shared", loaded.has_sharing()},
                    {"loops", written.loops},
                    {"parameters", written.parameters},
                    {"parameters_before", before}});
        return;
    }
    const std::string kind = is_adapter(a)       ? "adapter"
                             : written.loops > 1 ? fmt::format("{} rounds, nothing expanded", written.loops)
                             : loaded.has_sharing() ? fmt::format("{} with sharing", format_count(before))
                                                    : "the model shares nothing";
    print(fmt::format("{}: {}, {} parameters ({})\n", a.output.path, format_bytes(written.bytes),
                      format_count(written.parameters), kind));
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option(
           "--to", a->format,
           "gguf (plain GGUF that stock llama.cpp loads: every layer with its own weights, or a Llama's "
           "looped block as architecture nanbeige), hf (a folder that transformers loads), native (one GGUF "
           "file for refold, sharing kept); the layers' LoRA alone: peft (a folder for PEFT) or lora-gguf "
           "(llama.cpp's adapter)")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"gguf", "hf", "native", "peft", "lora-gguf"}))
        ->capture_default_str();
    app.add_option("--type", a->type,
                   "hf: f32, f16 or bf16 for all tensors [as stored; f32 for what is quantized]")
        ->type_name("TYPE");
    app.add_option("--shard-gb", a->shard_gb, "hf: size above which the tensors are split, in 10^9 bytes")
        ->type_name("GB")
        ->check(at_least(1e-6))
        ->capture_default_str();
    app.add_option("--results", a->results,
                   "hf: results of eval and bench (--json) for the table of the model card, README.md")
        ->type_name("FILE,...")
        ->delimiter(',');
    app.add_flag("--base", a->base,
                 "Leave the layers' LoRA out instead of merging it: what adapters are for");
    app.add_flag("--expand", a->expand, "gguf: write every layer out, also where llama.cpp could loop");
    add_output(app, a->output, "File, or folder for hf and peft, to write")->required();
    app.get_option("--overwrite")
        ->description(
            "Replace the file if it exists; in a folder the files of an earlier export, or the model if "
            "it is MODEL's own folder. Other files in a folder stay");
    add_report_options(app, a->report);
    add_examples(app, {"refold export small.gguf --to gguf -o dense.gguf",
                       "refold export small.gguf --to hf -o small-hf",
                       "refold export relaxed.gguf --to gguf --base -o base.gguf",
                       "refold export relaxed.gguf --to lora-gguf -o adapter.gguf",
                       "refold export ./Llama-3.1-8B --to native -o llama.gguf --json"});
    return [a] { export_model(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"export", VerbGroup::conversion,
                   "Write a model for transformers or llama.cpp, or as one native file", declare};

}  // namespace refold::cli::export_verb
