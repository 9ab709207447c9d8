#include "serve/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace refold {
namespace {

// Fields that cannot change the result.
constexpr auto kHarmless =
    std::to_array<const char*>({"user", "metadata", "store", "service_tier", "safety_identifier",
                                "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"});

// Fields that are not supported, accepted with the values that ask for nothing.
struct Neutral {
    const char* field;
    std::vector<BodyValue> values;  // besides null
};
const std::vector<Neutral>& neutral_fields() {
    static const std::vector<Neutral> fields = {{"tfs_z", {1}},
                                                {"suffix", {""}},
                                                {"context", {BodyValue::array()}},
                                                {"tools", {BodyValue::array()}},
                                                {"tool_choice", {"none", "auto"}},
                                                {"functions", {BodyValue::array()}},
                                                {"function_call", {"none", "auto"}},
                                                {"modalities", {BodyValue::array({"text"})}},
                                                {"audio", {}},
                                                {"prediction", {}},
                                                {"reasoning_effort", {}},
                                                {"verbosity", {}},
                                                {"web_search_options", {}}};
    return fields;
}

// 5 and 5.0, which some clients send for it.
std::optional<int64_t> whole_number(const BodyValue& value) {
    constexpr double kExact = 1LL << 53;
    if (value.is_number_float()) {
        const double given = value.get<double>();
        if (std::abs(given) <= kExact && given == std::floor(given)) return static_cast<int64_t>(given);
    }
    // An unsigned number above the signed range would wrap.
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
        return std::nullopt;
    return value.get<int64_t>();
}

int32_t token_id(const BodyValue& value, const char* field) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX)
        refuse(field, "got {} where a token id is expected", shown(value));
    return static_cast<int32_t>(value.get<uint64_t>());
}

constexpr const char* kIgnored = "accepted and ignored";

thread_local FieldRecorder* current_recorder = nullptr;

// `schema` makes a JSON Schema.
template <typename Schema>
void note(const std::string& field, Schema&& schema) {
    if (current_recorder != nullptr) current_recorder->note(field, schema());
}

nlohmann::ordered_json type_schema(const char* type) { return {{"type", type}}; }

template <typename Number>
nlohmann::ordered_json range_schema(const char* type, Number least, Number most) {
    return {{"type", type}, {"minimum", least}, {"maximum", most}};
}

}  // namespace

FieldRecorder::FieldRecorder() : before_(std::exchange(current_recorder, this)) {}
FieldRecorder::~FieldRecorder() { current_recorder = before_; }
FieldRecorder* FieldRecorder::current() { return current_recorder; }

void FieldRecorder::note(const std::string& field, nlohmann::ordered_json schema) {
    nlohmann::ordered_json& known =
        fields_.try_emplace(field, nlohmann::ordered_json::object()).first->second;
    if (known.empty()) known = std::move(schema);
}

void FieldRecorder::note_harmless() {
    for (const char* const field : kHarmless) note(field, {{"description", kIgnored}});
}

Fields::Fields(std::string_view body) : source_(body), body_(body), object_(body_.value()) {
    if (!object_.is_object())
        throw ApiError(400, "the request's body: got " + shown(object_) + ", expected a JSON object");
}

bool Fields::has(const char* field) const {
    const auto found = object_.find(field);
    return found != object_.end() && !found->is_null();
}

Fields::Fields(Fields& outer, const char* field)
    : within_(outer.named(field) + "."),
      body_("{}"),
      object_(outer.find(field) != nullptr ? *outer.find(field) : body_.value()) {
    if (!object_.is_object()) refuse(outer.named(field), "got {}, expected an object", shown(object_));
}

const BodyValue* Fields::find(const char* field) {
    known_.insert(field);
    note(named(field), [] { return nlohmann::ordered_json::object(); });
    const auto found = object_.find(field);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::ignore(const char* field) {
    known_.insert(field);
    note(named(field), [] { return nlohmann::ordered_json{{"description", kIgnored}}; });
}

nlohmann::ordered_json Fields::ordered(const char* field, size_t most) {
    return find(field) == nullptr ? nlohmann::ordered_json() : ordered_field(source_, field, most);
}

bool Fields::boolean(const char* field, bool otherwise) {
    note(named(field), [] { return type_schema("boolean"); });
    const BodyValue* value = find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(named(field), "got {}, expected true or false", shown(*value));
    return value->get<bool>();
}

std::string Fields::text(const char* field) {
    note(named(field), [] { return type_schema("string"); });
    const BodyValue* value = find(field);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(named(field), "got {}, expected a text", shown(*value));
    return value->get<std::string>();
}

std::optional<int64_t> Fields::integer(const char* field, int64_t least, int64_t most) {
    note(named(field), [&] { return range_schema("integer", least, most); });
    const BodyValue* value = find(field);
    if (value == nullptr) return std::nullopt;
    const std::optional<int64_t> given = whole_number(*value);
    if (!given || *given < least || *given > most)
        refuse(named(field), "got {}, expected a whole number from {} to {}", shown(*value), least, most);
    return given;
}

double Fields::number(const char* field, double otherwise, double least, double most) {
    note(named(field), [&] { return range_schema("number", least, most); });
    const BodyValue* value = find(field);
    if (value == nullptr) return otherwise;
    const double given = value->is_number() ? value->get<double>() : NAN;
    if (!(given >= least && given <= most))
        refuse(named(field), "got {}, expected a number from {} to {}", shown(*value), least, most);
    return given;
}

void Fields::refuse_the_rest() {
    for (const auto& [field, value] : object_.items()) {
        if (known_.contains(field) || value.is_null()) continue;
        if (std::ranges::find(kHarmless, field) != kHarmless.end()) continue;
        const auto neutral = std::ranges::find(neutral_fields(), field, &Neutral::field);
        const std::string name = within_ + (field.size() <= 60 ? field : field.substr(0, 60) + "...");
        if (neutral == neutral_fields().end())
            throw ApiError(400, fmt::format("'{}': unknown field", name), name, "unknown_parameter");
        if (std::ranges::find(neutral->values, value) == neutral->values.end())
            throw ApiError(400,
                           fmt::format("'{}': got {}, which this server does not support - leave it out",
                                       name, shown(value)),
                           name, "unsupported_parameter");
    }
}

std::vector<int32_t> token_ids(const BodyValue& array, const char* field) {
    std::vector<int32_t> ids;
    ids.reserve(array.size());
    for (const BodyValue& id : array) ids.push_back(token_id(id, field));
    return ids;
}

}  // namespace refold
