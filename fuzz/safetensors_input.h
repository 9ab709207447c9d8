// safetensors files as inputs whose header can change its length: the header, a zero byte, the data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace refold {

// The file of an input. One that begins with "=" is the file itself, after that character.
inline std::string safetensors_bytes(std::string_view input) {
    if (input.starts_with('=')) return std::string(input.substr(1));
    const size_t end = std::min(input.find('\0'), input.size());
    const uint64_t length = end;
    std::string out(reinterpret_cast<const char*>(&length), sizeof(length));
    out += input.substr(0, end);
    if (end < input.size()) out += input.substr(end + 1);
    return out;
}

// The input of a valid file.
inline std::string safetensors_input(const std::string& file) {
    uint64_t length = 0;
    memcpy(&length, file.data(), sizeof(length));
    return file.substr(sizeof(length), length) + '\0' + file.substr(sizeof(length) + length);
}

}  // namespace refold
