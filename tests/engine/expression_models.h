// Random small models of real families with every weight expression in the slots that may hold it: what both
// engines, the file format and the exports are tested with.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/synthetic_models.h"
#include "model/family.h"
#include "model/materialize.h"
#include "model/model.h"
#include "model/row_parts.h"
#include "model/validate.h"

namespace refold {

struct ExpressionShape {
    int64_t layers = 4, heads = 4, kv_heads = 2, head_dim = 16, embd = 64, ff = 96, vocab = 40;
};

struct TuckerRanks {
    int64_t model = 7, head = 5, roles = 3;
};

inline const std::vector<std::string> kExpressionFamilies = {"llama", "qwen2", "gpt2", "gptneox"};
// GPT-2's and GPT-NeoX's key/value heads are as many as the query heads.
inline bool has_groups(const std::string& family) { return family == "llama" || family == "qwen2"; }

// Tensors that say where rows are, and are no weights.
inline std::set<std::string> lists_of_rows(const Model& model) {
    std::set<std::string> out;
    for (const auto& [slot, expression] : model.topology.globals)
        if (const auto* parts = std::get_if<RowParts>(&expression)) out.insert(parts->ids);
    return out;
}

// The layer's attention comes from another one: it has none of the slots that this replaces.
inline void take_attention(Model& model, size_t p, const AttentionSource& source) {
    model.topology.sources[p] = source;
    std::erase_if(model.topology.layers[p],
                  [&](const auto& entry) { return model.topology.is_replaced(p, entry.first); });
}

// Starts from a dense model of a family; every call puts an expression of new random tensors into slots.
class ExpressionBuilder {
public:
    explicit ExpressionBuilder(const std::string& family, uint32_t seed = 1,
                               const ExpressionShape& shape = {})
        : random_(seed), weights_(seed + 1000) {
        model.label = family + " model " + std::to_string(seed);
        model.family = &find_family(family);
        write_metadata(family, shape);
        model.config = model.family->read_config(model.metadata);
        model.config.n_vocab = shape.vocab;
        // Every slot of its own: an output, and the optional biases of some families; no experts.
        model.topology = implied_topology(
            *model.family, model.config, static_cast<size_t>(shape.layers), [&](const std::string& name) {
                return name != "rope_freqs.weight" && !name.ends_with("ffn_gate_inp.weight") &&
                       (family != "llama" || !name.ends_with(".bias"));
            });
        for (size_t p = 0; p < n_layer(); ++p) fill(p, [](Slot) { return true; });
        for (const auto& [slot, expression] : model.topology.globals)
            store(std::get<Dense>(expression).tensor, slot, kWholeModel);
    }

    Model model;

    size_t n_layer() const { return model.topology.layers.size(); }
    Expression& at(size_t p, Slot slot) { return model.topology.layers[p].at(slot); }
    // The tensor of a slot's own that the model started with, or got by compensate().
    std::string own_tensor(size_t p, Slot slot) const {
        return is_compensation(slot) ? fmt::format("blk.{}.{}", p, slot_name(slot))
                                     : tensor_name(*model.family, slot, p);
    }

    // The model without what nothing refers to any more.
    Model finish() {
        model.drop_unreferenced();
        validate(model);
        return model;
    }

    // ---- expressions for a slot ----

    LowRank low_rank(size_t p, Slot slot, int64_t rank, bool scaled = false, bool transposed = false) {
        const SlotShape shape = shape_of(p, slot);
        LowRank e;
        e.transposed = transposed;
        const std::string name = new_name(p, slot);
        e.u = name + ".u";
        e.v = name + ".v";
        add(e.u, {rank, transposed ? shape.in : shape.out}, 0.35F);
        add(e.v, {transposed ? shape.out : shape.in, rank}, 0.35F);
        if (scaled) {
            e.scale = name + ".scale";
            e.row = random(3);
            add(e.scale, {rank, 3}, 0.5F, 1.0F);
        }
        return e;
    }

