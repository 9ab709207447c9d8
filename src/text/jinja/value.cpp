#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/budget.h"
#include "text/jinja/numbers.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

constexpr size_t kIndexedFrom = 16;  // entries of a mapping

int levels_of(const Items& items) {
    int most = 0;
    for (const Value& item : items) most = std::max(most, item.levels());
    if (most >= kDeepestValue) throw TemplateError("a value is nested too deeply");
    return most + 1;
}

bool equal_items(const Items& a, const Items& b) { return std::ranges::equal(a, b, equal); }

bool equal_dicts(const Dict& a, const Dict& b) {
    return a.size() == b.size() && std::ranges::all_of(a.entries(), [&](const Entry& entry) {
               const Value* other = b.find(entry.key);
               return other != nullptr && equal(entry.value, *other);
           });
}

// Namespaces may hold themselves.
class Depth {
public:
    Depth() {
        if (++depth > kDeepestValue) {
            --depth;
            throw TemplateError("a value is nested too deeply");
        }
        check_stack();
    }
    ~Depth() { --depth; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

private:
    static thread_local int depth;
};
thread_local int Depth::depth = 0;

class Writer {
public:
    std::string take() { return std::move(out_); }
    void write(const Value& value) {
        const Depth depth;
        if (value.is_list()) {
            items("[", value.items(), "]");
        } else if (value.is_tuple()) {
            items("(", value.items(), value.items().size() == 1 ? ",)" : ")");
        } else if (value.is_dict()) {
            dict(value.as_dict());
        } else if (value.is_text()) {
            add(value.as_text().markup ? fmt::format("Markup({})", quoted_text(value.str()))
                                       : quoted_text(value.str()));
        } else if (value.is_undefined()) {
            // Python writes the class's name, even of a strict one.
            add("Undefined");
        } else if (value.is_object()) {
            add(value.object()->repr());
        } else {
            add(to_str(value));
        }
    }

private:
    void add(std::string_view text) {
        check_text(out_.size() + text.size());
        out_ += text;
    }
    void items(const char* begin, const Items& items, const char* end) {
        add(begin);
        for (size_t i = 0; i < items.size(); ++i) {
            if (i > 0) add(", ");
            write(items[i]);
        }
        add(end);
    }
    void dict(const Dict& dict) {
        add("{");
        bool first = true;
        for (const auto& [key, value] : dict.entries()) {
            if (!std::exchange(first, false)) add(", ");
            write(key);
            add(": ");
            write(value);
        }
        add("}");
    }

    std::string out_;
};

std::optional<int> compare_items(const Items& a, const Items& b) {
    const Depth depth;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        count_steps(1);
        if (!equal(a[i], b[i])) return compare(a[i], b[i]);
    }
    return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

}  // namespace

Text::Text(std::string the_utf8, bool is_markup)
    : utf8(std::move(the_utf8)), length(code_points(utf8)), markup(is_markup) {
    add_memory(utf8.size() + sizeof(Text));
}
Text::~Text() { remove_memory(utf8.size() + sizeof(Text)); }

List::List(Items the_items) : items(std::move(the_items)), levels(levels_of(items)) {
    add_memory(items.size() * sizeof(Value) + sizeof(List));
}
List::~List() { remove_memory(items.size() * sizeof(Value) + sizeof(List)); }

Tuple::Tuple(Items the_items, bool is_named) : List(std::move(the_items)), named(is_named) {}

Value Value::text(std::string utf8, bool markup) {
    check_text(utf8.size());
    Value out;
    out.storage_ = std::make_shared<const Text>(std::move(utf8), markup);
    return out;
}

Value Value::integer(const std::string& digits) {
    const bool negative = digits.starts_with('-');
    size_t begin = digits.find_first_not_of('0', negative ? 1 : 0);
    if (begin == std::string::npos) return int64_t{0};
    const std::string canonical = (negative ? "-" : "") + digits.substr(begin);
    if (const auto small = parse_decimal(canonical)) return *small;
    Value out;
    out.storage_ = std::make_shared<const BigInteger>(BigInteger{canonical});
    return out;
}

Value Value::list(Items items) {
    check_memory(items.size() * sizeof(Value));
    Value out;
    out.storage_ = std::make_shared<const List>(std::move(items));
    return out;
}

Value Value::tuple(Items items, bool named) {
    check_memory(items.size() * sizeof(Value));
    Value out;
    out.storage_ = std::make_shared<const Tuple>(std::move(items), named);
    return out;
}

