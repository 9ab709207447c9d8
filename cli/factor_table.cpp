#include "cli/factor_table.h"

#include <fmt/format.h>

#include <vector>

#include "cli/topology_table.h"
#include "compress/method/selection.h"
#include "core/text.h"
#include "model/execution.h"

namespace refold::cli {
namespace {

struct Row {
    std::vector<size_t> layers;     // empty: the whole model
    std::string weights;            // "attn.q,k,v tucker 288x32x4 of 9 heads"
    ExecutionCost factored, dense;  // operations: MACs of one token
    std::string execution;

    bool alike(const Row& other) const {
        return layers.empty() == other.layers.empty() && weights == other.weights &&
               factored.bytes == other.factored.bytes && execution == other.execution;
    }
};

// Names slots with the same factors together: "attn.q,k,v low rank 57".
std::string weights_text(const Model& model, const Slots& slots, const std::vector<Slot>& group) {
    std::vector<std::pair<std::string, std::string>> parts;  // factors, slots
    for (const Slot slot : group) {
        const std::string factors = factors_text(model, slots.at(slot));
        if (factors.empty()) continue;
        const std::string name = slot_name(slot);
        if (parts.empty() || parts.back().first != factors) {
            parts.emplace_back(factors, name);
        } else {
            parts.back().second += "," + name.substr(name.find('.') + 1);
        }
    }
    std::vector<std::string> texts;
    for (const auto& [factors, names] : parts) texts.push_back(names + " " + factors);
    return fmt::format("{}", fmt::join(texts, "; "));
}

// Groups of slots that multiply the same input; only groups with factors.
std::vector<std::vector<Slot>> inputs_of(const Slots& slots) {
    std::vector<std::vector<Slot>> out;
    for (const Slot first : kProductGroups) {
        if (properties(first).origin == SlotOrigin::method) continue;
        std::vector<Slot> present;
        bool factored = false;
        for (const Slot slot : product_group(first)) {
            const auto found = slots.find(slot);
            if (found == slots.end()) continue;
            present.push_back(slot);
            factored |= has_factors(found->second);
        }
        if (factored) out.push_back(std::move(present));
    }
    return out;
}

std::vector<Row> rows_of(const Model& model) {
    std::vector<Row> rows;
    const ExecutionChooser chooser(model);
    const auto add = [&](const Slots& slots, size_t layer) {
        for (const auto& group : inputs_of(slots)) {
            Row row;
            if (layer != kWholeModel) row.layers = {layer};
            row.weights = weights_text(model, slots, group);
            const ExecutionChoice choice = chooser.choose(layer, group);
            row.execution = choice.execution == Execution::factored ? "factored" : "dense";
            row.factored = choice.factored;
            row.dense = choice.reconstructed;
            const auto same =
                std::find_if(rows.begin(), rows.end(), [&](const Row& other) { return other.alike(row); });
            if (same == rows.end()) {
                rows.push_back(std::move(row));
            } else {
                same->layers.insert(same->layers.end(), row.layers.begin(), row.layers.end());
            }
        }
    };
    for (size_t p = 0; p < model.topology.layers.size(); ++p) add(model.topology.layers[p], p);
    add(model.topology.globals, kWholeModel);
    return rows;
}

}  // namespace

std::string factor_table(const Model& model) {
    const std::vector<Row> rows = rows_of(model);
    if (rows.empty()) return "";
    TextTable table(
        {"factored weights", "layers", "MACs per token", "of dense", "bytes", "of dense", "runs as"});
    const auto percent = [](uint64_t part, uint64_t whole) {
        return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
    };
    for (const Row& row : rows) {
        table.add({row.weights, row.layers.empty() ? "model" : layers_text(row.layers),
                   format_count(row.factored.operations),
                   percent(row.factored.operations, row.dense.operations), format_bytes(row.factored.bytes),
                   percent(row.factored.bytes, row.dense.bytes), row.execution});
    }
    return table.str();
}

nlohmann::ordered_json factor_json(const Model& model) {
    auto out = nlohmann::ordered_json::array();
    for (const Row& row : rows_of(model)) {
        out.push_back(
            {{"layers", row.layers},
             {"weights", row.weights},
             {"operations", {{"factored", row.factored.operations}, {"dense", row.dense.operations}}},
             {"bytes", {{"factored", row.factored.bytes}, {"dense", row.dense.bytes}}},
             {"execution", row.execution}});
    }
    return out;
}

}  // namespace refold::cli
