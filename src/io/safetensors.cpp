#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/json_text.h"
#include "core/text.h"

namespace refold {

uint64_t safetensors_element_bytes(std::string_view dtype) {
    static const std::map<std::string_view, uint64_t> sizes{
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
        {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
        {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8},
    };
    const auto found = sizes.find(dtype);
    return found == sizes.end() ? 0 : found->second;
}

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kMetadataKey = "__metadata__";
constexpr uint64_t kMaxHeader = 100'000'000;  // the library's limit

// Product of `shape` and `element`, or nothing when it overflows or a dimension is negative.
std::optional<uint64_t> size_of(std::span<const int64_t> shape, uint64_t element) {
    uint64_t size = element;
    for (const int64_t n : shape) {
        if (n < 0 || __builtin_mul_overflow(size, static_cast<uint64_t>(n), &size)) return std::nullopt;
    }
    return size;
}

void check_utf8(std::string_view text, const char* what) {
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
        fail(ErrorCode::input, "safetensors", "{}: got an invalid byte at offset {}, expected UTF-8", what,
             at);
    }
}

[[noreturn]] void reject(const std::string& path, std::string_view place, const std::string& got,
                         const std::string& expected) {
    fail(ErrorCode::input, "safetensors", "{}: got {}, expected {} (file '{}')", place, got, expected, path);
}

// Rejects duplicate names, of which the library silently keeps the last.
json parse_header(const std::string& path, std::string_view text) {
    JsonLimits limits = kLargeJson;
    limits.unique_keys = true;
    std::string problem;
    json header = try_parse_json(text, &problem, limits);
    if (!problem.empty()) reject(path, "header", problem, "JSON with unique names");
    if (!header.is_object()) reject(path, "header", header.type_name(), "a JSON object");
    return header;
}

std::vector<int64_t> whole_numbers(const std::string& path, const std::string& place, const json& entry,
                                   const char* key) {
    std::vector<int64_t> numbers;
    const auto found = entry.find(key);
    if (found == entry.end() || !found->is_array()) {
        reject(path, place, fmt::format("no list '{}'", key), "whole numbers");
    }
    for (const json& number : *found) {
        if (!number.is_number_unsigned() || number.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
            reject(path, fmt::format("{}, '{}'", place, key), number.type_name(),
                   "whole numbers from 0 to 2^63 - 1");
        }
        numbers.push_back(static_cast<int64_t>(number.get<uint64_t>()));
    }
    return numbers;
}

SafetensorsView read_view(const std::string& path, const std::string& place, const json& entry,
                          std::span<const std::byte> data) {
    if (!entry.is_object()) reject(path, place, entry.type_name(), "a JSON object");
    const auto dtype = entry.find("dtype");
    if (dtype == entry.end() || !dtype->is_string())
        reject(path, place, "no text 'dtype'", "an element type");
    SafetensorsView view{dtype->get<std::string>(), whole_numbers(path, place, entry, "shape"), {}};
    const uint64_t element = safetensors_element_bytes(view.dtype);
    if (element == 0) {
        fail(ErrorCode::unsupported, "safetensors", "{}: got dtype '{}', which is not known (file '{}')",
             place, view.dtype, path);
    }
    const auto offsets = whole_numbers(path, place, entry, "data_offsets");
    if (offsets.size() != 2) reject(path, place, fmt::format("{} data_offsets", offsets.size()), "2");
    const auto first = static_cast<uint64_t>(offsets[0]), last = static_cast<uint64_t>(offsets[1]);
    if (first > last || last > data.size()) {
        reject(path, place, fmt::format("data_offsets [{}, {}]", first, last),
               fmt::format("a range inside the {} bytes of data - the file is damaged or incomplete",
                           data.size()));
    }
    const auto size = size_of(view.shape, element);
    if (!size || *size != last - first) {
        reject(path, place, fmt::format("{} bytes of data", last - first),
               fmt::format("{} for shape [{}] of {}", size ? fmt::to_string(*size) : "more than 2^64",
                           fmt::join(view.shape, ", "), view.dtype));
    }
    view.data = data.subspan(first, *size);
    return view;
}

// Checks that every byte of the data belongs to exactly one tensor.
void check_coverage(const SafetensorsFile& file, std::span<const std::byte> data) {
    std::vector<std::pair<std::span<const std::byte>, const std::string*>> parts;
    for (const auto& [name, view] : file.tensors) parts.emplace_back(view.data, &name);
    const auto key = [&](const auto& part) { return std::pair(part.first.data(), part.first.size()); };
    std::sort(parts.begin(), parts.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    size_t end = 0;
    for (const auto& [part, name] : parts) {
        const auto first = static_cast<size_t>(part.data() - data.data());
        if (first != end) {
            reject(file.file->path(), fmt::format("tensor '{}'", *name),
                   fmt::format("data from byte {}", first),
                   fmt::format("{}, where the data before it ends", end));
        }
        end += part.size();
    }
    if (end != data.size())
        reject(file.file->path(), "data", fmt::format("{} bytes", data.size()),
               fmt::format("{} for all tensors", end));
}

}  // namespace

void write_safetensors(const std::string& path, bool overwrite, const std::vector<SafetensorsOutput>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(uint64_t bytes, const std::string& tensor)>& progress) {
    ordered_json header = ordered_json::object();
    for (const auto& [key, value] : metadata) {
        check_utf8(key, "metadata key");
        check_utf8(value, "metadata value");
        header[kMetadataKey][key] = value;
    }
    uint64_t offset = 0;
    std::vector<uint64_t> sizes;
    std::set<std::string> names{kMetadataKey};
    for (const auto& tensor : tensors) {
        check_utf8(tensor.name, "tensor name");
        if (!names.insert(tensor.name).second) {
            fail(ErrorCode::internal, "safetensors", "cannot write tensor '{}': the name is taken",
                 tensor.name);
        }
        const auto size = size_of(tensor.shape, safetensors_element_bytes(tensor.dtype));
        if (!size) {
            fail(ErrorCode::internal, "safetensors", "cannot write tensor '{}' of shape [{}]", tensor.name,
                 fmt::join(tensor.shape, ", "));
        }
        header[tensor.name] = {
            {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *size}}};
        offset += *size;
        sizes.push_back(*size);
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    if (text.size() > kMaxHeader)
        fail(ErrorCode::internal, "safetensors", "a header of {} bytes is too large", text.size());

    AtomicFile file(path, overwrite);
    const uint64_t length = text.size();
    file.write(std::as_bytes(std::span(&length, 1)));
    file.write(text);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const uint64_t before = file.position();
        tensors[i].produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
        if (const uint64_t written = file.position() - before; written != sizes[i]) {
            fail(ErrorCode::internal, "safetensors",
                 "cannot write tensor '{}': {} bytes do not fit shape [{}]", tensors[i].name, written,
                 fmt::join(tensors[i].shape, ", "));
        }
        if (progress) progress(sizes[i], tensors[i].name);
    }
    file.commit();
}