Value Value::undefined(std::string message, bool strict) {
    Value out;
    out.storage_ = std::make_shared<const Undefined>(Undefined{std::move(message), strict});
    return out;
}

const Items& Value::items() const {
    return is_tuple() ? as_tuple().items : std::get<std::shared_ptr<const List>>(storage_)->items;
}

int Value::levels() const {
    if (is_list()) return std::get<std::shared_ptr<const List>>(storage_)->levels;
    if (is_tuple()) return as_tuple().levels;
    if (is_dict()) return as_dict().levels();
    return 0;
}

std::string Value::type_name() const {
    if (is_none()) return "NoneType";
    if (is_bool()) return "bool";
    if (is_int() || is_big()) return "int";
    if (is_float()) return "float";
    if (is_text()) return as_text().markup ? "Markup" : "str";
    if (is_list()) return "list";
    if (is_tuple()) return "tuple";
    if (is_dict()) return "dict";
    if (is_undefined()) return "Undefined";
    return object()->type_name();
}

Dict::Dict(std::vector<Entry> entries) {
    std::unordered_multimap<size_t, size_t> index;
    for (Entry& entry : entries) {
        const size_t key = hash(entry.key);
        const auto [from, to] = index.equal_range(key);
        const auto same =
            std::find_if(from, to, [&](const auto& at) { return equal(entries_[at.second].key, entry.key); });
        if (same != to) {
            entries_[same->second].value = std::move(entry.value);
            continue;
        }
        index.emplace(key, entries_.size());
        levels_ = std::max({levels_, entry.key.levels() + 1, entry.value.levels() + 1});
        entries_.push_back(std::move(entry));
    }
    if (levels_ > kDeepestValue) throw TemplateError("a value is nested too deeply");
    if (entries_.size() >= kIndexedFrom) index_ = std::move(index);
    add_memory(entries_.size() * sizeof(Entry) + sizeof(Dict));
}
Dict::~Dict() { remove_memory(entries_.size() * sizeof(Entry) + sizeof(Dict)); }

const Value* Dict::find_hashed(size_t hashed, const std::function<bool(const Value&)>& same) const {
    if (entries_.size() < kIndexedFrom) {
        const auto found =
            std::ranges::find_if(entries_, [&](const Entry& entry) { return same(entry.key); });
        return found == entries_.end() ? nullptr : &found->value;
    }
    const auto [from, to] = index_.equal_range(hashed);
    const auto found = std::find_if(from, to, [&](const auto& at) { return same(entries_[at.second].key); });
    return found == to ? nullptr : &entries_[found->second].value;
}

const Value* Dict::find(const Value& key) const {
    return find_hashed(hash(key), [&](const Value& other) { return equal(other, key); });
}

const Value* Dict::find(std::string_view key) const {
    return find_hashed(std::hash<std::string_view>{}(key),
                       [&](const Value& other) { return other.is_text() && other.str() == key; });
}

Value make_dict(std::vector<Entry> entries) {
    check_memory(entries.size() * sizeof(Entry));
    count_steps(entries.size());
    return std::make_shared<const Dict>(std::move(entries));
}

Value Object::call(const Arguments&) {
    throw TemplateError(fmt::format("'{}' object is not callable", type_name()));
}
std::optional<Value> Object::attribute(const std::string&) { return std::nullopt; }
std::string Object::repr() {
    throw TemplateError(
        fmt::format("a {} cannot be written: Python writes its address in memory", type_name()));
}

void check_defined(const Value& value) {
    if (value.is_undefined()) throw TemplateError(value.as_undefined().message);
}

bool truth(const Value& value) {
    if (value.is_none()) return false;
    if (value.is_bool()) return value.as_bool();
    if (value.is_int()) return value.as_int() != 0;
    if (value.is_float()) return value.as_float() != 0;
    if (value.is_text()) return !value.str().empty();
    if (value.has_items()) return !value.items().empty();
    if (value.is_dict()) return value.as_dict().size() > 0;
    if (value.is_object()) return value.object()->truth();
    if (value.is_undefined()) {
        if (value.as_undefined().strict) check_defined(value);
        return false;
    }
    return true;  // a big integer
}

