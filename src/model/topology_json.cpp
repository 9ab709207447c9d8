#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/json_text.h"
#include "model/topology.h"

namespace refold {
namespace {

using nlohmann::json;
constexpr int kVersion = 2;
// Version 1 calls the layers "positions"; nothing else differs.
constexpr int kVersionWithPositions = 1;

json to_json(const Dense& dense) { return dense.tensor; }

json to_json(const Heads& heads) {
    json runs = json::array();
    for (const auto& run : heads.runs) runs.push_back({run.tensor, run.first, run.count});
    return {{"heads", std::move(runs)}};
}

json to_json(const LowRank& e) {
    json out = {{"u", e.u}, {"v", e.v}};
    if (!e.scale.empty()) {
        out["scale"] = e.scale;
        out["row"] = e.row;
    }
    if (e.transposed) out["transposed"] = true;
    return {{"low_rank", std::move(out)}};
}

json to_json(const Tucker& e) {
    json out = {{"core", e.core}, {"model", e.model}, {"head", e.head}, {"roles", e.roles}, {"role", e.role}};
    if (e.transposed) out["transposed"] = true;
    if (e.halves) out["halves"] = true;
    return {{"tucker", std::move(out)}};
}

json to_json(const Plus& e) {
    json base = std::visit([](const auto& inner) { return to_json(inner); }, e.base);
    return {{"plus", {std::move(base), to_json(e.term)}}};
}

json to_json(const RowParts& e) { return {{"rows", {{"parts", e.parts}, {"ids", e.ids}}}}; }

// The limit keeps sums of two indices in range.
bool is_index(const json& value) {
    constexpr uint64_t kLargestIndex = uint64_t{1} << 40;
    return value.is_number_unsigned() && value.get<uint64_t>() <= kLargestIndex;
}

// The fields of one object; check_all_known() refuses those that nobody asked for.
class Fields {
public:
    Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
        if (!object.is_object())
            fail(ErrorCode::input, "topology", "{}: expected an object, got {}", where_, object.dump());
    }
    std::string tensor(const char* field) {
        const json& value = get(field);
        if (!value.is_string() || value.get<std::string>().empty())
            fail(ErrorCode::input, "topology", "{}: \"{}\" must be a tensor's name, got {}", where_, field,
                 value.dump());
        return value;
    }
    int64_t index(const char* field) {
        const json& value = get(field);
        if (!is_index(value))
            fail(ErrorCode::input, "topology", "{}: \"{}\" must be an index, got {}", where_, field,
                 value.dump());
        return value;
    }
    bool flag(const char* field) {
        if (!object_.contains(field)) return false;
        const json& value = get(field);
        if (!value.is_boolean())
            fail(ErrorCode::input, "topology", "{}: \"{}\" must be true or false, got {}", where_, field,
                 value.dump());
        return value;
    }
    std::vector<std::string> tensors(const char* field) {
        const json& value = get(field);
        const bool names = value.is_array() && std::ranges::all_of(value, [](const json& name) {
                               return name.is_string() && !name.get_ref<const std::string&>().empty();
                           });
        if (!names || value.empty())
            fail(ErrorCode::input, "topology", "{}: \"{}\" must be a list of tensors' names, got {}", where_,
                 field, value.dump());
        return value;
    }
    bool has(const char* field) const { return object_.contains(field); }
    void check_all_known() const {
        for (const auto& [name, value] : object_.items()) {
            if (!known_.contains(name))
                fail(ErrorCode::input, "topology", "{}: unknown field \"{}\"", where_, name);
        }
    }

private:
    const json& get(const char* field) {
        known_.insert(field);
        const auto found = object_.find(field);
        if (found == object_.end())
            fail(ErrorCode::input, "topology", "{}: \"{}\" is missing", where_, field);
        return *found;
    }
    const json& object_;
    std::string where_;
    std::set<std::string> known_;
};

Heads heads_from_json(const json& runs, const std::string& where) {
    if (!runs.is_array() || runs.empty())
        fail(ErrorCode::input, "topology", "{}: \"heads\" must be a list that is not empty", where);
    Heads heads;
    for (const auto& run : runs) {
        if (!run.is_array() || run.size() != 3 || !run[0].is_string() || !is_index(run[1]) ||
            !is_index(run[2]) || run[2] == 0) {
            fail(ErrorCode::input, "topology", "{}: expected [tensor, first head, number of heads], got {}",
                 where, run.dump());
        }
        heads.runs.push_back({run[0], run[1], run[2]});
    }
    return heads;
}

LowRank low_rank_from_json(const json& object, const std::string& where) {
    Fields fields(object, where + " low_rank");
    LowRank e{fields.tensor("u"), fields.tensor("v")};
    if (fields.has("scale")) {
        e.scale = fields.tensor("scale");
        e.row = fields.index("row");
    }
    e.transposed = fields.flag("transposed");
    fields.check_all_known();
    return e;
}

Tucker tucker_from_json(const json& object, const std::string& where) {
    Fields fields(object, where + " tucker");
    Tucker e;
    e.core = fields.tensor("core");
    e.model = fields.tensor("model");
    e.head = fields.tensor("head");
    e.roles = fields.tensor("roles");
    e.role = fields.index("role");
    e.transposed = fields.flag("transposed");
    e.halves = fields.flag("halves");
    fields.check_all_known();
    return e;
}

Base base_from_json(const json& value, const std::string& where) {
    if (value.is_string()) return Dense{value.get<std::string>()};
    if (value.is_object() && value.size() == 1) {
        const auto entry = value.begin();
        const std::string& kind = entry.key();
        const json& content = entry.value();
        if (kind == "heads") return heads_from_json(content, where);
        if (kind == "low_rank") return low_rank_from_json(content, where);
        if (kind == "tucker") return tucker_from_json(content, where);
    }
    fail(ErrorCode::input, "topology",
         "{}: expected a tensor name, {{\"heads\": ...}}, {{\"low_rank\": ...}} or {{\"tucker\": ...}}, got "
         "{}",
         where, value.dump());
}

RowParts row_parts_from_json(const json& object, const std::string& where) {
    Fields fields(object, where + " rows");
    RowParts e{fields.tensors("parts"), fields.tensor("ids")};
    fields.check_all_known();
    return e;
}

Expression expression_from_json(const json& value, const std::string& where) {
    if (value.is_object() && value.size() == 1 && value.contains("rows"))
        return row_parts_from_json(value["rows"], where);
    if (!value.is_object() || value.size() != 1 || !value.contains("plus"))
        return std::visit([](auto&& base) { return Expression(std::forward<decltype(base)>(base)); },
                          base_from_json(value, where));
    const json& parts = value["plus"];
    if (!parts.is_array() || parts.size() != 2)
        fail(ErrorCode::input, "topology", "{}: \"plus\" must be [weights, low_rank], got {}", where,
             parts.dump());
    Base term = base_from_json(parts[1], where);
    if (!std::holds_alternative<LowRank>(term))
        fail(ErrorCode::input, "topology", "{}: the second part of \"plus\" must be low_rank, got {}", where,
             parts[1].dump());
    return Plus{base_from_json(parts[0], where), std::get<LowRank>(std::move(term))};
}

// Slots that differ from `implied`; null for those of `implied` that the layer does not have.
json slots_to_json(const Slots& slots, const Slots& implied) {
    json out = json::object();
    for (const auto& [slot, expression] : slots) {
        const auto found = implied.find(slot);
        if (found == implied.end() || found->second != expression)
            out[slot_name(slot)] = std::visit([](const auto& e) { return to_json(e); }, expression);
    }
    for (const auto& [slot, expression] : implied) {
        if (!slots.contains(slot)) out[slot_name(slot)] = nullptr;
    }
    return out;
}

Slots slots_from_json(const json& object, Slots slots, const std::string& where) {
    for (const auto& [name, value] : object.items()) {
        const Slot slot = slot_from_name(name);
        if (value.is_null()) {
            slots.erase(slot);
        } else {
            slots[slot] = expression_from_json(value, where + " " + name);
        }
    }
    return slots;
}

json to_json(const AttentionSource& source) {
    json out = json::object();
    if (source.probabilities) out["probabilities"] = *source.probabilities;
    if (source.kv) out["kv"] = *source.kv;
    return out;
}

AttentionSource source_from_json(const json& object, const std::string& where) {
    Fields fields(object, where + " attention");
    AttentionSource source;
    if (fields.has("probabilities")) source.probabilities = fields.index("probabilities");
    if (fields.has("kv")) source.kv = fields.index("kv");
    fields.check_all_known();
    if (source.probabilities.has_value() == source.kv.has_value())
        fail(ErrorCode::input, "topology",
             "{}: \"attention\" must name one of \"probabilities\" and \"kv\", got {}", where, object.dump());
    return source;
}

// Resolves "like" between layers, which may refer to each other in any order.
class LikeResolver {
public:
    LikeResolver(const json& layers, const Topology& implied)
        : layers_(layers), implied_(implied), state_(layers.size()) {
        result_.resize(layers.size());
    }
    std::vector<Slots> run() {
        for (size_t l = 0; l < layers_.size(); ++l) resolve(l);
        return std::move(result_);
    }

private:
    enum class State { unseen, active, done };