    // Heads of this slot's stored tensors of any layers.
    Heads heads(size_t p, Slot slot) {
        const int64_t head_dim = model.config.head_dim;
        const SlotShape shape = shape_of(p, slot);
        std::vector<HeadRef> refs;
        for (int64_t h = 0; h < (heads_are_columns(slot) ? shape.in : shape.out) / head_dim;) {
            const size_t from = random(2) == 0 ? p : static_cast<size_t>(random(n_layer()));
            const auto found = model.tensors.find(tensor_name(*model.family, slot, from));
            if (found == model.tensors.end()) continue;
            const Tensor& tensor = found->second;
            const int64_t stored =
                (heads_are_columns(slot) ? tensor.row_elements() : tensor.rows()) / head_dim;
            refs.push_back({found->first, from == p ? h % stored : random(stored)});
            ++h;
        }
        return collapse(refs);
    }

    // One head as wide as the slot's output, or its input when transposed.
    Tucker one_head_tucker(size_t p, Slot slot, bool transposed, const TuckerRanks& ranks = {}) {
        const SlotShape shape = shape_of(p, slot);
        Tucker e = factors(new_name(p, slot), 1, transposed ? shape.in : shape.out,
                           transposed ? shape.out : shape.in, 2, ranks);
        e.role = 1;
        e.transposed = transposed;
        return e;
    }

    Plus plus(size_t p, Slot slot, Base base, int64_t rank, bool scaled = false, bool transposed = false) {
        return {std::move(base), low_rank(p, slot, rank, scaled, transposed)};
    }

    // Rows of a table in several tensors, in any order.
    void cut_rows(Slot slot, const std::vector<int64_t>& counts) {
        const std::string table = std::get<Dense>(model.topology.globals.at(slot)).tensor;
        std::vector<int32_t> order(static_cast<size_t>(model.tensor(table).rows()));
        std::iota(order.begin(), order.end(), 0);
        for (size_t i = order.size() - 1; i > 0; --i)
            std::swap(order[i], order[static_cast<size_t>(random(static_cast<int64_t>(i) + 1))]);
        model = with_row_parts(model, table, counts, [order] { return order; });
    }

    // ---- expressions for several slots ----

    // TensorLLM: one core for q, k, v and o; k and v of a GQA model are means of neighboring heads.
    void attention_tucker(size_t p, const TuckerRanks& ranks = {}, bool halves = false) {
        const ModelConfig& c = model.config;
        Tucker e = factors(new_name(p, Slot::attn_q), c.n_head_of(p), c.head_dim, c.n_embd, kAttention.size(),
                           ranks);
        e.halves = halves;
        put(p, e, kAttention);
    }

    // Two cores, of q and o and of k and v, so that nothing is repeated.
    void separate_tucker(size_t p, const TuckerRanks& ranks = {}) {
        const ModelConfig& c = model.config;
        put(p, factors(new_name(p, Slot::attn_q), c.n_head_of(p), c.head_dim, c.n_embd, 2, ranks),
            {Slot::attn_q, Slot::attn_o});
        put(p, factors(new_name(p, Slot::attn_k), c.n_head_kv_of(p), c.head_dim, c.n_embd, 2, ranks),
            {Slot::attn_k, Slot::attn_v});
    }

    // The FFN's matrices, down transposed, as roles of one tensor with one head.
    void ffn_tucker(size_t p, const TuckerRanks& ranks = {6, 9, 2}) {
        std::vector<Slot> slots;
        for (const Slot slot : {Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down})
            if (model.topology.has(p, slot)) slots.push_back(slot);
        put(p,
            factors(new_name(p, Slot::ffn_up), 1, model.config.n_ff_of(p), model.config.n_embd, slots.size(),
                    ranks),
            slots);
    }

    // The slot of all layers from one U and V, each with a row of scales (CP of stacked matrices).
    void common_low_rank(Slot slot, int64_t rank, bool transposed = false) {
        LowRank e = low_rank(0, slot, rank, false, transposed);
        e.scale = new_name(0, slot) + ".scale";
        add(e.scale, {rank, static_cast<int64_t>(n_layer())}, 0.6F, 0.8F);
        for (size_t p = 0; p < n_layer(); ++p) {
            e.row = static_cast<int64_t>(p);
            at(p, slot) = e;
        }
    }

    // The same expression in this slot of layer `to` as in `from`.
    void tie(size_t to, size_t from, Slot slot) { at(to, slot) = at(from, slot); }

