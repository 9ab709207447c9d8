// Arrays of GGUF metadata as vectors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"

namespace refold {

GgufValue string_array(std::vector<std::string> strings);
GgufValue float_array(const std::vector<float>& numbers);
GgufValue double_array(const std::vector<double>& numbers);
GgufValue int_array(const std::vector<int32_t>& numbers);
GgufValue byte_array(std::string_view bytes);

// Empty when the key is missing. Throws Error(input) naming the key when it has another type.
const std::vector<std::string>& strings_of(const GgufMetadata& metadata, const std::string& key);
std::vector<float> floats_of(const GgufMetadata& metadata, const std::string& key);
std::vector<double> doubles_of(const GgufMetadata& metadata, const std::string& key);
std::vector<int32_t> ints_of(const GgufMetadata& metadata, const std::string& key);
// Of signed or unsigned bytes.
std::string bytes_of(const GgufMetadata& metadata, const std::string& key);

}  // namespace refold
