// safetensors files (format of the Hugging Face library of that name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"

namespace refold {

struct SafetensorsTensor {
    std::string name;
    std::vector<int64_t> shape;  // row major, slowest dimension first
    std::span<const float> data;
};

// Writes float32 tensors atomically, in the order given. Throws Error(internal) when names are not unique or
// the data does not fit the shape, Error(input) when a name or `metadata` is not UTF-8.
void write_safetensors(const std::string& path, bool overwrite, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// What to write: `produce` is called once, in order, and must give exactly the tensor's bytes to the sink.
struct SafetensorsOutput {
    std::string name;
    std::string dtype;           // "F32", "F16", "BF16"
    std::vector<int64_t> shape;  // row major, slowest dimension first
    std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> produce;
};

// As above, tensor by tensor: memory stays at one tensor. `progress` gets each tensor's size and name when it
// is written.
void write_safetensors(const std::string& path, bool overwrite, const std::vector<SafetensorsOutput>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(uint64_t bytes, const std::string& tensor)>& progress);

struct SafetensorsView {
    std::string dtype;  // as in the file: "F32", "I64", "BF16", ...
    std::vector<int64_t> shape;
    std::span<const std::byte> data;  // packed little endian; not aligned for its type
};

// A memory-mapped file; spans stay valid as long as the object lives.
struct SafetensorsFile {
    std::unique_ptr<const MappedFile> file;
    std::map<std::string, SafetensorsView> tensors;
    std::map<std::string, std::string> metadata;
};

// Throws Error(io) when the file cannot be read, Error(input) naming file and tensor when it is malformed
// (the data must be without gaps and overlaps, as the library demands), Error(unsupported) for other dtypes.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace refold
