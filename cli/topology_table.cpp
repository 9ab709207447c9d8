#include "cli/topology_table.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "model/ownership.h"

namespace refold::cli {
namespace {

std::string range(int64_t first, int64_t count) {
    return count == 1 ? std::to_string(first) : fmt::format("{}-{}", first, first + count - 1);
}

// A reference to another layer is written as a distance until equal rows are joined.
constexpr char kReference = '\x01', kReferenceEnd = '\x02';

std::string reference(size_t owner, size_t layer) {
    return fmt::format("{}{}{}", kReference, static_cast<int64_t>(owner) - static_cast<int64_t>(layer),
                       kReferenceEnd);
}

// `text` of the layers [first, first + count), with references as layer numbers.
std::string resolved(const std::string& text, int64_t first, int64_t count) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        if (text[at] != kReference) {
            out += text[at++];
            continue;
        }
        const size_t end = text.find(kReferenceEnd, at);
        int64_t distance = 0;
        std::from_chars(text.data() + at + 1, text.data() + end, distance);
        out += range(first + distance, count);
        at = end + 1;
    }
    return out;
}

std::string lora_text(const Model& model, const Plus& e) {
    return fmt::format("LoRA {}", model.tensor(e.term.u).row_elements());
}

// Describes weight expressions of a layer; "" when it uses only its own weights.
class Describer {
public:
    Describer(const Model& model, const Ownership& owners, size_t layer)
        : model_(model), owners_(owners), layer_(layer) {}

    // "" when the layer uses its own tensor.
    std::string operator()(const Dense& e) const { return arrow(e.tensor); }

    std::string operator()(const Heads& heads) const {
        const auto refs = expand(heads);
        std::string text;
        bool shares = false;
        for (size_t h = 0; h < refs.size();) {
            const OwnedHead first = head(refs[h]);
            const bool own = first.layer == layer_ && first.number == static_cast<int64_t>(h);
            int64_t count = 1;
            for (; h + static_cast<size_t>(count) < refs.size(); ++count) {
                const OwnedHead next = head(refs[h + static_cast<size_t>(count)]);
                if (next.layer != first.layer || next.number != first.number + count) break;
            }
            if (!text.empty()) text += ", ";
            const std::string here = range(static_cast<int64_t>(h), count);
            text += own ? "own " + here
                        : fmt::format("{}<-{}.{}", here, reference(first.layer, layer_),
                                      range(first.number, count));
            shares |= !own;
            h += static_cast<size_t>(count);
        }
        return shares ? text : "";
    }

    std::string operator()(const LowRank& e) const { return with_owner(factors_text(model_, e), e.u); }
    std::string operator()(const Tucker& e) const { return with_owner(factors_text(model_, e), e.core); }

    std::string operator()(const RowParts& e) const { return factors_text(model_, e); }

    std::string operator()(const Plus& e) const {
        const std::string base = std::visit(*this, e.base);
        return (base.empty() ? "" : base + " ") + with_owner("+ " + lora_text(model_, e), e.term.u);
    }

private:
    struct OwnedHead {
        size_t layer;
        int64_t number;  // as the owner counts its heads; as they are stored when it does not use this one
    };
    OwnedHead head(const HeadRef& ref) const {
        return {owners_.layer_of(ref.tensor), owners_.head_of(ref.tensor, ref.head).value_or(ref.head)};
    }
    std::string arrow(const std::string& tensor) const {
        const size_t owner = owners_.layer_of(tensor);
        return owner == layer_ ? "" : "<-" + reference(owner, layer_);
    }
    std::string with_owner(const std::string& text, const std::string& tensor) const {
        const std::string from = arrow(tensor);
        return from.empty() ? text : text + " " + from;
    }

    const Model& model_;
    const Ownership& owners_;
    size_t layer_;
};

// "2 of 3 KV heads", "no FFN" of a layer that is smaller than the others.
std::vector<std::string> sizes_of(const Model& model, size_t layer) {
    const ModelConfig& c = model.config;
    std::vector<std::string> sizes;
    if (const int64_t heads = c.n_head_kv_of(layer); heads == 0) {
        sizes.emplace_back("no attention");
    } else if (heads != c.n_head_kv) {
        sizes.push_back(fmt::format("{} of {} KV heads", heads, c.n_head_kv));
    }
    if (const int64_t channels = c.n_ff_of(layer); channels == 0) {
        sizes.emplace_back("no FFN");
    } else if (channels != c.n_ff) {
        sizes.push_back(fmt::format("{} of {} channels", channels, c.n_ff));
    }
    return sizes;
}

