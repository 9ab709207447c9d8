#include "text/jinja.h"

#include <algorithm>

#include "core/error.h"
#include "core/json_number.h"
#include "core/text.h"
#include "text/jinja/budget.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using jinja::TemplateError;
using jinja::Value;

constexpr int kDeepest = 64;  // levels of data; the conversion is recursive

Value text_value(const std::string& text) {
    if (find_invalid_utf8(text) != std::string_view::npos)
        throw TemplateError("a variable's text is not UTF-8");
    return Value::text(text);
}

Value to_value(const Json& json, int depth = 0) {
    if (depth > kDeepest) throw TemplateError("the data is nested too deeply");
    switch (json.type()) {
        case Json::value_t::string: return text_value(json.get_ref<const std::string&>());
        case Json::value_t::boolean: return json.get<bool>();
        case Json::value_t::number_integer: return json.get<int64_t>();
        case Json::value_t::number_unsigned: return Value::integer(std::to_string(json.get<uint64_t>()));
        case Json::value_t::number_float: return json.get<double>();
        case Json::value_t::binary: return Value::integer(big_integer_digits(json));
        case Json::value_t::array: {
            jinja::Items items;
            for (const Json& entry : json) items.push_back(to_value(entry, depth + 1));
            return Value::list(std::move(items));
        }
        case Json::value_t::object: {
            std::vector<jinja::Entry> entries;
            for (const auto& [key, entry] : json.items())
                entries.push_back({text_value(key), to_value(entry, depth + 1)});
            return jinja::make_dict(std::move(entries));
        }
        default: return {};
    }
}

Json to_json(const Value& value) {
    check_defined(value);
    if (value.is_none()) return nullptr;
    if (value.is_text()) return value.str();
    if (value.is_bool()) return value.as_bool();
    if (value.is_int()) return value.as_int();
    if (value.is_big()) return parse_exact(value.as_big());
    if (value.is_float()) return value.as_float();
    if (value.is_dict()) {
        Json object = Json::object();
        for (const auto& [key, entry] : value.as_dict().entries())
            object[jinja::to_str(key)] = to_json(entry);
        return object;
    }
    Json array = Json::array();
    for (const Value& entry : jinja::to_items(value)) array.push_back(to_json(entry));
    return array;
}

// Runs an action of the engine within its bounds, and says which template failed.
template <typename Action>
auto checked(const std::string& source, Action&& action) {
    constexpr size_t kShown = 60;
    try {
        const jinja::Rendering rendering;
        return action();
    } catch (const TemplateError& error) {
        std::string shown = source.substr(0, kShown), what = error.what();
        while (find_invalid_utf8(shown) != std::string_view::npos && !shown.empty()) shown.pop_back();
        if (shown.size() < source.size()) shown += "...";
        std::ranges::replace(what, '\n', ' ');
        fail(ErrorCode::input, "template", "'{}': {}", shown, what);
    }
}

}  // namespace

struct JinjaTemplate::Program {
    jinja::Template parsed;
    bool is_task = true;

    jinja::Variables variables(const Json& from) const {
        jinja::Variables out;
        for (const auto& [name, value] : from.items()) out.emplace_back(name, to_value(value));
        return out;
    }
};

JinjaTemplate::JinjaTemplate(const std::string& source, const JinjaOptions& options) : source_(source) {
    program_ = checked(source_, [&] {
        if (find_invalid_utf8(source) != std::string_view::npos) throw TemplateError("it is not UTF-8");
        const bool is_task = options.keep_whitespace;
        return std::make_unique<Program>(Program{jinja::parse(source, is_task), is_task});
    });
}

JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

std::string JinjaTemplate::render(const Json& variables) const {
    return checked(source_, [&] {
        jinja::Environment environment{.is_task = program_->is_task};
        return jinja::render(program_->parsed, environment, program_->variables(variables));
    });
}

Json JinjaTemplate::evaluate(const Json& variables) const {
    return checked(source_, [&] {
        jinja::Environment environment{.is_task = program_->is_task};
        const jinja::Variables given = program_->variables(variables);
        if (const auto value = jinja::evaluate(program_->parsed, environment, given)) return to_json(*value);
        return Json(jinja::render(program_->parsed, environment, given));
    });
}

}  // namespace refold
