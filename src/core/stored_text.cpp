#include "core/stored_text.h"

#include "core/error.h"
#include "core/files.h"
#include "core/text.h"

namespace refold {

std::string read_stored_text(const std::string& path) {
    constexpr size_t kMost = size_t{1} << 30;
    const MappedFile file(path);
    const auto bytes = file.bytes();
    if (bytes.size() > kMost)
        fail(ErrorCode::input, "text", "'{}' has {}, expected at most {} - the file is damaged", path,
             format_bytes(bytes.size()), format_bytes(kMost));
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    check_text(text, path);
    return text;
}

void check_text(const std::string& text, const std::string& path) {
    if (text.empty()) fail(ErrorCode::input, "text", "'{}' is empty", path);
    if (const size_t at = find_invalid_utf8(text); at != std::string::npos) {
        fail(ErrorCode::input, "text",
             "'{}' is not UTF-8: invalid byte 0x{:02x} at offset {} - convert it first", path,
             static_cast<unsigned char>(text[at]), at);
    }
}

}  // namespace refold
