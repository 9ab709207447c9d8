#include "serve/ordered_field.h"

#include <fmt/format.h>

#include <vector>

#include "core/json_number.h"
#include "serve/api_error.h"
#include "serve/body_json.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// Builds the value of one key of the outermost object. Keys are appended without a search, which would take
// ordered_json a time that grows with the square of their number.
class FieldReader : public nlohmann::json_sax<Json> {
public:
    FieldReader(const char* field, size_t most) : field_(field), most_(most) {}

    Json take() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t& text) override {
        return is_integer_text(text) ? add(big_integer<Json>(text)) : add(value);
    }
    bool binary(binary_t&) override { return false; }  // JSON has none
    bool string(string_t& text) override { return add(std::move(text)); }
    bool start_object(size_t) override { return begin(Json::object()); }
    bool start_array(size_t) override { return begin(Json::array()); }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool key(string_t& text) override {
        if (depth_ == 1) {
            wanted_ = text == field_;
        } else if (wanted_) {
            named_ = &open_.back()->get_ref<Json::object_t&>().emplace_back(std::move(text), nullptr).second;
        }
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

private:
    template <typename Value>
    bool add(Value&& value) {
        place(Json(std::forward<Value>(value)));
        return true;
    }
    // Where it is put; null where nothing is wanted.
    Json* place(Json value) {
        if (!wanted_) return nullptr;
        if (++values_ > most_)
            throw ApiError(400, fmt::format("'{}': more than {} values", field_, most_), field_);
        Json* to = &root_;
        if (!open_.empty()) {
            Json& parent = *open_.back();
            to = parent.is_array() ? &parent.get_ref<Json::array_t&>().emplace_back() : named_;
        }
        *to = std::move(value);
        return to;
    }
    bool begin(Json value) {
        if (++depth_ > 1) {
            if (Json* const to = place(std::move(value))) open_.push_back(to);
        }
        return true;
    }
    bool end() {
        --depth_;
        if (!open_.empty()) open_.pop_back();
        return true;
    }

    const char* const field_;
    const size_t most_;
    Json root_;
    int depth_ = 0;
    bool wanted_ = false;
    size_t values_ = 0;
    std::vector<Json*> open_;  // arrays and objects around the next value
    Json* named_ = nullptr;    // the value of the latest key
};

}  // namespace

nlohmann::ordered_json ordered_field(std::string_view body, const char* field, size_t most) {
    FieldReader reader(field, most);
    (void)read_json<Json>(body, reader, kBodyLimits);
    return reader.take();
}

}  // namespace refold
