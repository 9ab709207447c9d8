#include "fit/search.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"
#include "core/progress.h"
#include "fit/plan_file.h"

namespace refold {
namespace {

// Parts of the model's bytes that a structure may leave to the types.
constexpr std::array kMixedParts = {0.97, 0.92, 0.85};

const TypeSpeeds* pointer(const std::optional<TypeSpeeds>& speeds) { return speeds ? &*speeds : nullptr; }

// What a structure must reach where types follow: the cache, which they do not change.
Budget of_cache(const Budget& budget) { return {.kv_bytes_per_token = budget.kv_bytes_per_token}; }

std::vector<std::vector<Structure>> one_by_one(std::vector<Structure> structures) {
    std::vector<std::vector<Structure>> out;
    for (Structure& structure : structures) out.push_back({std::move(structure)});
    return out;
}

// By settings, the mildest severities that leave parts of the model's bytes.
std::vector<std::vector<Structure>> mixtures(const Model& model, const Moves& moves) {
    std::vector<std::vector<Structure>> out;
    const auto now = static_cast<double>(file_bytes(model));
    for (const double part : kMixedParts) {
        std::vector<Structure> found;
        try {
            found = structures_within(model, {.file_bytes = static_cast<uint64_t>(part * now)}, moves.methods,
                                      nullptr);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::usage || out.empty()) throw;
            break;
        }
        for (Structure& structure : found) {
            const auto same = std::ranges::find_if(out, [&](const std::vector<Structure>& line) {
                return line.front().settings.method == structure.settings.method &&
                       line.front().settings.fixed == structure.settings.fixed;
            });
            if (same == out.end())
                out.push_back({std::move(structure)});
            else if (same->back().severity < structure.severity)
                same->push_back(std::move(structure));
        }
    }
    return out;
}

std::vector<std::vector<Structure>> structures_for(const Model& model, const Moves& moves,
                                                   const Budget& budget, const TypeSpeeds* speeds) {
    if (moves.methods.empty()) return {};
    if (!moves.types) return one_by_one(structures_within(model, budget, moves.methods, speeds));
    if (budget.kv_bytes_per_token)
        return one_by_one(structures_within(model, of_cache(budget), moves.methods, nullptr));
    return mixtures(model, moves);
}

}  // namespace

std::string Way::text() const {
    if (!structure) return "types alone";
    return (of_types ? "types after " : "") + structure->text();
}

void check_reachable(const Model& model, RowLayout layout, const Moves& moves, const Budget& budget,
                     const TypeSpeeds* speeds) {
    if (moves.types && budget.kv_bytes_per_token && moves.methods.empty())
        fail(ErrorCode::usage, "fit",
             "types do not change the KV cache - add to --moves what makes it smaller, such as narrow");
    const auto structures = structures_for(model, moves, budget, speeds);
    if (!moves.types) return;
    // What is left to the types.
    std::vector<Model> shaped;
    for (const auto& line : structures)
        shaped.push_back(plan(model, recipe_of_steps(line.back().steps())).model);
    if (!budget.kv_bytes_per_token) shaped.push_back(model);
    const uint64_t bytes = budget.file_bytes.value();
    for (const Model& one : shaped) {
        try {
            return check_sizes(one, layout, std::span(&bytes, 1));
        } catch (const Error& error) {
            if (error.code() != ErrorCode::usage || &one == &shaped.back()) throw;
        }
    }
}

Search::Search(const Model& model, const Calibration& calibration, Work& work, const FitOptions& options,
               Moves moves, const Budget& budget)
    : model_(model),
      calibration_(calibration),
      work_(work),
      options_(options),
      moves_(std::move(moves)),
      budget_(budget),
      structures_(structures_for(model, moves_, budget, pointer(options_.speeds))) {}

FitOptions Search::options_with(const Way& way) const {
    FitOptions out = options_;
    if (way.structure) out.structure = way.structure->steps();
    return out;
}

double Search::least() const {
    double out = std::numeric_limits<double>::infinity();
    for (const Way& way : ways_) out = std::min(out, way.divergence());
    return out;
}

void Search::add_types(Way way) {
    const bool alone = !way.structure;
    auto fit = std::make_unique<Fit>(model_, calibration_, work_, options_with(way));
    // One unit for all predictions.
    if (!alone && alone_) fit->use(alone_->factors());
    try {
        way.of_types = fit->plan(budget_).divergence();
        ways_.push_back(std::move(way));
    } catch (const Error& error) {
        if (error.code() != ErrorCode::usage) throw;
        obstacle_ = error.what();
    }
    if (alone) alone_ = std::move(fit);
}

void Search::measure_structures() {
    const MeasureWith with{options_.version,
                           work_,
                           {.calibration = &calibration_, .threads = options_.threads},
                           pointer(options_.speeds)};
    const Budget budget = moves_.types ? of_cache(budget_) : budget_;
    const double limit = least();
    size_t count = 0;
    for (const auto& line : structures_) count += line.size();
    Progress progress("settings", count, "settings");
    std::vector<Way> found;
    for (const auto& line : structures_) {
        bool promising = true;
        for (const Structure& structure : line) {
            if (promising) {
                const auto one = measured(model_, structure, budget, with);
                promising = one && one->divergence < limit;
                if (one) found.push_back({one->structure, one->divergence, std::nullopt});
            }
            progress.advance(1, structure.text());
        }
    }
    progress.finish();
    std::ranges::stable_sort(found, {}, &Way::of_structure);
    for (Way& way : found) {
        if (moves_.types && way.of_structure < least())
            add_types(std::move(way));
        else
            ways_.push_back(std::move(way));
    }
}

const std::vector<Way>& Search::ways() {
    if (!ways_.empty()) return ways_;
    if (moves_.types && !budget_.kv_bytes_per_token) add_types({});
    if (!structures_.empty()) measure_structures();
    if (ways_.empty() && !obstacle_.empty()) throw Error(ErrorCode::usage, obstacle_);
    if (ways_.empty())
        fail(ErrorCode::usage, "fit", "{}: no result was as small as planned - ask for a little more",
             model_.label);
    // Where types were not chosen, more is lost than is known.
    std::ranges::stable_sort(ways_, {}, &Way::divergence);
    return ways_;
}

Fit& Search::best_fit() {
    if (!best().structure) return *alone_;
    if (!best_fit_) best_fit_ = std::make_unique<Fit>(model_, calibration_, work_, options_with(best()));
    return *best_fit_;
}

FitPlan Search::plan() {
    FitPlan out;
    if (best().of_types) {
        out = best_fit().plan(budget_);
    } else {
        const Spending spent = planned(model_, *best().structure, pointer(options_.speeds));
        out.bytes = spent.file_bytes;
        out.token_seconds = spent.token_seconds;
    }
    out.of_structure = best().of_structure;
    return out;
}

Fitted Search::carry_out() {
    if (best().of_types) {
        Fitted out = best_fit().fit(budget_);
        out.plan.of_structure = best().of_structure;
        return out;
    }
    Fitted out{plan(),
               compress(model_, recipe({}), options_.version, work_,
                        {.calibration = &calibration_, .threads = options_.threads}),
               best().of_structure};
    const Spending spent = spending_of(out.compression.model, pointer(options_.speeds));
    out.plan.bytes = spent.file_bytes;
    out.plan.token_seconds = spent.token_seconds;
    return out;
}

Recipe Search::recipe(const FitPlan& plan) {
    if (best().of_types) return best_fit().recipe(plan);
    Recipe out = recipe_of_steps(best().structure->steps());
    out.calibration_texts = options_.texts;
    out.calibration = calibration_.options;
    return out;
}

}  // namespace refold
