#include "text/jinja.h"

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <jinja/value.h>

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "text/jinja_bounds.h"
#include "text/jinja_functions.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using jinja::mk_val;
using jinja::value;

constexpr int kDeepest = 64;  // levels of data; the conversion is recursive

value to_value(const Json& json, int depth = 0) {
    if (depth > kDeepest) throw std::runtime_error("the data is nested too deeply");
    switch (json.type()) {
        case Json::value_t::string: return mk_val<jinja::value_string>(json.get<std::string>());
        case Json::value_t::boolean: return mk_val<jinja::value_bool>(json.get<bool>());
        case Json::value_t::number_integer:
        case Json::value_t::number_unsigned: return mk_val<jinja::value_int>(json.get<int64_t>());
        case Json::value_t::number_float: return mk_val<jinja::value_float>(json.get<double>());
        case Json::value_t::array: {
            auto array = mk_val<jinja::value_array>();
            for (const Json& entry : json) array->push_back(to_value(entry, depth + 1));
            return array;
        }
        case Json::value_t::object: {
            auto object = mk_val<jinja::value_object>();
            for (const auto& [key, entry] : json.items()) object->insert(key, to_value(entry, depth + 1));
            return object;
        }
        default: return mk_val<jinja::value_none>();
    }
}

// Slices count bytes.
std::string whole(std::string text) {
    if (find_invalid_utf8(text) != std::string_view::npos)
        throw std::runtime_error("the result is not UTF-8: a character was cut");
    return text;
}

Json to_json(const value& from) {
    if (from->is_undefined()) throw std::runtime_error(from->type());
    if (from->is_none()) return nullptr;
    if (jinja::is_val<jinja::value_string>(from)) return whole(from->as_string().str());
    if (jinja::is_val<jinja::value_bool>(from)) return from->as_bool();
    if (jinja::is_val<jinja::value_int>(from)) return from->as_int();
    if (jinja::is_val<jinja::value_float>(from)) return from->as_float();
    if (jinja::is_val<jinja::value_array>(from)) {
        Json array = Json::array();
        for (const value& entry : from->as_array()) array.push_back(to_json(entry));
        return array;
    }
    if (jinja::is_val<jinja::value_object>(from)) {
        Json object = Json::object();
        for (const auto& [key, entry] : from->as_ordered_object())
            object[key->as_string().str()] = to_json(entry);
        return object;
    }
    throw std::runtime_error("the result is a " + from->type());
}

// True if the engine would trim white space around a statement; Python's Jinja does so only on request.
bool is_trimmed(const std::string& source) {
    for (const char* end : {"%}\n", "#}\n"}) {
        if (source.find(end) != std::string::npos) return true;
    }
    for (const char* begin : {"{%", "{#"}) {
        for (size_t at = 0; (at = source.find(begin, at)) != std::string::npos; ++at) {
            const size_t before = at == 0 ? std::string::npos : source.find_last_not_of(" \t", at - 1);
            const bool alone = before == std::string::npos || source[before] == '\n';
            if (alone && at > 0 && source[at - 1] != '\n') return true;
        }
    }
    return false;
}

// Turns exceptions of the engine, from the lexer to the functions above, into an Error.
template <typename Action>
auto checked(const std::string& source, Action&& action) {
    constexpr size_t kShown = 60;
    const std::string shown = source.size() > kShown ? source.substr(0, kShown) + "..." : source;
    try {
        return action();
    } catch (const Error&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        std::string what = error.what();
        std::ranges::replace(what, '\n', ' ');
        fail(ErrorCode::input, "template", "'{}': {}", shown, what);
    }
}

}  // namespace

struct JinjaTemplate::Program {
    jinja::program parsed;
    value run(const Json& variables) const {
        jinja::context context;
        add_functions(context);
        const BoundedRendering bounds(context);
        for (const auto& [name, variable] : variables.items()) context.set_val(name, to_value(variable));
        value parts = jinja::runtime(context).execute(parsed);
        // Statements, comments and macros are undefined by nature; an expression must not be.
        for (size_t i = 0; i < parsed.body.size(); ++i) {
            const value& part = parts->as_array()[i];
            if (part->is_undefined() &&
                dynamic_cast<const jinja::expression*>(parsed.body[i].get()) != nullptr)
                throw std::runtime_error(part->type());
        }
        return parts;
    }
};

JinjaTemplate::JinjaTemplate(const std::string& source, const JinjaOptions& options) : source_(source) {
    std::string text = source;
    // The engine has no option for this. It drops a last newline, which an empty expression after it
    // prevents, and it trims around statements.
    if (options.keep_whitespace && text.ends_with('\n')) text += "{{ '' }}";
    if (options.keep_whitespace && is_trimmed(text)) {
        fail(ErrorCode::unsupported, "template",
             "'{}': white space before and a line's end after a statement are not supported here - write "
             "them as an expression",
             source);
    }
    program_ = checked(source_, [&] {
        if (text.empty()) return std::make_unique<Program>();
        jinja::lexer lexer;
        const jinja::lexer_result lexed = lexer.tokenize(text);
        check_nesting(lexed.tokens);
        auto program = std::make_unique<Program>(Program{jinja::parse_from_tokens(lexed)});
        add_bounds(program->parsed);
        return program;
    });
}

JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

std::string JinjaTemplate::render(const Json& variables) const {
    return checked(source_, [&] {
        const value parts = program_->run(variables);
        return whole(jinja::runtime::gather_string_parts(parts)->as_string().str());
    });
}

Json JinjaTemplate::evaluate(const Json& variables) const {
    return checked(source_, [&] {
        const value parts = program_->run(variables);
        const bool one =
            parts->as_array().size() == 1 && source_.starts_with("{{") && source_.ends_with("}}");
        if (one) return to_json(parts->as_array()[0]);
        return Json(whole(jinja::runtime::gather_string_parts(parts)->as_string().str()));
    });
}

}  // namespace refold