    // Rounds of the first layers.
    void loop(int64_t loops) {
        const size_t block = n_layer() / static_cast<size_t>(loops);
        for (size_t p = block; p < n_layer(); ++p)
            model.topology.layers[p] = model.topology.layers[p % block];
        model.topology.loops = loops;
    }

    // ---- sizes, before expressions ----

    // `groups` key/value heads and their query heads; 0: no attention.
    void prune_heads(size_t p, int64_t groups) {
        auto& sizes = model.config.heads_kv;
        sizes.resize(n_layer(), model.config.n_head_kv);
        sizes[p] = groups;
        refill(p, groups == 0, belongs_to_attention);
    }
    // `channels` of the FFN; 0: no FFN.
    void prune_ffn(size_t p, int64_t channels) {
        auto& sizes = model.config.ffs;
        sizes.resize(n_layer(), model.config.n_ff);
        sizes[p] = channels;
        refill(p, channels == 0, belongs_to_ffn);
    }
    // Trained keys and values before the first token at every layer that attends; or vectors that make them.
    void prefix(int64_t rows, const std::vector<Slot>& slots = {Slot::attn_prefix_k, Slot::attn_prefix_v}) {
        model.config.n_prefix = rows;
        for (size_t p = 0; p < n_layer(); ++p) {
            if (model.config.n_head_kv_of(p) == 0) continue;
            for (const Slot slot : slots) {
                const std::string name = new_name(p, slot);
                const SlotShape shape = shape_of(p, slot);
                add(name, {shape.in, shape.out}, 1.2F);
                model.topology.layers[p][slot] = Dense{name};
            }
        }
    }

    // ---- attention of other layers, after sizes and loops and before expressions ----

    void share_probabilities(size_t p, size_t from) { take_attention(model, p, {from, std::nullopt}); }
    void share_kv(size_t p, size_t from) { take_attention(model, p, {std::nullopt, from}); }
    // W_c as one matrix.
    void compensate(size_t p, Slot slot) {
        const std::string name = own_tensor(p, slot);
        store(name, slot, p);
        model.topology.layers[p][slot] = Dense{name};
    }

    // 0 to limit - 1.
    template <typename Number>
    int64_t random(Number limit) {
        return static_cast<int64_t>(random_() % static_cast<uint32_t>(limit));
    }
    bool chance() { return random(2) == 0; }
    SlotShape shape_of(size_t p, Slot slot) const { return slot_shape(slot, model.config, p); }

    static inline const std::vector<Slot> kAttention = {Slot::attn_q, Slot::attn_k, Slot::attn_v,
                                                        Slot::attn_o};

private:
    void write_metadata(const std::string& family, const ExpressionShape& s) {
        const auto number = [&](const char* key, int64_t value) {
            model.metadata.set(family + "." + key, GgufValue::u32(static_cast<uint32_t>(value)));
        };
        model.metadata.set("general.architecture", GgufValue::string(family));
        number("block_count", s.layers);
        number("embedding_length", s.embd);
        number("attention.head_count", s.heads);
        if (has_groups(family)) number("attention.head_count_kv", s.kv_heads);
        number("attention.key_length", s.head_dim);
        number("attention.value_length", s.head_dim);
        number("feed_forward_length", s.ff);
        number("context_length", 64);
        if (family == "gptneox") number("rope.dimension_count", s.head_dim / 2);
        for (const char* norm : {"layer_norm_rms_epsilon", "layer_norm_epsilon"})
            model.metadata.set(family + ".attention." + norm, GgufValue::f32(1e-5F));
    }

    std::string new_name(size_t p, Slot slot) {
        const std::string place = p == kWholeModel ? "" : fmt::format("blk.{}.", p);
        return fmt::format("{}{}.{}", place, slot_name(slot), ++names_);
    }

    void add(const std::string& name, std::vector<int64_t> shape, float spread, float mean = 0.0F) {
        int64_t rows = 1;
        for (size_t d = 1; d < shape.size(); ++d) rows *= shape[d];
        Tensor tensor = weights_.tensor({shape[0], rows}, mean, spread);
        tensor.shape = std::move(shape);
        model.tensors[name] = std::move(tensor);
    }

