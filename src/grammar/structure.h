// Formats as XGrammar's structural tags, to be put together with what may stand around them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "refold/output_format.h"

namespace refold {

// Not OutputFormat::Kind::any. Throws as GrammarCompiler::compile() does, for schemas that are not
// enforceable and for formats that are no tag by themselves.
nlohmann::ordered_json structure_of(const OutputFormat& format);

}  // namespace refold
