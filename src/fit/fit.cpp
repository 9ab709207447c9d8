#include "fit/fit.h"

#include <cmath>
#include <limits>

#include "compress/method/lazy.h"
#include "core/error.h"
#include "core/text.h"
#include "fit/plan_file.h"
#include "fit/structure.h"

namespace refold {
namespace {

constexpr Computation kFactors{"fit factors", 3};

FitFactors factors_in(const std::map<std::string, Tensor>& result) {
    const auto values = lazy::numbers(result.at("factors"));
    return {values[0], values[1]};
}

std::string yaml_of(const std::vector<RecipeStep>& steps) {
    return steps.empty() ? "" : to_yaml(recipe_of_steps(steps));
}

std::optional<Compression> shaped_by(const FitOptions& options, const Model& model,
                                     const Calibration& calibration, Work& work) {
    if (options.structure.empty()) return std::nullopt;
    return compress(model, recipe_of_steps(options.structure), options.version, work,
                    {.calibration = &calibration, .threads = options.threads});
}

}  // namespace

Fit::Fit(const Model& model, const Calibration& calibration, Work& work, const FitOptions& options)
    : model_(model),
      calibration_(calibration),
      measured_on_(first_tokens_for(calibration, model.config.n_embd)),
      trials_(first_tokens(measured_on_, measured_on_.options.tokens / 2)),
      work_(work),
      options_(options),
      shaped_(shaped_by(options, model, calibration, work)),
      identity_(identity_of(model, measured_on_) + yaml_of(options.structure)),
      candidates_(shaped(), measurement(), options.layout),
      groups_(of_one_type(shaped(), candidates_.tensors(), options.layout)),
      sensitivities_(sensitivities(shaped(), candidates_, measurement(), options.probe_tokens)) {
    if (candidates_.tensors().empty())
        fail(ErrorCode::unsupported, "fit", "{}: there is no matrix whose type could be chosen", model.label);
    if (options_.speeds) {
        const auto multiplied = weights_multiplied(shaped());
        other_seconds_ = token_seconds(shaped(), *options_.speeds);
        for (const FitTensor& tensor : candidates_.tensors()) {
            const Tensor& stored = shaped().tensor(tensor.name);
            const auto weights = multiplied.find(tensor.name);
            multiplied_.push_back(weights == multiplied.end() ? 0
                                                              : static_cast<double>(weights->second) *
                                                                    static_cast<double>(tensor.rows) /
                                                                    static_cast<double>(stored.rows()));
            other_seconds_ -= multiplied_.back() * options_.speeds->of({stored.type, stored.fold() > 1});
        }
    }
    const FitPlan smallest = plan_of(std::vector<size_t>(sensitivities_.size(), 0));
    other_bytes_ = exact_bytes(smallest) - smallest.bytes;
    if (const auto kept = work.kept(factors_key())) use(factors_in(*kept));
}

// Of the file, with what takes no part in the choice: vectors, solved biases, small factors.
uint64_t Fit::exact_bytes(const FitPlan& plan) const {
    return file_bytes(shaped(), quantize_recipe(shaped(), plan.types, options_.layout, plan.resolve),
                      sensitivities_.size());
}

double Fit::seconds_of(size_t tensor, size_t candidate) const {
    const FitTensor& t = candidates_.tensors()[tensor];
    if (!options_.speeds) return 0;
    const int64_t columns = shaped().tensor(t.name).row_elements();
    return multiplied_[tensor] * options_.speeds->of(kind_of(t.candidates[candidate].type, columns));
}

double Fit::seconds_of(const std::vector<size_t>& chosen) const {
    double out = other_seconds_;
    for (size_t t = 0; t < chosen.size(); ++t) out += seconds_of(t, chosen[t]);
    return out;
}

std::vector<AllocationItem> Fit::costs(const Aim& aim) const {
    std::vector<AllocationItem> out;
    for (size_t t = 0; t < sensitivities_.size(); ++t) {
        const FitTensor& tensor = candidates_.tensors()[t];
        double probe = 0;
        for (const Candidate& candidate : tensor.candidates)
            if (candidate.type == kProbe) probe = candidate.error;
        AllocationItem& item = out.emplace_back();
        for (size_t c = 0; c < tensor.candidates.size(); ++c) {
            const Candidate& candidate = tensor.candidates[c];
            const double ratio = probe > 0 ? candidate.error / probe : 0,
                         divergence =
                             sensitivities_[t] * ratio * (tensor.table ? factors_.tables : factors_.matrices);
            const double time = aim.seconds > 0 ? aim.seconds * seconds_of(t, c) : 0;
            item.push_back({candidate.bytes, aim.divergence * divergence + time});
        }
    }
    return out;
}

std::optional<std::vector<size_t>> Fit::allocated(uint64_t bytes, const Aim& aim) const {
    const auto costs = this->costs(aim);
    std::vector<AllocationItem> items;
    for (const auto& group : groups_) {
        AllocationItem& item = items.emplace_back(costs[group.front()].size());
        for (const size_t t : group) {
            for (size_t i = 0; i < item.size(); ++i) {
                item[i].bytes += costs[t][i].bytes;
                item[i].cost += costs[t][i].cost;
            }
        }
    }
    const auto found = allocate(items, bytes);
    if (!found) return std::nullopt;
    std::vector<size_t> chosen(costs.size());
    for (size_t g = 0; g < groups_.size(); ++g)
        for (const size_t t : groups_[g]) chosen[t] = found->chosen[g];
    return chosen;
}

// Lagrange: the smallest price of a second at which the cheapest choice is fast enough.
std::optional<std::vector<size_t>> Fit::allocated(uint64_t bytes, const Budget& budget) const {
    const auto fast = [&](const std::vector<size_t>& chosen) {
        return within({.token_seconds = seconds_of(chosen)}, {.token_seconds = budget.token_seconds});
    };
    auto cheapest = allocated(bytes);
    if (!cheapest || fast(*cheapest)) return cheapest;
    auto best = allocated(bytes, Aim{0, 1});
    if (!fast(*best)) {
        const double now = token_seconds(model_, *options_.speeds);
        fail(ErrorCode::usage, "fit",
             "{}: no choice of types for {} is predicted to decode {:.2f} times as fast; the fastest one is "
             "{:.2f} "
             "times as fast - ask for less, or for a smaller file",
             model_.label, format_bytes(bytes + other_bytes_), now / *budget.token_seconds,
             now / seconds_of(*best));
    }
    constexpr int kPrices = 40;
    constexpr double kNone = std::numeric_limits<double>::infinity();
    double too_low = 0, enough = kNone, price = 1 / *budget.token_seconds;
    for (int i = 0; i < kPrices; ++i) {
        auto chosen = allocated(bytes, Aim{1, price});
        const bool reached = fast(*chosen);
        (reached ? enough : too_low) = price;
        if (reached && plan_of(*chosen).divergence() < plan_of(*best).divergence()) best = std::move(chosen);
        price = enough == kNone ? 32 * price : too_low == 0 ? price / 32 : std::sqrt(too_low * enough);
    }
    return best;
}

FitPlan Fit::plan_of(const std::vector<size_t>& chosen) const {
    FitPlan out;
    out.chosen = chosen;
    out.bytes = other_bytes_;
    const auto costs = this->costs();
    for (size_t t = 0; t < chosen.size(); ++t) {
        const FitTensor& tensor = candidates_.tensors()[t];
        out.bytes += tensor.candidates[chosen[t]].bytes;
        (tensor.table ? out.of_tables : out.of_matrices) += costs[t][chosen[t]].cost;
    }
    if (options_.speeds) out.token_seconds = seconds_of(chosen);
    out.types = types_option(candidates_.tensors(), chosen);
    return out;
}

FitPlan Fit::plan(const Budget& budget) const {
    const uint64_t bytes = budget.file_bytes.value();
    uint64_t wanted = bytes;
    while (wanted >= other_bytes_) {
        const auto found = allocated(wanted - other_bytes_, budget);
        if (!found) break;
        FitPlan out = plan_of(*found);
        out.bytes = exact_bytes(out);
        if (out.bytes <= bytes) return out;
        // Tensors of one slot and layer have one type, whatever was chosen for each.
        wanted -= out.bytes - bytes;
    }
    const uint64_t smallest = smallest_allocation(costs()) + other_bytes_;
    fail(
        ErrorCode::usage, "fit",
        "{}: no choice of types makes {}; the smallest file has {}, at a predicted divergence of {:.3g} nats",
        model_.label, format_bytes(bytes), format_bytes(smallest),
        plan_of(*allocated(smallest - other_bytes_)).divergence());
}

Recipe Fit::recipe(const FitPlan& plan) const {
    Recipe out = quantize_recipe(shaped(), plan.types, options_.layout, plan.resolve);
    out.steps.insert(out.steps.begin(), options_.structure.begin(), options_.structure.end());
    out.calibration_texts = options_.texts;
    out.calibration = calibration_.options;
    return out;
}

Fitted Fit::carried_out(const FitPlan& plan, const Calibration& calibration) const {
    Recipe recipe = this->recipe(plan);
    recipe.calibration = calibration.options;
    Fitted out{plan,
               compress(model_, recipe, options_.version, work_,
                        {.calibration = &calibration, .threads = options_.threads}),
               0};
    out.divergence = from_model().of(out.compression.model);
    return out;
}

// Trials have all held-out text.
const Divergence& Fit::from_model() const {
    if (!from_model_) from_model_.emplace(model_, calibration_.held_out, options_.threads);
    return *from_model_;
}

ResultKey Fit::factors_key() const {
    nlohmann::json inputs = {{"model", identity_}};
    if (options_.layout == RowLayout::whole_blocks) inputs["rows"] = "whole blocks";
    return {kFactors, inputs};
}

// The model whose tables alone are those of another one.
Model Fit::with_tables_of(const Model& made) const {
    Model out = shaped();
    for (const auto& [slot, expression] : shaped().topology.globals) {
        for (const FitTensor& tensor : candidates_.tensors()) {
            const auto names = tensors_of(expression);
            if (!tensor.table || std::ranges::find(names, tensor.name) == names.end()) continue;
            const Expression& table = out.topology.globals[slot] = made.topology.globals.at(slot);
            for (const std::string& name : tensors_of(table)) out.tensors[name] = made.tensor(name);
        }
    }
    return out;
}

FitFactors Fit::corrected(const Fitted& first) const {
    const Model tables = with_tables_of(first.compression.model);
    std::optional<Divergence> from_shaped;
    if (shaped_) from_shaped.emplace(shaped(), trials_.held_out, options_.threads);
    const Divergence& from = from_shaped ? *from_shaped : from_model();
    const double all = shaped_ ? from.of(first.compression.model) : first.divergence,
                 of_tables = from.of(tables);
    const FitParts predicted = {first.plan.of_matrices, first.plan.of_tables};
    const FitFactors out =
        corrected_factors(factors_, predicted, {std::max(all - of_tables, 0.1 * all), of_tables});
    if (!predicted.matrices_matter() || !predicted.tables_matter()) return out;
    return factors_in(work_.results_of_all(factors_key(), [&] {
        return Arrays{{"factors", {{2}, {static_cast<float>(out.matrices), static_cast<float>(out.tables)}}}};
    }));
}

FitFactors corrected_factors(const FitFactors& now, const FitParts& predicted, const FitParts& measured) {
    FitFactors out = now;
    if (predicted.matrices > 0 && predicted.matrices_matter())
        out.matrices *= measured.matrices / predicted.matrices;
    if (predicted.tables > 0 && predicted.tables_matter()) out.tables *= measured.tables / predicted.tables;
    return out;
}

void Fit::use(const FitFactors& factors) {
    factors_ = factors;
    corrected_ = true;
}

// Where most of the error is that of the embedding, maps that make up for it may lose more than they save.
static bool solving_may_lose(const FitPlan& plan) { return plan.of_tables > 0.75 * plan.divergence(); }

Fitted Fit::better_way(FitPlan plan) const {
    Fitted solved = carried_out(plan, trials_);
    if (!solving_may_lose(plan)) return solved;
    plan.resolve = false;
    Fitted plain = carried_out(plan, trials_);
    return plain.divergence < solved.divergence ? std::move(plain) : std::move(solved);
}

Fitted Fit::fit(const Budget& budget) {
    FitPlan plan = this->plan(budget);
    // What is tried need not be made as well as what is written.
    if (!corrected_ || solving_may_lose(plan)) {
        const Fitted first = better_way(plan);
        plan.resolve = first.plan.resolve;
        if (!corrected_) {
            use(corrected(first));
            FitPlan again = this->plan(budget);
            plan = plan_of(first.plan.chosen);
            again.resolve = plan.resolve = first.plan.resolve;
            if (again.divergence() <= 0.98 * plan.divergence()) plan = again;
        }
    }
    return carried_out(plan, calibration_);
}

}  // namespace refold
