// GGUF v2/v3 reader and v3 writer. The reader trusts nothing: it checks every count, length and offset
// against the file before using it or allocating memory for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/files.h"
#include "io/dtype.h"

namespace refold {

// GGUF metadata value type ids.
enum class GgufType : uint32_t {
    U8 = 0,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
};

struct GgufArray;

// One metadata value with its on-disk type. Integers are widened to 64 bits (uint64_t for U*, int64_t for
// I*), floats to double. Strings may hold any bytes, because tokens need not be UTF-8.
struct GgufValue {
    GgufType type = GgufType::U32;
    std::variant<uint64_t, int64_t, double, bool, std::string, std::shared_ptr<const GgufArray>> value;

    static GgufValue u32(uint32_t v) { return {GgufType::U32, uint64_t{v}}; }
    static GgufValue f32(float v) { return {GgufType::F32, double{v}}; }
    static GgufValue boolean(bool v) { return {GgufType::Bool, v}; }
    static GgufValue string(std::string v) { return {GgufType::String, std::move(v)}; }
};

// Numeric arrays stay packed in file order (`packed`, little endian), string arrays are split.
struct GgufArray {
    GgufType element = GgufType::U32;
    uint64_t count = 0;
    std::vector<std::byte> packed;
    std::vector<std::string> strings;
};

// Keys in file order, with lookup by name. set() of an existing key keeps its position.
class GgufMetadata {
public:
    void set(const std::string& key, GgufValue value);
    void erase(const std::string& key);
    bool has(const std::string& key) const { return find(key) != nullptr; }
    const GgufValue* find(const std::string& key) const;
    const std::vector<std::pair<std::string, GgufValue>>& entries() const { return entries_; }

    // Typed access. Throws Error(input) naming the key when it is missing or of another kind; the overloads
    // with a fallback throw only for another kind. integer() accepts every integer type but no negative
    // value, real() only F32 and F64.
    uint64_t integer(const std::string& key) const;
    uint64_t integer(const std::string& key, uint64_t fallback) const;
    double real(const std::string& key) const;
    double real(const std::string& key, double fallback) const;
    bool boolean(const std::string& key, bool fallback) const;
    std::string string(const std::string& key) const;
    std::string string(const std::string& key, const std::string& fallback) const;

private:
    std::vector<std::pair<std::string, GgufValue>> entries_;
    std::map<std::string, size_t> index_;
};

// A tensor of the file. `shape` is in ggml's order: shape[0] is the contiguous dimension.
struct GgufTensor {
    std::string name;
    DType type = DType::F32;
    std::vector<int64_t> shape;  // 1 to 4 dimensions
    std::span<const std::byte> data;
};

// A memory-mapped GGUF file. Its spans are valid as long as the object lives.
class GgufFile {
public:
    // Throws Error(io) when the file cannot be read, Error(input) naming file, key or tensor and the expected
    // value when it is malformed, Error(unsupported) for unknown versions and tensor types.
    static std::shared_ptr<const GgufFile> open(const std::string& path);
    // The same for bytes in memory (for fuzzing); `bytes` must outlive the object.
    static std::shared_ptr<const GgufFile> parse(std::span<const std::byte> bytes, const std::string& label);

    const GgufMetadata& metadata() const { return metadata_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const MappedFile* file() const { return file_.get(); }

private:
    void read(std::span<const std::byte> bytes, const std::string& label);
    std::unique_ptr<MappedFile> file_;
    GgufMetadata metadata_;
    std::vector<GgufTensor> tensors_;
};

// A tensor to write. `produce` is called once, in the order of the tensors, and must pass exactly the
// tensor's bytes to its sink.
struct GgufOutputTensor {
    std::string name;
    DType type = DType::F32;
    std::vector<int64_t> shape;
    std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> produce;
};

// Writes atomically (see AtomicFile), holding one tensor in memory at a time. `progress` gets the size and
// name of each written tensor, not a running total. Throws Error(internal) when a value does not fit its
// type, GGUF cannot describe a tensor, or `produce` gives another number of bytes.
void write_gguf(const std::string& path, bool overwrite, const GgufMetadata& metadata,
                const std::vector<GgufOutputTensor>& tensors,
                const std::function<void(uint64_t bytes, const std::string& tensor)>& progress = {});

}  // namespace refold
