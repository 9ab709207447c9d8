// The exception that all of refold throws.
#pragma once

#include <stdexcept>
#include <string>

namespace refold {

enum class ErrorCode {
    usage,        // the caller asked for something that does not exist or is out of range
    input,        // a file, tensor, key or text is malformed
    io,           // the operating system refused: missing file, disk full, permission
    unsupported,  // valid input, but this build or version cannot handle it
    interrupted,  // cancelled by the caller, or by a signal
    internal,     // a bug in refold
};

// what() reads "[component] what: got X, expected Y (file, tensor or key) - what to do".
class Error : public std::runtime_error {
public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const noexcept { return code_; }

private:
    ErrorCode code_;
};

}  // namespace refold
