#include "fit/fit.h"

#include <cctype>
#include <map>

#include "compress/method/lazy.h"
#include "core/error.h"
#include "core/text.h"
#include "fit/sensitivity.h"
#include "model/quantized.h"

namespace refold {
namespace {

constexpr Computation kFactors{"fit factors", 1};
// For the recipe, the provenance and the list of folded matrices, which grow with the number of matrices.
constexpr uint64_t kBytesPerMatrix = 104, kBytesOfProvenance = 8192;

// Of a GGUF file's metadata and descriptions of tensors, a little too many.
uint64_t metadata_bytes(const Model& model) {
    constexpr uint64_t kEntry = 32, kTensor = 128;  // with padding of its data
    uint64_t bytes = kTensor * model.tensors.size();
    for (const auto& [key, value] : model.metadata.entries()) {
        bytes += key.size() + kEntry;
        if (const auto* text = std::get_if<std::string>(&value.value)) bytes += text->size();
        const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
        if (array == nullptr) continue;
        bytes += (*array)->packed.size();
        for (const std::string& text : (*array)->strings) bytes += text.size() + sizeof(uint64_t);
    }
    return bytes;
}

// "0-3,7"
std::string ranges(const std::vector<size_t>& layers) {
    std::string out;
    for (size_t i = 0; i < layers.size();) {
        size_t last = i;
        while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
        out += out.empty() ? "" : ",";
        out += last == i ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[last]);
        i = last + 1;
    }
    return out;
}

std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

}  // namespace

Fit::Fit(const Model& model, const Calibration& calibration, Work& work, const FitOptions& options)
    : model_(model),
      calibration_(calibration),
      work_(work),
      options_(options),
      on_{work, calibration, identity_of(model, calibration), options.threads},
      candidates_(model, on_, options.layout),
      sensitivities_(sensitivities(model, candidates_, on_, options.probe_tokens)) {
    if (candidates_.tensors().empty())
        fail(ErrorCode::unsupported, "fit", "{}: there is no matrix whose type could be chosen", model.label);
    metadata_bytes_ = metadata_bytes(model) + kBytesOfProvenance + kBytesPerMatrix * sensitivities_.size();
    const FitPlan smallest = plan_of(std::vector<size_t>(sensitivities_.size(), 0));
    other_bytes_ = exact_bytes(smallest) - smallest.bytes;
}

// Of the file, with what takes no part in the choice: vectors, solved biases, small factors.
uint64_t Fit::exact_bytes(const FitPlan& plan) const {
    return refold::plan(model_, recipe(plan)).after().bytes + metadata_bytes_;
}

std::vector<AllocationItem> Fit::items() const {
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

FitPlan Fit::plan_of(const std::vector<size_t>& chosen) const {
    FitPlan out;
    out.chosen = chosen;
    out.bytes = other_bytes_;
    const auto costs = items();
    std::map<std::pair<Slot, DType>, std::vector<size_t>> layers;
    for (size_t t = 0; t < chosen.size(); ++t) {
        const FitTensor& tensor = candidates_.tensors()[t];
        out.bytes += tensor.candidates[chosen[t]].bytes;
        (tensor.table ? out.of_tables : out.of_matrices) += costs[t][chosen[t]].cost;
        auto& at = layers[{tensor.slot, tensor.candidates[chosen[t]].type}];
        if (!tensor.table) at.push_back(tensor.layer);
    }
    for (const auto& [key, at] : layers) {
        const auto& [slot, type] = key;
        out.types += fmt::format("{}{}{}{}={}", out.types.empty() ? "" : " ", slot_name(slot),
                                 at.empty() ? "" : "@", ranges(at), lower(name(type)));
    }
    return out;
}

FitPlan Fit::plan(uint64_t bytes) const {
    const auto costs = items();
    uint64_t wanted = bytes;
    while (wanted >= other_bytes_) {
        const auto found = allocate(costs, wanted - other_bytes_);
        if (!found) break;
        FitPlan out = plan_of(found->chosen);
        out.bytes = exact_bytes(out);
        if (out.bytes <= bytes) return out;
        // Tensors of one slot and layer have one type, whatever was chosen for each.
        wanted -= out.bytes - bytes;
    }
    const uint64_t smallest = smallest_allocation(costs) + other_bytes_;
    fail(
        ErrorCode::usage, "fit",
        "{}: no choice of types makes {}; the smallest file has {}, at a predicted divergence of {:.3g} nats",
        model_.label, format_bytes(bytes), format_bytes(smallest),
        allocate(costs, smallest - other_bytes_)->cost);
}

Recipe Fit::recipe(const FitPlan& plan) const {
    Recipe out = recipe_from_method("quantize", std::vector<std::string>{"type=keep", "types=" + plan.types});
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

FitFactors Fit::corrected(const Fitted& first) const {
    const auto found = work_.results_of_all({kFactors, {{"model", on_.identity}}}, [&] {
        Model tables = model_;
        for (const FitTensor& tensor : candidates_.tensors())
            if (tensor.table) tables.tensors[tensor.name] = first.compression.model.tensor(tensor.name);
        const double of_tables = divergence(model_, tables, calibration_.held_out, options_.threads),
                     of_matrices = std::max(first.divergence - of_tables, 0.1 * first.divergence);
        const auto factor = [](double now, double measured, double predicted) {
            return static_cast<float>(predicted > 0 ? now * measured / predicted : now);
        };
        return Arrays{{"factors",
                       {{2},
                        {factor(factors_.matrices, of_matrices, first.plan.of_matrices),
                         factor(factors_.tables, of_tables, first.plan.of_tables)}}}};
    });
    const auto values = lazy::numbers(found.at("factors"));
    return {values[0], values[1]};
}

Fitted Fit::fit(uint64_t bytes) {
    Fitted first = carried_out(plan(bytes));
    if (corrected_) return first;
    factors_ = corrected(first);
    corrected_ = true;
    const FitPlan again = plan(bytes), before = plan_of(first.plan.chosen);
    if (again.chosen == before.chosen || again.divergence() > 0.98 * before.divergence()) {
        first.plan = before;
        return first;
    }
    Fitted second = carried_out(again);
    return second.divergence < first.divergence ? std::move(second) : std::move(first);
}

}  // namespace refold
