// Numbers of a model's description.
#pragma once

#include "serve/served_model.h"

namespace refold {

// The one at a JSON pointer, as "/stored/bytes"; 0 where the description has none.
inline uint64_t described(const ModelInfo& info, const char* pointer) {
    const nlohmann::ordered_json::json_pointer at(pointer);
    return info.description.contains(at) ? info.description.at(at).get<uint64_t>() : 0;
}

}  // namespace refold
