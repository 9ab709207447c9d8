#include "io/gguf.h"

#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

// ---- files made by hand, so that any field can be wrong ----

template <typename T>
std::string raw(T value) {
    std::string bytes(sizeof(T), '\0');
    memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
}

std::string raw_text(const std::string& text, std::optional<uint64_t> length = {}) {
    return raw<uint64_t>(length.value_or(text.size())) + text;
}

std::string pair(const std::string& key, uint32_t type, const std::string& value) {
    return raw_text(key) + raw(type) + value;
}
std::string pair(const std::string& key, GgufType type, const std::string& value) {
    return pair(key, static_cast<uint32_t>(type), value);
}
std::string array_pair(const std::string& key, uint32_t element, uint64_t count, const std::string& values) {
    return pair(key, GgufType::Array, raw(element) + raw(count) + values);
}

struct RawTensor {
    std::string name = "weight";
    std::vector<uint64_t> dims{32};
    uint32_t type = 0;
    uint64_t offset = 0;
    std::optional<uint32_t> n_dims{};
    std::optional<uint64_t> name_length{};
};

// By default one F32 tensor of 32 elements and one metadata pair.
struct RawFile {
    std::string magic = "GGUF";
    uint32_t version = 3;
    std::vector<std::string> pairs{pair("a.key", GgufType::U32, raw<uint32_t>(7))};
    std::vector<RawTensor> tensors{RawTensor{}};
    std::optional<uint64_t> n_tensors{}, n_pairs{};
    size_t alignment = 32, data_bytes = 128;

    std::string bytes() const {
        std::string out = magic + raw(version) + raw<uint64_t>(n_tensors.value_or(tensors.size())) +
                          raw<uint64_t>(n_pairs.value_or(pairs.size()));
        for (const auto& p : pairs) out += p;
        for (const auto& t : tensors) {
            out += raw_text(t.name, t.name_length) +
                   raw<uint32_t>(t.n_dims.value_or(static_cast<uint32_t>(t.dims.size())));
            for (const uint64_t n : t.dims) out += raw(n);
            out += raw(t.type) + raw(t.offset);
        }
        out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
        return out + std::string(data_bytes, 'd');
    }
};

// Parses a heap copy of exactly this size, so that AddressSanitizer sees reads past the end.
void parse(const std::string& bytes) {
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    const std::vector<std::byte> copy(first, first + bytes.size());
    GgufFile::parse(copy, "lying.gguf");
}

void expect_error(const std::string& bytes, ErrorCode code, const std::vector<std::string>& parts) {
    try {
        parse(bytes);
        ADD_FAILURE() << "accepted, expected an error with '" << (parts.empty() ? "" : parts[0]) << "'";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.code(), code) << text;
        EXPECT_TRUE(text.starts_with("[gguf] ")) << text;
        EXPECT_NE(text.find("lying.gguf"), std::string::npos) << text;
        for (const auto& part : parts)
            EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
    }
}

void expect_input_error(const RawFile& file, const std::vector<std::string>& parts) {
    expect_error(file.bytes(), ErrorCode::input, parts);
}

TEST(GgufRead, AcceptsTheFileTheLiesAreMadeFrom) {
    EXPECT_NO_THROW(parse(RawFile{}.bytes()));
    RawFile v2;
    v2.version = 2;
    EXPECT_NO_THROW(parse(v2.bytes()));
}

TEST(GgufRead, Magic) {
    expect_error("", ErrorCode::input, {"magic", "4 bytes are missing"});
    expect_error("GG", ErrorCode::input, {"magic", "2 bytes are missing"});
    RawFile file;
    file.magic = "vers";
    expect_input_error(file, {"magic", "'vers'", "expected 'GGUF'"});
    file.magic = std::string("\x00\x01\xFF\n", 4);
    expect_input_error(file, {"'\\x00\\x01\\xff\\x0a'"});
}