    void store(const std::string& name, Slot slot, size_t p) {
        const SlotShape shape = slot_shape(slot, model.config, p);
        const float mean = is_norm(slot) ? 1.0F : 0.0F;
        const float spread = is_vector(slot) ? 0.4F : is_table(slot) ? 1.0F : 0.2F;
        add(name, is_vector(slot) ? std::vector{shape.in} : std::vector{shape.in, shape.out}, spread, mean);
    }

    template <typename Which>
    void fill(size_t p, Which&& which) {
        for (const auto& [slot, expression] : model.topology.layers[p])
            if (which(slot)) store(std::get<Dense>(expression).tensor, slot, p);
    }

    template <typename Which>
    void refill(size_t p, bool removed, Which&& which) {
        for (const auto& [slot, expression] : model.topology.layers[p])
            if (removed && which(slot)) model.tensors.erase(std::get<Dense>(expression).tensor);
        if (removed) {
            std::erase_if(model.topology.layers[p], [&](const auto& entry) { return which(entry.first); });
        } else {
            fill(p, which);
        }
    }

    Tucker factors(const std::string& name, int64_t heads, int64_t head_width, int64_t features, size_t roles,
                   const TuckerRanks& ranks) {
        Tucker e{name + ".core", name + ".u1", name + ".u2", name + ".u3"};
        std::vector<int64_t> core = {ranks.model, ranks.head, ranks.roles};
        if (heads > 1) core.push_back(heads);
        add(e.core, core, 0.25F);
        add(e.model, {features, ranks.model}, 0.8F);
        add(e.head, {head_width, ranks.head}, 0.8F);
        add(e.roles, {static_cast<int64_t>(roles), ranks.roles}, 1.0F);
        return e;
    }

    // One role for every slot; attn.o and ffn.down are transposed.
    void put(size_t p, Tucker e, const std::vector<Slot>& slots) {
        e.role = -1;
        for (const Slot slot : slots) {
            ++e.role;
            if (!model.topology.has(p, slot)) continue;
            e.transposed = slot == Slot::attn_o || slot == Slot::ffn_down;
            at(p, slot) = e;
        }
    }

