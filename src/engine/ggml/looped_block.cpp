#include "engine/ggml/looped_block.h"

#include <algorithm>

#include "core/error.h"

namespace refold {
namespace {

class BlockSplitter {
public:
    explicit BlockSplitter(const Model& model)
        : model_(model),
          topology_(model.topology),
          loops_(static_cast<size_t>(topology_.loops)),
          length_(topology_.layers.size() / loops_) {}

    LoopedBlock run() {
        take_exit_terms(Slot::exit_map);
        take_exit_terms(Slot::exit_output);
        out_.block = model_;
        out_.loops = topology_.loops;
        out_.block.topology = topology_;
        out_.block.topology.loops = 1;
        out_.block.topology.layers.resize(length_);
        for (size_t p = 0; p < length_; ++p) {
            check_slots(p);
            check_prefix(p);
            for (const auto& [slot, expression] : topology_.layers[p]) split(p, slot);
        }
        split_configuration();
        split_sources();
        return std::move(out_);
    }

private:
    // The layer that is the block's layer p in a loop.
    size_t at(size_t p, size_t loop) const { return loop * length_ + p; }

    [[noreturn]] void differ(size_t p, size_t loop, const std::string& what) const {
        fail(ErrorCode::unsupported, "engine",
             "layer {}: {} differs from layer {}'s, which is the same layer in the first loop; steps by "
             "loop need loops that differ in LoRA and norms only",
             at(p, loop), what, p);
    }

    void check_slots(size_t p) const {
        for (size_t loop = 1; loop < loops_; ++loop) {
            const Slots &first = topology_.layers[p], &other = topology_.layers[at(p, loop)];
            const auto check = [&](const Slots& slots, const Slots& in) {
                for (const auto& [slot, expression] : slots) {
                    if (!in.contains(slot))
                        differ(p, loop, std::string(slot_name(slot)) + ", which only one of them has,");
                }
            };
            check(first, other);
            check(other, first);
        }
    }

    // Vectors make the same keys and values in all loops, which the block stores once.
    void check_prefix(size_t p) const {
        if (!topology_.has(p, Slot::attn_prefix)) return;
        for (size_t loop = 1; loop < loops_; ++loop) {
            for (const Slot slot : {Slot::attn_k, Slot::attn_v, Slot::attn_k_bias, Slot::attn_v_bias,
                                    Slot::attn_k_norm, Slot::attn_k_norm_all}) {
                if (topology_.has(p, slot) && topology_.at(p, slot) != topology_.at(at(p, loop), slot))
                    differ(p, loop,
                           fmt::format("{}, which makes the prefix's keys and values,", slot_name(slot)));
            }
        }
    }

    void split(size_t p, Slot slot) {
        std::vector<Expression> expressions;
        for (size_t loop = 0; loop < loops_; ++loop) expressions.push_back(topology_.at(at(p, loop), slot));
        const auto first = expressions.front();
        if (std::all_of(expressions.begin(), expressions.end(), [&](const auto& e) { return e == first; }))
            return;
        Slots& slots = out_.block.topology.layers[p];
        if (is_vector(slot)) {
            if (is_bias_of_matrix(p, slot)) slots.erase(slot);
            out_.vectors[{p, slot}] = std::move(expressions);
            return;
        }
        slots.at(slot) = base_of(first);
        auto& terms = out_.terms[{p, slot}];
        for (size_t loop = 0; loop < loops_; ++loop) {
            const Expression& e = expressions[loop];
            const auto* plus = std::get_if<Plus>(&e);
            if (base_of(e) != slots.at(slot) || !is_matrix(slot) || (plus && plus->term.transposed))
                differ(p, loop, slot_name(slot));
            terms.push_back(plus ? std::optional(plus->term) : std::nullopt);
        }
    }

    // The weights of exits are not part of the block: every loop has its own, or none.
    void take_exit_terms(Slot slot) {
        std::vector<std::optional<LowRank>> maps(loops_);
        bool any = false;
        for (size_t loop = 0; loop < loops_; ++loop) {
            const auto map = topology_.layers[at(length_ - 1, loop)].extract(slot);
            if (!map) continue;
            maps[loop] = std::get<LowRank>(map.mapped());
            any = true;
        }
        if (any) out_.terms[{length_ - 1, slot}] = std::move(maps);
    }

    bool is_bias_of_matrix(size_t p, Slot bias) const {
        const Slots& slots = topology_.layers[p];
        return std::any_of(slots.begin(), slots.end(), [&](const auto& entry) {
            return is_matrix(entry.first) && bias_of(entry.first) == bias;
        });
    }

    void split_configuration() {
        ModelConfig& block = out_.block.config;
        const ModelConfig& config = model_.config;
        for (size_t loop = 1; loop < loops_; ++loop) {
            for (size_t p = 0; p < length_; ++p) {
                const size_t q = at(p, loop);
                if (config.n_head_kv_of(q) != config.n_head_kv_of(p)) differ(p, loop, "the number of heads");
                if (config.alibi_heads_of(q) != config.alibi_heads_of(p))
                    differ(p, loop, "the slopes of heads");
                if (config.n_ff_of(q) != config.n_ff_of(p)) differ(p, loop, "the size of the FFN");
                if (config.window(q) != config.window(p)) differ(p, loop, "the window of attention");
                if (config.rotates(q) != config.rotates(p)) differ(p, loop, "the rotation");
                if (config.attention_scale_of(q) != config.attention_scale_of(p))
                    differ(p, loop, "the scale of attention");
            }
        }
        if (!block.heads_kv.empty()) block.heads_kv.resize(length_);
        if (!block.ffs.empty()) block.ffs.resize(length_);
        if (!block.alibi_heads.empty()) block.alibi_heads.resize(length_);
        block.windows.clear();
        block.rotated.clear();
        for (size_t p = 0; p < length_; ++p) {
            if (!config.windows.empty()) block.windows.push_back(config.window(p));
            if (!config.rotated.empty()) block.rotated.push_back(config.rotates(p));
        }
    }

    void split_sources() {
        auto& sources = out_.block.topology.sources;
        sources.clear();
        for (size_t p = 0; p < length_; ++p) {
            const AttentionSource first = topology_.source(p);
            if (!first.own()) sources[p] = first;
            for (size_t loop = 1; loop < loops_; ++loop) {
                AttentionSource shifted = first;
                for (auto* source : {&shifted.probabilities, &shifted.kv}) {
                    if (*source) **source += loop * length_;
                }
                if (topology_.source(at(p, loop)) != shifted)
                    differ(p, loop, "the layer that its attention comes from");
            }
        }
    }

    const Model& model_;
    Topology topology_;
    size_t loops_, length_;
    LoopedBlock out_;
};

}  // namespace

LoopedBlock looped_block(const Model& model) { return BlockSplitter(model).run(); }

}  // namespace refold
