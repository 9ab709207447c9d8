#include "analyze/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "compress/head_sharing/similarity.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "linalg/svd.h"
#include "model/materialize.h"

namespace refold {
namespace {

const std::vector<Slot> kQk = {Slot::attn_q, Slot::attn_k};

bool is_rows(Slot slot, const Expression& expression) {
    return std::holds_alternative<Dense>(expression) ||
           (std::holds_alternative<Heads>(expression) && !heads_are_columns(slot));
}

bool same_shape(const Model& model, Slot slot, size_t a, size_t b) {
    const SlotShape one = slot_shape(slot, model.config, a), other = slot_shape(slot, model.config, b);
    return one.in == other.in && one.out == other.out;
}

// The first earlier layer with the same weight in this slot.
std::optional<size_t> equal_before(const Model& model, size_t layer, Slot slot) {
    for (size_t q = 0; q < layer; ++q) {
        if (model.topology.has(q, slot) && same_shape(model, slot, q, layer) &&
            model.topology.at(q, slot) == model.topology.at(layer, slot))
            return q;
    }
    return std::nullopt;
}

Tensor computed(const Model& model, size_t layer, Slot slot) {
    const SlotShape shape = slot_shape(slot, model.config, layer);
    Tensor tensor{DType::F32, {shape.in, shape.out}, {}, {}};
    tensor.produce = [&model, layer, slot] {
        const auto values = materialize(model, model.topology.at(layer, slot), slot, layer);
        std::vector<std::byte> bytes(values.size() * sizeof(float));
        memcpy(bytes.data(), values.data(), bytes.size());
        return bytes;
    };
    return tensor;
}

void need_weights(const Model& model) {
    if (model.shapes_only)
        fail(ErrorCode::input, "analyze", "{}: no weights: only config.json was given", model.label);
}

// The rows of a weight of a model from with_stored_weights().
std::vector<RowBlock> rows_of(const Model& model, const Expression& expression, Slot slot) {
    std::vector<RowBlock> blocks;
    if (const auto* heads = std::get_if<Heads>(&expression)) {
        const int64_t rows = block_size(slot, model.config);
        for (const HeadRun& run : heads->runs)
            blocks.push_back({run.tensor, run.first * rows, run.count * rows});
    } else {
        const std::string& name = std::get<Dense>(expression).tensor;
        blocks.push_back({name, 0, model.tensor(name).rows()});
    }
    return blocks;
}

HeadUnits units_of(const Model& stored) { return {stored, kQk, kQk}; }

std::vector<double> gram_of(const Model& stored, const HeadUnits& units) {
    const int64_t rows = stored.config.head_dim;
    std::vector<MatrixOfEach> matrices;
    for (const Slot slot : kQk) {
        auto& matrix = matrices.emplace_back();
        for (const Unit& unit : units.stored()) {
            auto& blocks = matrix.emplace_back();
            for (const HeadRef& head : units.heads_of(unit, slot))
                blocks.push_back({head.tensor, head.head * rows, rows});
        }
    }
    return gram_matrix(stored, matrices, "weights of heads");
}

// Sizes of a layer's matrices in `slots`; empty when it has none.
std::vector<int64_t> sizes_of(const Model& model, size_t layer, const std::vector<Slot>& slots) {
    std::vector<int64_t> sizes;
    for (const Slot slot : slots) {
        if (!model.topology.has(layer, slot)) continue;
        const SlotShape shape = slot_shape(slot, model.config, layer);
        sizes.insert(sizes.end(), {static_cast<int64_t>(slot), shape.in, shape.out});
    }
    return sizes;
}

Spectrum spectrum_of(const Model& model, size_t layer, Slot slot) {
    const SlotShape shape = slot_shape(slot, model.config, layer);
    Spectrum out{{layer}, slot, shape, {}};
    out.values =
        singular_values(materialize(model, model.topology.at(layer, slot), slot, layer), shape.out, shape.in);
    out.rank_50 = rank_for_energy(out.values, 0.5);
    out.rank_90 = rank_for_energy(out.values, 0.9);
    out.rank_99 = rank_for_energy(out.values, 0.99);
    double squares = 0;
    for (const double value : out.values) squares += value * value;
    const double largest = out.values.front() * out.values.front();
    out.stable_rank = largest > 0 ? squares / largest : kUndefined;
    return out;
}

}  // namespace

Model with_stored_weights(const Model& model) {
    need_weights(model);
    Model out = model;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            if (!is_matrix(slot) || is_rows(slot, expression)) continue;
            if (const auto equal = equal_before(model, p, slot)) {
                out.topology.layers[p][slot] = out.topology.at(*equal, slot);
                continue;
            }
            const std::string name = fmt::format("computed.{}.{}", p, slot_name(slot));
            out.tensors[name] = computed(model, p, slot);
            out.topology.layers[p][slot] = Dense{name};
        }
    }
    return out;
}

