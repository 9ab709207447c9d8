#include <filesystem>

#include "cli/compression.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/quantized.h"
#include "model/save.h"

namespace refold::cli::quantize_verb {
namespace {

struct Arguments {
    std::string model, type, embedding_type, types, rounding = "nearest", imatrix;
    std::vector<std::string> calibration;
    int64_t tokens = 0;
    int threads = 0;
    CalibrationDevice where;

    // Beyond what needs no text: the method `quantize` does it.
    bool by_method() const { return rounding != "nearest" || !types.empty() || !calibration.empty(); }
    // Rows have types by how often their tokens occur.
    bool counts_tokens() const { return types.find(':') != std::string::npos; }
    OutputOptions output;
    ReportOptions report;
};

void quantize_by_method(const Arguments& a) {
    if (a.rounding == "nearest" && !a.calibration.empty() && !a.counts_tokens())
        fail(ErrorCode::usage, "quantize",
             "--calib is for --rounding gptq or imatrix, and for --types with rows");
    if (a.calibration.empty() && a.counts_tokens())
        fail(ErrorCode::usage, "quantize",
             "--types {}: rows are chosen by how often tokens occur in text: give --calib", a.types);
    if (!a.imatrix.empty() && a.rounding != "imatrix")
        fail(ErrorCode::usage, "quantize", "--imatrix is for --rounding imatrix");
    if (a.calibration.empty() && a.rounding != "nearest" && a.imatrix.empty())
        fail(ErrorCode::usage, "quantize", "--rounding {} needs text: give --calib", a.rounding);
    CompressionArguments out;
    out.model = a.model;
    out.method = "quantize";
    out.settings = {"type=" + a.type, "types=" + a.types, "rounding=" + a.rounding, "imatrix=" + a.imatrix};
    if (!a.embedding_type.empty()) out.settings.push_back("embedding=" + a.embedding_type);
    out.calibration = a.calibration;
    out.tokens = a.tokens;
    out.threads = a.threads;
    out.where = a.where;
    out.output = a.output;
    out.report = a.report;
    run_compression(out);
}

void quantize_file(const Arguments& a) {
    if (a.by_method() || !a.imatrix.empty()) return quantize_by_method(a);
    if (a.where.engine == EngineKind::torch || !a.where.device.empty())
        fail(ErrorCode::usage, "quantize",
             "--engine and --device are for --rounding gptq or imatrix: nothing else is computed for a text");
    QuantizeOptions options{quantization_type(a.type), {}, a.threads};
    if (!a.embedding_type.empty()) options.embedding_type = quantization_type(a.embedding_type);
    const std::string path = resolve_model(a.model);
    const Model model = load_model(path);
    check_output(a.output, path);
    const Quantized quantized = quantize_model(model, options);
    std::vector<std::string> fallbacks;
    for (const TypeFallback& fallback : quantized.fallbacks) {
        fallbacks.push_back(fallback.text());
        log("note: {} instead of {}, whose blocks of {} do not divide {} elements", fallback.text(),
            name(fallback.wanted), block_elements(fallback.wanted), fallback.elements);
    }
    save_model(quantized.model, a.output.path, a.output.overwrite);
    const uint64_t before = account(model).model.bytes, after = account(quantized.model).model.bytes;
    if (a.report.json) {
        print_json({{"output", a.output.path},
                    {"type", name(options.type)},
                    {"file_bytes", std::filesystem::file_size(a.output.path)},
                    {"bytes", after},
                    {"bytes_before", before},
                    {"shared", model.has_sharing()},
                    {"fallbacks", fallbacks}});
        return;
    }
    print(fmt::format("{}: weights {} -> {}{}\n", a.output.path, format_bytes(before), format_bytes(after),
                      model.has_sharing() ? ", sharing kept" : ""));
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--type", a->type,
                   "f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, q3_k, q2_k")
        ->type_name("TYPE")
        ->required();
    app.add_option("--embedding-type", a->embedding_type,
                   "Type of embedding and output [q6_k for types below 6 bits, else the same]")
        ->type_name("TYPE");
    app.add_option(
           "--types", a->types,
           "Exceptions: SLOT=TYPE or SLOT@LAYERS=TYPE, separated by spaces. Of embedding and output also "
           "TYPE:ROWS,TYPE:ROWS,TYPE: by how often tokens occur in --calib")
        ->type_name("TYPES");
    app.add_option("--rounding", a->rounding,
                   "nearest; imatrix: scales for an importance matrix; gptq: with feedback for the inputs on "
                   "--calib. As the method quantize (refold methods quantize), which `refold fit` chooses "
                   "types for")
        ->type_name("NAME")
        ->check(CLI::IsMember({"nearest", "imatrix", "gptq"}))
        ->capture_default_str();
    app.add_option("--imatrix", a->imatrix, "Importance matrix (see refold imatrix) [measured on --calib]")
        ->type_name("FILE");
    app.add_option("--calib", a->calibration, "Calibration text (UTF-8); may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option("--calib-tokens", a->tokens, "Calibration tokens of all texts together [32768]")
        ->type_name("N")
        ->check(at_least(2));
    app.add_option("-t,--threads", a->threads, "Threads [all cores]")->type_name("N")->check(at_least(1));
    add_calibration_device(app, a->where);
    add_output(app, a->output, "GGUF file to write")->required();
    add_report_options(app, a->report);
    add_examples(
        app, {"refold quantize small.gguf --type q8_0 -o small-q8_0.gguf",
              "refold quantize ./Llama-3.1-8B --type q4_k -o llama-q4_k.gguf --json",
              "refold quantize smollm2-135m-instruct --type q4_0 --types \"attn.v=q6_k ffn.down@0-3=q5_0\" "
              "--rounding gptq --calib wikitext.txt -o small.gguf"});
    return [a] { quantize_file(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"quantize", VerbGroup::conversion, "Write a model in another element type, sharing kept",
                   declare};

}  // namespace refold::cli::quantize_verb
