#include "papers/planned_number.h"

#include <map>
#include <set>

#include "core/error.h"
#include "model/accounting.h"

namespace refold {
namespace {

constexpr Slot kAttention[] = {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o};

uint64_t elements(const Model& model, const std::set<std::string>& names) {
    uint64_t sum = 0;
    for (const std::string& name : names) sum += static_cast<uint64_t>(model.tensor(name).elements());
    return sum;
}

std::set<std::string> attention_tensors(const Model& model, size_t layer) {
    std::set<std::string> names;
    for (const Slot slot : kAttention) {
        if (!model.topology.has(layer, slot)) continue;
        for (const std::string& name : tensors_of(model.topology.at(layer, slot))) names.insert(name);
    }
    return names;
}

double attention_compression(const Model& before, const Model& after) {
    uint64_t all = 0, left = 0;
    for (size_t l = 0; l < before.topology.layers.size(); ++l) {
        const auto was = attention_tensors(before, l), is = attention_tensors(after, l);
        if (was == is) continue;
        all += elements(before, was);
        left += elements(after, is);
    }
    return left == 0 ? 1 : static_cast<double>(all) / static_cast<double>(left);
}

uint64_t embedding_parameters(const Model& model) {
    std::set<std::string> names;
    for (const auto& [slot, expression] : model.topology.globals) {
        if (!is_table(slot) && slot != Slot::output) continue;
        for (const std::string& name : tensors_of(expression)) names.insert(name);
    }
    // Terms of the output matrix.
    for (const Slots& layer : model.topology.layers) {
        if (!layer.contains(Slot::exit_output)) continue;
        for (const std::string& name : tensors_of(layer.at(Slot::exit_output))) names.insert(name);
    }
    return elements(model, names);
}

double percent(uint64_t part, uint64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(whole);
}

using Number = double (*)(const Model& before, const Compression& plan);

const std::map<std::string, Number>& numbers() {
    static const std::map<std::string, Number> all = {
        {"parameters",
         [](const Model&, const Compression& p) { return static_cast<double>(p.after().parameters); }},
        {"embedding_parameters",
         [](const Model&, const Compression& p) {
             return static_cast<double>(embedding_parameters(p.model));
         }},
        {"non_embedding_parameters",
         [](const Model&, const Compression& p) {
             return static_cast<double>(p.after().parameters - embedding_parameters(p.model));
         }},
        {"parameters_percent",
         [](const Model&, const Compression& p) {
             return percent(p.after().parameters, p.before.parameters);
         }},
        {"kv_cache_percent",
         [](const Model&, const Compression& p) {
             return percent(p.after().kv_bytes_per_token, p.before.kv_bytes_per_token);
         }},
        {"attention_compression",
         [](const Model& before, const Compression& p) { return attention_compression(before, p.model); }},
        {"layers", [](const Model&,
                      const Compression& p) { return static_cast<double>(p.model.topology.layers.size()); }},
        {"width",
         [](const Model&, const Compression& p) { return static_cast<double>(p.model.config.n_embd); }},
        {"heads",
         [](const Model&, const Compression& p) { return static_cast<double>(p.model.config.n_head); }},
        {"kv_heads",
         [](const Model&, const Compression& p) { return static_cast<double>(p.model.config.n_head_kv); }},
        {"head_size",
         [](const Model&, const Compression& p) { return static_cast<double>(p.model.config.head_dim); }},
        {"ffn_width",
         [](const Model&, const Compression& p) { return static_cast<double>(p.model.config.n_ff); }},
        {"vocabulary",
         [](const Model&, const Compression& p) { return static_cast<double>(p.model.config.n_vocab); }},
        {"context", [](const Model&,
                       const Compression& p) { return static_cast<double>(p.model.config.context_length); }},
    };
    return all;
}

}  // namespace

std::vector<std::string> planned_numbers() {
    std::vector<std::string> names;
    for (const auto& [name, number] : numbers()) names.push_back(name);
    return names;
}

double planned_number(const std::string& name, const Model& before, const Compression& plan) {
    const auto found = numbers().find(name);
    if (found == numbers().end()) fail(ErrorCode::internal, "paper", "there is no number '{}'", name);
    return found->second(before, plan);
}

std::vector<std::optional<double>> planned_cells(const PaperTable& table, const PaperRow& row,
                                                 const Model& model, const std::optional<Recipe>& recipe) {
    const Compression planned =
        recipe ? plan(model, *recipe) : Compression{model, {}, account(model).model, {}};
    std::vector<std::optional<double>> cells;
    for (const PaperColumn& column : table.columns) {
        auto& cell = cells.emplace_back();
        if (column.measure != PaperMeasure::planned) continue;
        const double part = column.number == "kv_cache_percent" ? row.kv_budget : 1;
        cell = planned_number(column.number, model, planned) * part * column.scale;
    }
    return cells;
}

}  // namespace refold
