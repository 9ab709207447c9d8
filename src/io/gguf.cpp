#include "io/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace refold {

static_assert(std::endian::native == std::endian::little, "GGUF files are mapped as they are: little endian");

namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr const char* kAlignmentKey = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32, kMinAlignment = 8, kMaxAlignment = 1 << 20;
constexpr uint64_t kMaxKeyLength = 65535, kMaxNameLength = 63;  // ggml's GGML_MAX_NAME counts the final NUL
constexpr uint64_t kMaxDims = 4;
constexpr uint64_t kInt64Max = std::numeric_limits<int64_t>::max();
// The smallest size of a pair (one-byte key, u8 value) and of a tensor entry (one-byte name, one dimension).
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1, kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

constexpr std::array<const char*, 13> kTypeNames{"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                 "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::array<size_t, 13> kTypeBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

size_t index_of(GgufType type) { return static_cast<size_t>(type); }

// A name from a file, made safe for messages: at most 80 bytes, unprintable ones as \xNN.
std::string printable(std::string_view name) {
    constexpr size_t kMost = 80;
    std::string out;
    const bool text = find_invalid_utf8(name) == std::string_view::npos;
    for (const char c : name.substr(0, kMost)) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = byte < 0x80 ? byte >= 0x20 && byte != 0x7F : text && name.size() <= kMost;
        out += plain ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
    }
    return name.size() > kMost ? out + "..." : out;
}

std::string type_text(const GgufValue& value) {
    if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value)) {
        return fmt::format("array of {}", kTypeNames[index_of((*array)->element)]);
    }
    return kTypeNames[index_of(value.type)];
}

bool is_alignment(uint64_t value) {
    return value >= kMinAlignment && value <= kMaxAlignment && std::has_single_bit(value);
}

uint64_t padded(uint64_t size, uint64_t alignment) { return (size + alignment - 1) / alignment * alignment; }

// Number of elements of `shape` (dimensions > 0), or nothing when it overflows int64.
std::optional<int64_t> element_count(std::span<const int64_t> shape) {
    int64_t count = 1;
    for (const int64_t n : shape) {
        if (__builtin_mul_overflow(count, n, &count)) return std::nullopt;
    }
    return count;
}

// Bytes of `elements` in whole blocks, or nothing when that leaves no room below 2^63 for offset and padding.
std::optional<uint64_t> data_bytes(DType type, int64_t elements) {
    const auto blocks = static_cast<uint64_t>(elements / block_elements(type));
    if (blocks > kInt64Max / 2 / block_bytes(type)) return std::nullopt;
    return blocks * block_bytes(type);
}

