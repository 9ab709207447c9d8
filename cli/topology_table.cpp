#include "cli/topology_table.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <utility>
#include <vector>

namespace refold::cli {
namespace {

struct Home {
    size_t position = 0;
    int64_t head = 0;
    bool own = false;
};

// Which position a stored tensor belongs to: the one whose name it has, else the first that uses it.
class Names {
public:
    explicit Names(const Model& model) {
        const auto& positions = model.topology.positions;
        for (size_t p = 0; p < positions.size(); ++p) {
            for (const SlotDescription& slot : model.family->position_slots)
                positions_[tensor_name(slot, p)] = p;
        }
        for (size_t p = 0; p < positions.size(); ++p) {
            for (const auto& [slot, expression] : positions[p]) {
                for (const auto& name : tensors_of(expression)) positions_.try_emplace(name, p);
                number_heads(expression, p);
            }
        }
    }

    Home tensor(const std::string& name, size_t position) const {
        const size_t home = positions_.at(name);
        return {home, 0, home == position};
    }

    Home head(const HeadRef& ref, size_t position) const {
        Home home = tensor(ref.tensor, position);
        const auto number = numbers_.find({ref.tensor, ref.head});
        home.head = number == numbers_.end() ? ref.head : number->second;
        return home;
    }

private:
    // Heads are numbered as their own position counts them, not as they are stored.
    void number_heads(const Expression& expression, size_t position) {
        const Expression base = base_of(expression);
        const auto* heads = std::get_if<Heads>(&base);
        if (heads == nullptr) return;
        const auto refs = expand(*heads);
        for (size_t h = 0; h < refs.size(); ++h) {
            const auto found = positions_.find(refs[h].tensor);
            if (found == positions_.end() || found->second != position) continue;
            numbers_.try_emplace({refs[h].tensor, refs[h].head}, static_cast<int64_t>(h));
        }
    }

    std::map<std::string, size_t> positions_;
    std::map<std::pair<std::string, int64_t>, int64_t> numbers_;
};

std::string range(int64_t first, int64_t count) {
    return count == 1 ? std::to_string(first) : fmt::format("{}-{}", first, first + count - 1);
}

// A reference to another position, told by its distance until it is known which rows are one.
constexpr char kReference = '\x01', kReferenceEnd = '\x02';

std::string reference(size_t home, size_t position) {
    return fmt::format("{}{}{}", kReference, static_cast<int64_t>(home) - static_cast<int64_t>(position),
                       kReferenceEnd);
}

// References of the positions [first, first + count) as numbers.
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

class Describer {
public:
    Describer(const Model& model, const Names& names, size_t position)
        : model_(model), names_(names), position_(position) {}

    // "" when the position uses its own tensor.
    std::string operator()(const Dense& e) const { return arrow(names_.tensor(e.tensor, position_)); }

    std::string operator()(const Heads& heads) const {
        const auto refs = expand(heads);
        std::string text;
        bool shares = false;
        for (size_t h = 0; h < refs.size();) {
            const Home first = names_.head(refs[h], position_);
            const bool own = first.own && first.head == static_cast<int64_t>(h);
            int64_t count = 1;
            for (; h + static_cast<size_t>(count) < refs.size(); ++count) {
                const Home next = names_.head(refs[h + static_cast<size_t>(count)], position_);
                if (next.position != first.position || next.head != first.head + count) break;
            }
            if (!text.empty()) text += ", ";
            const std::string here = range(static_cast<int64_t>(h), count);
            text += own ? "own " + here
                        : fmt::format("{}<-{}.{}", here, reference(first.position, position_),
                                      range(first.head, count));
            shares |= !own;
            h += static_cast<size_t>(count);
        }
        return shares ? text : "";
    }

    std::string operator()(const LowRank& e) const { return with_home(factors_text(model_, e), e.u); }
    std::string operator()(const Tucker& e) const { return with_home(factors_text(model_, e), e.core); }

    std::string operator()(const Plus& e) const {
        const std::string base = std::visit(*this, e.base);
        return (base.empty() ? "" : base + " ") + with_home("+ " + lora_text(model_, e), e.term.u);
    }

private:
    std::string arrow(const Home& home) const {
        return home.own ? "" : "<-" + reference(home.position, position_);
    }
    std::string with_home(const std::string& text, const std::string& tensor) const {
        const std::string from = arrow(names_.tensor(tensor, position_));
        return from.empty() ? text : text + " " + from;
    }

    const Model& model_;
    const Names& names_;
    size_t position_;
};

// "2 of 3 KV heads, no FFN" where a position is smaller than others.
std::vector<std::string> sizes_of(const Model& model, size_t position) {
    const ModelConfig& c = model.config;
    std::vector<std::string> sizes;
    if (const int64_t heads = c.n_head_kv_of(position); heads == 0) {
        sizes.emplace_back("no attention");
    } else if (heads != c.n_head_kv) {
        sizes.push_back(fmt::format("{} of {} KV heads", heads, c.n_head_kv));
    }
    if (const int64_t channels = c.n_ff_of(position); channels == 0) {
        sizes.emplace_back("no FFN");
    } else if (channels != c.n_ff) {
        sizes.push_back(fmt::format("{} of {} channels", channels, c.n_ff));
    }
    return sizes;
}

// "attention probabilities <-18" where a position's attention is another one's.
std::vector<std::string> attention_of(const Topology& topology, size_t position) {
    const AttentionSource& source = topology.source(position);
    if (source.probabilities)
        return {"attention probabilities <-" + reference(*source.probabilities, position)};
    if (source.kv) return {"keys and values <-" + reference(*source.kv, position)};
    return {};
}

struct Group {
    std::string source, names, module;
    size_t slots = 0;
};

// Slots with the same sources are named together: "attn.q,o, ffn.up".
std::vector<Group> groups_of(const Model& model, const Names& names, size_t position) {
    const Describer describe(model, names, position);
    std::vector<Group> groups;
    for (const auto& [slot, expression] : model.topology.positions[position]) {
        std::string source = std::visit(describe, expression);
        // W_c is worth a word even where it is a matrix of the position's own.
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

// With references as distances; "" for a position of its own, full-sized weights.
std::string position_text(const Model& model, const Names& names, size_t position) {
    std::vector<std::string> parts = sizes_of(model, position);
    for (auto& part : attention_of(model.topology, position)) parts.push_back(std::move(part));
    for (const Group& group : groups_of(model, names, position)) {
        const bool all = group.slots == model.topology.positions[position].size();
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
    return "";
}

std::string topology_table(const Model& model) {
    const Names names(model);
    const size_t count = model.topology.positions.size();
    std::string out;
    if (const int64_t loops = model.topology.loops; loops > 1)
        out += fmt::format("{} loops of {} layers\n", loops, static_cast<int64_t>(count) / loops);
    if (model.config.n_prefix > 0)
        out += fmt::format("{} prefix keys and values before the sequence at every position\n",
                           model.config.n_prefix);
    out += "position  weights\n";
    for (size_t p = 0; p < count;) {
        const std::string text = position_text(model, names, p);
        size_t end = p + 1;
        while (end < count && position_text(model, names, end) == text) ++end;
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
