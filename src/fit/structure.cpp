#include "fit/structure.h"

#include <algorithm>

#include "compress/method/lazy.h"
#include "core/error.h"
#include "core/text.h"
#include "fit/sensitivity.h"

namespace refold {
namespace {

constexpr Computation kDivergence{"divergence of a structure", 1};

std::vector<RecipeStep> steps_of(const std::string& method, const std::vector<std::string>& settings,
                                 bool repair) {
    std::vector<RecipeStep> out = recipe_from_method(method, settings).steps;
    if (repair) out.push_back(recipe_from_method("refit", {}).steps.front());
    return out;
}

bool reaches(const Model& model, const std::vector<RecipeStep>& steps, uint64_t kv_bytes_per_token) {
    return plan(model, recipe_of_steps(steps)).after().kv_bytes_per_token <= kv_bytes_per_token;
}

// KV groups left out wherever that costs least. Which layers lose how many is known only after measuring, but
// not how many there are.
std::vector<RecipeStep> narrowed(const Model& model, uint64_t kv_bytes_per_token) {
    int64_t groups = 0;
    for (size_t p = 0; p < model.topology.layers.size(); ++p)
        groups += model.topology.has(p, Slot::attn_k) ? model.config.n_head_kv_of(p) : 0;
    const uint64_t now = account(model).model.kv_bytes_per_token;
    const auto kept = static_cast<int64_t>(static_cast<uint64_t>(groups) * kv_bytes_per_token / now);
    if (kept <= 0) return {};
    // A little below the part that goes: narrow keeps at most what is left, whole groups.
    const double goes = 1 - (static_cast<double>(kept) + 0.01) / static_cast<double>(groups);
    return steps_of("narrow", {"ratio=0", "allocation=global", fmt::format("attention={:.6f}", goes)}, false);
}

// The first of the settings, from mild to severe, that reaches the budget.
std::vector<RecipeStep> searched(const Model& model, uint64_t kv_bytes_per_token, const std::string& method) {
    const size_t layers = model.topology.layers.size();
    if (method == "llmdrop") {
        for (size_t count = 1; count < layers; ++count) {
            auto steps = steps_of(method, {fmt::format("count={}", count)}, true);
            if (reaches(model, steps, kv_bytes_per_token)) return steps;
        }
        return {};
    }
    for (const size_t size : {2, 3, 4, 6, 8}) {
        for (size_t count = 1; count <= layers / size; ++count) {
            auto steps =
                steps_of(method, {fmt::format("size={}", size), fmt::format("count={}", count)}, true);
            if (reaches(model, steps, kv_bytes_per_token)) return steps;
        }
    }
    return {};
}

}  // namespace

Recipe recipe_of_steps(const std::vector<RecipeStep>& steps) {
    Recipe out;
    out.steps = steps;
    return out;
}

std::vector<Structure> cache_structures(const Model& model, uint64_t kv_bytes_per_token,
                                        std::span<const std::string> methods) {
    const uint64_t now = account(model).model.kv_bytes_per_token;
    if (now <= kv_bytes_per_token)
        fail(
            ErrorCode::usage, "fit",
            "{} keeps {} per token already, which is no more than {} - ask for less, or leave out the budget",
            model.label, format_bytes(now), format_bytes(kv_bytes_per_token));
    std::vector<Structure> out;
    std::string reason;
    for (const std::string& method : methods) {
        try {
            auto steps = method == "narrow" ? narrowed(model, kv_bytes_per_token)
                                            : searched(model, kv_bytes_per_token, method);
            if (!steps.empty()) out.push_back({method, std::move(steps)});
        } catch (const Error& error) {  // a method that this model's architecture or sharing rules out
            if (error.code() != ErrorCode::unsupported) throw;
            reason = fmt::format(" ({})", error.what());
        }
    }
    if (out.empty())
        fail(ErrorCode::usage, "fit", "{}: none of {} brings the KV cache from {} per token to {}{}",
             model.label, join(std::vector<std::string>(methods.begin(), methods.end()), ", "),
             format_bytes(now), format_bytes(kv_bytes_per_token), reason);
    return out;
}

std::vector<MeasuredStructure> measured_structures(const Model& model,
                                                   const std::vector<Structure>& structures,
                                                   const std::string& version, Work& work,
                                                   const StepInputs& inputs) {
    std::vector<MeasuredStructure> out;
    for (const Structure& structure : structures) {
        const Recipe recipe = recipe_of_steps(structure.steps);
        const ResultKey key{
            kDivergence, {{"model", identity_of(model, *inputs.calibration)}, {"recipe", to_yaml(recipe)}}};
        const auto found = work.results_of_all(key, [&] {
            const Compression changed = compress(model, recipe, version, work, inputs);
            const double loss =
                divergence(model, changed.model, inputs.calibration->held_out, inputs.threads);
            return Arrays{{"divergence", {{1}, {static_cast<float>(loss)}}}};
        });
        out.push_back({structure, lazy::numbers(found.at("divergence"))[0]});
    }
    std::ranges::stable_sort(out, {}, &MeasuredStructure::divergence);
    return out;
}

}  // namespace refold
