// The model that most tests of the program use: a Llama of 4 layers with its tokenizer.
#pragma once

#include <string>

#include "cli/refold.h"

namespace refold {

inline const std::string kFixtures = REFOLD_FIXTURES;
inline const std::string kModel = kFixtures + "/llama_gqa/model.gguf";

// Writes the model with heads shared by direct_share to `output`.
inline void share(const std::string& output, const std::string& ratio = "0.3") {
    const Outcome done =
        refold({"compress", kModel, "-o", output, "--method", "direct_share", "--set", "ratio=" + ratio});
    ASSERT_EQ(done.code, 0) << done.err;
}

}  // namespace refold
