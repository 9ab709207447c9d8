#include "cli/fit_input.h"

#include <algorithm>

#include "cli/output.h"
#include "core/error.h"
#include "core/text.h"
#include "fit/plan_file.h"
#include "hub/resolve.h"
#include "model/finite.h"
#include "model/load.h"
#include "model/stock.h"

namespace refold::cli {
namespace {

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

void check_options(const FitArguments& a) {
    const Moves moves = moves_of(a);
    if (a.target == "llama.cpp" && !a.kv_per_token.empty())
        fail(
            ErrorCode::usage, "fit",
            "--kv-per-token and --for llama.cpp: stock llama.cpp keeps keys and values of all layers alike - "
            "leave out one of them");
    if (a.target == "llama.cpp" && !moves.methods.empty())
        fail(ErrorCode::usage, "fit",
             "--moves {} and --for llama.cpp: only types keep a model one that stock llama.cpp loads - leave "
             "out "
             "one of them, and export the result (refold export --to gguf)",
             moves.methods.front());
    if (a.frontier.empty()) return;
    if (!moves.types)
        fail(ErrorCode::usage, "fit", "--moves without types and --frontier: give one size, or add types");
    if (a.decode_speed > 0)
        fail(ErrorCode::usage, "fit",
             "--decode-speed and --frontier: the speed goes with one size, such as --size");
}

}  // namespace

FitInput load_fit_input(const FitArguments& a) {
    check_options(a);
    FitInput out;
    out.path = resolve_model(a.model);
    out.model = load_model(out.path);
    check_finite(out.model, a.threads);
    const bool stock = a.target == "llama.cpp";
    if (stock) check_stock(out.model);
    if (out.model.source)
        for (const auto& file : out.model.source->files()) out.file_bytes += file->bytes().size();
    out.options = {a.probe_tokens, stock ? RowLayout::whole_blocks : RowLayout::or_folded, a.threads,
                   a.calibration, REFOLD_VERSION};
    return out;
}

Moves moves_of(const FitArguments& a) {
    if (a.moves.empty())
        return {true, a.kv_per_token.empty()
                          ? std::vector<std::string>()
                          : std::vector<std::string>(kCacheMethods.begin(), kCacheMethods.end())};
    Moves out{false, {}};
    for (const std::string& move : a.moves)
        if (move == "types")
            out.types = true;
        else if (std::ranges::find(out.methods, move) == out.methods.end())
            out.methods.push_back(move);
    return out;
}

Budget budget_of(const FitArguments& a, const FitInput& input, uint64_t bytes) {
    Budget out{.file_bytes = bytes};
    if (!a.kv_per_token.empty()) out.kv_bytes_per_token = parse_size(a.kv_per_token, "--kv-per-token").bytes;
    if (a.decode_speed > 0 && input.options.speeds)
        out.token_seconds = token_seconds(input.model, *input.options.speeds) / a.decode_speed;
    return out;
}

std::vector<RecipeStep> best_structure(const FitArguments& a, Search& search) {
    const std::vector<Way>& ways = search.ways();
    if (!a.report.quiet && !moves_of(a).methods.empty()) {
        for (const Way& way : ways)
            log("{}: divergence {:.3g} nats{}", way.text(), way.divergence(),
                way.of_types ? way.structure ? " (measured, and types predicted)" : " (predicted)" : "");
    }
    const Way& best = ways.front();
    return best.structure ? best.structure->steps() : std::vector<RecipeStep>();
}

void check_budgets(const FitArguments& a, const FitInput& input, const std::vector<uint64_t>& bytes) {
    for (const uint64_t size : bytes) {
        if (size >= input.file_bytes)
            fail(
                ErrorCode::usage, "fit",
                "the budget of {} is no smaller than {} ({}) - give a smaller one, or use the model as it is",
                format_bytes(size), a.model, format_bytes(input.file_bytes));
    }
    const Moves moves = moves_of(a);
    // All sizes that are too small at once.
    if (moves.methods.empty() && a.kv_per_token.empty())
        return check_sizes(input.model, input.options.layout, bytes);
    for (const uint64_t size : bytes)
        check_reachable(input.model, input.options.layout, moves, budget_of(a, input, size));
}

nlohmann::ordered_json plan_json(const FitPlan& plan) {
    return {{"predicted_bytes", plan.bytes},
            {"predicted_divergence", plan.divergence()},
            {"predicted_divergence_of_matrices", plan.of_matrices},
            {"predicted_divergence_of_tables", plan.of_tables},
            {"predicted_divergence_of_structure", plan.of_structure},
            {"types", plan.types}};
}

std::string plan_line(const FitPlan& plan) {
    return fmt::format("{}: predicted divergence {:.3g} nats\n{}", format_bytes(plan.bytes),
                       plan.divergence(), plan.types.empty() ? "" : fmt::format("types: {}\n", plan.types));
}

}  // namespace refold::cli
