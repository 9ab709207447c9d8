// Attributes, items, slices and operators of values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/numbers.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

using Names = std::set<std::string_view>;

// Python's attributes of its types that are not supported here. Those that change a value are undefined in
// transformers' sandbox.
const Names* unsupported_attributes(const Value& value) {
    static const Names kText = {"casefold", "encode", "isnumeric", "maketrans", "translate"},
                       kInteger = {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
                                   "from_bytes",       "imag",      "numerator",  "real",      "to_bytes"},
                       kFloat = {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "real"},
                       kDict = {"fromkeys"}, kView = {"mapping", "isdisjoint"}, kRange = {"count", "index"},
                       kIterator = {"close", "send", "throw"}, kUndefined = {};
    if (value.is_text()) return &kText;
    if (value.is_int() || value.is_bool() || value.is_big()) return &kInteger;
    if (value.is_float()) return &kFloat;
    if (value.is_dict()) return &kDict;
    const std::string type = value.type_name();
    if (type.starts_with("dict_")) return &kView;
    if (type == "range") return &kRange;
    return type == "generator" ? &kIterator : &kUndefined;
}

bool changes_value(const Value& value, std::string_view name) {
    static const Names kList = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"},
                       kDict = {"clear", "pop", "popitem", "setdefault", "update"};
    return (value.is_list() && kList.contains(name)) || (value.is_dict() && kDict.contains(name));
}

// What Python's getattr() finds.
std::optional<Value> python_attribute(Environment& environment, const Value& value, const std::string& name) {
    if (value.is_object()) {
        if (auto found = value.object()->attribute(name)) return found;
    } else if (value.is_tuple() && value.as_tuple().named && (name == "grouper" || name == "list")) {
        return value.items()[name == "list" ? 1 : 0];
    }
    const Definitions& methods = value.is_text() ? text_methods() : other_methods(value);
    const auto method = std::ranges::find(methods, name, &Definitions::value_type::first);
    // Python's would escape their arguments, and give escaped text.
    if (method != methods.end() && value.is_text() && value.as_text().markup)
        throw TemplateError(fmt::format("the method '{}' of escaped text is not supported", name));
    if (method != methods.end()) return make_function(environment, method->first, method->second, value);
    if (changes_value(value, name) || (name.starts_with("__") && name.ends_with("__")))
        return environment.undefined(
            fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, value.type_name()));
    if (unsupported_attributes(value)->contains(name))
        throw TemplateError(
            fmt::format("the attribute '{}' of '{}' is not supported", name, value.type_name()));
    return std::nullopt;
}

std::optional<size_t> position(int64_t index, size_t size) {
    const auto count = static_cast<int64_t>(size);
    if (index < 0) index += count;
    return index < 0 || index >= count ? std::nullopt : std::optional(static_cast<size_t>(index));
}

// What Python's value[key] finds; empty: IndexError, KeyError or TypeError.
std::optional<Value> python_item(const Value& value, const Value& key) {
    if (value.is_dict()) {
        if (key.is_list() || key.is_dict()) return std::nullopt;
        const Value* found = value.as_dict().find(key);
        return found == nullptr ? std::nullopt : std::optional(*found);
    }
    if (!key.is_integral()) return std::nullopt;
    if (value.has_items()) {
        const auto at = position(key.as_int(), value.items().size());
        return at ? std::optional(value.items()[*at]) : std::nullopt;
    }
    if (value.is_text()) {
        const Text& text = value.as_text();
        const auto at = position(key.as_int(), text.length);
        if (!at) return std::nullopt;
        if (text.length == text.utf8.size()) return Value::text(text.utf8.substr(*at, 1));
        count_steps(*at / 16);
        size_t begin = byte_of(text.utf8, *at), end = begin;
        next_point(text.utf8, end);
        return Value::text(text.utf8.substr(begin, end - begin));
    }
    if (value.type_name() == "range") {
        const Items items = to_items(value);
        const auto at = position(key.as_int(), items.size());
        return at ? std::optional(items[*at]) : std::nullopt;
    }
    return std::nullopt;
}

