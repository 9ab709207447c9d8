// Filters of lists, mappings and iterators.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

Value ignoring_case(const Value& value) { return value.is_text() ? Value::text(lower(value.str())) : value; }

bool is_before(const Value& a, const Value& b) {
    count_steps(1);
    const auto order = compare(a, b);
    return order.has_value() && *order < 0;
}

// A sorted copy; equal entries keep their order, also in reverse.
template <typename Key>
Items sorted(Items items, bool reverse, Key key) {
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : items) keyed.emplace_back(key(item), std::move(item));
    // NaN is in no order, and texts are in none with numbers: checked first, as a sort needs one.
    for (size_t i = 1; i < keyed.size(); ++i) {
        if (!compare(keyed[i - 1].first, keyed[i].first)) throw TemplateError("NaN cannot be sorted");
        if (!compare(keyed[0].first, keyed[i].first)) throw TemplateError("NaN cannot be sorted");
    }
    std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
        return reverse ? is_before(b.first, a.first) : is_before(a.first, b.first);
    });
    Items out;
    for (auto& [by, item] : keyed) out.push_back(std::move(item));
    return out;
}

std::optional<Value> given(const Call& call, size_t i) {
    return call.has(i) && !call.value(i).is_none() ? std::optional(call.value(i)) : std::nullopt;
}

Value attribute_of(Call& call, const Value& item, size_t path, bool case_sensitive,
                   const std::optional<Value>& otherwise = {}) {
    const Value found = get_path(call.environment, item, call.value_or(path, {}), otherwise);
    return case_sensitive ? found : ignoring_case(found);
}

Value sort(Call& call) {
    const bool case_sensitive = call.flag(1);
    // "a,b": by several attributes.
    std::vector<Value> paths = {call.value_or(2, {})};
    if (paths[0].is_text()) {
        const std::string text = paths[0].str();
        paths.clear();
        for (size_t begin = 0; begin <= text.size();) {
            const size_t end = std::min(text.find(',', begin), text.size());
            paths.push_back(Value::text(text.substr(begin, end - begin)));
            begin = end + 1;
        }
    }
    return Value::list(sorted(to_items(call.self), call.flag(0), [&](const Value& item) {
        Items key;
        for (const Value& path : paths) {
            const Value found = get_path(call.environment, item, path);
            key.push_back(case_sensitive ? found : ignoring_case(found));
        }
        return Value::list(std::move(key));
    }));
}

Value dictsort(Call& call) {
    if (!call.self.is_dict()) {
        check_defined(call.self);
        call.fail("expected a mapping");
    }
    const std::string by = call.has(1) ? call.text(1) : "key";
    if (by != "key" && by != "value") call.fail("expected by='key' or by='value'");
    return Value::list(sorted(to_items(make_view(call.self.dict_pointer(), ViewKind::items)), call.flag(2),
                              [&](const Value& entry) {
                                  const Value& part = entry.items()[by == "key" ? 0 : 1];
                                  return call.flag(0) ? part : ignoring_case(part);
                              }));
}

Value groupby(Call& call) {
    const bool case_sensitive = call.flag(2);
    const auto key_of = [&](const Value& item) {
        return attribute_of(call, item, 0, case_sensitive, given(call, 1));
    };
    const Items items = sorted(to_items(call.self), false, key_of);
    Items out;
    for (size_t begin = 0; begin < items.size();) {
        const Value key = key_of(items[begin]);
        size_t end = begin + 1;
        while (end < items.size() && equal(key_of(items[end]), key)) ++end;
        const Value shown = attribute_of(call, items[begin], 0, true, given(call, 1));
        out.push_back(Value::tuple({shown, Value::list(Items(items.begin() + static_cast<ptrdiff_t>(begin),
                                                             items.begin() + static_cast<ptrdiff_t>(end)))},
                                   true));
        begin = end;
    }
    return Value::list(std::move(out));
}

Value unique(Call& call) {
    std::unordered_multimap<size_t, Value> seen;
    Items out;
    for (const Value& item : to_items(call.self)) {
        const Value key = attribute_of(call, item, 1, call.flag(0));
        const size_t hashed = hash(key);
        const auto [from, to] = seen.equal_range(hashed);
        if (std::any_of(from, to, [&](const auto& other) { return equal(other.second, key); })) continue;
        seen.emplace(hashed, key);
        out.push_back(item);
    }
    return make_iterator(std::move(out));
}

