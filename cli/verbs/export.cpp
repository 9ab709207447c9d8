#include "model/hf/export.h"

#include <filesystem>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/quantised.h"

namespace refold::cli {
namespace {

struct Arguments {
    std::string model, format = "gguf", type;
    double shard_gb = 5;
    OutputOptions output;
    ReportOptions report;
};

// Bytes written.
uint64_t write_gguf_file(const Arguments& a, const Model& model) {
    save_model(model, a.output.path, a.output.overwrite);
    return std::filesystem::file_size(a.output.path);
}

uint64_t write_stock(const Arguments& a, const Model& model) {
    const StockModel stock = for_stock(model);
    if (!stock.note.empty()) log("note: {}", stock.note);
    return write_gguf_file(a, stock.model);
}

uint64_t write_hf(const Arguments& a, const Model& model) {
    HfExportOptions options{a.output.overwrite, {}, static_cast<uint64_t>(a.shard_gb * 1e9)};
    if (!a.type.empty()) {
        options.type = quantisation_type(a.type);
        if (block_elements(*options.type) != 1)
            fail(ErrorCode::usage, "export", "--type must be f32, f16 or bf16 for --to hf, got {}", a.type);
    }
    return save_hf_model(model, a.output.path, options).bytes;
}

void export_model(const Arguments& a) {
    const std::string path = resolve_model(a.model);
    if (!a.type.empty() && a.format != "hf")
        fail(ErrorCode::usage, "export", "--type is for --to hf; use `refold quantize` for GGUF");
    const Model model = load_model(path);
    if (a.format != "hf") check_output(a.output, path);
    const uint64_t bytes = a.format == "hf"       ? write_hf(a, model)
                           : a.format == "native" ? write_gguf_file(a, model)
                                                  : write_stock(a, model);
    const Accounting accounting = account(model);
    const uint64_t parameters =
        a.format == "native" ? accounting.model.parameters : accounting.dense.parameters;
    if (a.report.json) {
        print_json({{"output", a.output.path},
                    {"format", a.format},
                    {"file_bytes", bytes},
                    {"shared", model.has_sharing()},
                    {"parameters", parameters},
                    {"parameters_before", accounting.model.parameters}});
        return;
    }
    print(fmt::format(
        "{}: {}, {} parameters{}\n", a.output.path, format_bytes(bytes), format_count(parameters),
        model.has_sharing() ? fmt::format(" ({} with sharing)", format_count(accounting.model.parameters))
                            : ", the model shares nothing"));
}

}  // namespace

Action export_verb(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option(
           "--to", a->format,
           "gguf (plain GGUF that stock llama.cpp loads: every position with its own weights), hf (a folder "
           "that transformers loads) or native (one GGUF file for refold, sharing kept)")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"gguf", "hf", "native"}))
        ->capture_default_str();
    app.add_option("--type", a->type,
                   "hf: f32, f16 or bf16 for all tensors [as stored; f32 for what is quantised]")
        ->type_name("TYPE");
    app.add_option("--shard-gb", a->shard_gb, "hf: size above which the tensors are split, in 10^9 bytes")
        ->type_name("GB")
        ->check(at_least(1e-6))
        ->capture_default_str();
    add_output(app, a->output, "File, or folder for hf, to write")->required();
    add_report_options(app, a->report);
    add_examples(app, {"refold export small.gguf --to gguf -o dense.gguf",
                       "refold export small.gguf --to hf -o small-hf",
                       "refold export ./Llama-3.1-8B --to native -o llama.gguf --json"});
    return [a] { export_model(*a); };
}

}  // namespace refold::cli
