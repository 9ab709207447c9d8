#include "cli/output.h"

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/group.h"

namespace refold::cli {

void print(std::string_view text) {
    if (!group().first()) return;
    if (fwrite(text.data(), 1, text.size(), stdout) != text.size() || fflush(stdout) != 0) {
        fail(ErrorCode::io, "output", "cannot write to standard output: {}", strerror(errno));
    }
}

void note(const std::string& text) {
    if (group().first()) fputs(text.c_str(), stderr);
}

void print_json(const nlohmann::ordered_json& value, bool one_line) {
    print(value.dump(one_line ? -1 : 2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace refold::cli
