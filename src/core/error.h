// One error style for the whole project: refold::Error of the public header.
#pragma once

#include <fmt/format.h>

#include "refold/error.h"

namespace refold {

// Throws Error with "[component] " before the formatted text.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const char* component, fmt::format_string<Args...> format,
                       Args&&... args) {
    throw Error(code, fmt::format("[{}] {}", component, fmt::format(format, std::forward<Args>(args)...)));
}

// 1 failure, 2 wrong usage, 130 interrupted.
int exit_code(ErrorCode code) noexcept;

}  // namespace refold
