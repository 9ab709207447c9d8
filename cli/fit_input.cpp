#include "cli/fit_input.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "cli/output.h"
#include "core/error.h"
#include "core/text.h"
#include "fit/plan_file.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "model/stock.h"

namespace refold::cli {
namespace {

const std::map<std::string, double> kUnits = {{"", 1},     {"B", 1},        {"KB", 1e3},     {"MB", 1e6},
                                              {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};

// Only types may differ between the model's file and one that stock llama.cpp loads.
void check_stock(const Model& model) {
    if (!is_stock(model))
        fail(
            ErrorCode::unsupported, "fit",
            "{} is not a model that llama.cpp loads as it stands - write one first (refold export --to gguf) "
            "and fit that, or leave out --for",
            model.label);
    if (const std::string note = for_stock(model).note; !note.empty()) log("note: {}", note);
}

std::vector<Structure> structures_of(const FitArguments& a, const Model& model) {
    const uint64_t bytes = parse_size(a.kv_per_token, "--kv-per-token").bytes;
    const std::vector<std::string> all(kCacheMethods.begin(), kCacheMethods.end());
    return cache_structures(model, bytes, a.moves.empty() ? all : a.moves);
}

}  // namespace

FitInput load_fit_input(const FitArguments& a) {
    FitInput out;
    out.path = resolve_model(a.model);
    out.model = load_model(out.path);
    const bool stock = a.target == "llama.cpp";
    if (stock) check_stock(out.model);
    if (out.model.source)
        for (const auto& file : out.model.source->files()) out.file_bytes += file->bytes().size();
    out.options = {a.probe_tokens, stock ? RowLayout::whole_blocks : RowLayout::or_folded, a.threads,
                   a.calibration, REFOLD_VERSION};
    if (a.kv_per_token.empty() && !a.moves.empty())
        fail(ErrorCode::usage, "fit", "--moves chooses how --kv-per-token is reached: give that, too");
    if (a.kv_per_token.empty()) return out;
    if (stock)
        fail(
            ErrorCode::usage, "fit",
            "--kv-per-token and --for llama.cpp: stock llama.cpp keeps keys and values of all layers alike - "
            "leave out one of them");
    // Before anything is measured.
    structures_of(a, out.model);
    return out;
}

std::vector<RecipeStep> fit_structure(const FitArguments& a, const FitInput& input,
                                      const Calibration& calibration, Work& work) {
    if (a.kv_per_token.empty()) return {};
    const auto measured = measured_structures(input.model, structures_of(a, input.model), REFOLD_VERSION,
                                              work, {.calibration = &calibration, .threads = a.threads});
    for (const MeasuredStructure& m : measured) {
        if (!a.report.quiet)
            log("KV cache by {}: divergence {:.3g} nats on held-out text", m.structure.method, m.divergence);
    }
    return measured.front().structure.steps;
}

NamedSize parse_size(const std::string& text, const char* option) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const auto unit = kUnits.find(end);
    if (end == text.c_str() || unit == kUnits.end() || !std::isfinite(number) || number <= 0 ||
        number * unit->second > 0x1p60)
        fail(ErrorCode::usage, "fit", "{} {}: expected a size such as 70MiB or 1.5GB", option, text);
    return {text, static_cast<uint64_t>(number * unit->second)};
}

std::vector<NamedSize> parse_sizes(const std::string& text, const char* option) {
    std::vector<std::string> words;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) words.push_back(word);
    std::vector<NamedSize> out;
    std::string unit;
    for (auto word = words.rbegin(); word != words.rend(); ++word) {
        const size_t digits = std::min(word->find_first_not_of("0123456789."), word->size());
        if (digits < word->size()) unit = word->substr(digits);
        out.push_back(parse_size(word->substr(0, digits) + unit, option));
    }
    if (out.empty()) parse_size(text, option);
    std::ranges::sort(out, {}, &NamedSize::bytes);
    const auto twice = std::ranges::adjacent_find(out, {}, &NamedSize::bytes);
    if (twice != out.end()) fail(ErrorCode::usage, "fit", "{}: {} is given twice", option, twice->name);
    return out;
}

void check_budgets(const FitArguments& a, const FitInput& input, const std::vector<uint64_t>& bytes) {
    for (const uint64_t size : bytes) {
        if (size >= input.file_bytes)
            fail(
                ErrorCode::usage, "fit",
                "the budget of {} is no smaller than {} ({}) - give a smaller one, or use the model as it is",
                format_bytes(size), a.model, format_bytes(input.file_bytes));
    }
    check_sizes(input.model, input.options.layout, bytes);
}

nlohmann::ordered_json plan_json(const FitPlan& plan) {
    return {{"predicted_bytes", plan.bytes},
            {"predicted_divergence", plan.divergence()},
            {"predicted_divergence_of_matrices", plan.of_matrices},
            {"predicted_divergence_of_tables", plan.of_tables},
            {"types", plan.types}};
}

std::string plan_line(const FitPlan& plan) {
    return fmt::format("{}: predicted divergence {:.3g} nats\ntypes: {}\n", format_bytes(plan.bytes),
                       plan.divergence(), plan.types);
}

}  // namespace refold::cli