// Reads the bytes in order. Every read is checked, and every error names its offset.
class Cursor {
public:
    Cursor(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(label) {}

    size_t position() const { return position_; }
    uint64_t remaining() const { return bytes_.size() - position_; }
    // Names the item being read, for messages: "key 'general.name'".
    void enter(std::string context) { context_ = std::move(context); }

    template <typename Got>
    [[noreturn]] void reject(ErrorCode code, std::string_view what, const Got& got, std::string_view expected,
                             size_t offset) const {
        fail(code, "gguf", "{}: got {}, expected {} (file '{}'{}{}, offset {})", what, got, expected, label_,
             context_.empty() ? "" : ", ", context_, offset);
    }

    std::span<const std::byte> take(uint64_t size, std::string_view what) {
        if (size > remaining()) {
            reject(ErrorCode::input, fmt::format("file ends inside the {}", what),
                   fmt::format("{} bytes", remaining()),
                   fmt::format("{}: {} bytes are missing - the file is damaged or incomplete, fetch it again",
                               size, size - remaining()),
                   position_);
        }
        const auto part = bytes_.subspan(position_, size);
        position_ += size;
        return part;
    }

    template <typename T>
    T number(std::string_view what) {
        T value;
        memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
        return value;
    }

    // Reads a count of items and checks that the rest of the file can hold them at `item_bytes` each.
    uint64_t count(std::string_view what, uint64_t item_bytes) {
        const size_t at = position_;
        const auto value = number<uint64_t>(what);
        if (value > remaining() / item_bytes) {
            reject(ErrorCode::input, what, value,
                   fmt::format("at most {}, which is what the {} bytes that follow can hold",
                               remaining() / item_bytes, remaining()),
                   at);
        }
        return value;
    }

    std::string text(std::string_view what) {
        const uint64_t length = count(fmt::format("{} length", what), 1);
        const auto part = take(length, what);
        return {reinterpret_cast<const char*>(part.data()), part.size()};
    }

    // Reads a name: not empty, at most `longest` bytes, no NUL (ggml keeps names as C strings).
    std::string name(std::string_view what, uint64_t longest) {
        const size_t at = position_;
        std::string value = text(what);
        if (value.empty() || value.size() > longest) {
            reject(ErrorCode::input, fmt::format("{} length", what), value.size(),
                   fmt::format("1 to {}", longest), at);
        }
        if (const size_t nul = value.find('\0'); nul != std::string::npos) {
            reject(ErrorCode::input, what, fmt::format("'{}'", printable(value)), "no NUL byte",
                   at + 8 + nul);
        }
        return value;
    }

    GgufType type(std::string_view what) {
        const size_t at = position_;
        const auto id = number<uint32_t>(what);
        if (id >= kTypeNames.size()) {
            reject(ErrorCode::input, what, id, fmt::format("0 to {}", kTypeNames.size() - 1), at);
        }
        return static_cast<GgufType>(id);
    }

    bool boolean() {
        const size_t at = position_;
        const auto value = number<uint8_t>("value");
        if (value > 1) reject(ErrorCode::input, "bool value", value, "0 or 1", at);
        return value == 1;
    }

private:
    std::span<const std::byte> bytes_;
    const std::string& label_;
    std::string context_;
    size_t position_ = 0;
};

std::shared_ptr<const GgufArray> read_array(Cursor& in) {
    auto array = std::make_shared<GgufArray>();
    const size_t at = in.position();
    array->element = in.type("array element type");
    if (array->element == GgufType::Array) {
        in.reject(ErrorCode::unsupported, "array element type", "9 (array)", "no arrays inside arrays", at);
    }
    if (array->element == GgufType::String) {
        array->count = in.count("array count", 8);
        array->strings.reserve(array->count);
        for (uint64_t i = 0; i < array->count; ++i) array->strings.push_back(in.text("array string"));
        return array;
    }
    const size_t element_bytes = kTypeBytes[index_of(array->element)];
    array->count = in.count("array count", element_bytes);
    const size_t first = in.position();
    const auto part = in.take(array->count * element_bytes, "array");
    if (array->element == GgufType::Bool) {
        const auto wrong =
            std::find_if(part.begin(), part.end(), [](std::byte b) { return b > std::byte{1}; });
        if (wrong != part.end()) {
            in.reject(ErrorCode::input, "bool value", static_cast<unsigned>(*wrong), "0 or 1",
                      first + static_cast<size_t>(wrong - part.begin()));
        }
    }
    array->packed.assign(part.begin(), part.end());
    return array;
}

GgufValue read_value(Cursor& in) {
    const GgufType type = in.type("value type");
    switch (type) {
        case GgufType::U8: return {type, uint64_t{in.number<uint8_t>("value")}};
        case GgufType::U16: return {type, uint64_t{in.number<uint16_t>("value")}};
        case GgufType::U32: return {type, uint64_t{in.number<uint32_t>("value")}};
        case GgufType::U64: return {type, in.number<uint64_t>("value")};
        case GgufType::I8: return {type, int64_t{in.number<int8_t>("value")}};
        case GgufType::I16: return {type, int64_t{in.number<int16_t>("value")}};
        case GgufType::I32: return {type, int64_t{in.number<int32_t>("value")}};
        case GgufType::I64: return {type, in.number<int64_t>("value")};
        case GgufType::F32: return {type, double{in.number<float>("value")}};
        case GgufType::F64: return {type, in.number<double>("value")};
        case GgufType::Bool: return {type, in.boolean()};
        case GgufType::String: return {type, in.text("string")};
        case GgufType::Array: return {type, read_array(in)};
    }
    fail(ErrorCode::internal, "gguf", "value type {} was not checked", static_cast<uint32_t>(type));
}

void read_header(Cursor& in) {
    const auto magic = in.take(kMagic.size(), "magic");
    if (const std::string_view got(reinterpret_cast<const char*>(magic.data()), magic.size());
        got != kMagic) {
        in.reject(ErrorCode::input, "magic", fmt::format("'{}'", printable(got)),
                  "'GGUF' - this is not a GGUF file", 0);
    }
    const auto version = in.number<uint32_t>("version");
    if (version == 2 || version == 3) return;
    // Versions are small, so zero low bytes mean that the file has the other byte order.
    const bool swapped = version != 0 && (version & 0xFFFF) == 0;
    in.reject(ErrorCode::unsupported, "version",
              swapped ? fmt::format("{:#x}", version) : fmt::to_string(version),
              swapped ? "2 or 3 - this is a big-endian file, convert it to little endian"
                      : "2 or 3 - convert the model again with a current converter",
              kMagic.size());
}

struct Entry {
    GgufTensor tensor;
    uint64_t offset, bytes;  // offset from the start of the data section
};

// Reads a tensor's entry without its data. `end` is the padded end of the previous tensor's data.
Entry read_entry(Cursor& in, uint64_t alignment, uint64_t& end) {
    Entry entry;
    GgufTensor& tensor = entry.tensor;
    tensor.name = in.name("tensor name", kMaxNameLength);
    in.enter(fmt::format("tensor '{}'", printable(tensor.name)));
    size_t at = in.position();
    const auto n_dims = in.number<uint32_t>("number of dimensions");
    if (n_dims < 1 || n_dims > kMaxDims)
        in.reject(ErrorCode::input, "number of dimensions", n_dims, "1 to 4", at);
    const size_t shape_at = in.position();
    for (uint32_t d = 0; d < n_dims; ++d) {
        at = in.position();
        const auto n = in.number<uint64_t>("dimensions");
        if (n == 0 || n > kInt64Max)
            in.reject(ErrorCode::input, fmt::format("dimension {}", d), n, "1 to 2^63 - 1", at);
        tensor.shape.push_back(static_cast<int64_t>(n));
    }
    const auto elements = element_count(tensor.shape);
    const auto shape_text = [&] { return fmt::format("[{}]", fmt::join(tensor.shape, ", ")); };
    if (!elements) in.reject(ErrorCode::input, "shape", shape_text(), "fewer than 2^63 elements", shape_at);
    at = in.position();
    const auto type = in.number<uint32_t>("tensor type");
    if (!is_supported(type)) {
        in.reject(ErrorCode::unsupported, "tensor type", fmt::format("id {}", type),
                  "one of ggml's float or quantized types", at);
    }
    tensor.type = static_cast<DType>(type);
    if (tensor.shape[0] % block_elements(tensor.type) != 0) {
        in.reject(
            ErrorCode::input, "dimension 0", tensor.shape[0],
            fmt::format("a multiple of {}, the block of {}", block_elements(tensor.type), name(tensor.type)),
            shape_at);
    }
    const auto bytes = data_bytes(tensor.type, *elements);
    if (!bytes) in.reject(ErrorCode::input, "shape", shape_text(), "fewer than 2^62 bytes of data", shape_at);
    entry.bytes = *bytes;
    at = in.position();
    entry.offset = in.number<uint64_t>("data offset");
    if (entry.offset % alignment != 0) {
        in.reject(ErrorCode::input, "data offset", entry.offset,
                  fmt::format("a multiple of the alignment {}", alignment), at);
    }
    if (entry.offset < end) {
        in.reject(ErrorCode::input, "data offset", entry.offset,
                  fmt::format("at least {}, where the previous tensor ends", end), at);
    }
    if (entry.offset > kInt64Max / 2)
        in.reject(ErrorCode::input, "data offset", entry.offset, "less than 2^62", at);
    end = padded(entry.offset + entry.bytes, alignment);
    return entry;
}

// ---- writing ----

// Bytes of a tensor to be written. Throws Error(internal), because only this program makes such requests.
uint64_t check_output(const GgufOutputTensor& tensor, std::set<std::string>& seen) {
    const auto refuse = [&](std::string_view what) {
        fail(ErrorCode::internal, "gguf", "cannot write tensor '{}' of type {} and shape [{}]: {}",
             printable(tensor.name), static_cast<uint32_t>(tensor.type), fmt::join(tensor.shape, ", "), what);
    };
    if (tensor.name.empty() || tensor.name.size() > kMaxNameLength ||
        tensor.name.find('\0') != std::string::npos) {
        refuse("the name must have 1 to 63 bytes and no NUL");
    }
    if (!seen.insert(tensor.name).second) refuse("the name is taken");
    if (!is_supported(static_cast<uint32_t>(tensor.type))) refuse("unknown type");
    if (tensor.shape.empty() || tensor.shape.size() > kMaxDims) refuse("1 to 4 dimensions are possible");
    if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n <= 0; })) {
        refuse("every dimension must be positive");
    }
    if (tensor.shape[0] % block_elements(tensor.type) != 0) refuse("rows must be whole blocks");
    const auto elements = element_count(tensor.shape);
    const auto bytes = elements ? data_bytes(tensor.type, *elements) : std::nullopt;
    if (!bytes) refuse("too large");
    if (!tensor.produce) refuse("nothing produces its data");
    return *bytes;
}