TEST(GgufRead, Version) {
    for (const uint32_t version : {0u, 1u, 4u}) {
        RawFile file;
        file.version = version;
        expect_error(file.bytes(), ErrorCode::unsupported,
                     {"version", "got " + std::to_string(version), "expected 2 or 3"});
    }
    RawFile swapped;
    swapped.version = 0x03000000;
    expect_error(swapped.bytes(), ErrorCode::unsupported, {"version", "0x3000000", "big-endian"});
}

TEST(GgufRead, Counts) {
    for (const uint64_t count : {uint64_t{1000}, uint64_t{1} << 40, ~uint64_t{0}}) {
        RawFile file;
        file.n_tensors = count;
        expect_input_error(file, {"number of tensors", std::to_string(count), "offset 8"});
        file = {};
        file.n_pairs = count;
        expect_input_error(file, {"number of metadata pairs", std::to_string(count), "offset 16"});
    }
    // Fits into the whole file, but not into the rest after the metadata.
    RawFile late;
    late.pairs = {pair("a.key", GgufType::String, raw_text(std::string(5000, 'x')))};
    late.n_tensors = 100;
    expect_input_error(late, {"number of tensors", "got 100", "at most"});
    // More than the file has: its data is not a tensor entry.
    RawFile more;
    more.n_tensors = 2;
    expect_error(more.bytes(), ErrorCode::input, {"tensor"});
}

TEST(GgufRead, Keys) {
    RawFile file;
    file.pairs = {raw_text("a.key", 1000000) + raw<uint32_t>(4) + raw<uint32_t>(7)};
    expect_input_error(file, {"key length", "1000000", "metadata pair 1 of 1", "offset 24"});
    file.pairs = {raw_text("a.key", ~uint64_t{0}) + raw<uint32_t>(4) + raw<uint32_t>(7)};
    expect_input_error(file, {"key length", "18446744073709551615"});
    file.pairs = {pair("", GgufType::U32, raw<uint32_t>(7)) + "padding"};
    expect_input_error(file, {"key length", "got 0", "1 to 65535"});
    file.pairs = {pair(std::string(65536, 'k'), GgufType::U32, raw<uint32_t>(7))};
    expect_input_error(file, {"key length", "got 65536", "1 to 65535"});
    file.pairs = {pair(std::string("a\0b", 3), GgufType::U32, raw<uint32_t>(7))};
    expect_input_error(file, {"key", "NUL", "a\\x00b"});
    file.pairs = {pair("same", GgufType::U32, raw<uint32_t>(7)),
                  pair("other", GgufType::Bool, raw<uint8_t>(1)),
                  pair("same", GgufType::U8, raw<uint8_t>(7))};
    expect_input_error(file, {"'same'", "twice"});
    file.pairs = {pair(std::string(65535, 'k'), GgufType::U32, raw<uint32_t>(7))};
    EXPECT_NO_THROW(parse(file.bytes()));
}

TEST(GgufRead, Values) {
    RawFile file;
    file.pairs = {pair("a.key", 13, raw<uint64_t>(7))};
    expect_input_error(file, {"value type", "got 13", "0 to 12", "'a.key'", "offset 37"});
    file.pairs = {pair("a.key", GgufType::Bool, raw<uint8_t>(2) + std::string(8, '\0'))};
    expect_input_error(file, {"bool value", "got 2", "0 or 1", "'a.key'", "offset 41"});
    file.pairs = {pair("a.key", GgufType::String, raw_text("text", uint64_t{1} << 50))};
    expect_input_error(file, {"string length", "1125899906842624", "'a.key'"});
}

TEST(GgufRead, Arrays) {
    RawFile file;
    file.pairs = {array_pair("a.key", 13, 1, raw<uint32_t>(7))};
    expect_input_error(file, {"array element type", "got 13", "'a.key'"});
    file.pairs = {array_pair("a.key", 9, 1, raw<uint32_t>(4) + raw<uint64_t>(0))};
    expect_error(file.bytes(), ErrorCode::unsupported, {"array element type", "9 (array)", "'a.key'"});
    for (const uint32_t element : {0u, 5u, 8u, 12u}) {
        for (const uint64_t count : {uint64_t{10000}, uint64_t{1} << 61, ~uint64_t{0}}) {
            file.pairs = {array_pair("a.key", element, count, std::string(16, '\0'))};
            expect_input_error(file, {"array count", std::to_string(count), "'a.key'", "offset 45"});
        }
    }
    file.pairs = {array_pair("a.key", 8, 2, raw_text("fine") + raw_text("lie", 100000))};
    expect_input_error(file, {"array string length", "100000", "'a.key'"});
    file.pairs = {array_pair("a.key", 7, 3, std::string("\x01\x00\x03", 3))};
    expect_input_error(file, {"bool value", "got 3", "'a.key'", "offset 55"});
}

