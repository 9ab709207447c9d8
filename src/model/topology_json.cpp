#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "model/topology.h"

namespace refold {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;

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

// Small enough that sums of two are numbers.
bool is_index(const json& value) {
    constexpr uint64_t kLargestIndex = uint64_t{1} << 40;
    return value.is_number_unsigned() && value.get<uint64_t>() <= kLargestIndex;
}

// One object's fields; every one must be asked for.
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

Expression expression_from_json(const json& value, const std::string& where) {
    if (!value.is_object() || value.size() != 1 || !value.contains("plus"))
        return std::visit([](auto&& base) { return Expression(std::move(base)); },
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

// Only what differs from `implied`; null says that a slot the naming implies is absent.
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

// Positions that are "like" another, in whatever order they refer to each other.
class LikeResolver {
public:
    LikeResolver(const json& positions, const Topology& implied)
        : positions_(positions), implied_(implied), state_(positions.size()) {
        result_.resize(positions.size());
    }
    std::vector<Slots> run() {
        for (size_t p = 0; p < positions_.size(); ++p) resolve(p);
        return std::move(result_);
    }

private:
    enum class State { unseen, active, done };

    static std::string place(size_t p) { return fmt::format("position {}", p); }

    // The position that `p` is like.
    std::optional<size_t> like(size_t p) const {
        const json& object = positions_[p];
        if (!object.is_object())
            fail(ErrorCode::input, "topology", "{}: expected an object, got {}", place(p), object.dump());
        const auto found = object.find("like");
        if (found == object.end()) return std::nullopt;
        if (!found->is_number_unsigned() || found->get<uint64_t>() >= positions_.size()) {
            fail(ErrorCode::input, "topology", "{}: \"like\" must be a position below {}, got {}", place(p),
                 positions_.size(), found->dump());
        }
        return found->get<size_t>();
    }

    // A chain of "like" may be as long as the file makes it, so it is a list and no recursion.
    void resolve(size_t start) {
        std::vector<size_t> chain;
        for (std::optional<size_t> p = start; p && state_[*p] != State::done; p = like(*p)) {
            if (state_[*p] == State::active)
                fail(ErrorCode::input, "topology", "{} is part of a cycle of \"like\"", place(*p));
            state_[*p] = State::active;
            chain.push_back(*p);
        }
        for (auto p = chain.rbegin(); p != chain.rend(); ++p) {
            json rest = positions_[*p];
            rest.erase("like");
            rest.erase("attention");
            const auto from = like(*p);
            const Slots own = *p < implied_.positions.size() ? implied_.positions[*p] : Slots{};
            result_[*p] = slots_from_json(rest, from ? result_[*from] : own, place(*p));
            state_[*p] = State::done;
        }
    }

    const json& positions_;
    const Topology& implied_;
    std::vector<State> state_;
    std::vector<Slots> result_;
};

}  // namespace

std::string topology_to_json(const Topology& topology, const Topology& implied) {
    json out = {{"version", kVersion}};
    json& positions = out["positions"] = json::array();
    for (size_t p = 0; p < topology.positions.size(); ++p) {
        const Slots own = p < implied.positions.size() ? implied.positions[p] : Slots{};
        json object = slots_to_json(topology.positions[p], own);
        // A looped position repeats an earlier one whole: write that, not nine references.
        for (size_t like = 0; like < p && !object.empty(); ++like) {
            if (topology.positions[like] == topology.positions[p]) {
                object = {{"like", like}};
                break;
            }
        }
        if (const AttentionSource& source = topology.source(p); !source.own())
            object["attention"] = to_json(source);
        positions.push_back(std::move(object));
    }
    if (json globals = slots_to_json(topology.globals, implied.globals); !globals.empty())
        out["model"] = std::move(globals);
    if (topology.loops > 1) out["loops"] = topology.loops;
    return out.dump();
}

Topology topology_from_json(const std::string& text, const Topology& implied) {
    const json root = json::parse(text, nullptr, false);
    if (root.is_discarded()) fail(ErrorCode::input, "topology", "not valid JSON");
    if (!root.is_object() || !root.contains("version")) fail(ErrorCode::input, "topology", "no \"version\"");
    if (root["version"] != kVersion) {
        fail(ErrorCode::unsupported, "topology",
             "version {} is unknown: this refold reads version {} - use a newer refold",
             root["version"].dump(), kVersion);
    }
    for (const auto& [key, value] : root.items()) {
        if (key != "version" && key != "positions" && key != "model" && key != "loops")
            fail(ErrorCode::input, "topology", "unknown field \"{}\"", key);
    }
    if (!root.contains("positions") || !root["positions"].is_array() || root["positions"].empty()) {
        fail(ErrorCode::input, "topology", "\"positions\" must be a list that is not empty");
    }
    Topology topology;
    topology.positions = LikeResolver(root["positions"], implied).run();
    for (size_t p = 0; p < topology.positions.size(); ++p) {
        const json& object = root["positions"][p];
        if (const auto source = object.find("attention"); source != object.end())
            topology.sources[p] = source_from_json(*source, fmt::format("position {}", p));
    }
    const json globals = root.value("model", json::object());
    if (!globals.is_object()) fail(ErrorCode::input, "topology", "\"model\" must be an object");
    topology.globals = slots_from_json(globals, implied.globals, "model");
    if (const auto loops = root.find("loops"); loops != root.end()) {
        const size_t positions = topology.positions.size();
        if (!loops->is_number_unsigned() || *loops == 0 || *loops > positions ||
            positions % loops->get<size_t>() != 0)
            fail(ErrorCode::input, "topology", "\"loops\" must divide the {} positions, got {}", positions,
                 loops->dump());
        topology.loops = *loops;
    }
    return topology;
}

}  // namespace refold
