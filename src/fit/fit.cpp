#include "fit/fit.h"

#include "compress/method/lazy.h"
#include "core/error.h"
#include "core/text.h"
#include "fit/plan_file.h"
#include "fit/sensitivity.h"
#include "fit/structure.h"

namespace refold {
namespace {

constexpr Computation kFactors{"fit factors", 1};

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
      work_(work),
      options_(options),
      shaped_(shaped_by(options, model, calibration, work)),
      on_{work, calibration, identity_of(model, calibration) + yaml_of(options.structure), options.threads},
      candidates_(shaped(), on_, options.layout),
      groups_(of_one_type(shaped(), candidates_.tensors(), options.layout)),
      sensitivities_(sensitivities(shaped(), candidates_, on_, options.probe_tokens)) {
    if (candidates_.tensors().empty())
        fail(ErrorCode::unsupported, "fit", "{}: there is no matrix whose type could be chosen", model.label);
    const FitPlan smallest = plan_of(std::vector<size_t>(sensitivities_.size(), 0));
    other_bytes_ = exact_bytes(smallest) - smallest.bytes;
    if (const auto kept = work.kept(factors_key())) use(factors_in(*kept));
}

// Of the file, with what takes no part in the choice: vectors, solved biases, small factors.
uint64_t Fit::exact_bytes(const FitPlan& plan) const {
    return file_bytes(shaped(), quantize_recipe(shaped(), plan.types, options_.layout, plan.resolve),
                      sensitivities_.size());
}

std::vector<AllocationItem> Fit::costs() const {
    std::vector<AllocationItem> out;
    for (size_t t = 0; t < sensitivities_.size(); ++t) {
        const FitTensor& tensor = candidates_.tensors()[t];
        double probe = 0;
        for (const Candidate& candidate : tensor.candidates)
            if (candidate.type == kProbe) probe = candidate.error;
        AllocationItem& item = out.emplace_back();
        for (const Candidate& candidate : tensor.candidates) {
            const double ratio = probe > 0 ? candidate.error / probe : 0;
            item.push_back({candidate.bytes, sensitivities_[t] * ratio *
                                                 (tensor.table ? factors_.tables : factors_.matrices)});
        }
    }
    return out;
}

// The best choice for matrices of so many bytes.
std::optional<Allocation> Fit::allocated(uint64_t bytes) const {
    const auto costs = this->costs();
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
    auto out = allocate(items, bytes);
    if (!out) return out;
    std::vector<size_t> chosen(costs.size());
    for (size_t g = 0; g < groups_.size(); ++g)
        for (const size_t t : groups_[g]) chosen[t] = out->chosen[g];
    out->chosen = std::move(chosen);
    return out;
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
    out.types = types_option(candidates_.tensors(), chosen);
    return out;
}

FitPlan Fit::plan(uint64_t bytes) const {
    uint64_t wanted = bytes;
    while (wanted >= other_bytes_) {
        const auto found = allocated(wanted - other_bytes_);
        if (!found) break;
        FitPlan out = plan_of(found->chosen);
        out.bytes = exact_bytes(out);
        if (out.bytes <= bytes) return out;
        // Tensors of one slot and layer have one type, whatever was chosen for each.
        wanted -= out.bytes - bytes;
    }
    const uint64_t smallest = smallest_allocation(costs()) + other_bytes_;
    fail(
        ErrorCode::usage, "fit",
        "{}: no choice of types makes {}; the smallest file has {}, at a predicted divergence of {:.3g} nats",
        model_.label, format_bytes(bytes), format_bytes(smallest), allocated(smallest - other_bytes_)->cost);
}

Recipe Fit::recipe(const FitPlan& plan) const {
    Recipe out = quantize_recipe(shaped(), plan.types, options_.layout, plan.resolve);
    out.steps.insert(out.steps.begin(), options_.structure.begin(), options_.structure.end());
    out.calibration_texts = options_.texts;
    out.calibration = calibration_.options;
    return out;
}

Fitted Fit::carried_out(const FitPlan& plan) const {
    Fitted out{plan,
               compress(model_, recipe(plan), options_.version, work_,
                        {.calibration = &calibration_, .threads = options_.threads}),
               0};
    out.divergence = divergence(model_, out.compression.model, calibration_.held_out, options_.threads);
    return out;
}

ResultKey Fit::factors_key() const {
    nlohmann::json inputs = {{"model", on_.identity}};
    if (options_.layout == RowLayout::whole_blocks) inputs["rows"] = "whole blocks";
    return {kFactors, inputs};
}

FitFactors Fit::corrected(const Fitted& first) const {
    const auto found = work_.results_of_all(factors_key(), [&] {
        Model tables = shaped();
        for (const FitTensor& tensor : candidates_.tensors())
            if (tensor.table) tables.tensors[tensor.name] = first.compression.model.tensor(tensor.name);
        const auto of = [&](const Model& model) {
            return divergence(shaped(), model, calibration_.held_out, options_.threads);
        };
        const double all = shaped_ ? of(first.compression.model) : first.divergence, of_tables = of(tables),
                     of_matrices = std::max(all - of_tables, 0.1 * all);
        const auto factor = [](double now, double measured, double predicted) {
            return static_cast<float>(predicted > 0 ? now * measured / predicted : now);
        };
        return Arrays{{"factors",
                       {{2},
                        {factor(factors_.matrices, of_matrices, first.plan.of_matrices),
                         factor(factors_.tables, of_tables, first.plan.of_tables)}}}};
    });
    return factors_in(found);
}

void Fit::use(const FitFactors& factors) {
    factors_ = factors;
    corrected_ = true;
}

// Where most of the error is that of the embedding, maps that make up for it lose more than they save.
Fitted Fit::better_way(FitPlan plan) const {
    Fitted solved = carried_out(plan);
    plan.resolve = false;
    Fitted plain = carried_out(plan);
    return plain.divergence < solved.divergence ? std::move(plain) : std::move(solved);
}

Fitted Fit::fit(uint64_t bytes) {
    Fitted first = better_way(plan(bytes));
    if (corrected_) return first;
    use(corrected(first));
    FitPlan again = plan(bytes), before = plan_of(first.plan.chosen);
    again.resolve = before.resolve = first.plan.resolve;
    if (again.chosen == before.chosen || again.divergence() > 0.98 * before.divergence()) {
        first.plan = before;
        return first;
    }
    Fitted second = carried_out(again);
    return second.divergence < first.divergence ? std::move(second) : std::move(first);
}

}  // namespace refold