    std::mt19937 random_;
    RandomWeights weights_;
    int names_ = 0;
};

// Calls `visit` with slot and expression of every place.
template <typename Visit>
void for_each_expression(const Model& model, Visit&& visit) {
    for (const Slots& slots : model.topology.layers)
        for (const auto& [slot, expression] : slots) visit(slot, expression);
    for (const auto& [slot, expression] : model.topology.globals) visit(slot, expression);
}

// Stores the matrices and large factors in another type, where their rows, and columns that are shared, are
// whole blocks of it.
inline Model with_type(Model model, DType type) {
    const Model source = model;
    std::set<std::string> kept, converted;
    for_each_expression(source, [&](Slot slot, const Expression& expression) {
        const bool columns = heads_are_columns(slot) && std::holds_alternative<Heads>(base_of(expression)) &&
                             source.config.head_dim % block_elements(type) != 0;
        for (const auto& name : tensors_of(expression)) {
            const bool whole = source.tensor(name).row_elements() % block_elements(type) == 0;
            const bool small = is_vector(slot) || is_prefix(slot) || is_small_factor(expression, name);
            (small || columns || !whole ? kept : converted).insert(name);
        }
    });
    for (const auto& name : converted) {
        if (kept.contains(name)) continue;
        Tensor& tensor = model.tensors.at(name);
        auto bytes = quantize(type, floats_of(source, name), tensor.row_elements());
        tensor = Tensor{type, tensor.shape, {}, [bytes = std::move(bytes)]() { return bytes; }};
    }
    return model;
}

// ---- one model for every kind of expression ----

struct ExpressionModel {
    std::string name;
    Model model;
    reference::Input input;
};

namespace expressions {

using Build = std::function<void(ExpressionBuilder&)>;

inline std::vector<Slot> matrices(const ExpressionBuilder& b, size_t p) {
    std::vector<Slot> slots;
    for (const auto& [slot, expression] : b.model.topology.layers[p])
        if (is_matrix(slot)) slots.push_back(slot);
    return slots;
}

inline void low_rank_everywhere(ExpressionBuilder& b, bool scaled, bool transposed) {
    for (size_t p = 1; p < b.n_layer(); ++p)
        for (const Slot slot : matrices(b, p))
            b.at(p, slot) = b.low_rank(p, slot, 3 + static_cast<int64_t>(p), scaled, transposed);
}

// LoRA over dense, low-rank and, where there are heads, shared weights.
inline void lora(ExpressionBuilder& b) {
    for (size_t p = 0; p < b.n_layer(); ++p) {
        for (const Slot slot : matrices(b, p)) {
            Base base = Dense{b.own_tensor(p, slot)};
            if (p == 1) base = b.low_rank(p, slot, 9, true);
            if (p == 2 && consists_of_heads(slot)) base = b.heads(p, slot);
            b.at(p, slot) = b.plus(p, slot, std::move(base), 4, p == 3, p == 0 && b.chance());
        }
    }
}

inline void pruned(ExpressionBuilder& b) {
    b.prune_heads(1, 1);
    b.prune_heads(2, 0);
    b.prune_ffn(0, b.model.config.n_ff / 3);
    b.prune_ffn(3, 0);
}

inline constexpr std::array kCompensation = {Slot::attn_comp, Slot::attn_comp_norm, Slot::attn_comp_ffn,
                                             Slot::attn_comp_o, Slot::attn_comp_v};

// All later layers use the probabilities of the first one.
inline void superblock(ExpressionBuilder& b) {
    for (size_t p = 1; p < b.n_layer(); ++p) b.share_probabilities(p, 0);
}

inline const std::vector<std::pair<std::string, Build>>& cases() {
    static const std::vector<std::pair<std::string, Build>> all = {
        {"dense", [](ExpressionBuilder&) {}},
        {"ties",
         [](ExpressionBuilder& b) {
             for (const Slot slot :
                  {Slot::attn_q, Slot::attn_o, Slot::ffn_up, Slot::ffn_down, Slot::attn_norm})
                 b.tie(2, 0, slot);
             b.model.topology.layers[3] = b.model.topology.layers[1];
             b.model.topology.globals[Slot::output] = b.model.topology.globals.at(Slot::token_embd);
         }},
        {"heads",
         [](ExpressionBuilder& b) {
             for (size_t p = 1; p < b.n_layer(); ++p)
                 for (const Slot slot : ExpressionBuilder::kAttention) b.at(p, slot) = b.heads(p, slot);
         }},
        {"low rank", [](ExpressionBuilder& b) { low_rank_everywhere(b, false, false); }},
        {"low rank, scaled", [](ExpressionBuilder& b) { low_rank_everywhere(b, true, false); }},
        {"low rank, transposed", [](ExpressionBuilder& b) { low_rank_everywhere(b, true, true); }},
        {"low rank output",
         [](ExpressionBuilder& b) {
             b.model.topology.globals[Slot::output] = b.low_rank(kWholeModel, Slot::output, 6, true);
         }},
        {"low rank of all layers",
         [](ExpressionBuilder& b) {
             b.common_low_rank(Slot::attn_v, 5);
             b.common_low_rank(Slot::ffn_down, 7, true);
         }},
        {"attention tucker",
         [](ExpressionBuilder& b) {
             b.attention_tucker(0);
             b.attention_tucker(1, {9, 4, 2}, true);
             b.separate_tucker(3);
         }},
        {"one head tucker",
         [](ExpressionBuilder& b) {
             b.ffn_tucker(0);
             for (const Slot slot : {Slot::ffn_up, Slot::ffn_down, Slot::attn_k, Slot::attn_o}) {
                 b.at(1, slot) = b.one_head_tucker(1, slot, false);
                 b.at(2, slot) = b.one_head_tucker(2, slot, true, {4, 3, 2});
             }
         }},
        {"lora", lora},
        {"lora over tucker",
         [](ExpressionBuilder& b) {
             b.attention_tucker(1);
             b.ffn_tucker(1);
             for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_o, Slot::ffn_up, Slot::ffn_down})
                 b.at(1, slot) = b.plus(1, slot, std::get<Tucker>(b.at(1, slot)), 3);
         }},
        {"loops",
         [](ExpressionBuilder& b) {
             b.attention_tucker(1);
             b.loop(2);
         }},
        {"loops with lora",
         [](ExpressionBuilder& b) {
             b.loop(2);
             for (size_t p = 0; p < b.n_layer(); ++p)
                 for (const Slot slot : matrices(b, p))
                     b.at(p, slot) = b.plus(p, slot, std::get<Dense>(b.at(p, slot)), 4);
         }},
        {"pruned", pruned},
        {"pruned, with expressions",
         [](ExpressionBuilder& b) {
             pruned(b);
             b.attention_tucker(1, {}, true);
             b.ffn_tucker(0);
             for (const Slot slot : ExpressionBuilder::kAttention)
                 b.at(0, slot) = b.plus(0, slot, b.heads(0, slot), 3);
             b.at(3, Slot::attn_o) = b.low_rank(3, Slot::attn_o, 4, true);
         }},
        {"prefix",
         [](ExpressionBuilder& b) {
             b.prefix(3);
             b.tie(3, 1, Slot::attn_prefix_k);
         }},
        {"prefix of vectors",
         [](ExpressionBuilder& b) {
             b.prefix(3, {Slot::attn_prefix});
             b.tie(3, 1, Slot::attn_prefix);
             b.tie(2, 0, Slot::attn_k);
             b.at(2, Slot::attn_k) = b.plus(2, Slot::attn_k, std::get<Dense>(b.at(2, Slot::attn_k)), 2);
         }},
        {"pruned, with a prefix",
         [](ExpressionBuilder& b) {
             pruned(b);
             b.prefix(2);
             b.attention_tucker(0);
         }},
        {"shared probabilities",
         [](ExpressionBuilder& b) {
             b.share_probabilities(1, 0);
             b.share_probabilities(3, 2);
         }},
        {"one superblock", [](ExpressionBuilder& b) { superblock(b); }},
        {"shared keys and values",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.share_kv(3, 2);
         }},
        {"keys and values of one layer",
         [](ExpressionBuilder& b) {
             for (size_t p = 1; p < b.n_layer(); ++p) b.share_kv(p, 0);
         }},
        {"shared probabilities, keys and values of one layer",
         [](ExpressionBuilder& b) {
             b.share_probabilities(1, 0);
             b.share_kv(2, 0);
             b.share_probabilities(3, 0);
         }},
        {"compensation",
         [](ExpressionBuilder& b) {
             superblock(b);
             b.compensate(1, Slot::attn_comp);
             b.compensate(2, Slot::attn_comp_ffn);
             b.compensate(3, Slot::attn_comp_o);
         }},
        {"compensation in every place",
         [](ExpressionBuilder& b) {
             superblock(b);
             for (const Slot slot : kCompensation) b.compensate(3, slot);
             b.compensate(2, Slot::attn_comp_v);
         }},
        {"compensation beside own and borrowed keys",
         [](ExpressionBuilder& b) {
             b.share_kv(2, 0);
             for (const Slot slot :
                  {Slot::attn_comp, Slot::attn_comp_norm, Slot::attn_comp_ffn, Slot::attn_comp_o}) {
                 b.compensate(1, slot);
                 b.compensate(2, slot);
             }
         }},
        {"compensation in place of modules",
         [](ExpressionBuilder& b) {
             b.prune_heads(1, 0);
             b.prune_ffn(1, 0);
             b.prune_heads(2, 0);
             b.prune_ffn(3, 0);
             for (size_t p = 1; p < 4; ++p) {
                 b.compensate(p, Slot::attn_comp);
                 b.compensate(p, Slot::attn_comp_ffn);
             }
         }},
        {"compensation of low rank",
         [](ExpressionBuilder& b) {
             superblock(b);
             for (const Slot slot : kCompensation) {
                 b.compensate(1, slot);
                 b.at(1, slot) = b.low_rank(1, slot, 5);
                 b.compensate(2, slot);
                 b.at(2, slot) = b.plus(2, slot, Dense{b.own_tensor(2, slot)}, 3, true);
             }
         }},
        {"superblock of shared heads",
         [](ExpressionBuilder& b) {
             superblock(b);
             b.at(0, Slot::attn_q) = b.heads(0, Slot::attn_q);
             for (size_t p = 1; p < b.n_layer(); ++p)
                 for (const Slot slot : {Slot::attn_v, Slot::attn_o}) b.at(p, slot) = b.heads(p, slot);
         }},
        {"borrowed keys in factors",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.share_probabilities(3, 2);
             b.attention_tucker(0);
             b.attention_tucker(1, {9, 4, 2}, true);
             b.attention_tucker(3);
             b.at(2, Slot::attn_v) = b.low_rank(2, Slot::attn_v, 4, true);
         }},
        {"superblock with lora",
         [](ExpressionBuilder& b) {
             superblock(b);
             b.compensate(1, Slot::attn_comp);
             lora(b);
         }},
        {"superblock of a pruned layer",
         [](ExpressionBuilder& b) {
             b.prune_heads(0, 0);
             for (size_t p = 1; p < b.n_layer(); ++p) b.prune_heads(p, 1);
             b.prune_ffn(2, 0);
             b.share_probabilities(2, 1);
             b.share_kv(3, 1);
             b.compensate(2, Slot::attn_comp_v);
             b.compensate(3, Slot::attn_comp_o);
         }},
        {"loops of superblocks",
         [](ExpressionBuilder& b) {
             b.loop(2);
             b.share_probabilities(1, 0);
             b.share_probabilities(3, 2);
             b.compensate(1, Slot::attn_comp);
             b.model.topology.layers[3] = b.model.topology.layers[1];
         }},
        {"loops of borrowed keys",
         [](ExpressionBuilder& b) {
             b.loop(2);
             b.share_kv(1, 0);
             b.share_kv(3, 2);
         }},
        {"tables in parts",
         [](ExpressionBuilder& b) {
             b.cut_rows(Slot::token_embd, {5, 11});
             b.cut_rows(Slot::output, {16});
         }},
        {"a tied table in parts",
         [](ExpressionBuilder& b) {
             b.model.topology.globals[Slot::output] = b.model.topology.globals.at(Slot::token_embd);
             b.cut_rows(Slot::token_embd, {1, 2, 3});
         }},
    };
    return all;
}

}  // namespace expressions

