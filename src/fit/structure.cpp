#include "fit/structure.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compress/method/lazy.h"
#include "core/error.h"
#include "core/progress_observer.h"
#include "core/text.h"
#include "fit/sensitivity.h"

namespace refold {
namespace {

constexpr Computation kDivergence{"divergence of a structure", 2};

// Numbers of bytes have more digits than a float.
constexpr uint64_t kUnit = uint64_t{1} << 20;
Array exact(const Spending& spending) {
    const auto high = [](uint64_t bytes) {
        const uint64_t units = bytes / kUnit;
        return static_cast<float>(units);
    };
    const auto low = [](uint64_t bytes) { return static_cast<float>(bytes % kUnit); };
    return {{5},
            {high(spending.file_bytes), low(spending.file_bytes), high(spending.kv_bytes_per_token),
             low(spending.kv_bytes_per_token), static_cast<float>(spending.token_seconds)}};
}

Spending spending_in(const Tensor& kept) {
    const auto parts = lazy::numbers(kept);
    const auto bytes = [&](size_t at) {
        return static_cast<uint64_t>(parts[at]) * kUnit + static_cast<uint64_t>(parts[at + 1]);
    };
    return {bytes(0), bytes(2), parts[4]};
}

std::string text_of(const TypeSpeeds& speeds) {
    std::string out = fmt::format("{}", speeds.per_attention_flop);
    for (const auto& [kind, seconds] : speeds.per_weight)
        out += fmt::format(" {}{} {}", name(kind.type), kind.folded ? " folded" : "", seconds);
    return out;
}

// The least of each part of a budget that some settings reach.
struct Least {
    Spending spending;
    std::string file, cache, time;  // with which settings