// The indices of [begin:end:step], as Python's slice.indices().
std::vector<size_t> slice_indices(const Value& begin, const Value& end, const Value& step, size_t size) {
    const auto number = [](const Value& value) -> std::optional<int64_t> {
        if (value.is_none()) return std::nullopt;
        check_defined(value);
        if (value.is_big())
            return value.as_big().starts_with('-') ? std::numeric_limits<int64_t>::min()
                                                   : std::numeric_limits<int64_t>::max();
        if (!value.is_integral()) throw TemplateError("slice indices must be integers or none");
        return value.as_int();
    };
    const int64_t stride = number(step).value_or(1), count = static_cast<int64_t>(size);
    if (stride == 0) throw TemplateError("the step of a slice is zero");
    const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? count : count - 1;
    const auto clamped = [&](const Value& value, int64_t other) {
        const auto given = number(value);
        if (!given) return other;
        return *given < 0 ? std::max(*given < -count ? low : *given + count, low) : std::min(*given, high);
    };
    const int64_t from = clamped(begin, stride > 0 ? low : high), to = clamped(end, stride > 0 ? high : low);
    std::vector<size_t> out;
    for (int64_t i = from; stride > 0 ? i < to : i > to;) {
        out.push_back(static_cast<size_t>(i));
        if (__builtin_add_overflow(i, stride, &i)) break;
    }
    count_steps(out.size());
    return out;
}

Items repeated(const Items& items, int64_t times) {
    Items out;
    if (times <= 0 || items.empty()) return out;
    const auto count = static_cast<uint64_t>(times);
    if (count > kMostMemory / sizeof(Value) / items.size())
        throw TemplateError("it makes a list of too many items");
    check_memory(count * items.size() * sizeof(Value));
    count_steps(count * items.size());
    for (uint64_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
    return out;
}

Value repeated_text(const Value& text, int64_t times) {
    std::string out;
    if (times > 0 && !text.str().empty()) {
        const auto count = static_cast<uint64_t>(times);
        check_text(count > kMostText ? count : count * text.str().size());
        for (uint64_t i = 0; i < count; ++i) out += text.str();
    }
    return Value::text(std::move(out));
}

std::optional<Value> multiplied(const Value& a, const Value& b) {
    if (b.is_text() || b.has_items()) return a.is_integral() ? multiplied(b, a) : std::nullopt;
    if (!b.is_integral()) return std::nullopt;
    if (a.is_text()) return repeated_text(a, b.as_int());
    if (a.is_list()) return Value::list(repeated(a.items(), b.as_int()));
    if (a.is_tuple()) return Value::tuple(repeated(a.items(), b.as_int()));
    return std::nullopt;
}

std::optional<Value> added(const Value& a, const Value& b) {
    if (a.is_text() && b.is_text()) {
        check_text(a.str().size() + b.str().size());
        if (a.as_text().markup || b.as_text().markup) return Value::text(escaped(a) + escaped(b), true);
        return Value::text(a.str() + b.str());
    }
    if (!(a.is_list() && b.is_list()) && !(a.is_tuple() && b.is_tuple())) return std::nullopt;
    check_memory((a.items().size() + b.items().size()) * sizeof(Value));
    Items out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return a.is_list() ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value count_items(Call& call) {
    int64_t out = 0;
    for (const Value& item : call.self.items()) out += equal(item, call.value(0)) ? 1 : 0;
    return out;
}

Value index_of_item(Call& call) {
    const Items& items = call.self.items();
    for (size_t i = 0; i < items.size(); ++i)
        if (equal(items[i], call.value(0))) return static_cast<int64_t>(i);
    throw TemplateError(fmt::format("{} is not in the list", repr(call.value(0))));
}

}  // namespace

const Definitions& other_methods(const Value& of) {
    static const Definitions kNone;
    static const Definitions kList = {
        {"count", {count_items, {"/value"}, 1}},
        {"index", {index_of_item, {"/value"}, 1}},
        {"copy", {[](Call& call) { return call.self; }}},
    };
    static const Definitions kTuple = {kList[0], kList[1]};
    static const Definitions kDict = {
        {"items", {[](Call& call) { return make_view(call.self.dict_pointer(), ViewKind::items); }}},
        {"keys", {[](Call& call) { return make_view(call.self.dict_pointer(), ViewKind::keys); }}},
        {"values", {[](Call& call) { return make_view(call.self.dict_pointer(), ViewKind::values); }}},
        {"copy", {[](Call& call) { return call.self; }}},
        {"get",
         {[](Call& call) {
              const Value* found = call.self.as_dict().find(call.value(0));
              return found != nullptr ? *found : call.value_or(1, {});
          },
          {"/key", "/default"},
          1}},
    };
    static const Definitions kFloat = {
        {"is_integer", {[](Call& call) {
             const double number = call.self.as_float();
             return Value(std::isfinite(number) && std::trunc(number) == number);
         }}},
    };
    if (of.is_list()) return kList;
    if (of.is_tuple()) return kTuple;
    if (of.is_dict()) return kDict;
    return of.is_float() ? kFloat : kNone;
}

Value get_attribute(Environment& environment, const Value& value, const std::string& name) {
    check_defined(value);
    if (auto found = python_attribute(environment, value, name)) return *found;
    if (auto found = python_item(value, Value::text(name))) return *found;
    return environment.undefined(fmt::format("'{}' has no attribute '{}'", value.type_name(), name));
}

Value get_item(Environment& environment, const Value& value, const Value& key) {
    check_defined(value);
    if (auto found = python_item(value, key)) return *found;
    if (key.is_text()) {
        if (auto found = python_attribute(environment, value, key.str())) return *found;
        return environment.undefined(fmt::format("'{}' has no attribute '{}'", value.type_name(), key.str()));
    }
    return environment.undefined(fmt::format("'{}' has no element {}", value.type_name(), repr(key)));
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
    check_defined(value);
    if (value.is_text() && value.as_text().markup)
        throw TemplateError("a slice of escaped text is not supported");
    if (value.is_text()) {
        const std::string& utf8 = value.str();
        if (value.as_text().length == utf8.size()) {
            std::string out;
            for (const size_t i : slice_indices(begin, end, step, utf8.size())) out += utf8[i];
            return Value::text(std::move(out));
        }
        check_memory(value.as_text().length * sizeof(char32_t));
        const std::u32string points = points_of(utf8);
        std::string out;
        for (const size_t i : slice_indices(begin, end, step, points.size())) append_point(out, points[i]);
        return Value::text(std::move(out));
    }
    if (!value.has_items()) throw TemplateError(fmt::format("'{}' cannot be sliced", value.type_name()));
    Items out;
    for (const size_t i : slice_indices(begin, end, step, value.items().size()))
        out.push_back(value.items()[i]);
    return value.is_list() ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value get_path(Environment& environment, Value value, const Value& path,
               const std::optional<Value>& otherwise) {
    if (path.is_none()) return value;
    if (!path.is_text()) return get_item(environment, value, path);
    const std::string& text = path.str();
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find('.', begin), text.size());
        const std::string part = text.substr(begin, end - begin);
        const bool digits =
            !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
        value = get_item(environment, value, digits ? Value::integer(part) : Value::text(part));
        if (value.is_undefined() && otherwise) value = *otherwise;
        begin = end + 1;
    }
    return value;
}