inline reference::Input expression_input() { return {{3, 16, 0, 7, 7, 12, 1, 39, 5}, {}, {}}; }

// Every case of every family.
inline std::vector<ExpressionModel> expression_models(const ExpressionShape& shape = {}) {
    std::vector<ExpressionModel> models;
    for (const auto& family : kExpressionFamilies) {
        for (const auto& [name, build] : expressions::cases()) {
            ExpressionBuilder builder(family, static_cast<uint32_t>(models.size() + 1), shape);
            build(builder);
            models.push_back({family + ", " + name, builder.finish(), expression_input()});
        }
    }
    return models;
}

// ---- models by seed ----

namespace expressions {

inline Base random_base(ExpressionBuilder& b, size_t p, Slot slot) {
    const bool stored = b.model.tensors.contains(b.own_tensor(p, slot));
    switch (b.random(4)) {
        case 0:
            if (stored) return Dense{b.own_tensor(p, slot)};
            break;
        case 1:
            if (stored && consists_of_heads(slot)) return b.heads(p, slot);
            break;
        case 2:
            return b.one_head_tucker(p, slot, b.chance(),
                                     {3 + b.random(4), 2 + b.random(4), 1 + b.random(3)});
        default: break;
    }
    return b.low_rank(p, slot, 1 + b.random(8), b.chance(), b.chance());
}

inline void randomize_slots(ExpressionBuilder& b, size_t p) {
    const bool attends = b.model.config.n_head_kv_of(p) > 0, feeds = b.model.config.n_ff_of(p) > 0;
    if (attends && b.random(3) == 0) {
        if (b.chance())
            b.attention_tucker(p, {3 + b.random(6), 2 + b.random(4), 1 + b.random(4)}, b.chance());
        else
            b.separate_tucker(p);
    }
    if (feeds && b.random(4) == 0) b.ffn_tucker(p);
    for (const Slot slot : matrices(b, p)) {
        const int64_t kind = b.random(5);
        if (kind == 0) continue;  // as it is
        const Expression now = b.at(p, slot);
        if (kind == 1 && !std::holds_alternative<Plus>(now)) {
            Base base = Dense{};
            std::visit(
                [&](const auto& e) {
                    if constexpr (std::is_constructible_v<Base, decltype(e)>) base = e;
                },
                now);
            b.at(p, slot) = b.plus(p, slot, std::move(base), 1 + b.random(5), b.chance(), b.chance());
        } else if (kind == 2) {
            std::visit([&](const auto& e) { b.at(p, slot) = e; }, random_base(b, p, slot));
        } else if (kind == 3) {
            b.at(p, slot) = b.plus(p, slot, random_base(b, p, slot), 1 + b.random(5), b.chance(), b.chance());
        } else {
            const auto from = static_cast<size_t>(b.random(p + 1));
            const SlotShape own = b.shape_of(p, slot), other = b.shape_of(from, slot);
            if (own.in == other.in && own.out == other.out && b.model.topology.has(from, slot))
                b.tie(p, from, slot);
        }
    }
}

}  // namespace expressions

