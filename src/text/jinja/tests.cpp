// Jinja's tests: "is defined", "is divisibleby(3)".
#include <algorithm>
#include <cmath>
#include <map>

#include "text/jinja/environment.h"
#include "text/jinja/numbers.h"
#include "text/jinja/text_functions.h"

namespace refold::jinja {
namespace {

bool is_integer(const Value& value) { return value.is_int() || value.is_big(); }

// value % number == wanted
Value has_rest(Call& call, const Value& number, int64_t wanted) {
    return equal(operate("%", call.self, number), wanted);
}

bool is_callable(const Value& value) {
    return value.is_undefined() || (value.is_object() && value.object()->callable());
}

bool is_iterable(const Value& value) {
    if (value.is_undefined() && value.as_undefined().strict) check_defined(value);
    // An iterator is not used up by this.
    return value.is_text() || value.has_items() || value.is_dict() || value.is_undefined() ||
           (value.is_object() && value.object()->iterate() != nullptr);
}

bool is_sequence(const Value& value) {
    if (value.is_undefined()) return !value.as_undefined().strict;
    return value.is_text() || value.has_items() || value.is_dict() || value.type_name() == "range";
}

Value is_same(Call& call) {
    const Value &a = call.self, &b = call.value(0);
    if (a.is_object() && b.is_object()) return a.object() == b.object();
    if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
    if (a.is_bool() && b.is_bool()) return a.as_bool() == b.as_bool();
    if (a.type_name() != b.type_name()) return false;
    call.fail("the identity of numbers, texts and lists is not supported");
}

template <typename Accept>
Value ordered(Call& call, Accept accept) {
    const auto order = compare(call.self, call.value(0));
    return order.has_value() && accept(*order);
}
Value greater(Call& call) {
    return ordered(call, [](int order) { return order > 0; });
}
Value greater_or_equal(Call& call) {
    return ordered(call, [](int order) { return order >= 0; });
}
Value less(Call& call) {
    return ordered(call, [](int order) { return order < 0; });
}
Value less_or_equal(Call& call) {
    return ordered(call, [](int order) { return order <= 0; });
}
Value is_equal(Call& call) { return equal(call.self, call.value(0)); }
Value is_unequal(Call& call) { return !equal(call.self, call.value(0)); }

const std::map<std::string_view, Definition>& tests() {
    static const std::map<std::string_view, Definition> kTests = {
        {"odd", {[](Call& call) { return has_rest(call, int64_t{2}, 1); }}},
        {"even", {[](Call& call) { return has_rest(call, int64_t{2}, 0); }}},
        {"divisibleby", {[](Call& call) { return has_rest(call, call.value(0), 0); }, {"num"}, 1}},
        {"defined", {[](Call& call) { return Value(!call.self.is_undefined()); }}},
        {"undefined", {[](Call& call) { return Value(call.self.is_undefined()); }}},
        {"filter",
         {[](Call& call) { return Value(call.self.is_text() && find_filter(call.self.str()) != nullptr); }}},
        {"test",
         {[](Call& call) { return Value(call.self.is_text() && find_test(call.self.str()) != nullptr); }}},
        {"none", {[](Call& call) { return Value(call.self.is_none()); }}},
        {"boolean", {[](Call& call) { return Value(call.self.is_bool()); }}},
        {"false", {[](Call& call) { return Value(call.self.is_bool() && !call.self.as_bool()); }}},
        {"true", {[](Call& call) { return Value(call.self.is_bool() && call.self.as_bool()); }}},
        {"integer", {[](Call& call) { return Value(is_integer(call.self)); }}},
        {"float", {[](Call& call) { return Value(call.self.is_float()); }}},
        {"lower", {[](Call& call) { return Value(is_in_case(to_str(call.self), false)); }}},
        {"upper", {[](Call& call) { return Value(is_in_case(to_str(call.self), true)); }}},
        {"string", {[](Call& call) { return Value(call.self.is_text()); }}},
        {"mapping", {[](Call& call) { return Value(call.self.is_dict()); }}},
        {"number", {[](Call& call) { return Value(call.self.is_number()); }}},
        {"sequence", {[](Call& call) { return Value(is_sequence(call.self)); }}},
        {"iterable", {[](Call& call) { return Value(is_iterable(call.self)); }}},
        {"callable", {[](Call& call) { return Value(is_callable(call.self)); }}},
        {"sameas", {is_same, {"other"}, 1}},
        {"escaped", {[](Call& call) { return Value(call.self.is_text() && call.self.as_text().markup); }}},
        {"in", {[](Call& call) { return Value(is_in(call.self, call.value(0))); }, {"seq"}, 1}},
        {"==", {is_equal, {"/b"}, 1}},
        {"eq", {is_equal, {"/b"}, 1}},
        {"equalto", {is_equal, {"/b"}, 1}},
        {"!=", {is_unequal, {"/b"}, 1}},
        {"ne", {is_unequal, {"/b"}, 1}},
        {">", {greater, {"/b"}, 1}},
        {"gt", {greater, {"/b"}, 1}},
        {"greaterthan", {greater, {"/b"}, 1}},
        {">=", {greater_or_equal, {"/b"}, 1}},
        {"ge", {greater_or_equal, {"/b"}, 1}},
        {"<", {less, {"/b"}, 1}},
        {"lt", {less, {"/b"}, 1}},
        {"lessthan", {less, {"/b"}, 1}},
        {"<=", {less_or_equal, {"/b"}, 1}},
        {"le", {less_or_equal, {"/b"}, 1}},
    };
    return kTests;
}

}  // namespace

const Definition* find_test(const std::string& name) {
    const auto found = tests().find(name);
    return found == tests().end() ? nullptr : &found->second;
}

}  // namespace refold::jinja
