#include "vocab/gguf_arrays.h"

#include <cstring>

#include "core/error.h"

namespace refold {
namespace {

template <typename T>
GgufValue numbers(GgufType type, const std::vector<T>& values) {
    auto array = std::make_shared<GgufArray>();
    array->element = type;
    array->count = values.size();
    array->packed.resize(values.size() * sizeof(T));
    if (!values.empty()) memcpy(array->packed.data(), values.data(), array->packed.size());
    return {GgufType::Array, std::shared_ptr<const GgufArray>(std::move(array))};
}

const GgufArray* array_of(const GgufMetadata& metadata, const std::string& key, GgufType type) {
    const GgufValue* value = metadata.find(key);
    if (value == nullptr) return nullptr;
    const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value->value);
    if (array == nullptr || *array == nullptr || (*array)->element != type) {
        fail(ErrorCode::input, "tokenizer", "'{}' is of another type than expected - convert the model again",
             key);
    }
    return array->get();
}

template <typename T>
std::vector<T> numbers_of(const GgufMetadata& metadata, const std::string& key, GgufType type) {
    const GgufArray* array = array_of(metadata, key, type);
    if (array == nullptr) return {};
    std::vector<T> out(array->packed.size() / sizeof(T));
    if (!out.empty()) memcpy(out.data(), array->packed.data(), out.size() * sizeof(T));
    return out;
}

}  // namespace

GgufValue string_array(std::vector<std::string> strings) {
    auto array = std::make_shared<GgufArray>();
    array->element = GgufType::String;
    array->count = strings.size();
    array->strings = std::move(strings);
    return {GgufType::Array, std::shared_ptr<const GgufArray>(std::move(array))};
}

GgufValue float_array(const std::vector<float>& values) { return numbers(GgufType::F32, values); }
GgufValue double_array(const std::vector<double>& values) { return numbers(GgufType::F64, values); }
GgufValue int_array(const std::vector<int32_t>& values) { return numbers(GgufType::I32, values); }
GgufValue byte_array(std::string_view bytes) {
    return numbers(GgufType::U8, std::vector<char>(bytes.begin(), bytes.end()));
}

const std::vector<std::string>& strings_of(const GgufMetadata& metadata, const std::string& key) {
    static const std::vector<std::string> none;
    const GgufArray* array = array_of(metadata, key, GgufType::String);
    return array == nullptr ? none : array->strings;
}

std::vector<float> floats_of(const GgufMetadata& metadata, const std::string& key) {
    return numbers_of<float>(metadata, key, GgufType::F32);
}

std::vector<double> doubles_of(const GgufMetadata& metadata, const std::string& key) {
    return numbers_of<double>(metadata, key, GgufType::F64);
}

std::string bytes_of(const GgufMetadata& metadata, const std::string& key) {
    const GgufValue* value = metadata.find(key);
    const auto* array =
        value == nullptr ? nullptr : std::get_if<std::shared_ptr<const GgufArray>>(&value->value);
    const bool is_signed = array != nullptr && *array != nullptr && (*array)->element == GgufType::I8;
    const std::vector<char> bytes = numbers_of<char>(metadata, key, is_signed ? GgufType::I8 : GgufType::U8);
    return {bytes.begin(), bytes.end()};
}

std::vector<int32_t> ints_of(const GgufMetadata& metadata, const std::string& key) {
    return numbers_of<int32_t>(metadata, key, GgufType::I32);
}

}  // namespace refold
