#include "compress/quantization/input_uses.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "model/quantized.h"

namespace refold {
namespace {

// A use of some rows.
struct RowsUse {
    int64_t first, count;
    InputUse use;
};
using Uses = std::map<std::string, std::vector<RowsUse>>;

void add_heads(const Model& model, const Heads& heads, const InputUse& slot, Uses& uses) {
    const int64_t width = block_size(slot.slot, model.config);
    int64_t input = 0;
    for (const HeadRun& run : heads.runs) {
        InputUse use = slot;
        if (heads_are_columns(slot.slot)) {
            use.column = run.first * width;
            use.columns = run.count * width;
            use.input = input;
            uses[run.tensor].push_back({0, model.tensor(run.tensor).rows(), use});
        } else {
            uses[run.tensor].push_back({run.first * width, run.count * width, use});
        }
        input += run.count * width;
    }
}

void add_uses(const Model& model, const Expression& expression, InputUse slot, Uses& uses) {
    const Expression base = base_of(expression);
    const auto whole = [&](const std::string& tensor) {
        uses[tensor].push_back({0, model.tensor(tensor).rows(), slot});
    };
    const auto factor = [&](const LowRank& e) {
        if (!e.transposed) whole(e.v);
    };
    slot.columns = slot_shape(slot.slot, model.config, slot.layer).in;
    if (const auto* dense = std::get_if<Dense>(&base)) whole(dense->tensor);
    if (const auto* heads = std::get_if<Heads>(&base)) add_heads(model, *heads, slot, uses);
    if (const auto* low_rank = std::get_if<LowRank>(&base)) factor(*low_rank);
    if (const auto* plus = std::get_if<Plus>(&expression)) factor(plus->term);
}

// Cuts the rows where some use begins or ends.
std::vector<UsedRows> cut(const std::vector<RowsUse>& uses) {
    std::set<int64_t> ends;
    for (const RowsUse& use : uses) ends.insert({use.first, use.first + use.count});
    std::vector<UsedRows> out;
    for (auto end = ends.begin(); std::next(end) != ends.end(); ++end) {
        UsedRows rows{*end, *std::next(end) - *end, {}};
        for (const RowsUse& use : uses) {
            if (use.first <= rows.first && rows.first < use.first + use.count) rows.uses.push_back(use.use);
        }
        if (!out.empty() && out.back().uses == rows.uses)
            out.back().count += rows.count;
        else
            out.push_back(std::move(rows));
    }
    return out;
}

}  // namespace

std::optional<Tap> input_tap(Slot slot) {
    if (slot == Slot::attn_o) return Tap::attn_inner;
    if (slot == Slot::ffn_down) return Tap::ffn_inner;
    if (slot == Slot::attn_comp_v) return Tap::v;
    if (properties(slot).norm == Slot::attn_norm) return Tap::attn_input;
    if (properties(slot).norm == Slot::ffn_norm) return Tap::ffn_input;
    return std::nullopt;
}

std::map<std::string, std::vector<UsedRows>> input_uses(const Model& model) {
    // In the order in which a layer runs: W_c reads the same inputs as the queries.
    Uses uses;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const Tap tap : kInputTaps) {
            for (const auto& [slot, expression] : model.topology.layers[p]) {
                if (properties(slot).kind == SlotKind::matrix && input_tap(slot) == tap)
                    add_uses(model, expression, {p, slot}, uses);
            }
        }
    }
    std::map<std::string, std::vector<UsedRows>> out;
    for (const auto& [tensor, rows] : uses) out[tensor] = cut(rows);
    return out;
}

void add_gram(const InputUse& use, std::span<const double> of_inputs, std::span<double> of_columns) {
    const auto side = [](std::span<const double> square) {
        return static_cast<size_t>(std::llround(std::sqrt(static_cast<double>(square.size()))));
    };
    const size_t inputs = side(of_inputs), columns = side(of_columns),
                 count = static_cast<size_t>(use.columns), input = static_cast<size_t>(use.input),
                 column = static_cast<size_t>(use.column);
    for (size_t r = 0; r < count; ++r) {
        for (size_t c = 0; c < count; ++c)
            of_columns[(column + r) * columns + column + c] += of_inputs[(input + r) * inputs + input + c];
    }
}

}  // namespace refold
