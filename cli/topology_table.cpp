#include "cli/topology_table.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

namespace refold::cli {
namespace {

struct Home {
    std::string place;  // a position, or a tensor that belongs to none
    int64_t head = 0;
    bool own = false;
};

class Names {
public:
    explicit Names(const Model& model) {
        for (size_t p = 0; p < model.topology.positions.size(); ++p) {
            for (const SlotDescription& slot : model.family->position_slots)
                positions_[tensor_name(slot, p)] = p;
        }
        // Heads are numbered as their own position counts them, not as they are stored.
        for (size_t p = 0; p < model.topology.positions.size(); ++p) {
            for (const auto& [slot, expression] : model.topology.positions[p]) {
                const auto* heads = std::get_if<Heads>(&expression);
                if (heads == nullptr) continue;
                const auto refs = expand(*heads);
                for (size_t h = 0; h < refs.size(); ++h) {
                    const auto found = positions_.find(refs[h].tensor);
                    if (found == positions_.end() || found->second != p) continue;
                    numbers_.try_emplace({refs[h].tensor, refs[h].head}, static_cast<int64_t>(h));
                }
            }
        }
    }

    Home head(const HeadRef& ref, size_t position) const {
        Home home = tensor(ref.tensor, position);
        const auto number = numbers_.find({ref.tensor, ref.head});
        home.head = number == numbers_.end() ? ref.head : number->second;
        return home;
    }

    Home tensor(const std::string& name, size_t position) const {
        const auto found = positions_.find(name);
        if (found == positions_.end()) return {name, 0, false};
        return {std::to_string(found->second), 0, found->second == position};
    }

private:
    std::map<std::string, size_t> positions_;
    std::map<std::pair<std::string, int64_t>, int64_t> numbers_;
};

std::string range(int64_t first, int64_t count) {
    return count == 1 ? std::to_string(first) : fmt::format("{}-{}", first, first + count - 1);
}

std::string heads_text(const Heads& heads, const Names& names, size_t position) {
    const auto refs = expand(heads);
    std::string text;
    bool shares = false;
    for (size_t h = 0; h < refs.size();) {
        const Home first = names.head(refs[h], position);
        const bool own = first.own && first.head == static_cast<int64_t>(h);
        int64_t count = 1;
        for (; h + static_cast<size_t>(count) < refs.size(); ++count) {
            const Home next = names.head(refs[h + static_cast<size_t>(count)], position);
            if (next.place != first.place || next.head != first.head + count) break;
        }
        if (!text.empty()) text += ", ";
        const auto here = static_cast<int64_t>(h);
        text += own ? fmt::format("own {}", range(here, count))
                    : fmt::format("{}<-{}.{}", range(here, count), first.place, range(first.head, count));
        shares |= !own;
        h += static_cast<size_t>(count);
    }
    return shares ? text : "";
}

// "" when the position uses its own tensor.
std::string source_text(const Expression& expression, const Names& names, size_t position) {
    if (const auto* heads = std::get_if<Heads>(&expression)) return heads_text(*heads, names, position);
    const Home home = names.tensor(std::get<Dense>(expression).tensor, position);
    return home.own ? "" : fmt::format("<-{}", home.place);
}

// Slots with the same sources are named together: "attn.q,o".
std::string position_text(const Slots& slots, const Names& names, size_t position) {
    std::vector<std::pair<std::string, std::string>> groups;  // sources, slots
    for (const auto& [slot, expression] : slots) {
        const std::string source = source_text(expression, names, position);
        if (source.empty()) continue;
        const std::string name = slot_name(slot);
        const std::string module = name.substr(0, name.find('.') + 1);
        auto group = groups.begin();
        while (group != groups.end() && (group->first != source || !group->second.starts_with(module)))
            ++group;
        if (group == groups.end()) {
            groups.emplace_back(source, name);
        } else {
            group->second.append(",").append(name, module.size());
        }
    }
    std::string text;
    for (const auto& [source, names_of_slots] : groups) {
        text += fmt::format("{}{} {}", text.empty() ? "" : "; ", names_of_slots, source);
    }
    return text;
}

}  // namespace

std::string topology_table(const Model& model) {
    const Names names(model);
    const auto& positions = model.topology.positions;
    std::string out = "position  weights\n";
    for (size_t p = 0; p < positions.size();) {
        const std::string text = position_text(positions[p], names, p);
        size_t end = p + 1;
        if (text.empty()) {
            while (end < positions.size() && position_text(positions[end], names, end).empty()) ++end;
        }
        const auto first = static_cast<int64_t>(p);
        out += fmt::format("{:>8}  {}\n", range(first, static_cast<int64_t>(end - p)),
                           text.empty() ? "own" : text);
        p = end;
    }
    return out;
}

}  // namespace refold::cli
