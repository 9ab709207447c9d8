#include "serve/body_json.h"

#include <string>
#include <vector>

#include "core/json_text.h"
#include "serve/api_error.h"

namespace refold {
namespace {

// Counts what nlohmann's parser finds and, with a root, builds it there.
class Reader : public nlohmann::json_sax<BodyValue> {
public:
    explicit Reader(BodyValue* root) : root_(root) {}

    const BodyCost& cost() const { return cost_; }

    bool null() override { return add(nullptr) != nullptr; }
    bool boolean(bool value) override { return add(value) != nullptr; }
    bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
    bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
    bool number_float(number_float_t value, const string_t&) override { return add(value) != nullptr; }
    bool binary(binary_t&) override { return false; }  // JSON has none
    bool string(string_t& text) override {
        cost_.text += text.size();
        return add(std::move(text)) != nullptr;
    }
    bool start_object(size_t) override { return begin(BodyValue::value_t::object); }
    bool start_array(size_t) override { return begin(BodyValue::value_t::array); }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool key(string_t& text) override {
        ++cost_.values;
        cost_.text += text.size();
        if (root_ != nullptr) named_ = &(*open_.back())[std::move(text)];
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;  // read_json() says what is wrong
    }

private:
    // Where the value is; when it is only counted, anything but null.
    template <typename Value>
    BodyValue* add(Value&& value) {
        ++cost_.values;
        if (root_ == nullptr) return &counted_only_;
        BodyValue* to = root_;
        if (!open_.empty()) {
            BodyValue& parent = *open_.back();
            to = parent.is_array() ? &parent.get_ref<BodyValue::array_t&>().emplace_back() : named_;
        }
        *to = BodyValue(std::forward<Value>(value));
        return to;
    }
    bool begin(BodyValue::value_t type) {
        BodyValue* const value = add(type);
        if (value != nullptr && root_ != nullptr) open_.push_back(value);
        return value != nullptr;
    }
    bool end() {
        if (root_ != nullptr) open_.pop_back();
        return true;
    }

    BodyValue* const root_;
    BodyValue counted_only_;
    BodyCost cost_;
    std::vector<BodyValue*> open_;  // arrays and objects around the next value
    BodyValue* named_ = nullptr;    // the value of the latest key
};

BodyCost read(std::string_view body, BodyValue* root) {
    Reader reader(root);
    const std::string problem = read_json<BodyValue>(body, reader, kBodyLimits);
    if (!problem.empty())
        throw ApiError(400, "the request's body is not JSON: " + problem, "", "invalid_json");
    BodyCost cost = reader.cost();
    cost.body = body.size();
    return cost;
}

// Leaves arrays and objects empty, from the inside out.
void take_down(BodyValue& value) {
    if (value.is_array()) {
        auto& all = value.get_ref<BodyValue::array_t&>();
        for (BodyValue& one : all) take_down(one);
        all.clear();
    } else if (value.is_object()) {
        auto& all = value.get_ref<BodyValue::object_t&>();
        for (auto& [name, one] : all) take_down(one);
        all.clear();
    }
}

}  // namespace

BodyCost count_body(std::string_view body) { return read(body, nullptr); }

BodyJson::BodyJson(std::string_view body) {
    try {
        read(body, &value_);
    } catch (...) {
        take_down(value_);
        throw;
    }
}

BodyJson::~BodyJson() { take_down(value_); }

}  // namespace refold
