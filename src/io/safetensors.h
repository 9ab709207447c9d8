// Reader and writer of safetensors files (the format of Hugging Face's library of that name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"

namespace refold {

struct SafetensorsTensor {
    std::string name;
    std::vector<int64_t> shape;  // row major, slowest dimension first
    std::span<const float> data;
};

// Writes float32 tensors atomically, in the given order. Throws Error(internal) for duplicate names and for
// data that does not fit its shape, Error(input) when a name or `metadata` is not UTF-8.
void write_safetensors(const std::string& path, bool overwrite, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// A tensor to write. `produce` is called once, in the order of the tensors, and must pass exactly the
// tensor's bytes to its sink.
struct SafetensorsOutput {
    std::string name;
    std::string dtype;           // "F32", "F16", "BF16"
    std::vector<int64_t> shape;  // row major, slowest dimension first
    std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> produce;
};

// The same, holding one tensor in memory at a time. `progress` gets the size and name of each written tensor.
void write_safetensors(const std::string& path, bool overwrite, const std::vector<SafetensorsOutput>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(uint64_t bytes, const std::string& tensor)>& progress);

struct SafetensorsView {
    std::string dtype;  // as in the file: "F32", "I64", "BF16", ...
    std::vector<int64_t> shape;
    std::span<const std::byte> data;  // packed little endian, not aligned for its type
};

// Bytes of one element of a dtype; 0 for an unknown one.
uint64_t safetensors_element_bytes(std::string_view dtype);

// A memory-mapped file. Its spans are valid as long as the object lives.
struct SafetensorsFile {
    std::unique_ptr<const MappedFile> file;
    std::map<std::string, SafetensorsView> tensors;
    std::map<std::string, std::string> metadata;
};

// Throws Error(io) when the file cannot be read, Error(input) naming file and tensor when it is malformed
// (like the library, it allows no gaps or overlaps in the data), Error(unsupported) for other dtypes.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace refold
