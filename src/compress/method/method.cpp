#include "compress/method/method.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

template <typename T>
std::optional<T> parse_whole(const std::string& text) {
    T value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) return std::nullopt;
    return value;
}

std::optional<bool> parse_boolean(const std::string& text) {
    for (const char* word : {"true", "yes", "on"}) {
        if (text == word) return true;
    }
    for (const char* word : {"false", "no", "off"}) {
        if (text == word) return false;
    }
    return std::nullopt;
}

using Value = std::variant<double, int64_t, bool, std::string>;

// Nothing when `text` is not an allowed value.
std::optional<Value> parse_value(const OptionSpec& spec, const std::string& text) {
    const auto in_range = [&](double value) { return value >= spec.minimum && value <= spec.maximum; };
    switch (spec.kind) {
        case OptionSpec::Kind::number: {
            const auto value = parse_whole<double>(text);
            if (value && std::isfinite(*value) && in_range(*value)) return *value;
            return std::nullopt;
        }
        case OptionSpec::Kind::integer: {
            const auto value = parse_whole<int64_t>(text);
            if (value && in_range(static_cast<double>(*value))) return *value;
            return std::nullopt;
        }
        case OptionSpec::Kind::boolean:
            if (const auto value = parse_boolean(text)) return *value;
            return std::nullopt;
        case OptionSpec::Kind::choice:
            if (std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end()) return text;
            for (const auto& [former, present] : spec.former_choices) {
                if (text == former) return present;
            }
            return std::nullopt;
        case OptionSpec::Kind::text: return text;
    }
    return std::nullopt;
}

std::string present_name(const Method& method, const std::string& name) {
    for (const auto& spec : method.options) {
        const auto& former = spec.former_names;
        if (std::find(former.begin(), former.end(), name) != former.end()) return spec.name;
    }
    return name;
}

std::string canonical_text(const Value& value) {
    if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
    if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
    if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
    return std::get<std::string>(value);
}

std::string at_place(const std::string& place) { return place.empty() ? "" : fmt::format(" ({})", place); }

}  // namespace

std::string allowed_values(const OptionSpec& spec) {
    const auto range = [&](const char* kind) -> std::string {
        const bool low = std::isfinite(spec.minimum), high = std::isfinite(spec.maximum);
        if (low && high) return fmt::format("{} in [{}, {}]", kind, spec.minimum, spec.maximum);
        if (low) return fmt::format("{} >= {}", kind, spec.minimum);
        if (high) return fmt::format("{} <= {}", kind, spec.maximum);
        return kind;
    };
    switch (spec.kind) {
        case OptionSpec::Kind::number: return range("number");
        case OptionSpec::Kind::integer: return range("integer");
        case OptionSpec::Kind::boolean: return "true | false";
        case OptionSpec::Kind::choice: return join(spec.choices, " | ");
        case OptionSpec::Kind::text: return "text";
    }
    return "";
}

Options::Options(const Method& method, std::span<const GivenOption> given) {
    std::vector<std::string> known;
    for (const auto& spec : method.options) known.push_back(spec.name);
    std::map<std::string, const GivenOption*> by_name;
    for (const auto& option : given) {
        const std::string name = present_name(method, option.name);
        if (std::find(known.begin(), known.end(), name) == known.end()) {
            fail(ErrorCode::usage, "recipe", "method '{}' has no option '{}'{}; {}", method.name, option.name,
                 at_place(option.place), known.empty() ? "it has none" : suggestion(option.name, known));
        }
        if (!by_name.emplace(name, &option).second) {
            fail(ErrorCode::usage, "recipe", "method '{}': option '{}' is given twice{}{}", method.name, name,
                 name == option.name ? "" : fmt::format(", also as '{}'", option.name),
                 at_place(option.place));
        }
    }
    for (const auto& spec : method.options) {
        const auto found = by_name.find(spec.name);
        const std::string& text = found == by_name.end() ? spec.fallback : found->second->value;
        const auto value = parse_value(spec, text);
        if (!value) {
            const std::string near = spec.kind == OptionSpec::Kind::choice ? nearest(text, spec.choices) : "";
            fail(ErrorCode::usage, "recipe", "method '{}', option '{}': got '{}', expected {}{}{}",
                 method.name, spec.name, text, allowed_values(spec),
                 near.empty() ? "" : fmt::format(" - did you mean '{}'?", near),
                 found == by_name.end() ? "" : at_place(found->second->place));
        }
        values_[spec.name] = *value;
        entries_.emplace_back(spec.name, canonical_text(*value));
    }
}

template <typename T>
const T& Options::get(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end() || !std::holds_alternative<T>(found->second)) {
        fail(ErrorCode::internal, "method", "no option '{}' of the kind asked for", name);
    }
    return std::get<T>(found->second);
}

void check_has_original(const Model& model, const Step& step, const char* method) {
    if (step.number == 1 && model.source != nullptr && model.source == step.original.source)
        fail(ErrorCode::usage, method,
             "the model is the original: name the model that it was made of (--original MODEL), or put this "
             "step after one that changes the model");
}

double Options::number(const std::string& name) const { return get<double>(name); }
int64_t Options::integer(const std::string& name) const { return get<int64_t>(name); }
bool Options::boolean(const std::string& name) const { return get<bool>(name); }
const std::string& Options::text(const std::string& name) const { return get<std::string>(name); }

}  // namespace refold