HeadCandidates head_candidates(const Model& model) {
    const Model stored = with_stored_weights(model);
    const HeadUnits units = units_of(stored);
    return {units.stored(), gram_of(stored, units)};
}

HeadSimilarity head_similarity(const Model& model) {
    const Model stored = with_stored_weights(model);
    const HeadUnits units = units_of(stored);
    const SquareMatrix distinct = cosines_of(gram_of(stored, units), units.stored().size());
    std::map<Unit, size_t> index;
    for (size_t i = 0; i < units.stored().size(); ++i) {
        for (const Unit& unit : units.equal(units.stored()[i])) index[unit] = i;
    }
    HeadSimilarity out;
    std::vector<std::optional<size_t>> of;
    for (const auto& [unit, i] : index) {
        out.units.push_back(unit);
        of.emplace_back(i);
    }
    out.cosines = expanded(distinct, of);
    return out;
}

SquareMatrix module_cosines(const Model& model, const std::vector<Slot>& slots) {
    const Model stored = with_stored_weights(model);
    const size_t layers = model.topology.layers.size();
    std::map<std::vector<int64_t>, std::vector<size_t>> alike;
    for (size_t p = 0; p < layers; ++p) {
        if (const auto sizes = sizes_of(model, p, slots); !sizes.empty()) alike[sizes].push_back(p);
    }
    SquareMatrix out(layers);
    for (const auto& [sizes, members] : alike) {
        std::vector<MatrixOfEach> matrices;
        for (const Slot slot : slots) {
            if (!model.topology.has(members[0], slot)) continue;
            auto& matrix = matrices.emplace_back();
            for (const size_t p : members)
                matrix.push_back(rows_of(stored, stored.topology.at(p, slot), slot));
        }
        const SquareMatrix cosines =
            cosines_of(gram_matrix(stored, matrices, "weights of modules"), members.size());
        for (size_t i = 0; i < members.size(); ++i) {
            for (size_t j = 0; j < members.size(); ++j) out(members[i], members[j]) = cosines(i, j);
        }
    }
    return out;
}

std::vector<Spectrum> spectra(const Model& model) {
    need_weights(model);
    struct Weight {
        std::vector<size_t> layers;
        Slot slot;
    };
    std::vector<Weight> weights;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            if (!is_matrix(slot)) continue;
            const auto equal = equal_before(model, p, slot);
            const auto known = std::find_if(weights.begin(), weights.end(), [&, s = slot](const Weight& w) {
                return equal && w.slot == s && w.layers.front() == *equal;
            });
            known == weights.end() ? weights.push_back({{p}, slot}) : known->layers.push_back(p);
        }
    }
    Progress progress("singular values", weights.size(), "matrices");
    std::vector<Spectrum> out;
    for (const Weight& weight : weights) {
        check_interrupt();
        out.push_back(spectrum_of(model, weight.layers.front(), weight.slot));
        out.back().layers = weight.layers;
        progress.advance(1, fmt::format("{} {}", weight.layers.front(), slot_name(weight.slot)));
    }
    progress.finish();
    return out;
}

}  // namespace refold
