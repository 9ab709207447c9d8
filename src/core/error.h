// One error style for the whole project: exceptions derived from refold::Error.
// Text: "[component] what: got X, expected Y (file/tensor/key) - what to do".
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace refold {

enum class ErrorCode {
    usage,        // the caller asked for something that does not exist or is out of range (exit code 2)
    input,        // a file, tensor, key or text is not what it should be (exit code 1)
    io,           // the operating system refused: missing file, disk full, permission (exit code 1)
    unsupported,  // valid input, but this build or version cannot handle it (exit code 1)
    interrupted,  // Ctrl-C or SIGTERM (exit code 130)
    internal,     // a mistake of ours (exit code 1)
};

class Error : public std::runtime_error {
public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const noexcept { return code_; }

private:
    ErrorCode code_;
};

// Throws Error with "[component] " before the formatted text.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const char* component, fmt::format_string<Args...> format,
                       Args&&... args) {
    throw Error(code, fmt::format("[{}] {}", component, fmt::format(format, std::forward<Args>(args)...)));
}

// 0 done, 1 failed, 2 wrong usage, 130 interrupted.
int exit_code(ErrorCode code) noexcept;

}  // namespace refold