Value call_value(const Value& function, const Arguments& arguments) {
    check_defined(function);
    if (!function.is_object())
        throw TemplateError(fmt::format("'{}' object is not callable", function.type_name()));
    check_stack();
    return function.object()->call(arguments);
}

bool is_in(const Value& item, const Value& container) {
    if (container.is_text()) {
        check_defined(item);
        if (!item.is_text())
            throw TemplateError(
                fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
        check_search(container.str(), item.str());
        return container.str().find(item.str()) != std::string::npos;
    }
    if (container.is_dict()) return container.as_dict().find(item) != nullptr;
    Iteration iteration(container);
    while (const auto other = iteration.next())
        if (equal(item, *other)) return true;
    return false;
}

Value operate(const std::string& operation, const Value& a, const Value& b) {
    for (const Value* operand : {&a, &b}) {
        check_defined(*operand);
        if (operation != "+" && operand->is_text() && operand->as_text().markup)
            throw TemplateError(fmt::format("'{}' of escaped text is not supported", operation));
    }
    if (a.is_number() && b.is_number()) return compute(operation, a, b);
    std::optional<Value> out;
    if (operation == "+") out = added(a, b);
    if (operation == "*") out = multiplied(a, b);
    if (operation == "%" && a.is_text()) out = Value::text(format_percent(a.str(), b));
    if (!out)
        throw TemplateError(fmt::format("unsupported operand types for {}: '{}' and '{}'", operation,
                                        a.type_name(), b.type_name()));
    return *out;
}

}  // namespace refold::jinja
