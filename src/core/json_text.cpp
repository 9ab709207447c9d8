#include "core/json_text.h"

#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json_number.h"

namespace refold {
namespace {

// What is above the limits, found without making values. Every value and key follows one of [ { , : or is the
// first. Where the text is not JSON the count may be wrong, but only behind the place where the parser stops.
std::string excess(std::string_view text, const JsonLimits& limits) {
    if (text.size() > limits.bytes)
        return fmt::format("too large: {} bytes, at most {} are read", text.size(), limits.bytes);
    size_t depth = 0, values = 1;
    bool opened = false;  // nothing was in the innermost array or object yet
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == ' ' || c == '\n' || c == '\t' || c == '\r') continue;
        if (opened && c != ']' && c != '}') ++values;
        opened = false;
        if (c == '"') {
            for (++i; i < text.size() && text[i] != '"'; ++i)
                if (text[i] == '\\') ++i;
        } else if (c == '[' || c == '{') {
            if (++depth > limits.depth)
                return fmt::format("nested too deep: more than {} levels at byte {}", limits.depth, i + 1);
            opened = true;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0 ? 1 : 0;
        } else if (c == ',' || c == ':') {
            ++values;
        }
        if (values > limits.values)
            return fmt::format("too large: more than {} values at byte {}", limits.values, i + 1);
    }
    return "";
}

// Passes everything on, and keeps the parser's message.
template <typename Value>
class Watch : public nlohmann::json_sax<Value> {
public:
    using Sax = nlohmann::json_sax<Value>;
    explicit Watch(Sax& to) : to_(to) {}

    std::string problem;

    bool null() override { return to_.null(); }
    bool boolean(bool value) override { return to_.boolean(value); }
    bool number_integer(typename Sax::number_integer_t value) override { return to_.number_integer(value); }
    bool number_unsigned(typename Sax::number_unsigned_t value) override {
        return to_.number_unsigned(value);
    }
    bool number_float(typename Sax::number_float_t value, const typename Sax::string_t& text) override {
        return to_.number_float(value, text);
    }
    bool binary(typename Sax::binary_t&) override { return false; }  // JSON has none
    bool string(typename Sax::string_t& text) override { return to_.string(text); }
    bool start_object(size_t size) override { return to_.start_object(size); }
    bool start_array(size_t size) override { return to_.start_array(size); }
    bool end_object() override { return to_.end_object(); }
    bool end_array() override { return to_.end_array(); }
    bool key(typename Sax::string_t& text) override { return to_.key(text); }
    bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
        constexpr int kNumberTooLarge = 406;
        problem = error.id == kNumberTooLarge ? "a number is out of range"
                                              : fmt::format("no valid JSON at byte {}", byte);
        return false;
    }

private:
    Sax& to_;
};

// Builds a value. Objects in order find their keys by a table of their own once they are large.
template <typename Value>
class Builder : public nlohmann::json_sax<Value> {
public:
    using Sax = nlohmann::json_sax<Value>;

    explicit Builder(const JsonLimits& limits) : limits_(limits) {}

    Value root;
    std::string problem;

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(typename Sax::number_integer_t value) override { return add(value); }
    bool number_unsigned(typename Sax::number_unsigned_t value) override { return add(value); }
    bool number_float(typename Sax::number_float_t value, const typename Sax::string_t& text) override {
        return limits_.big_integers && is_integer_text(text) ? add(big_integer<Value>(text)) : add(value);
    }
    bool binary(typename Sax::binary_t&) override { return false; }
    bool string(typename Sax::string_t& text) override { return add(std::move(text)); }
    bool start_object(size_t) override { return begin(Value::object()); }
    bool start_array(size_t) override { return begin(Value::array()); }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool key(typename Sax::string_t& text) override {
        const size_t before = open_.back().value->size();
        named_ = member(open_.back(), text);
        if (!limits_.unique_keys || open_.back().value->size() > before) return true;
        problem = fmt::format("key '{}' is there twice", text.substr(0, 200));
        return false;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

private:
    struct Open {
        Value* value;
        std::unordered_map<std::string, size_t> places;  // of the keys of a large object in order
    };

    Value* member(Open& open, const std::string& name) {
        auto& object = open.value->template get_ref<typename Value::object_t&>();
        if constexpr (std::is_same_v<Value, nlohmann::ordered_json>) {
            constexpr size_t kLarge = 16;
            if (object.size() >= kLarge) {
                if (open.places.empty())
                    for (size_t i = 0; i < object.size(); ++i) open.places.emplace(object.data()[i].first, i);
                const auto [found, added] = open.places.emplace(name, object.size());
                if (!added) return &object.data()[found->second].second;
                using Members = typename Value::object_t::Container;
                return &static_cast<Members&>(object).emplace_back(name, Value()).second;
            }
        }
        return &object[name];
    }

    template <typename Given>
    Value* place(Given&& value) {
        Value* to = &root;
        if (!open_.empty()) {
            Value& parent = *open_.back().value;
            to = parent.is_array() ? &parent.template get_ref<typename Value::array_t&>().emplace_back()
                                   : named_;
        }
        *to = Value(std::forward<Given>(value));
        return to;
    }
    template <typename Given>
    bool add(Given&& value) {
        place(std::forward<Given>(value));
        return true;
    }
    bool begin(Value empty) {
        Value* const value = place(std::move(empty));
        open_.push_back({value, {}});
        return true;
    }
    bool end() {
        open_.pop_back();
        return true;
    }

    const JsonLimits limits_;
    std::vector<Open> open_;  // arrays and objects around the next value
    Value* named_ = nullptr;  // the value of the latest key
};

}  // namespace

template <typename Value>
std::string read_json(std::string_view text, nlohmann::json_sax<Value>& reader, const JsonLimits& limits) {
    std::string problem = excess(text, limits);
    if (!problem.empty()) return problem;
    Watch<Value> watch(reader);
    Value::sax_parse(text, &watch);
    return std::move(watch.problem);
}

template <typename Value>
Value try_parse_json(std::string_view text, std::string* problem, const JsonLimits& limits) {
    Builder<Value> builder(limits);
    std::string found = read_json<Value>(text, builder, limits);
    if (found.empty()) found = std::move(builder.problem);
    const bool good = found.empty();
    if (problem != nullptr) *problem = std::move(found);
    return good ? std::move(builder.root) : Value(Value::value_t::discarded);
}

template <typename Value>
Value parse_json(std::string_view text, const char* component, std::string_view where,
                 const JsonLimits& limits) {
    std::string problem;
    Value value = try_parse_json<Value>(text, &problem, limits);
    if (!problem.empty()) fail(ErrorCode::input, component, "{} is not valid JSON: {}", where, problem);
    return value;
}

using nlohmann::json;
using nlohmann::ordered_json;
template std::string read_json<json>(std::string_view, nlohmann::json_sax<json>&, const JsonLimits&);
template std::string read_json<ordered_json>(std::string_view, nlohmann::json_sax<ordered_json>&,
                                             const JsonLimits&);
template json try_parse_json<json>(std::string_view, std::string*, const JsonLimits&);
template ordered_json try_parse_json<ordered_json>(std::string_view, std::string*, const JsonLimits&);
template json parse_json<json>(std::string_view, const char*, std::string_view, const JsonLimits&);
template ordered_json parse_json<ordered_json>(std::string_view, const char*, std::string_view,
                                               const JsonLimits&);

}  // namespace refold
