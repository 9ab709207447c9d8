#include "compress/registry.h"

#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace refold {

const Method& find_method(const std::string& name, const std::string& place) {
    std::vector<std::string> known;
    for (const Method* method : methods()) {
        if (name == method->name) return *method;
        known.emplace_back(method->name);
    }
    fail(ErrorCode::usage, "recipe", "unknown method '{}'{}; {}", name,
         place.empty() ? "" : fmt::format(" ({})", place), suggestion(name, known));
}

}  // namespace refold