    explicit Least(const Spending& now) : spending(now) {}
    void add(const Spending& other, const std::string& text) {
        const auto keep = [&](auto& least, auto value, std::string& by) {
            if (value >= least) return;
            least = value;
            by = text;
        };
        keep(spending.file_bytes, other.file_bytes, file);
        keep(spending.kv_bytes_per_token, other.kv_bytes_per_token, cache);
        keep(spending.token_seconds, other.token_seconds, time);
    }
    std::string against(const Budget& budget, double now) const {
        std::vector<std::string> out;
        const auto by = [](const std::string& text) {
            return text.empty() ? "" : fmt::format(" ({})", text);
        };
        if (budget.file_bytes)
            out.push_back(fmt::format("the smallest file they reach has {}{}",
                                      format_bytes(spending.file_bytes), by(file)));
        if (budget.kv_bytes_per_token)
            out.push_back(fmt::format("the smallest KV cache {} per token{}",
                                      format_bytes(spending.kv_bytes_per_token), by(cache)));
        if (budget.token_seconds)
            out.push_back(fmt::format("the largest speed {:.2f} times the model's{}",
                                      now / spending.token_seconds, by(time)));
        return join(out, ", ");
    }
};

std::string text_of(const Budget& budget, double now) {
    std::vector<std::string> out;
    if (budget.file_bytes) out.push_back(fmt::format("a file of {}", format_bytes(*budget.file_bytes)));
    if (budget.kv_bytes_per_token)
        out.push_back(fmt::format("a KV cache of {} per token", format_bytes(*budget.kv_bytes_per_token)));
    if (budget.token_seconds)
        out.push_back(fmt::format("{:.2f} times the speed", now / *budget.token_seconds));
    return join(out, " and ");
}

// Of the result of a dry run, which shows no progress.
Spending spending_after(const Model& model, const std::vector<RecipeStep>& steps, const TypeSpeeds* speeds) {
    std::optional<ProgressObserver> silent;
    if (ProgressObserver::current() == nullptr) silent.emplace([](const ProgressUpdate&) { return true; });
    return spending_of(plan(model, recipe_of_steps(steps)).model, speeds);
}

// A part of the way from one to the other, rounded up.
Spending between(const Spending& from, const Spending& to, double part) {
    const auto bytes = [&](uint64_t a, uint64_t b) {
        return static_cast<uint64_t>(std::ceil(
            static_cast<double>(a) + part * (static_cast<double>(b) - static_cast<double>(a)) - 1e-6));
    };
    return {bytes(from.file_bytes, to.file_bytes), bytes(from.kv_bytes_per_token, to.kv_bytes_per_token),
            from.token_seconds + part * (to.token_seconds - from.token_seconds)};
}

// How many of the severities the method takes, and what the last one of them spends: no method leaves a rank
// of 0, or more channels out than there are.
std::pair<size_t, Spending> possible(const Model& model, const Settings& settings, const TypeSpeeds* speeds) {
    for (size_t count = settings.varied.size();; --count) {
        try {
            spending_after(model, settings.steps(count - 1), nullptr);
            return {count, planned(model, {settings, count - 1}, speeds)};
        } catch (const Error& error) {
            if (error.code() != ErrorCode::usage || count == 1) throw;
        }
    }
}

// The mildest severity within the budget; nothing when the most severe one is not.
std::optional<Structure> mildest(const Model& model, const Budget& budget, Settings settings,
                                 const TypeSpeeds* speeds, Least& least) {
    // Which heads or layers a method takes changes no size, so that weights need not be read for that.
    Model shapes = model;
    shapes.shapes_only = true;
    const auto [count, most] = possible(shapes, settings, speeds);
    settings.varied.resize(count);
    least.add(most, settings.text(count - 1));
    if (!within(most, budget)) return std::nullopt;
    std::vector<size_t> severities(count);
    std::iota(severities.begin(), severities.end(), size_t{0});
    const auto found = std::ranges::partition_point(severities, [&](size_t severity) {
        return !within(planned(shapes, {settings, severity}, speeds), budget);
    });
    // The description of what is shared is a little longer, or shorter, when it is known.
    for (size_t severity = *found; severity < count; ++severity) {
        if (within(planned(model, {settings, severity}, speeds), budget))
            return Structure{settings, severity};
    }
    return std::nullopt;
}

}  // namespace

Spending planned(const Model& model, const Structure& structure, const TypeSpeeds* speeds) {
    const auto& [settings, severity] = structure;
    if (!settings.proportional) return spending_after(model, structure.steps(), speeds);
    const auto& [whole, parts] = *settings.proportional;
    return between(spending_of(model, speeds), spending_after(model, settings.steps_with(whole), speeds),
                   parts[severity]);
}

Recipe recipe_of_steps(const std::vector<RecipeStep>& steps) {
    Recipe out;
    out.steps = steps;
    return out;
}

std::vector<Structure> structures_within(const Model& model, const Budget& budget,
                                         std::span<const std::string> methods, const TypeSpeeds* speeds) {
    const Spending now = spending_of(model, speeds);
    if (budget.kv_bytes_per_token && now.kv_bytes_per_token <= *budget.kv_bytes_per_token)
        fail(
            ErrorCode::usage, "fit",
            "{} keeps {} per token already, which is no more than {} - ask for less, or leave out the budget",
            model.label, format_bytes(now.kv_bytes_per_token), format_bytes(*budget.kv_bytes_per_token));
    std::vector<Structure> out;
    Least least(now);
    std::string reason;
    for (const std::string& method : methods) {
        for (const Settings& settings : settings_of(model, method)) {
            try {
                if (auto found = mildest(model, budget, settings, speeds, least))
                    out.push_back(*std::move(found));
            } catch (const Error& error) {  // a method that this model's architecture or sizes rule out
                if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::usage) throw;
                reason = fmt::format(" ({})", error.what());
            }
        }
    }
    if (out.empty())
        fail(ErrorCode::usage, "fit", "{}: none of {} reaches {}; {}{}", model.label,
             join(std::vector<std::string>(methods.begin(), methods.end()), ", "),
             text_of(budget, now.token_seconds), least.against(budget, now.token_seconds), reason);
    return out;
}

std::optional<MeasuredStructure> measured(const Model& model, Structure structure, const Budget& budget,
                                          const MeasureWith& with) {
    const Calibration& calibration = *with.inputs.calibration;
    for (; structure.severity < structure.settings.varied.size(); ++structure.severity) {
        const Recipe recipe = recipe_of_steps(structure.steps());
        nlohmann::json inputs = {{"model", identity_of(model, calibration)}, {"recipe", to_yaml(recipe)}};
        if (with.speeds != nullptr) inputs["speeds"] = text_of(*with.speeds);
        const ResultKey key{kDivergence, inputs};
        const auto found = with.work.results_of_all(key, [&] {
            const Compression changed = compress(model, recipe, with.version, with.work, with.inputs);
            const double loss =
                Divergence(model, calibration.held_out, with.inputs.threads).of(changed.model);
            return Arrays{{"divergence", {{1}, {static_cast<float>(loss)}}},
                          {"spending", exact(spending_of(changed.model, with.speeds))}};
        });
        if (within(spending_in(found.at("spending")), budget))
            return MeasuredStructure{structure, lazy::numbers(found.at("divergence"))[0]};
    }
    return std::nullopt;
}

}  // namespace refold