struct RandomModelOptions {
    bool sizes = true;     // pruned layers
    bool prefix = false;   // without_sharing() refuses it
    bool sources = false;  // attention of other layers and W_c: refused there, too, and beside a prefix
};

namespace expressions {

// Any layers from the nearest earlier one with as many heads and attention of its own; W_c anywhere.
inline void random_sources(ExpressionBuilder& b) {
    const auto& topology = b.model.topology;
    const auto lender = [&](size_t p) -> std::optional<size_t> {
        for (size_t from = p; from-- > 0;) {
            if (b.model.config.n_head_kv_of(from) == b.model.config.n_head_kv_of(p) &&
                topology.source(from).own())
                return from;
        }
        return std::nullopt;
    };
    for (size_t p = 0; p < b.n_layer(); ++p) {
        const bool attends = b.model.config.n_head_kv_of(p) > 0;
        if (const auto from = lender(p); from && attends && b.random(3) > 0) {
            if (b.chance())
                b.share_probabilities(p, *from);
            else
                b.share_kv(p, *from);
        }
        for (const Slot slot : kCompensation) {
            const bool fits = slot == Slot::attn_comp_v ? topology.source(p).probabilities.has_value()
                              : slot == Slot::attn_comp_o || slot == Slot::attn_comp_norm ? attends
                                                                                          : true;
            if (fits && b.random(4) == 0) b.compensate(p, slot);
        }
    }
}

}  // namespace expressions

