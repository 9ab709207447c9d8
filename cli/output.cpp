#include "cli/output.h"

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace refold::cli {

void print(std::string_view text) {
    if (fwrite(text.data(), 1, text.size(), stdout) != text.size() || fflush(stdout) != 0) {
        fail(ErrorCode::io, "output", "cannot write to standard output: {}", strerror(errno));
    }
}

void print_json(const nlohmann::ordered_json& value, bool one_line) {
    print(value.dump(one_line ? -1 : 2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace refold::cli