    static std::string name(size_t l) { return fmt::format("layer {}", l); }

    // The layer whose slots layer `l` starts from.
    std::optional<size_t> like(size_t l) const {
        const json& object = layers_[l];
        if (!object.is_object())
            fail(ErrorCode::input, "topology", "{}: expected an object, got {}", name(l), object.dump());
        const auto found = object.find("like");
        if (found == object.end()) return std::nullopt;
        if (!found->is_number_unsigned() || found->get<uint64_t>() >= layers_.size()) {
            fail(ErrorCode::input, "topology", "{}: \"like\" must be a layer below {}, got {}", name(l),
                 layers_.size(), found->dump());
        }
        return found->get<size_t>();
    }

    // A file can make a chain of "like" of any length, so there is no recursion.
    void resolve(size_t start) {
        std::vector<size_t> chain;
        for (std::optional<size_t> l = start; l && state_[*l] != State::done; l = like(*l)) {
            if (state_[*l] == State::active)
                fail(ErrorCode::input, "topology", "{} is part of a cycle of \"like\"", name(*l));
            state_[*l] = State::active;
            chain.push_back(*l);
        }
        for (auto l = chain.rbegin(); l != chain.rend(); ++l) {
            json rest = layers_[*l];
            rest.erase("like");
            rest.erase("attention");
            const auto from = like(*l);
            const Slots own = *l < implied_.layers.size() ? implied_.layers[*l] : Slots{};
            result_[*l] = slots_from_json(rest, from ? result_[*from] : own, name(*l));
            state_[*l] = State::done;
        }
    }

