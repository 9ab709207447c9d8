// All methods: CMake collects the files in the methods/ folders of the packages.
#pragma once

#include <span>
#include <string>

#include "compress/method/method.h"

namespace refold {

// In the order of the documentation: by package (src/compress/CMakeLists.txt), then by name.
std::span<const Method* const> methods();
// Throws Error(usage) with the nearest name; `place` as in GivenOption, may be empty.
const Method& find_method(const std::string& name, const std::string& place = "");

}  // namespace refold
