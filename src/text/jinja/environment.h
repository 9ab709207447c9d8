// What templates can reach: attributes and items of values, filters, tests and functions.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace refold::jinja {

// A namespace(): the one value that templates can change.
class Namespace : public Object {
public:
    std::string type_name() const override { return "Namespace"; }
    std::optional<Value> attribute(const std::string& name) override;
    std::string repr() override;
    void set(const std::string& name, Value value);
    void clear() { members_.clear(); }

private:
    std::vector<std::pair<std::string, Value>> members_;
};

// How templates are rendered: chat templates as transformers does, with its `tojson`, and undefined values
// that print nothing; templates of tasks as lm-evaluation-harness does, where undefined values are errors.
struct Environment {
    bool is_task = false;
    // All of this rendering. They may hold themselves, so they are emptied at its end.
    std::vector<std::shared_ptr<Namespace>> namespaces = {};

    Value undefined(std::string message) const { return Value::undefined(std::move(message), is_task); }
};

// A call of a filter, test, method or function, its arguments assigned to parameters.
struct Call {
    Environment& environment;
    std::string_view name;
    const Value& self;  // what a filter, test or method applies to
    const Arguments& given;
    std::vector<std::optional<Value>> arguments = {};

    bool has(size_t i) const { return arguments[i].has_value(); }
    const Value& value(size_t i) const { return *arguments[i]; }
    Value value_or(size_t i, const Value& other) const { return has(i) ? value(i) : other; }
    // Throw TemplateError for other types.
    const std::string& text(size_t i) const;
    int64_t integer(size_t i) const;
    int64_t integer_or(size_t i, int64_t other) const { return has(i) ? integer(i) : other; }
    bool flag(size_t i) const { return has(i) && truth(value(i)); }
    [[noreturn]] void fail(const std::string& problem) const;
};

using Implementation = Value (*)(Call&);

struct Definition {
    Implementation implementation = nullptr;
    // Names, "/NAME" for one that cannot be given by name. Those beyond the first `required` are optional.
    // With `any`, the implementation reads Call::given.
    std::vector<std::string_view> parameters = {};
    size_t required = 0;
    bool any = false;
};

Value apply(const Definition& definition, Call call);
const Definition* find_filter(const std::string& name);
const Definition* find_test(const std::string& name);
Value call_filter(Environment& environment, const std::string& name, const Value& value,
                  const Arguments& arguments);
bool call_test(Environment& environment, const std::string& name, const Value& value,
               const Arguments& arguments);

// Parts of the tables, by file.
using Definitions = std::vector<std::pair<std::string_view, Definition>>;
const Definitions& text_filters();
const Definitions& list_filters();
const Definitions& chat_functions();
const Definitions& task_functions();
const Definitions& text_methods();
const Definitions& other_methods(const Value& of);

// value.name and value[key]; undefined if there is none.
Value get_attribute(Environment& environment, const Value& value, const std::string& name);
Value get_item(Environment& environment, const Value& value, const Value& key);
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step);
// "a.0.b" of a value, as in map(attribute="a.0.b").
Value get_path(Environment& environment, Value value, const Value& path,
               const std::optional<Value>& otherwise = {});

Value call_value(const Value& function, const Arguments& arguments);
bool is_in(const Value& item, const Value& container);
// + - * / // % **, of all types.
Value operate(const std::string& operation, const Value& a, const Value& b);

// text % arguments, text.format(...)
std::string format_percent(const std::string& format, const Value& arguments);
std::string format_braces(Environment& environment, const std::string& format, const Arguments& arguments);

struct JsonOptions {
    bool ascii = false, sort_keys = false;
    std::optional<std::string> indent;
    std::string item_separator = ", ", key_separator = ": ";
};
// json.dumps()
std::string to_json(const Value& value, const JsonOptions& options);

// A bound method or a function.
Value make_function(Environment& environment, std::string_view name, const Definition& definition,
                    Value self = {});
// An iterator over items that are known: what Python's generators are here.
Value make_iterator(Items items);
enum class ViewKind { keys, values, items };
Value make_view(std::shared_ptr<const Dict> dict, ViewKind kind);
Value make_range(int64_t start, int64_t stop, int64_t step);
Value make_cycler(Environment& environment, Items items);
Value make_joiner(Value separator);

}  // namespace refold::jinja