template <typename T>
void put(std::string& out, T value) {
    static_assert(std::is_arithmetic_v<T>);
    char bytes[sizeof(T)];
    memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
}

void put_text(std::string& out, std::string_view text) {
    put(out, uint64_t{text.size()});
    out += text;
}

[[noreturn]] void reject_value(const std::string& key, const GgufValue& value) {
    fail(ErrorCode::internal, "gguf", "cannot write key '{}': its value does not fit type {}", printable(key),
         static_cast<uint32_t>(value.type));
}

template <typename T>
void put_integer(std::string& out, const std::string& key, const GgufValue& value) {
    if (const auto* number = std::get_if<uint64_t>(&value.value);
        number != nullptr && std::in_range<T>(*number)) {
        put(out, static_cast<T>(*number));
    } else if (const auto* with_sign = std::get_if<int64_t>(&value.value);
               with_sign != nullptr && std::in_range<T>(*with_sign)) {
        put(out, static_cast<T>(*with_sign));
    } else {
        reject_value(key, value);
    }
}

void put_array(std::string& out, const std::string& key, const GgufValue& value) {
    const auto* pointer = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
    if (pointer == nullptr || *pointer == nullptr) reject_value(key, value);
    const GgufArray& array = **pointer;
    if (index_of(array.element) >= kTypeBytes.size() || array.element == GgufType::Array)
        reject_value(key, value);
    put(out, static_cast<uint32_t>(array.element));
    put(out, array.count);
    if (array.element == GgufType::String) {
        if (array.strings.size() != array.count || !array.packed.empty()) reject_value(key, value);
        for (const auto& text : array.strings) put_text(out, text);
    } else {
        if (array.packed.size() != array.count * kTypeBytes[index_of(array.element)])
            reject_value(key, value);
        out.append(reinterpret_cast<const char*>(array.packed.data()), array.packed.size());
    }
}