void write_safetensors(const std::string& path, bool overwrite, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
    std::vector<SafetensorsOutput> outputs;
    for (const auto& tensor : tensors) {
        outputs.push_back({tensor.name, "F32", tensor.shape,
                           [data = std::as_bytes(tensor.data)](const auto& sink) { sink(data); }});
    }
    write_safetensors(path, overwrite, outputs, metadata, {});
}

SafetensorsFile read_safetensors(const std::string& path) {
    SafetensorsFile file;
    file.file = std::make_unique<const MappedFile>(path);
    const auto bytes = file.file->bytes();
    uint64_t length = 0;
    if (bytes.size() < sizeof(length))
        reject(path, "file size", fmt::format("{} bytes", bytes.size()), "at least 8");
    memcpy(&length, bytes.data(), sizeof(length));
    const uint64_t most = std::min<uint64_t>(bytes.size() - sizeof(length), kMaxHeader);
    if (length > most)
        reject(path, "header length", fmt::format("{} bytes", length), fmt::format("at most {}", most));
    const auto data = bytes.subspan(sizeof(length) + length);
    const json header =
        parse_header(path, {reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length});
    for (const auto& [name, entry] : header.items()) {
        if (name == kMetadataKey) {
            if (!entry.is_object()) reject(path, kMetadataKey, entry.type_name(), "a JSON object");
            for (const auto& [key, value] : entry.items()) {
                if (!value.is_string())
                    reject(path, fmt::format("{}.{}", kMetadataKey, key), value.type_name(), "text");
                file.metadata[key] = value.get<std::string>();
            }
        } else {
            file.tensors.emplace(name, read_view(path, fmt::format("tensor '{}'", name), entry, data));
        }
    }
    check_coverage(file, data);
    return file;
}

}  // namespace refold