TEST(GgufRead, Alignment) {
    for (const uint32_t alignment : {0u, 1u, 4u, 12u, 24u, 33u, 0xFFFFFFFFu, 0x80000000u}) {
        RawFile file;
        file.pairs = {pair("general.alignment", GgufType::U32, raw(alignment))};
        expect_input_error(
            file, {"alignment: got " + std::to_string(alignment), "power of two", "'general.alignment'"});
    }
    RawFile typed;
    typed.pairs = {pair("general.alignment", GgufType::U64, raw<uint64_t>(32))};
    expect_input_error(typed, {"u64", "u32", "'general.alignment'"});
    RawFile fine;
    fine.alignment = 256;
    fine.pairs = {pair("general.alignment", GgufType::U32, raw<uint32_t>(256))};
    EXPECT_NO_THROW(parse(fine.bytes()));
    fine.data_bytes = 127;
    expect_input_error(fine, {"1 bytes are missing"});
}

TEST(GgufRead, TensorNames) {
    RawFile file;
    file.tensors = {{.name = ""}};
    expect_input_error(file, {"tensor name length", "got 0", "1 to 63", "tensor 1 of 1"});
    file.tensors = {{.name = std::string(64, 'n')}};
    expect_input_error(file, {"tensor name length", "got 64", "1 to 63"});
    file.tensors = {{.name = std::string(63, 'n')}};
    EXPECT_NO_THROW(parse(file.bytes()));
    file.tensors = {{.name_length = uint64_t{1} << 33}};
    expect_input_error(file, {"tensor name length", "8589934592"});
    file.tensors = {{.name = std::string("w\0x", 3)}};
    expect_input_error(file, {"tensor name", "NUL", "w\\x00x"});
    file.tensors = {{.name = "same"}, {.name = "same", .offset = 128}};
    file.data_bytes = 256;
    expect_input_error(file, {"tensor 'same'", "twice"});
}

TEST(GgufRead, TensorShapes) {
    RawFile file;
    for (const uint32_t n_dims : {0u, 5u, 0xFFFFFFFFu}) {
        file.tensors = {{.n_dims = n_dims}};
        expect_input_error(
            file, {"number of dimensions", "got " + std::to_string(n_dims), "1 to 4", "tensor 'weight'"});
    }
    file.tensors = {{.dims = {32, 0}}};
    expect_input_error(file, {"dimension 1", "got 0", "tensor 'weight'"});
    file.tensors = {{.dims = {uint64_t{1} << 63}}};
    expect_input_error(file, {"dimension 0", "9223372036854775808", "tensor 'weight'"});
    file.tensors = {{.dims = {uint64_t{1} << 32, uint64_t{1} << 32}}};
    expect_input_error(file, {"shape", "[4294967296, 4294967296]", "2^63 elements", "tensor 'weight'"});
    file.tensors = {{.dims = {uint64_t{1} << 62}}};  // elements fit, bytes do not
    expect_input_error(file, {"shape", "2^62 bytes", "tensor 'weight'"});
    file.tensors = {{.dims = {uint64_t{1} << 40}}};
    expect_input_error(file, {"file size", "bytes are missing", "tensor 'weight'"});
    file.tensors = {{.dims = {31}, .type = 2}};
    expect_input_error(file, {"dimension 0", "got 31", "multiple of 32", "Q4_0", "tensor 'weight'"});
}

TEST(GgufRead, TensorTypes) {
    for (const uint32_t type : {4u, 5u, 24u, 27u, 9999u, 0xFFFFFFFFu}) {  // removed, i8, i64, not known
        RawFile file;
        file.tensors = {{.type = type}};
        expect_error(file.bytes(), ErrorCode::unsupported,
                     {"tensor type", "id " + std::to_string(type), "tensor 'weight'"});
    }
}