void put_value(std::string& out, const std::string& key, const GgufValue& value) {
    const auto get = [&]<typename T>() -> const T& {
        const T* held = std::get_if<T>(&value.value);
        if (held == nullptr) reject_value(key, value);
        return *held;
    };
    put(out, static_cast<uint32_t>(value.type));
    switch (value.type) {
        case GgufType::U8: return put_integer<uint8_t>(out, key, value);
        case GgufType::I8: return put_integer<int8_t>(out, key, value);
        case GgufType::U16: return put_integer<uint16_t>(out, key, value);
        case GgufType::I16: return put_integer<int16_t>(out, key, value);
        case GgufType::U32: return put_integer<uint32_t>(out, key, value);
        case GgufType::I32: return put_integer<int32_t>(out, key, value);
        case GgufType::U64: return put_integer<uint64_t>(out, key, value);
        case GgufType::I64: return put_integer<int64_t>(out, key, value);
        case GgufType::F32: return put(out, static_cast<float>(get.operator()<double>()));
        case GgufType::F64: return put(out, get.operator()<double>());
        case GgufType::Bool: return put(out, uint8_t{get.operator()<bool>()});
        case GgufType::String: return put_text(out, get.operator()<std::string>());
        case GgufType::Array: return put_array(out, key, value);
    }
    reject_value(key, value);
}

uint64_t output_alignment(const GgufMetadata& metadata) {
    const GgufValue* value = metadata.find(kAlignmentKey);
    if (value == nullptr) return kDefaultAlignment;
    const auto* number = std::get_if<uint64_t>(&value->value);
    if (value->type != GgufType::U32 || number == nullptr || !is_alignment(*number))
        reject_value(kAlignmentKey, *value);
    return *number;
}

void write_data(AtomicFile& file, const GgufOutputTensor& tensor, uint64_t expected) {
    uint64_t got = 0;
    tensor.produce([&](std::span<const std::byte> part) {
        got += part.size();
        if (got <= expected) file.write(part);
    });
    if (got != expected) {
        fail(ErrorCode::internal, "gguf", "data of tensor '{}': got {} bytes, expected {}",
             printable(tensor.name), got, expected);
    }
}

}  // namespace

