// Weights in quantized types, rounded for the inputs that they have.
#include <nlohmann/json.hpp>

#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/quantization/importance_matrix.h"
#include "compress/quantization/layer_rounding.h"
#include "compress/quantization/measure_importance.h"
#include "compress/quantization/row_types.h"
#include "compress/quantization/type_choice.h"
#include "core/error.h"
#include "model/quantized.h"
#include "model/row_parts.h"

namespace refold::quantize_method {
namespace {

using nlohmann::json;

Model with_ranks_for(const Model& model, const Options& options) {
    const std::string& type = options.text("type");
    return type == "keep" ? model : with_whole_ranks(model, quantization_type(type));
}

ImportanceMatrix importance_of(const Model& model, const Step& step) {
    if (step.options.text("rounding") != "imatrix") return {};
    const std::string& file = step.options.text("imatrix");
    ImportanceMatrix out = file.empty() ? measure_importance(model, *step.calibration, step.threads)
                                        : load_importance_matrix(file);
    for (const auto& [slot, expression] : model.topology.globals) {
        const auto* rows = std::get_if<RowParts>(&expression);
        const auto table = rows == nullptr ? out.tensors.end() : out.tensors.find(table_of(*rows));
        if (table == out.tensors.end()) continue;
        for (const std::string& part : rows->parts) out.tensors[part] = table->second;
        out.tensors.erase(table);
    }
    check_importance_matrix(out, model);
    return out;
}

Tensor nearest(const Model& model, const std::string& tensor, DType type,
               const ImportanceMatrix& importance) {
    const auto found = importance.tensors.find(tensor);
    NearestOptions options;
    if (found != importance.tensors.end()) options.importance = found->second.mean_squares;
    if (needs_importance(type) && options.importance.empty())
        fail(ErrorCode::usage, "quantize",
             "{}: {} cannot be rounded to nearest without an importance matrix - choose another type for it, "
             "or another rounding",
             tensor, name(type));
    return nearest_tensor(model, tensor, type, options);
}

void report(const TypeChoice& choice, const std::vector<LayerRounding::SolvedMap>& solved, Step& step,
            json& details) {
    std::map<std::string, size_t> counts;
    for (const auto& [tensor, type] : choice.types) {
        ++counts[name(type)];
        details["types"][tensor] = name(type);
    }
    std::vector<std::string> parts;
    for (const auto& [type, count] : counts) parts.push_back(fmt::format("{} x {}", count, type));
    auto& lines = step.report.lines;
    lines.push_back(fmt::format("matrices: {}", fmt::join(parts, ", ")));
    double before = 0, after = 0;
    details["solved"] = json::array();
    for (const auto& map : solved) {
        before += map.error_before;
        after += map.error_after;
        details["solved"].push_back({{"layer", map.layer},
                                     {"slot", slot_name(map.slot)},
                                     {"free", map.free},
                                     {"ridge", map.ridge},
                                     {"error_before", map.error_before},
                                     {"error_after", map.error_after}});
    }
    if (!solved.empty())
        lines.push_back(
            fmt::format("{} output maps solved and rounded; error on held-out text {:.3g} -> {:.3g}",
                        solved.size(), before, after));
    if (!choice.fallbacks.empty())
        lines.push_back(fmt::format("rows that are no whole blocks: {}", fmt::join(choice.fallbacks, ", ")));
    details["fallbacks"] = choice.fallbacks;
}

Model apply(const Model& given, Step& step) {
    const Options& options = step.options;
    const WantedTypes wanted{options.text("type"), options.text("embedding"), options.text("types")};
    const Model model = with_rows_cut(with_ranks_for(given, options), wanted, step.calibration);
    const TypeChoice choice = choose_types(model, wanted);
    LayerRounding rounding(model, choice, step,
                           {.resolve = options.text("resolve") == "auto",
                            .bias = options.text("bias") == "auto",
                            .ridge = parse_ridge(options.text("ridge"), "quantize")});
    if (options.text("rounding") == "gptq") step.dry_run() ? rounding.plan() : rounding.run();
    Model out = rounding.model();
    const ImportanceMatrix importance = step.dry_run() ? ImportanceMatrix() : importance_of(model, step);
    for (const auto& [tensor, type] : choice.types) {
        if (rounding.is_done(tensor)) continue;
        out.tensors[tensor] = step.dry_run() ? lazy::constant(type, model.tensor(tensor).shape, 0)
                                             : nearest(model, tensor, type, importance);
    }
    out.drop_unreferenced();
    json details = json::object();
    report(choice, rounding.solved(), step, details);
    report_requantized(rounding.requantized(), "", step.report, details);
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Writes matrices in quantized types. `type` is that of all matrices, `embedding` that of embedding and output, and `types` has
exceptions by slot and layer: `types: "ffn.down=q4_k attn.v@0-3,29=q5_0"`. `keep` leaves the types as they are. Rows that are no
whole blocks of a type are folded: several of them share whole blocks (docs/format.md, `refold.folded`), which only refold loads. Where a
matrix cannot be folded, because layers use parts of it or its rows do not divide evenly, it gets the next larger type that fits; the report
lists these. `token_embd=q8_0:4096,q5_k:16384,q3_k` gives rows of embedding or output types of their own: the 4096 tokens that
occur most often in the calibration texts (whole texts count, whatever `--calib-tokens` is) q8_0, the next 16384 q5_k, all others q3_k
(docs/format.md, `rows`); only refold loads it. No step can follow that changes folded matrices or such tables, so this one comes last, or before `correct`, which adds terms to them.

`rounding` says how. `nearest` needs no text. `imatrix` searches scales with the mean squares of the inputs, as llama.cpp does: from one
of its files (`imatrix=FILE`), or measured on the calibration text. `gptq` looks at the inputs that the matrices have on the calibration text, and rounds
layer after layer in the model that is quantized so far:

- **With feedback.** The columns of a matrix are rounded one after the other, and each makes up for the errors of those before, as far
  as their inputs are correlated (GPTQ, Frantar et al. 2023), with the whole Gram matrix of the inputs. A block's scales are chosen by
  llama.cpp's weighted search when its first column is reached. IQ1, IQ2 and IQ3 types, whose codes stand for several numbers at once,
  are corrected from block to block.
- **Solved before rounding** (`resolve=auto`). The maps that end attention and FFN are first solved anew, as `refit` does, so that the
  residual stream is the original's: they make up for the errors of everything before them. Only then are they rounded.
- **For all uses.** A tensor that several layers use is rounded once, where it is used first, for the sum of the Gram matrices of all its
  uses. Those of later uses are measured before anything is quantized.
- **Embedding and output** are rounded for the inputs of the head; as a table, every row for its own error.
)";

}  // namespace

extern const Method method;
const Method method = {
    "quantize",
    "weights in quantized types, rounded for the inputs that they have",
    "GPTQ (Frantar et al. 2023) with output maps solved first; refold",
    kDocumentation + 1,
    {
        {.name = "type", .fallback = "q4_0", .help = "type of matrices, or keep"},
        {.name = "embedding",
         .fallback = "auto",
         .help = "type of embedding and output, keep, or auto: q6_k for types below 6 bits, else the same"},
        {.name = "types",
         .fallback = "",
         .help =
             "exceptions: SLOT=TYPE or SLOT@LAYERS=TYPE, separated by spaces; of embedding and output also "
             "TYPE:ROWS,TYPE, by how often tokens occur"},
        {.name = "rounding",
         .kind = OptionSpec::Kind::choice,
         .fallback = "gptq",
         .help = "with feedback for the inputs on the calibration text; to nearest, with scales for an "
                 "importance matrix; to nearest",
         .choices = {"gptq", "imatrix", "nearest"}},
        {.name = "imatrix",
         .fallback = "",
         .help = "file of llama.cpp's form, for rounding=imatrix (refold imatrix writes them); empty: "
                 "measured on the calibration text"},
        {.name = "resolve",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "solve the maps that end attention and FFN anew before they are rounded (gptq)",
         .choices = {"auto", "no"}},
        ridge_option("of these maps; auto: by held-out text; or a number, such as 0.01"),
        bias_option(),
    },
    apply,
    [](const Options& options) {
        const std::string& rounding = options.text("rounding");
        const bool counts_tokens = options.text("types").find(':') != std::string::npos;
        return rounding == "gptq" || (rounding == "imatrix" && options.text("imatrix").empty()) ||
               counts_tokens;
    },
};

}  // namespace refold::quantize_method