bool equal(const Value& a, const Value& b) {
    const Depth depth;
    count_steps(1);
    for (const Value* one : {&a, &b})
        if (one->is_undefined() && one->as_undefined().strict) check_defined(*one);
    if (a.is_number() && b.is_number()) return compare(a, b) == 0;
    if (a.is_text() && b.is_text()) return a.str() == b.str();
    if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple()))
        return equal_items(a.items(), b.items());
    if (a.is_dict() && b.is_dict()) return equal_dicts(a.as_dict(), b.as_dict());
    if (a.is_object() && b.is_object()) return a.object() == b.object() || a.object()->equals(*b.object());
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::optional<int> compare(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) return compare_numbers(a, b);
    check_defined(a);
    check_defined(b);
    if (a.is_text() && b.is_text()) {
        const int order = a.str().compare(b.str());  // UTF-8 is in the order of code points
        return order < 0 ? -1 : order > 0 ? 1 : 0;
    }
    if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple()))
        return compare_items(a.items(), b.items());
    throw TemplateError(fmt::format("'<' not supported between '{}' and '{}'", a.type_name(), b.type_name()));
}

size_t hash(const Value& value) {
    if (value.is_text()) return std::hash<std::string_view>{}(value.str());
    if (value.is_big()) return std::hash<std::string_view>{}(value.as_big());
    if (value.is_integral()) return std::hash<int64_t>{}(value.as_int());
    if (value.is_float()) {
        const double number = value.as_float();
        constexpr double kBound = 9.2e18;
        if (std::trunc(number) == number && std::abs(number) < kBound)
            return std::hash<int64_t>{}(static_cast<int64_t>(number));
        return std::isfinite(number) && std::trunc(number) == number ? hash(integer_of(number))
                                                                     : std::hash<double>{}(number);
    }
    if (value.is_tuple()) {
        size_t out = 1;
        for (const Value& item : value.items()) out = out * 31 + hash(item);
        return out;
    }
    if (value.is_list() || value.is_dict())
        throw TemplateError(fmt::format("unhashable type: '{}'", value.type_name()));
    if (value.is_undefined()) {
        if (value.as_undefined().strict) check_defined(value);
        return 2;
    }
    return value.is_object() ? std::hash<const void*>{}(value.object().get()) : 3;
}

std::string to_str(const Value& value) {
    if (value.is_text()) return value.str();
    if (value.is_none()) return "None";
    if (value.is_bool()) return value.as_bool() ? "True" : "False";
    if (value.is_int()) return std::to_string(value.as_int());
    if (value.is_big()) return value.as_big();
    if (value.is_float()) return float_repr(value.as_float());
    if (value.is_undefined()) {
        if (value.as_undefined().strict) check_defined(value);
        return "";
    }
    return repr(value);
}

std::string repr(const Value& value) {
    Writer writer;
    writer.write(value);
    return writer.take();
}

Items to_items(const Value& value) {
    Items out;
    if (value.has_items()) {
        out = value.items();
    } else if (value.is_text()) {
        for (size_t at = 0; at < value.str().size();) {
            const size_t begin = at;
            next_point(value.str(), at);
            out.push_back(Value::text(value.str().substr(begin, at - begin)));
        }
    } else if (value.is_dict()) {
        for (const Entry& entry : value.as_dict().entries()) out.push_back(entry.key);
    } else if (value.is_undefined()) {
        if (value.as_undefined().strict) check_defined(value);
    } else if (const auto iterator = value.is_object() ? value.object()->iterate() : nullptr) {
        while (auto item = iterator->next()) {
            out.push_back(std::move(*item));
            count_steps(1);
        }
    } else {
        throw TemplateError(fmt::format("'{}' object is not iterable", value.type_name()));
    }
    check_memory(out.size() * sizeof(Value));
    count_steps(out.size());
    return out;
}

Iteration::Iteration(const Value& value) {
    if (value.is_object()) iterator_ = value.object()->iterate();
    if (!iterator_) items_ = to_items(value);
}

std::optional<Value> Iteration::next() {
    if (iterator_) return iterator_->next();
    if (at_ >= items_.size()) return std::nullopt;
    return items_[at_++];
}

std::optional<size_t> length_of(const Value& value) {
    if (value.is_text()) return value.as_text().length;
    if (value.has_items()) return value.items().size();
    if (value.is_dict()) return value.as_dict().size();
    if (value.is_object()) return value.object()->length();
    if (value.is_undefined()) {
        if (value.as_undefined().strict) check_defined(value);
        return 0;
    }
    return std::nullopt;
}

}  // namespace refold::jinja
