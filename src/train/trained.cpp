#include "train/trained.h"

#include <fnmatch.h>

#include <map>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

using Names = std::set<std::string>;

// Tensors by group.
class Groups {
public:
    explicit Groups(const Model& model) {
        for (const Slots& slots : model.topology.layers) add(slots);
        names_["layers"] = all();
        add(model.topology.globals);
        for (const std::string& name : all())
            if (!is_float(model.tensor(name).type)) names_["packed"].insert(name);
    }
    const Names* find(const std::string& group) const {
        const auto found = names_.find(group);
        return found == names_.end() ? nullptr : &found->second;
    }
    const Names& all() const { return names_.at("all"); }

private:
    void add(const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            const SlotKind kind = properties(slot).kind;
            if (kind == SlotKind::rope_factors) continue;
            const std::vector<std::string> tensors = tensors_of(expression);
            const auto put = [&](const char* group, const std::vector<std::string>& names) {
                names_[group].insert(names.begin(), names.end());
            };
            put("all", tensors);
            if (const auto* plus = std::get_if<Plus>(&expression)) put("lora", tensors_of(plus->term));
            if (is_compensation(slot)) put("comp", tensors);
            if (properties(slot).module == SlotModule::exit) put("exit", tensors);
            if (kind == SlotKind::norm_gain || kind == SlotKind::norm_bias) put("norms", tensors);
            if (is_prefix(slot)) put("prefix", tensors);
            if (properties(slot).module == SlotModule::head) put("head", tensors);
        }
    }

    std::map<std::string, Names> names_ = {{"all", {}},  {"layers", {}}, {"lora", {}},
                                           {"comp", {}}, {"norms", {}},  {"prefix", {}},
                                           {"head", {}}, {"exit", {}},   {"packed", {}}};
};

Names matching(const Names& all, const std::string& pattern) {
    Names found;
    for (const auto& name : all)
        if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) found.insert(name);
    if (!found.empty()) return found;
    const std::vector<std::string> names(all.begin(), all.end());
    std::string plain;  // the pattern without wildcards
    for (const char c : pattern)
        if (c != '*' && c != '?') plain += c;
    const std::string near = nearest(plain, names);
    std::vector<std::string> examples;
    if (!near.empty()) {
        examples = {near};
    } else {
        for (size_t i = 0; i < names.size() && i < 4; ++i) examples.push_back(names[i]);
    }
    fail(ErrorCode::usage, "train",
         "train: '{}' matches no tensor; names are like {} (refold inspect lists them)", pattern,
         join(examples, ", "));
}

Names named(const Model& model, const Groups& groups, const std::string& word) {
    const Names* group = groups.find(word);
    if (group == nullptr) return matching(groups.all(), word);
    if (!group->empty()) return *group;
    static const std::map<std::string, std::string> kMakers = {
        {"lora", " - the methods relax and lora add low-rank terms"},
        {"comp", " - the method compensation adds them"},
        {"exit", " - the methods exit_map and exit_lora add them"},
        {"prefix", " - the method prefix adds them"},
        {"packed", " - all are float32 or 16 bits"}};
    const auto hint = kMakers.find(word);
    fail(ErrorCode::usage, "train", "train={}: {} has no such tensors{}", word, model.label,
         hint == kMakers.end() ? "" : hint->second);
}

std::vector<std::string> words_of(const std::string& selection) {
    std::vector<std::string> words;
    size_t first = 0;
    while (first <= selection.size()) {
        const size_t comma = std::min(selection.find(',', first), selection.size());
        std::string word = selection.substr(first, comma - first);
        const size_t begin = word.find_first_not_of(' '), end = word.find_last_not_of(' ');
        words.push_back(begin == std::string::npos ? "" : word.substr(begin, end - begin + 1));
        first = comma + 1;
    }
    return words;
}

}  // namespace

std::set<std::string> trained_tensors(const Model& model, const std::string& selection) {
    const Groups groups(model);
    Names chosen;
    bool first = true;
    for (const std::string& word : words_of(selection)) {
        const bool out = word.starts_with("-");
        const std::string what = out ? word.substr(1) : word;
        if (what.empty())
            fail(ErrorCode::usage, "train",
                 "train='{}': a word is empty, expected groups and patterns between commas", selection);
        if (first && out) chosen = groups.all();
        first = false;
        // What a model happens to have packed depends on earlier steps, not on who wrote the list.
        if (out && what == "packed" && groups.find(what)->empty()) continue;
        const Names found = named(model, groups, what);
        if (!out)
            chosen.insert(found.begin(), found.end());
        else
            for (const auto& name : found) chosen.erase(name);
    }
    if (chosen.empty()) fail(ErrorCode::usage, "train", "train='{}': nothing is left to train", selection);
    return chosen;
}

}  // namespace refold
