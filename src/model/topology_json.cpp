#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/topology.h"

namespace refold {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;

json expression_to_json(const Expression& expression) {
    if (const auto* dense = std::get_if<Dense>(&expression)) return dense->tensor;
    json runs = json::array();
    for (const auto& run : std::get<Heads>(expression).runs)
        runs.push_back({run.tensor, run.first, run.count});
    return {{"heads", std::move(runs)}};
}

Expression expression_from_json(const json& value, const std::string& where) {
    if (value.is_string()) return Dense{value.get<std::string>()};
    if (!value.is_object() || value.size() != 1 || !value.contains("heads")) {
        fail(ErrorCode::input, "topology", "{}: expected a tensor name or {{\"heads\": [...]}}, got {}",
             where, value.dump());
    }
    const json& runs = value["heads"];
    if (!runs.is_array() || runs.empty())
        fail(ErrorCode::input, "topology", "{}: \"heads\" must be a list that is not empty", where);
    Heads heads;
    for (const auto& run : runs) {
        if (!run.is_array() || run.size() != 3 || !run[0].is_string() || !run[1].is_number_unsigned() ||
            !run[2].is_number_unsigned() || run[2] == 0) {
            fail(ErrorCode::input, "topology", "{}: expected [tensor, first head, number of heads], got {}",
                 where, run.dump());
        }
        heads.runs.push_back({run[0], run[1], run[2]});
    }
    return heads;
}

// Only what differs from `implied`; null says that a slot the naming implies is absent.
json slots_to_json(const Slots& slots, const Slots& implied) {
    json out = json::object();
    for (const auto& [slot, expression] : slots) {
        const auto found = implied.find(slot);
        if (found == implied.end() || found->second != expression)
            out[slot_name(slot)] = expression_to_json(expression);
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

// Positions that are "like" another, resolved depth first.
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

    void resolve(size_t p) {
        if (state_[p] == State::done) return;
        if (state_[p] == State::active)
            fail(ErrorCode::input, "topology", "position {} is part of a cycle of \"like\"", p);
        state_[p] = State::active;
        const json& object = positions_[p];
        const std::string where = fmt::format("position {}", p);
        if (!object.is_object())
            fail(ErrorCode::input, "topology", "{}: expected an object, got {}", where, object.dump());
        if (object.contains("like")) {
            const json& like = object["like"];
            if (!like.is_number_unsigned() || like.get<uint64_t>() >= positions_.size()) {
                fail(ErrorCode::input, "topology", "{}: \"like\" must be a position below {}, got {}", where,
                     positions_.size(), like.dump());
            }
            resolve(like.get<size_t>());
            json rest = object;
            rest.erase("like");
            result_[p] = slots_from_json(rest, result_[like.get<size_t>()], where);
        } else {
            result_[p] = slots_from_json(
                object, p < implied_.positions.size() ? implied_.positions[p] : Slots{}, where);
        }
        state_[p] = State::done;
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
        positions.push_back(std::move(object));
    }
    if (json globals = slots_to_json(topology.globals, implied.globals); !globals.empty())
        out["model"] = std::move(globals);
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
        if (key != "version" && key != "positions" && key != "model")
            fail(ErrorCode::input, "topology", "unknown field \"{}\"", key);
    }
    if (!root.contains("positions") || !root["positions"].is_array() || root["positions"].empty()) {
        fail(ErrorCode::input, "topology", "\"positions\" must be a list that is not empty");
    }
    Topology topology;
    topology.positions = LikeResolver(root["positions"], implied).run();
    const json globals = root.value("model", json::object());
    if (!globals.is_object()) fail(ErrorCode::input, "topology", "\"model\" must be an object");
    topology.globals = slots_from_json(globals, implied.globals, "model");
    return topology;
}

}  // namespace refold
