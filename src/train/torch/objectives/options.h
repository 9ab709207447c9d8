// Values of objectives' options. The recipe step has checked their names, types and ranges.
#pragma once

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "train/objective.h"

namespace refold {

inline const std::string& text_option(const ObjectiveOptions& options, const std::string& name) {
    const auto found = options.find(name);
    if (found == options.end())
        fail(ErrorCode::internal, "train", "the objective's option '{}' is missing", name);
    return found->second;
}

inline double number_option(const ObjectiveOptions& options, const std::string& name) {
    const std::string& text = text_option(options, name);
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0')
        fail(ErrorCode::usage, "train", "{}: got '{}', expected a number", name, text);
    return value;
}

}  // namespace refold
