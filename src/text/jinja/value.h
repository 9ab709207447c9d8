// Values of templates, with Python's semantics. They cannot be changed once made, as in the sandbox in which
// transformers renders chat templates; only namespaces and iterators have a state.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace refold::jinja {

// Any failure of a template; the caller adds which template it was.
struct TemplateError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Value;
class Dict;
class Object;
using Items = std::vector<Value>;

// UTF-8; `length` counts code points. `markup` marks text of the filters "escape" and "safe".
struct Text {
    Text(std::string the_utf8, bool is_markup);
    ~Text();
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;

    const std::string utf8;
    const size_t length;
    const bool markup;
};

// An integer beyond 64 bits: it is kept, written and compared, but not computed with.
struct BigInteger {
    std::string digits;  // decimal, with "-" if it is negative
};

// Nothing, with the reason. A strict one, as in lm-evaluation-harness, cannot even be printed.
struct Undefined {
    std::string message;
    bool strict;
};

// Levels of values within values. The functions that walk values are recursive.
constexpr int kDeepestValue = 200;

struct List {
    explicit List(Items the_items);
    ~List();
    List(const List&) = delete;
    List& operator=(const List&) = delete;

    const Items items;
    const int levels;
};

// `named`: an entry of the filter "groupby", which has the attributes `grouper` and `list`.
struct Tuple : List {
    explicit Tuple(Items the_items, bool is_named = false);
    const bool named;
};

class Value {
public:
    using NoneType = std::monostate;
    using Storage =
        std::variant<NoneType, bool, int64_t, double, std::shared_ptr<const BigInteger>,
                     std::shared_ptr<const Text>, std::shared_ptr<const List>, std::shared_ptr<const Tuple>,
                     std::shared_ptr<const Dict>, std::shared_ptr<Object>, std::shared_ptr<const Undefined>>;

    Value() = default;
    Value(bool value) : storage_(value) {}
    Value(int64_t value) : storage_(value) {}
    Value(double value) : storage_(value) {}
    Value(const char*) = delete;
    template <std::derived_from<Object> T>
    Value(std::shared_ptr<T> object) : storage_(std::shared_ptr<Object>(std::move(object))) {}
    Value(std::shared_ptr<const Dict> dict) : storage_(std::move(dict)) {}

    static Value text(std::string utf8, bool markup = false);
    static Value integer(const std::string& digits);  // of any size
    static Value list(Items items);
    static Value tuple(Items items, bool named = false);
    static Value undefined(std::string message, bool strict);

    bool is_none() const { return holds<NoneType>(); }
    bool is_bool() const { return holds<bool>(); }
    bool is_int() const { return holds<int64_t>(); }
    bool is_big() const { return holds<std::shared_ptr<const BigInteger>>(); }
    bool is_float() const { return holds<double>(); }
    bool is_text() const { return holds<std::shared_ptr<const Text>>(); }
    bool is_list() const { return holds<std::shared_ptr<const List>>(); }
    bool is_tuple() const { return holds<std::shared_ptr<const Tuple>>(); }
    bool is_dict() const { return holds<std::shared_ptr<const Dict>>(); }
    bool is_object() const { return holds<std::shared_ptr<Object>>(); }
    bool is_undefined() const { return holds<std::shared_ptr<const Undefined>>(); }
    // Also true for bool, which is an integer in Python.
    bool is_integral() const { return is_int() || is_bool(); }
    bool is_number() const { return is_integral() || is_float() || is_big(); }

