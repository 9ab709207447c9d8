// The model that most tests of the program use: a Llama of 4 layers with its tokenizer.
#pragma once

#include <fstream>
#include <random>
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

// Words of random letters, enough for a calibration.
inline void write_random_text(const std::string& path, uint32_t seed = 1, int letters = 4000) {
    std::mt19937 random(seed);
    std::ofstream out(path);
    for (int i = 0; i < letters; ++i)
        out << static_cast<char>('a' + random() % 26) << (i % 6 == 5 ? " " : "");
}

}  // namespace refold