TEST(GgufRead, TensorOffsets) {
    RawFile file;
    file.tensors = {{.offset = 16}};
    expect_input_error(file, {"data offset", "got 16", "alignment 32", "tensor 'weight'"});
    file.tensors = {{.offset = ~uint64_t{31}}};
    expect_input_error(file, {"data offset", "18446744073709551584", "tensor 'weight'"});
    file.tensors = {{.offset = uint64_t{1} << 61}};
    expect_input_error(file, {"file size", "missing", "tensor 'weight'"});
    file.tensors = {{.offset = 32}};
    expect_input_error(file, {"file size", "32 bytes are missing", "tensor 'weight'"});
    file.data_bytes = 256;
    file.tensors = {{.name = "first"}, {.name = "second", .offset = 96}};
    expect_input_error(file, {"data offset", "got 96", "at least 128", "tensor 'second'"});
    file.tensors = {{.name = "first", .offset = 128}, {.name = "second", .offset = 0}};
    expect_input_error(file, {"data offset", "got 0", "at least 256", "tensor 'second'"});
    file.tensors = {{.name = "first"}, {.name = "second", .offset = 128}};
    EXPECT_NO_THROW(parse(file.bytes()));
    file.data_bytes = 255;
    expect_input_error(file, {"file size", "1 bytes are missing", "tensor 'second'"});
}

TEST(GgufRead, MissingFileAndFolder) {
    const TempFolder folder;
    for (const std::string& path : {folder / "none.gguf", folder / "."}) {
        try {
            GgufFile::open(path);
            ADD_FAILURE() << path;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::io);
            EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
        }
    }
}

// ---- writing and reading back ----

template <typename T>
GgufValue packed(GgufType element, const std::vector<T>& values) {
    auto array = std::make_shared<GgufArray>();
    array->element = element;
    array->count = values.size();
    array->packed.resize(values.size() * sizeof(T));
    if (!values.empty()) memcpy(array->packed.data(), values.data(), array->packed.size());
    return {GgufType::Array, std::shared_ptr<const GgufArray>(array)};
}

GgufValue strings(std::vector<std::string> values) {
    auto array = std::make_shared<GgufArray>();
    array->element = GgufType::String;
    array->count = values.size();
    array->strings = std::move(values);
    return {GgufType::Array, std::shared_ptr<const GgufArray>(array)};
}

GgufMetadata every_kind() {
    GgufMetadata m;
    m.set("general.architecture", GgufValue::string("llama"));
    m.set("u8", {GgufType::U8, uint64_t{255}});
    m.set("i8", {GgufType::I8, int64_t{-128}});
    m.set("u16", {GgufType::U16, uint64_t{65535}});
    m.set("i16", {GgufType::I16, int64_t{-32768}});
    m.set("u32", GgufValue::u32(4294967295u));
    m.set("i32", {GgufType::I32, std::numeric_limits<int32_t>::min() + int64_t{0}});
    m.set("u64", {GgufType::U64, ~uint64_t{0}});
    m.set("i64", {GgufType::I64, std::numeric_limits<int64_t>::min()});
    m.set("f32", GgufValue::f32(0.1f));
    m.set("f64", {GgufType::F64, 0.1});
    m.set("infinite", GgufValue::f32(-INFINITY));
    m.set("yes", GgufValue::boolean(true));
    m.set("no", GgufValue::boolean(false));
    m.set("text", GgufValue::string("grüße"));
    m.set("bytes", GgufValue::string(std::string("\xFF\x00\xFE", 3)));
    m.set("empty", GgufValue::string(""));
    m.set("array.u8", packed<uint8_t>(GgufType::U8, {1, 2, 3}));
    m.set("array.i32", packed<int32_t>(GgufType::I32, {-1, 2, 3}));
    m.set("array.f32", packed<float>(GgufType::F32, {0.5f, -2.0f}));
    m.set("array.f64", packed<double>(GgufType::F64, {0.25}));
    m.set("array.bool", packed<uint8_t>(GgufType::Bool, {1, 0, 1}));
    m.set("array.strings", strings({"a", "", std::string("\x80\x00", 2), "<|endoftext|>"}));
    m.set("array.none", packed<uint32_t>(GgufType::U32, {}));
    m.set("array.no strings", strings({}));
    return m;
}

