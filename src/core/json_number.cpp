#include "core/json_number.h"

#include <algorithm>

namespace refold {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kDeepest = 64;

class Reader : public nlohmann::json_sax<OrderedJson> {
public:
    OrderedJson take() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t& text) override {
        return is_integer_text(text) ? add(big_integer<OrderedJson>(text)) : add(value);
    }
    bool binary(binary_t&) override { return false; }  // JSON has none
    bool string(string_t& text) override { return add(std::move(text)); }
    bool start_object(size_t) override { return begin(OrderedJson::object()); }
    bool start_array(size_t) override { return begin(OrderedJson::array()); }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool key(string_t& text) override {
        // Without a search for the same key, which would take a time that grows with the square of their
        // number.
        named_ =
            &open_.back()->get_ref<OrderedJson::object_t&>().emplace_back(std::move(text), nullptr).second;
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

private:
    template <typename Value>
    bool add(Value&& value) {
        place(OrderedJson(std::forward<Value>(value)));
        return true;
    }
    OrderedJson* place(OrderedJson value) {
        OrderedJson* to = &root_;
        if (!open_.empty())
            to = open_.back()->is_array() ? &open_.back()->get_ref<OrderedJson::array_t&>().emplace_back()
                                          : named_;
        *to = std::move(value);
        return to;
    }
    bool begin(OrderedJson value) {
        if (open_.size() >= kDeepest) return false;
        open_.push_back(place(std::move(value)));
        return true;
    }
    bool end() {
        open_.pop_back();
        return true;
    }

    OrderedJson root_;
    std::vector<OrderedJson*> open_;  // arrays and objects around the next value
    OrderedJson* named_ = nullptr;    // the value of the latest key
};

template <typename Json>
bool has_big_integer(const Json& value) {
    if (!value.is_structured()) return value.is_binary();
    return std::any_of(value.begin(), value.end(), has_big_integer<Json>);
}

template <typename Json>
std::string plain_dump(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Json>
void write(const Json& value, std::string& out) {
    if (value.is_binary()) {
        out += big_integer_digits(value);
    } else if (!value.is_structured()) {
        out += plain_dump(value);
    } else {
        out += value.is_array() ? '[' : '{';
        bool first = true;
        for (auto entry = value.begin(); entry != value.end(); ++entry) {
            if (!std::exchange(first, false)) out += ',';
            if (value.is_object()) out += plain_dump(Json(entry.key())) + ":";
            write(*entry, out);
        }
        out += value.is_array() ? ']' : '}';
    }
}

template <typename Json>
std::string dumped(const Json& value) {
    if (!has_big_integer(value)) return plain_dump(value);
    std::string out;
    write(value, out);
    return out;
}

}  // namespace

OrderedJson parse_exact(std::string_view text) {
    Reader reader;
    if (!OrderedJson::sax_parse(text, &reader)) return OrderedJson(OrderedJson::value_t::discarded);
    return reader.take();
}

std::string exact_dump(const nlohmann::ordered_json& value) { return dumped(value); }
std::string exact_dump(const nlohmann::json& value) { return dumped(value); }

}  // namespace refold