void GgufMetadata::set(const std::string& key, GgufValue value) {
    const auto [found, added] = index_.try_emplace(key, entries_.size());
    if (added) {
        entries_.emplace_back(key, std::move(value));
    } else {
        entries_[found->second].second = std::move(value);
    }
}

void GgufMetadata::erase(const std::string& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return;
    const size_t at = found->second;
    index_.erase(found);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(at));
    for (auto& [name, index] : index_) {
        if (index > at) --index;
    }
}

const GgufValue* GgufMetadata::find(const std::string& key) const {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries_[found->second].second;
}

namespace {

const GgufValue& require(const GgufMetadata& metadata, const std::string& key, const char* expected) {
    const GgufValue* value = metadata.find(key);
    if (value == nullptr)
        fail(ErrorCode::input, "gguf", "key '{}': missing, expected {}", printable(key), expected);
    return *value;
}

[[noreturn]] void wrong_kind(const std::string& key, const GgufValue& value, const char* expected) {
    fail(ErrorCode::input, "gguf", "key '{}': got {}, expected {}", printable(key), type_text(value),
         expected);
}

constexpr const char* kInteger = "a whole number that is not negative";
constexpr const char* kReal = "a floating-point number";
constexpr const char* kString = "a string";

uint64_t as_integer(const std::string& key, const GgufValue& value) {
    if (const auto* number = std::get_if<uint64_t>(&value.value)) return *number;
    const auto* with_sign = std::get_if<int64_t>(&value.value);
    if (with_sign == nullptr) wrong_kind(key, value, kInteger);
    if (*with_sign < 0)
        fail(ErrorCode::input, "gguf", "key '{}': got {}, expected {}", printable(key), *with_sign, kInteger);
    return static_cast<uint64_t>(*with_sign);
}

template <typename T>
const T& as(const std::string& key, const GgufValue& value, const char* expected) {
    const T* held = std::get_if<T>(&value.value);
    if (held == nullptr) wrong_kind(key, value, expected);
    return *held;
}

}  // namespace

uint64_t GgufMetadata::integer(const std::string& key) const {
    return as_integer(key, require(*this, key, kInteger));
}

uint64_t GgufMetadata::integer(const std::string& key, uint64_t fallback) const {
    const GgufValue* value = find(key);
    return value == nullptr ? fallback : as_integer(key, *value);
}

double GgufMetadata::real(const std::string& key) const {
    return as<double>(key, require(*this, key, kReal), kReal);
}

double GgufMetadata::real(const std::string& key, double fallback) const {
    const GgufValue* value = find(key);
    return value == nullptr ? fallback : as<double>(key, *value, kReal);
}

bool GgufMetadata::boolean(const std::string& key, bool fallback) const {
    const GgufValue* value = find(key);
    return value == nullptr ? fallback : as<bool>(key, *value, "a bool");
}

std::string GgufMetadata::string(const std::string& key) const {
    return as<std::string>(key, require(*this, key, kString), kString);
}

std::string GgufMetadata::string(const std::string& key, const std::string& fallback) const {
    const GgufValue* value = find(key);
    return value == nullptr ? fallback : as<std::string>(key, *value, kString);
}

std::shared_ptr<const GgufFile> GgufFile::open(const std::string& path) {
    auto file = std::make_shared<GgufFile>();
    file->file_ = std::make_unique<MappedFile>(path);
    file->read(file->file_->bytes(), path);
    return file;
}

std::shared_ptr<const GgufFile> GgufFile::parse(std::span<const std::byte> bytes, const std::string& label) {
    auto file = std::make_shared<GgufFile>();
    file->read(bytes, label);
    return file;
}