std::vector<std::byte> pattern(size_t size, unsigned seed) {
    std::vector<std::byte> data(size);
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
    return data;
}

GgufOutputTensor output(const std::string& name, DType type, std::vector<int64_t> shape, unsigned seed) {
    int64_t elements = 1;
    for (const int64_t n : shape) elements *= n;
    const auto data = pattern(row_bytes(type, elements), seed);
    return {name, type, std::move(shape), [data](const auto& sink) {
                const std::span<const std::byte> all(data);
                sink(all.first(all.size() / 3));
                sink(all.subspan(all.size() / 3));
            }};
}

std::vector<GgufOutputTensor> every_shape() {
    return {output("token_embd.weight", DType::F32, {32, 3}, 1),
            output("one", DType::F32, {1}, 2),
            output("blk.0.attn_q.weight", DType::Q4_0, {64, 2}, 3),
            output("three", DType::F16, {3, 5, 2}, 4),
            output("four", DType::BF16, {2, 3, 1, 2}, 5),
            output(std::string(63, 'n'), DType::Q6_K, {256}, 6),
            output("output.weight", DType::Q8_0, {32, 1}, 7)};
}

void expect_equal(const GgufMetadata& a, const GgufMetadata& b) {
    ASSERT_EQ(a.entries().size(), b.entries().size());
    for (size_t i = 0; i < a.entries().size(); ++i) {
        const auto& [key, value] = a.entries()[i];
        const auto& [other_key, other] = b.entries()[i];
        EXPECT_EQ(key, other_key);
        EXPECT_EQ(value.type, other.type) << key;
        ASSERT_EQ(value.value.index(), other.value.index()) << key;
        if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value)) {
            const auto& second = std::get<std::shared_ptr<const GgufArray>>(other.value);
            EXPECT_EQ((*array)->element, second->element) << key;
            EXPECT_EQ((*array)->count, second->count) << key;
            EXPECT_EQ((*array)->packed, second->packed) << key;
            EXPECT_EQ((*array)->strings, second->strings) << key;
        } else {
            EXPECT_EQ(value.value, other.value) << key;
        }
    }
}

TEST(GgufRoundTrip, MetadataAndTensors) {
    const TempFolder folder;
    const std::string path = folder / "all.gguf";
    uint64_t written = 0;
    std::vector<std::string> names;
    write_gguf(path, false, every_kind(), every_shape(), [&](uint64_t bytes, const std::string& name) {
        written += bytes;
        names.push_back(name);
    });
    const auto file = GgufFile::open(path);
    ASSERT_NE(file->file(), nullptr);
    expect_equal(every_kind(), file->metadata());
    const auto expected = every_shape();
    ASSERT_EQ(file->tensors().size(), expected.size());
    uint64_t total = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const GgufTensor& tensor = file->tensors()[i];
        EXPECT_EQ(tensor.name, expected[i].name);
        EXPECT_EQ(tensor.type, expected[i].type);
        EXPECT_EQ(tensor.shape, expected[i].shape);
        const auto data = pattern(tensor.data.size(), static_cast<unsigned>(i) + 1);
        EXPECT_TRUE(std::equal(data.begin(), data.end(), tensor.data.begin())) << tensor.name;
        EXPECT_EQ(names[i], tensor.name);
        EXPECT_EQ((tensor.data.data() - file->file()->bytes().data()) % 32, 0);
        total += tensor.data.size();
    }
    EXPECT_EQ(written, total);
    EXPECT_EQ(read_all(path).size() % 32, 0u);
    EXPECT_EQ(folder.files(), std::vector<std::string>{"all.gguf"});
}