    const json& layers_;
    const Topology& implied_;
    std::vector<State> state_;
    std::vector<Slots> result_;
};

}  // namespace

std::string topology_to_json(const Topology& topology, const Topology& implied) {
    json out = {{"version", kVersion}};
    json& layers = out["layers"] = json::array();
    for (size_t l = 0; l < topology.layers.size(); ++l) {
        const Slots own = l < implied.layers.size() ? implied.layers[l] : Slots{};
        json object = slots_to_json(topology.layers[l], own);
        // A layer that repeats an earlier one is written as one reference instead of nine.
        for (size_t like = 0; like < l && !object.empty(); ++like) {
            if (topology.layers[like] == topology.layers[l]) {
                object = {{"like", like}};
                break;
            }
        }
        if (const AttentionSource& source = topology.source(l); source != implied.source(l))
            object["attention"] = source.own() ? json() : to_json(source);
        layers.push_back(std::move(object));
    }
    if (json globals = slots_to_json(topology.globals, implied.globals); !globals.empty())
        out["model"] = std::move(globals);
    if (topology.loops > 1) out["loops"] = topology.loops;
    return out.dump();
}

Topology topology_from_json(const std::string& text, const Topology& implied) {
    const json root = parse_json(text, "topology", "refold.topology", kLargeJson);
    if (!root.is_object() || !root.contains("version")) fail(ErrorCode::input, "topology", "no \"version\"");
    if (root["version"] != kVersion && root["version"] != kVersionWithPositions) {
        fail(ErrorCode::unsupported, "topology",
             "version {} is unknown: this refold reads versions {} and {} - use a newer refold",
             root["version"].dump(), kVersionWithPositions, kVersion);
    }
    const std::string list = root["version"] == kVersion ? "layers" : "positions";
    for (const auto& [key, value] : root.items()) {
        if (key != "version" && key != list && key != "model" && key != "loops")
            fail(ErrorCode::input, "topology", "unknown field \"{}\"", key);
    }
    if (!root.contains(list) || !root[list].is_array() || root[list].empty())
        fail(ErrorCode::input, "topology", "\"{}\" must be a list that is not empty", list);
    const json& layers = root[list];
    Topology topology;
    topology.layers = LikeResolver(layers, implied).run();
    for (size_t l = 0; l < topology.layers.size(); ++l) {
        const json& object = layers[l];
        const AttentionSource& born = implied.source(l);
        const auto source = object.find("attention");
        if (source == object.end()) {
            if (!born.own()) topology.sources[l] = born;
        } else if (born.own() || !source->is_null()) {
            topology.sources[l] = source_from_json(*source, fmt::format("layer {}", l));
        }
    }
    const json globals = root.value("model", json::object());
    if (!globals.is_object()) fail(ErrorCode::input, "topology", "\"model\" must be an object");
    topology.globals = slots_from_json(globals, implied.globals, "model");
    if (const auto loops = root.find("loops"); loops != root.end()) {
        const size_t count = topology.layers.size();
        if (!loops->is_number_unsigned() || *loops == 0 || *loops > count ||
            count % loops->get<size_t>() != 0)
            fail(ErrorCode::input, "topology", "\"loops\" must divide the {} layers, got {}", count,
                 loops->dump());
        topology.loops = *loops;
    }
    return topology;
}

}  // namespace refold