// The same model for the same seed.
inline Model random_expression_model(uint32_t seed, const RandomModelOptions& options = {},
                                     const ExpressionShape& shape = {}) {
    ExpressionBuilder b(kExpressionFamilies[seed % kExpressionFamilies.size()], seed, shape);
    if (options.sizes && b.random(3) == 0) {
        for (size_t p = 0; p < b.n_layer(); ++p) {
            if (b.chance()) b.prune_heads(p, b.random(b.model.config.n_head_kv + 1));
            if (b.chance()) b.prune_ffn(p, 32 * b.random(shape.ff / 32 + 1));
        }
    }
    if (options.prefix && b.chance()) {
        const int64_t rows = 1 + b.random(4);
        if (b.chance()) {
            b.prefix(rows, {Slot::attn_prefix});
        } else {
            b.prefix(rows);
        }
    }
    if (options.sources && b.model.config.n_prefix == 0) expressions::random_sources(b);
    for (size_t p = 0; p < b.n_layer(); ++p) expressions::randomize_slots(b, p);
    const bool alike =
        b.model.config.heads_kv.empty() && b.model.config.ffs.empty() && b.model.topology.sources.empty();
    if (alike && b.random(3) == 0) {
        b.loop(2);
        for (const Slot slot : expressions::matrices(b, 3)) {
            if (const auto* dense = std::get_if<Dense>(&b.at(3, slot)))
                b.at(3, slot) = b.plus(3, slot, *dense, 2);
        }
    }
    if (b.random(4) == 0)
        b.model.topology.globals[Slot::output] = b.low_rank(kWholeModel, Slot::output, 5, b.chance());
    return b.finish();
}

}  // namespace refold
