// The papers' models: shapes from the configurations in papers/models.
#pragma once

#include <string>

#include "model/load.h"

namespace refold {

// `name`: as in the papers' tables, "llama2-7b".
inline std::string paper_config(const std::string& name) {
    return std::string(REFOLD_FIXTURES) + "/../../papers/models/" + name + ".json";
}
inline Model paper_model(const std::string& name) { return load_model(paper_config(name)); }

}  // namespace refold
