#include "engine/ggml/weights.h"

#include "engine/ggml/head_runs.h"
#include "engine/ggml/reconstruct.h"
#include "engine/ggml/row_panels.h"
#include "model/filled_ranks.h"
#include "model/folded.h"

namespace refold {
namespace {

void read_row(const Storage& storage, int32_t row, std::span<float> out) {
    const ggml_tensor* table = storage.tensor;
    const auto* base =
        storage.host_rows.empty() ? static_cast<const std::byte*>(table->data) : storage.host_rows.data();
    if (storage.layout == Layout::q4_0x8) {
        head_runs::dequantize_q4_0x8_row(base, row, out);
        return;
    }
    const size_t stride = table->nb[1];
    const int64_t stored = row / storage.fold;
    std::span<const std::byte> bytes{base + static_cast<size_t>(stored) * stride, stride};
    std::vector<std::byte> unpacked;
    if (storage.layout == Layout::panels) {
        unpacked.resize(stride);
        row_panels::read_row({table->type, base, table->ne[0], table->ne[1], storage.fold}, stored,
                             unpacked.data());
        bytes = unpacked;
    }
    if (storage.fold == 1) return dequantize(static_cast<DType>(table->type), bytes, out);
    std::vector<float> rows(static_cast<size_t>(table->ne[0]));
    dequantize(static_cast<DType>(table->type), bytes, rows);
    std::copy_n(rows.begin() + row % storage.fold * storage.in(), storage.in(), out.begin());
}

}  // namespace

namespace {

// What ggml's operations alone can read.
EngineOptions for_plain_operations(EngineOptions options) {
    options.shared = SharedExecution::composed;
    if (options.factored == FactoredExecution::automatic) options.factored = FactoredExecution::factored;
    options.precision = Precision::stored;
    return options;
}

}  // namespace

Weights::Weights(const Model& given, const EngineOptions& wanted, const DeviceRun* device)
    : shared_(device != nullptr ? SharedExecution::composed : wanted.shared) {
    const EngineOptions options = device != nullptr ? for_plain_operations(wanted) : wanted;
    const std::optional<Model> unfolded = device != nullptr ? without_folds(given) : std::nullopt;
    const Model& stored = unfolded ? *unfolded : given;
    const std::optional<Model> dense = with_reconstructed(stored, options);
    const std::optional<Model> aligned = with_filled_ranks(dense ? *dense : stored, kRankUnit);
    const Model& model = aligned ? *aligned : dense ? *dense : stored;
    PlannedWeights planned = plan_weights(model, options);
    memory_ = load_weights(model, planned, options, device);
    plans_ = std::move(planned.plans);
    for (auto& [key, plan] : plans_.factored) plan.finish();
    for (const auto& [slot, table] : plans_.tables) memory_.bytes += table.places.size() * sizeof(int32_t);
    plans_.for_each_linear(
        [&](const LinearPlan& plan) { memory_.bytes += plan.row_ids.size() * sizeof(int32_t); });
}

const FactoredPlan* Weights::factored(size_t layer, std::span<const Slot> slots) const {
    const auto found = plans_.factored.find({layer, slots[0]});
    return found == plans_.factored.end() ? nullptr : &found->second;
}

const std::vector<LinearPlan>& Weights::linear(size_t layer, std::span<const Slot> slots) const {
    return plans_.linear.at({layer, slots[0]});
}

bool Weights::has(size_t layer, Slot slot) const { return plans_.slots.contains({layer, slot}); }

ggml_tensor* Weights::vector(size_t layer, Slot slot) const {
    const auto found = plans_.vectors.find({layer, slot});
    return found == plans_.vectors.end() ? nullptr : found->second;
}

void Weights::table_row(Slot slot, int32_t row, std::span<float> out) const {
    const WeightPlans::Table& table = plans_.tables.at(slot);
    if (table.places.empty()) return read_row(*table.parts.front(), row, out);
    int64_t place = table.places[static_cast<size_t>(row)];
    size_t part = 0;
    for (; place >= table.parts[part]->rows(); ++part) place -= table.parts[part]->rows();
    read_row(*table.parts[part], static_cast<int32_t>(place), out);
}

}  // namespace refold