TEST(GgufRoundTrip, SecondGenerationIsIdentical) {
    const TempFolder folder;
    write_gguf(folder / "first.gguf", false, every_kind(), every_shape());
    {
        const auto file = GgufFile::open(folder / "first.gguf");
        std::vector<GgufOutputTensor> tensors;
        for (const auto& t : file->tensors())
            tensors.push_back({t.name, t.type, t.shape, [&t](const auto& sink) { sink(t.data); }});
        write_gguf(folder / "second.gguf", false, file->metadata(), tensors);
        // Overwrites its own source: the map keeps the old file alive until the new one is complete.
        write_gguf(folder / "first.gguf", true, file->metadata(), tensors);
    }
    EXPECT_EQ(read_all(folder / "first.gguf"), read_all(folder / "second.gguf"));
}

TEST(GgufRoundTrip, Alignment) {
    const TempFolder folder;
    for (const uint32_t alignment : {8u, 64u, 4096u}) {
        GgufMetadata metadata;
        metadata.set("general.alignment", GgufValue::u32(alignment));
        write_gguf(folder / "a.gguf", true, metadata, every_shape());
        const auto file = GgufFile::open(folder / "a.gguf");
        for (const auto& tensor : file->tensors()) {
            EXPECT_EQ(static_cast<size_t>(tensor.data.data() - file->file()->bytes().data()) % alignment, 0u);
        }
    }
}

TEST(GgufRoundTrip, WithoutTensorsAndWithoutMetadata) {
    const TempFolder folder;
    write_gguf(folder / "none.gguf", false, {}, {});
    const auto file = GgufFile::open(folder / "none.gguf");
    EXPECT_TRUE(file->metadata().entries().empty());
    EXPECT_TRUE(file->tensors().empty());
}

TEST(GgufRoundTrip, GgmlReadsIt) {
    const TempFolder folder;
    const std::string path = folder / "all.gguf";
    write_gguf(path, false, every_kind(), every_shape());
    ggml_context* context = nullptr;
    gguf_context* gguf = gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &context});
    ASSERT_NE(gguf, nullptr);
    EXPECT_EQ(gguf_get_n_kv(gguf), static_cast<int64_t>(every_kind().entries().size()));
    EXPECT_STREQ(gguf_get_val_str(gguf, gguf_find_key(gguf, "general.architecture")), "llama");
    EXPECT_EQ(gguf_get_val_i8(gguf, gguf_find_key(gguf, "i8")), -128);
    EXPECT_STREQ(gguf_get_arr_str(gguf, gguf_find_key(gguf, "array.strings"), 3), "<|endoftext|>");
    const auto file = GgufFile::open(path);
    ASSERT_EQ(gguf_get_n_tensors(gguf), static_cast<int64_t>(file->tensors().size()));
    for (const auto& tensor : file->tensors()) {
        const ggml_tensor* theirs = ggml_get_tensor(context, tensor.name.c_str());
        ASSERT_NE(theirs, nullptr) << tensor.name;
        ASSERT_EQ(ggml_nbytes(theirs), tensor.data.size());
        EXPECT_EQ(memcmp(theirs->data, tensor.data.data(), tensor.data.size()), 0) << tensor.name;
    }
    gguf_free(gguf);
    ggml_free(context);
}

// ---- truncation ----

TEST(GgufTruncation, EveryByteOfASmallFile) {
    const TempFolder folder;
    write_gguf(folder / "small.gguf", false, every_kind(), every_shape());
    const std::string whole = read_all(folder / "small.gguf");
    const auto file = GgufFile::open(folder / "small.gguf");
    const auto& last = file->tensors().back().data;
    const auto end = static_cast<size_t>(last.data() + last.size() - file->file()->bytes().data());
    for (size_t size = 0; size < whole.size(); ++size) {
        if (size >= end) {  // only padding is missing
            EXPECT_NO_THROW(parse(whole.substr(0, size))) << size;
        } else {
            expect_error(whole.substr(0, size), ErrorCode::input, {"offset"});
        }
        if (HasFailure()) FAIL() << "at " << size << " of " << whole.size() << " bytes";
    }
}