// "attention probabilities <-18" of a layer with an attention source.
std::vector<std::string> attention_of(const Topology& topology, size_t layer) {
    const AttentionSource& source = topology.source(layer);
    if (source.probabilities) return {"attention probabilities <-" + reference(*source.probabilities, layer)};
    if (source.kv) return {"keys and values <-" + reference(*source.kv, layer)};
    return {};
}

struct SlotGroup {
    std::string source, names, module;
    size_t slots = 0;
};

// Slots with the same sources are named together: "attn.q,o, ffn.up".
std::vector<SlotGroup> groups_of(const Model& model, const Ownership& owners, size_t layer) {
    const Describer describe(model, owners, layer);
    std::vector<SlotGroup> groups;
    for (const auto& [slot, expression] : model.topology.layers[layer]) {
        std::string source = std::visit(describe, expression);
        // W_c is listed even if it is a matrix of the layer's own.
        if (is_compensation(slot)) source = source.empty() ? "W_c" : "W_c " + source;
        if (source.empty()) continue;
        const std::string name = slot_name(slot);
        const std::string module = name.substr(0, name.find('.') + 1);
        auto group = groups.begin();
        while (group != groups.end() && group->source != source) ++group;
        if (group == groups.end()) {
            groups.push_back({source, name, module, 1});
            continue;
        }
        group->names += group->module == module ? "," + name.substr(module.size()) : ", " + name;
        group->module = module;
        ++group->slots;
    }
    return groups;
}

// With references as distances; "" for a layer of its own, full-sized weights.
std::string layer_text(const Model& model, const Ownership& owners, size_t layer) {
    std::vector<std::string> parts = sizes_of(model, layer);
    for (auto& part : attention_of(model.topology, layer)) parts.push_back(std::move(part));
    for (const SlotGroup& group : groups_of(model, owners, layer)) {
        const bool all = group.slots == model.topology.layers[layer].size();
        parts.push_back((all ? "all" : group.names) + " " + group.source);
    }
    return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::string factors_text(const Model& model, const Expression& expression) {
    if (const auto* e = std::get_if<LowRank>(&expression))
        return fmt::format("low rank {}", model.tensor(e->u).row_elements());
    if (const auto* e = std::get_if<Tucker>(&expression)) {
        const auto& shape = model.tensor(e->core).shape;
        const int64_t heads = shape.size() > 3 ? shape[3] : 1;
        return fmt::format("tucker {}x{}x{} of {} head{}", shape[0], shape[1], shape[2], heads,
                           heads == 1 ? "" : "s");
    }
    if (const auto* e = std::get_if<Plus>(&expression)) {
        const std::string base = factors_text(model, base_of(expression));
        return (base.empty() ? "" : base + " + ") + lora_text(model, *e);
    }
    if (const auto* e = std::get_if<RowParts>(&expression)) {
        std::vector<std::string> parts;
        for (const std::string& part : e->parts)
            parts.push_back(
                fmt::format("{} rows in {}", model.tensor(part).rows(), name(model.tensor(part).type)));
        return fmt::format("{}", fmt::join(parts, ", "));
    }
    return "";
}

std::string topology_table(const Model& model) {
    const Ownership owners(model);
    const size_t count = model.topology.layers.size();
    std::string out;
    if (const int64_t loops = model.topology.loops; loops > 1)
        out += fmt::format("{} loops of {} layers\n", loops, static_cast<int64_t>(count) / loops);
    if (model.config.n_prefix > 0)
        out += fmt::format("{} prefix keys and values before the sequence at every layer\n",
                           model.config.n_prefix);
    out += "   layer  weights\n";
    for (size_t p = 0; p < count;) {
        const std::string text = layer_text(model, owners, p);
        size_t end = p + 1;
        while (end < count && layer_text(model, owners, end) == text) ++end;
        const auto first = static_cast<int64_t>(p), rows = static_cast<int64_t>(end - p);
        out += fmt::format("{:>8}  {}\n", range(first, rows),
                           text.empty() ? "own" : resolved(text, first, rows));
        p = end;
    }
    for (const auto& [slot, expression] : model.topology.globals) {
        if (const std::string text = factors_text(model, expression); !text.empty())
            out += fmt::format("{:>8}  {} {}\n", "model", slot_name(slot), text);
    }
    return out;
}

}  // namespace refold::cli