Value extreme(Call& call, bool largest) {
    const Items items = to_items(call.self);
    if (items.empty()) return call.environment.undefined("No aggregated item, sequence was empty.");
    size_t best = 0;
    Value best_key = attribute_of(call, items[0], 1, call.flag(0));
    for (size_t i = 1; i < items.size(); ++i) {
        const Value key = attribute_of(call, items[i], 1, call.flag(0));
        if (!(largest ? is_before(best_key, key) : is_before(key, best_key))) continue;
        best = i;
        best_key = key;
    }
    return items[best];
}

Value sum(Call& call) {
    Value out = call.value_or(1, int64_t{0});
    if (out.is_text()) call.fail("cannot sum texts");
    for (const Value& item : to_items(call.self))
        out = operate("+", out, given(call, 0) ? attribute_of(call, item, 0, true) : item);
    return out;
}

Value join(Call& call) {
    const std::string mark = call.has(0) ? to_str(call.value(0)) : "";
    std::string out;
    bool first = true;
    for (const Value& item : to_items(call.self)) {
        const std::string text = to_str(given(call, 1) ? attribute_of(call, item, 1, true) : item);
        check_text(out.size() + mark.size() + text.size());
        if (!std::exchange(first, false)) out += mark;
        out += text;
    }
    return Value::text(std::move(out));
}

Value first(Call& call) {
    Iteration iteration(call.self);
    if (auto item = iteration.next()) return *item;
    return call.environment.undefined("No first item, sequence was empty.");
}

// What Python's reversed() takes.
bool is_reversible(const Value& value) {
    return value.is_text() || value.has_items() || value.is_dict() || value.type_name() == "range" ||
           value.type_name().starts_with("dict_");
}

Value last(Call& call) {
    check_defined(call.self);
    if (!is_reversible(call.self))
        call.fail(fmt::format("'{}' object is not reversible", call.self.type_name()));
    Items items = to_items(call.self);
    if (!items.empty()) return items.back();
    return call.environment.undefined("No last item, sequence was empty.");
}

Value reverse(Call& call) {
    if (call.self.is_text()) return get_slice(call.self, {}, {}, int64_t{-1});
    Items items = to_items(call.self);
    std::ranges::reverse(items);
    if (is_reversible(call.self)) return make_iterator(std::move(items));
    return Value::list(std::move(items));
}

Value length(Call& call) {
    const auto out = length_of(call.self);
    if (!out) call.fail(fmt::format("object of type '{}' has no len()", call.self.type_name()));
    return static_cast<int64_t>(*out);
}

Value default_value(Call& call) {
    const bool missing = call.self.is_undefined() || (call.flag(1) && !truth(call.self));
    return missing ? call.value_or(0, Value::text("")) : call.self;
}

Value items(Call& call) {
    if (call.self.is_undefined()) return make_iterator({});
    if (!call.self.is_dict()) call.fail("expected a mapping");
    return make_iterator(to_items(make_view(call.self.dict_pointer(), ViewKind::items)));
}

Value batch(Call& call) {
    const int64_t size = call.integer(0);
    Items out, part;
    for (Value& item : to_items(call.self)) {
        if (static_cast<int64_t>(part.size()) == size) out.push_back(Value::list(std::exchange(part, {})));
        part.push_back(std::move(item));
    }
    if (!part.empty()) {
        const auto missing = size - static_cast<int64_t>(part.size());
        if (const auto fill = given(call, 1); fill && missing > 0) {
            check_memory(static_cast<uint64_t>(missing) * sizeof(Value));
            part.insert(part.end(), static_cast<size_t>(missing), *fill);
        }
        out.push_back(Value::list(std::move(part)));
    }
    return make_iterator(std::move(out));
}

Value slice(Call& call) {
    const Items all = to_items(call.self);
    const int64_t slices = call.integer(0), length = static_cast<int64_t>(all.size());
    if (slices == 0) call.fail("division by zero");
    if (slices < 0) return make_iterator({});
    check_memory(static_cast<uint64_t>(slices) * sizeof(List));
    count_steps(static_cast<uint64_t>(slices));
    const int64_t each = length / slices, longer = length % slices;
    Items out;
    for (int64_t i = 0, at = 0; i < slices; ++i) {
        const int64_t end = at + each + (i < longer ? 1 : 0);
        Items part(all.begin() + at, all.begin() + end);
        if (const auto fill = given(call, 1); fill && i >= longer) part.push_back(*fill);
        out.push_back(Value::list(std::move(part)));
        at = end;
    }
    return make_iterator(std::move(out));
}

Arguments without_first(const Arguments& from, size_t count) {
    return {
        .positional = Items(from.positional.begin() + static_cast<ptrdiff_t>(count), from.positional.end()),
        .named = from.named};
}