TEST(GgufTruncation, TwentiethsOfABiggerFile) {
    const TempFolder folder;
    std::vector<GgufOutputTensor> tensors;
    for (unsigned i = 0; i < 20; ++i)
        tensors.push_back(output("blk." + std::to_string(i), DType::F32, {256, 100}, i));
    write_gguf(folder / "big.gguf", false, every_kind(), tensors);
    const std::string whole = read_all(folder / "big.gguf");
    for (size_t part = 0; part < 20; ++part) {
        const size_t size = whole.size() * part / 20;
        write_all(folder / "cut.gguf", whole.substr(0, size));
        try {
            GgufFile::open(folder / "cut.gguf");
            ADD_FAILURE() << part << "/20 accepted";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_EQ(error.code(), ErrorCode::input) << text;
            EXPECT_NE(text.find("cut.gguf"), std::string::npos) << text;
            const std::string missing =
                std::to_string(size == 0 ? 4 : whole.size() - size) + " bytes are missing";
            EXPECT_NE(text.find(missing), std::string::npos) << text;
        }
    }
}

// ---- what the writer refuses ----

void expect_internal(const std::function<void()>& body, const std::string& part) {
    try {
        body();
        ADD_FAILURE() << "accepted: " << part;
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::internal) << error.what();
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

TEST(GgufWrite, ProducersThatGiveTooMuchOrTooLittle) {
    const TempFolder folder;
    for (const size_t size : {0u, 127u, 129u, 4096u}) {
        const std::vector<std::byte> data(size);
        const GgufOutputTensor tensor{"weight", DType::F32, {32}, [&](const auto& sink) { sink(data); }};
        expect_internal([&] { write_gguf(folder / "x.gguf", false, {}, {tensor}); },
                        "'weight': got " + std::to_string(size) + " bytes, expected 128");
    }
    expect_internal(
        [&] {
            write_gguf(folder / "x.gguf", false, {}, {{"weight", DType::F32, {32}, {}}});
        },
        "'weight'");
    EXPECT_TRUE(folder.files().empty());
}

TEST(GgufWrite, ProducerErrorsPassThroughAndLeaveNothing) {
    const TempFolder folder;
    const GgufOutputTensor tensor{
        "weight", DType::F32, {32}, [](const auto&) { throw Error(ErrorCode::input, "from inside"); }};
    EXPECT_THROW(write_gguf(folder / "x.gguf", false, {}, {tensor}), Error);
    EXPECT_TRUE(folder.files().empty());
}

TEST(GgufWrite, TensorsThatCannotBeDescribed) {
    const TempFolder folder;
    const auto refused = [&](const std::string& name, DType type, std::vector<int64_t> shape,
                             const std::string& part) {
        const GgufOutputTensor tensor{name, type, std::move(shape), [](const auto&) {}};
        expect_internal([&] { write_gguf(folder / "x.gguf", false, {}, {tensor}); }, part);
    };
    refused("", DType::F32, {1}, "1 to 63 bytes");
    refused(std::string(64, 'n'), DType::F32, {1}, "1 to 63 bytes");
    refused("w", static_cast<DType>(24), {1}, "unknown type");
    refused("w", DType::F32, {}, "dimensions");
    refused("w", DType::F32, {1, 1, 1, 1, 1}, "dimensions");
    refused("w", DType::F32, {1, 0}, "positive");
    refused("w", DType::F32, {-1}, "positive");
    refused("w", DType::Q4_0, {33}, "blocks");
    refused("w", DType::F32, {int64_t{1} << 40, int64_t{1} << 40}, "too large");
    expect_internal(
        [&] {
            write_gguf(folder / "x.gguf", false, {},
                       {output("w", DType::F32, {1}, 0), output("w", DType::F32, {1}, 0)});
        },
        "taken");
    EXPECT_TRUE(folder.files().empty());
}

TEST(GgufWrite, ValuesThatDoNotFitTheirType) {
    const TempFolder folder;
    const auto refused = [&](const std::string& key, GgufValue value) {
        GgufMetadata metadata;
        metadata.set(key, std::move(value));
        expect_internal([&] { write_gguf(folder / "x.gguf", false, metadata, {}); }, "key '" + key + "'");
    };
    refused("k", {GgufType::U8, uint64_t{256}});
    refused("k", {GgufType::I8, int64_t{-129}});
    refused("k", {GgufType::U32, int64_t{-1}});
    refused("k", {GgufType::F32, uint64_t{1}});
    refused("k", {GgufType::Bool, uint64_t{1}});
    refused("k", {GgufType::String, 1.0});
    refused("k", {GgufType::Array, true});
    refused("k", {GgufType::Array, std::shared_ptr<const GgufArray>()});
    refused("k", {static_cast<GgufType>(13), uint64_t{1}});
    refused("", GgufValue::u32(1));
    refused("general.alignment", GgufValue::u32(33));
    auto array = std::make_shared<GgufArray>();
    array->count = 3;
    array->packed.resize(8);
    refused("k", {GgufType::Array, std::shared_ptr<const GgufArray>(array)});
    EXPECT_TRUE(folder.files().empty());
}

TEST(GgufWrite, KeepsAnExistingFile) {
    const TempFolder folder;
    write_all(folder / "x.gguf", "precious");
    EXPECT_THROW(write_gguf(folder / "x.gguf", false, {}, {}), Error);
    EXPECT_EQ(read_all(folder / "x.gguf"), "precious");
}

// ---- typed access ----

TEST(GgufMetadata, TypedAccess) {
    const GgufMetadata m = every_kind();
    EXPECT_EQ(m.integer("u8"), 255u);
    EXPECT_EQ(m.integer("u64"), ~uint64_t{0});
    EXPECT_EQ(m.integer("nowhere", 5), 5u);
    EXPECT_EQ(m.real("f32"), static_cast<double>(0.1f));
    EXPECT_EQ(m.real("f64", 1.0), 0.1);
    EXPECT_EQ(m.real("nowhere", 1.5), 1.5);
    EXPECT_TRUE(m.boolean("yes", false));
    EXPECT_FALSE(m.boolean("nowhere", false));
    EXPECT_EQ(m.string("bytes"), std::string("\xFF\x00\xFE", 3));
    EXPECT_EQ(m.string("nowhere", "x"), "x");
}

TEST(GgufMetadata, WrongKindsNameTheKey) {
    const GgufMetadata m = every_kind();
    const auto refused = [](const auto& read, const std::vector<std::string>& parts) {
        try {
            read();
            ADD_FAILURE() << parts[0];
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::input);
            for (const auto& part : parts)
                EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    };
    refused([&] { m.integer("nowhere"); }, {"'nowhere'", "missing", "whole number"});
    refused([&] { m.real("nowhere"); }, {"'nowhere'", "missing"});
    refused([&] { m.string("nowhere"); }, {"'nowhere'", "missing"});
    refused([&] { m.integer("f32"); }, {"'f32'", "got f32", "whole number"});
    refused([&] { m.integer("i8"); }, {"'i8'", "-128", "not negative"});
    refused([&] { m.integer("i8", 1); }, {"'i8'", "-128"});
    refused([&] { m.integer("yes", 1); }, {"'yes'", "got bool"});
    refused([&] { m.real("u32", 1.0); }, {"'u32'", "got u32"});
    refused([&] { m.boolean("u8", true); }, {"'u8'", "got u8"});
    refused([&] { m.string("array.i32", ""); }, {"'array.i32'", "array of i32"});
}

TEST(GgufMetadata, SetAndErase) {
    GgufMetadata m;
    m.set("a", GgufValue::u32(1));
    m.set("b", GgufValue::u32(2));
    m.set("c", GgufValue::u32(3));
    m.set("b", GgufValue::u32(20));
    m.erase("a");
    m.erase("a");
    EXPECT_FALSE(m.has("a"));
    ASSERT_EQ(m.entries().size(), 2u);
    EXPECT_EQ(m.entries()[0].first, "b");
    EXPECT_EQ(m.integer("b"), 20u);
    EXPECT_EQ(m.integer("c"), 3u);
    m.set("a", GgufValue::u32(4));
    EXPECT_EQ(m.entries().back().first, "a");
}

}  // namespace
}  // namespace refold