    bool as_bool() const { return std::get<bool>(storage_); }
    int64_t as_int() const {
        return is_bool() ? static_cast<int64_t>(as_bool()) : std::get<int64_t>(storage_);
    }
    double as_float() const { return std::get<double>(storage_); }
    const std::string& as_big() const {
        return std::get<std::shared_ptr<const BigInteger>>(storage_)->digits;
    }
    const Text& as_text() const { return *std::get<std::shared_ptr<const Text>>(storage_); }
    const std::string& str() const { return as_text().utf8; }
    // Of a list or a tuple.
    const Items& items() const;
    bool has_items() const { return is_list() || is_tuple(); }
    const Tuple& as_tuple() const { return *std::get<std::shared_ptr<const Tuple>>(storage_); }
    const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(storage_); }
    const std::shared_ptr<const Dict>& dict_pointer() const {
        return std::get<std::shared_ptr<const Dict>>(storage_);
    }
    const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(storage_); }
    template <typename T>
    std::shared_ptr<T> object_as() const {
        return is_object() ? std::dynamic_pointer_cast<T>(object()) : nullptr;
    }
    const Undefined& as_undefined() const { return *std::get<std::shared_ptr<const Undefined>>(storage_); }

    int levels() const;
    // Python's type name, as in its messages: "str", "dict".
    std::string type_name() const;

private:
    template <typename T>
    bool holds() const {
        return std::holds_alternative<T>(storage_);
    }

    Storage storage_;
};

struct Entry {
    Value key, value;
};

// Keeps the order of insertion; a later entry of the same key replaces the value.
class Dict {
public:
    explicit Dict(std::vector<Entry> entries);
    ~Dict();
    Dict(const Dict&) = delete;
    Dict& operator=(const Dict&) = delete;

    const std::vector<Entry>& entries() const { return entries_; }
    size_t size() const { return entries_.size(); }
    // Null if there is none. Throws TemplateError for a key that cannot be one, such as a list.
    const Value* find(const Value& key) const;
    const Value* find(std::string_view key) const;
    int levels() const { return levels_; }

private:
    const Value* find_hashed(size_t hash, const std::function<bool(const Value&)>& same) const;

    std::vector<Entry> entries_;
    std::unordered_multimap<size_t, size_t> index_;  // by hash; only of many entries
    int levels_ = 1;
};

Value make_dict(std::vector<Entry> entries);

// Arguments of a call.
struct Arguments {
    Items positional;
    std::vector<std::pair<std::string, Value>> named;
};

// Values with behaviour: functions, macros, loops, iterators, views, namespaces.
class Object : public std::enable_shared_from_this<Object> {
public:
    virtual ~Object() = default;
    virtual std::string type_name() const = 0;
    virtual bool callable() const { return false; }
    virtual Value call(const Arguments& arguments);
    virtual std::optional<Value> attribute(const std::string& name);
    // str() and repr(). Throws TemplateError by default: Python writes an address.
    virtual std::string repr();
    // Numbers of items; empty when Python has no len() for it.
    virtual std::optional<size_t> length() { return std::nullopt; }
    // Begins an iteration, or goes on with one in an iterator; null: it cannot be iterated.
    virtual std::shared_ptr<Object> iterate() { return nullptr; }
    // The next item of an iterator.
    virtual std::optional<Value> next() { return std::nullopt; }
    virtual bool truth() { return true; }
    virtual bool equals(Object&) { return false; }  // of different objects
};

bool truth(const Value& value);
// Python's ==.
bool equal(const Value& a, const Value& b);
// Negative, 0 or positive; empty: NaN, which is in no order. Throws TemplateError for types without an order.
std::optional<int> compare(const Value& a, const Value& b);
size_t hash(const Value& value);

// Python's str() and repr().
std::string to_str(const Value& value);
std::string repr(const Value& value);

// Throws TemplateError("'x' is undefined") for one.
void check_defined(const Value& value);

// All items of a list, tuple, mapping (its keys), text (its characters), view or iterator, which is used up.
// Throws TemplateError for other types, and for an undefined value that is strict.
Items to_items(const Value& value);
// One by one; only iterators are not read at once.
class Iteration {
public:
    explicit Iteration(const Value& value);
    std::optional<Value> next();

private:
    Items items_;
    size_t at_ = 0;
    std::shared_ptr<Object> iterator_;
};

// len(); empty if Python has none.
std::optional<size_t> length_of(const Value& value);

}  // namespace refold::jinja