const Value* named(const Arguments& arguments, std::string_view name) {
    const auto found = std::ranges::find(arguments.named, name, &std::pair<std::string, Value>::first);
    return found == arguments.named.end() ? nullptr : &found->second;
}

std::string name_in(Call& call, size_t i) {
    const Value& name = call.given.positional[i];
    if (!name.is_text()) call.fail("expected the name of a filter or test");
    return name.str();
}

Value map(Call& call) {
    if (!truth(call.self)) return make_iterator({});
    Items out;
    const Value* attribute = named(call.given, "attribute");
    if (call.given.positional.empty() && attribute != nullptr) {
        const Value* otherwise = named(call.given, "default");
        if (call.given.named.size() > (otherwise != nullptr ? 2U : 1U))
            call.fail("unexpected keyword argument");
        const auto fallback =
            otherwise != nullptr && !otherwise->is_none() ? std::optional(*otherwise) : std::nullopt;
        for (const Value& item : to_items(call.self))
            out.push_back(get_path(call.environment, item, *attribute, fallback));
        return make_iterator(std::move(out));
    }
    if (call.given.positional.empty()) call.fail("a filter is expected");
    const std::string name = name_in(call, 0);
    const Arguments more = without_first(call.given, 1);
    for (const Value& item : to_items(call.self))
        out.push_back(call_filter(call.environment, name, item, more));
    return make_iterator(std::move(out));
}

struct Selection {
    bool by_attribute, keeps;
};
Value select(Call& call, const Selection& selection) {
    if (!truth(call.self)) return make_iterator({});
    const auto& positional = call.given.positional;
    if (selection.by_attribute && positional.empty()) call.fail("the name of an attribute is expected");
    const size_t at = selection.by_attribute ? 1 : 0;
    const bool tested = positional.size() > at;
    const std::string test = tested ? name_in(call, at) : "";
    const Arguments more = tested ? without_first(call.given, at + 1) : Arguments{};
    Items out;
    for (const Value& item : to_items(call.self)) {
        const Value value = selection.by_attribute ? get_path(call.environment, item, positional[0]) : item;
        const bool passes = tested ? call_test(call.environment, test, value, more) : truth(value);
        if (passes == selection.keeps) out.push_back(item);
    }
    return make_iterator(std::move(out));
}

Value attr(Call& call) {
    // Only attributes: items do not count.
    const std::string& name = call.text(0);
    check_defined(call.self);
    if (call.self.is_dict()) {
        const Value empty = make_dict({});
        const Value found = get_attribute(call.environment, empty, name);
        if (found.is_undefined())
            return call.environment.undefined(fmt::format("'dict' has no attribute '{}'", name));
    }
    return get_attribute(call.environment, call.self, name);
}

}  // namespace

const Definitions& list_filters() {
    static const Definitions kFilters = {
        {"attr", {attr, {"name"}, 1}},
        {"batch", {batch, {"linecount", "fill_with"}, 1}},
        {"count", {length}},
        {"d", {default_value, {"default_value", "boolean"}}},
        {"default", {default_value, {"default_value", "boolean"}}},
        {"dictsort", {dictsort, {"case_sensitive", "by", "reverse"}}},
        {"first", {first}},
        {"groupby", {groupby, {"attribute", "default", "case_sensitive"}, 1}},
        {"items", {items}},
        {"join", {join, {"d", "attribute"}}},
        {"last", {last}},
        {"length", {length}},
        {"list", {[](Call& call) { return Value::list(to_items(call.self)); }}},
        {"map", {map, {}, 0, true}},
        {"max", {[](Call& call) { return extreme(call, true); }, {"case_sensitive", "attribute"}}},
        {"min", {[](Call& call) { return extreme(call, false); }, {"case_sensitive", "attribute"}}},
        {"random", {[](Call& call) -> Value { call.fail("this filter is not supported"); }, {}, 0, true}},
        {"reject",
         {[](Call& call) {
              return select(call, {false, false});
          },
          {},
          0,
          true}},
        {"rejectattr",
         {[](Call& call) {
              return select(call, {true, false});
          },
          {},
          0,
          true}},
        {"reverse", {reverse}},
        {"select",
         {[](Call& call) {
              return select(call, {false, true});
          },
          {},
          0,
          true}},
        {"selectattr",
         {[](Call& call) {
              return select(call, {true, true});
          },
          {},
          0,
          true}},
        {"slice", {slice, {"slices", "fill_with"}, 1}},
        {"sort", {sort, {"reverse", "case_sensitive", "attribute"}}},
        {"sum", {sum, {"attribute", "start"}}},
        {"unique", {unique, {"case_sensitive", "attribute"}}},
    };
    return kFilters;
}

}  // namespace refold::jinja