void GgufFile::read(std::span<const std::byte> bytes, const std::string& label) {
    Cursor in(bytes, label);
    read_header(in);
    // Both counts precede the pairs, so both are checked against the whole rest of the file.
    const uint64_t n_tensors = in.count("number of tensors", kMinTensorBytes);
    const uint64_t n_pairs = in.count("number of metadata pairs", kMinPairBytes);

    uint64_t alignment = kDefaultAlignment;
    for (uint64_t i = 0; i < n_pairs; ++i) {
        in.enter(fmt::format("metadata pair {} of {}", i + 1, n_pairs));
        const size_t key_at = in.position();
        const std::string key = in.name("key", kMaxKeyLength);
        in.enter(fmt::format("key '{}'", printable(key)));
        if (metadata_.has(key)) in.reject(ErrorCode::input, "key", "it twice", "unique keys", key_at);
        const size_t value_at = in.position();
        GgufValue value = read_value(in);
        if (key == kAlignmentKey) {
            if (value.type != GgufType::U32)
                in.reject(ErrorCode::input, "value type", type_text(value), "u32", value_at);
            alignment = std::get<uint64_t>(value.value);
            if (!is_alignment(alignment)) {
                in.reject(ErrorCode::input, "alignment", alignment,
                          fmt::format("a power of two from {} to {}", kMinAlignment, kMaxAlignment),
                          value_at + 4);
            }
        }
        metadata_.set(key, std::move(value));
    }

    in.enter("");
    if (n_tensors > in.remaining() / kMinTensorBytes) {
        in.reject(ErrorCode::input, "number of tensors", n_tensors,
                  fmt::format("at most {}, which is what the {} bytes that follow can hold",
                              in.remaining() / kMinTensorBytes, in.remaining()),
                  in.position());
    }
    std::vector<Entry> entries;
    entries.reserve(n_tensors);
    std::set<std::string_view> names;
    uint64_t end = 0;
    for (uint64_t i = 0; i < n_tensors; ++i) {
        in.enter(fmt::format("tensor {} of {}", i + 1, n_tensors));
        const size_t at = in.position();
        entries.push_back(read_entry(in, alignment, end));
        if (!names.insert(entries.back().tensor.name).second) {
            in.reject(ErrorCode::input, "tensor name", "it twice", "unique names", at);
        }
    }
    if (entries.empty()) return;

    const uint64_t data = padded(in.position(), alignment);
    const uint64_t needed = data + entries.back().offset + entries.back().bytes;
    for (auto& [tensor, offset, size] : entries) {
        if (data + offset + size > bytes.size()) {
            in.enter(fmt::format("tensor '{}'", printable(tensor.name)));
            in.reject(
                ErrorCode::input, "file size", fmt::format("{} bytes", bytes.size()),
                fmt::format("at least {} for all tensors: {} bytes are missing - the file is damaged or "
                            "incomplete, fetch it again",
                            needed, needed - bytes.size()),
                data + offset);
        }
        tensor.data = bytes.subspan(data + offset, size);
        tensors_.push_back(std::move(tensor));
    }
}

void write_gguf(const std::string& path, bool overwrite, const GgufMetadata& metadata,
                const std::vector<GgufOutputTensor>& tensors,
                const std::function<void(uint64_t bytes, const std::string& tensor)>& progress) {
    const uint64_t alignment = output_alignment(metadata);
    std::string head(kMagic);
    put(head, uint32_t{3});
    put(head, uint64_t{tensors.size()});
    put(head, uint64_t{metadata.entries().size()});
    for (const auto& [key, value] : metadata.entries()) {
        if (key.empty() || key.size() > kMaxKeyLength || key.find('\0') != std::string::npos) {
            fail(ErrorCode::internal, "gguf", "cannot write key '{}': it must have 1 to {} bytes and no NUL",
                 printable(key), kMaxKeyLength);
        }
        put_text(head, key);
        put_value(head, key, value);
    }
    std::set<std::string> names;
    std::vector<uint64_t> sizes;
    uint64_t offset = 0;
    for (const auto& tensor : tensors) {
        sizes.push_back(check_output(tensor, names));
        put_text(head, tensor.name);
        put(head, static_cast<uint32_t>(tensor.shape.size()));
        for (const int64_t n : tensor.shape) put(head, static_cast<uint64_t>(n));
        put(head, static_cast<uint32_t>(tensor.type));
        put(head, offset);
        offset += padded(sizes.back(), alignment);
        if (offset > kInt64Max / 2)
            fail(ErrorCode::internal, "gguf", "cannot write more than 2^62 bytes of tensors");
    }

    AtomicFile file(path, overwrite);
    file.write(head);
    file.align(alignment);
    for (size_t i = 0; i < tensors.size(); ++i) {
        write_data(file, tensors[i], sizes[i]);
        file.align(alignment);
        if (progress) progress(sizes[i], tensors[i].name);
    }
    file.commit();
}

}  // namespace refold
