// refold version.
#include <set>

#include "cli/refold.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(Version, NamesTheLevelsOfThisCpu) {
    const auto shown = refold_json({"version"});
    expect_keys(shown, {"version", "torch", "cpu"});
    const auto levels = shown["cpu"]["levels"].get<std::vector<std::string>>();
    ASSERT_FALSE(levels.empty());
    EXPECT_EQ(shown["cpu"]["level"], levels.front());
    EXPECT_THAT(refold({"version"}).out, HasSubstr(levels.front()));
}

// The same file on kernels of every level, of refold's and ggml's, as a machine of that level would run it.
TEST(Version, EveryLevelOfThisCpuComputesTheSame) {
    const auto levels = refold_json({"version"})["cpu"]["levels"].get<std::vector<std::string>>();
    std::set<std::string> variants;
    for (const std::string name : {"/quantized/f16.gguf", "/quantized/q4_1.gguf", "/quantized/q8_0.gguf"}) {
        const std::string fixtures = REFOLD_FIXTURES;
        double best = 0;
        for (const std::string& level : levels) {
            const std::vector<std::string> variables = {"REFOLD_CPU=" + level};
            const auto cpu = refold_json({"version"}, "", variables)["cpu"];
            EXPECT_EQ(cpu["level"], level);
            variants.insert(cpu["ggml"].get<std::string>());
            const double perplexity =
                refold_json({"eval", "ppl", fixtures + name, "--text", fixtures + "/README.md", "--context",
                             "64", "--max-windows", "2", "-t", "1"},
                            "", variables)["perplexity"]
                    .get<double>();
            if (best == 0) best = perplexity;
            EXPECT_NEAR(perplexity / best, 1, 0.01) << name << " " << level;
        }
    }
#if defined(__x86_64__)
    EXPECT_EQ(variants.size(), levels.size());
#endif
    expect_error(refold({"version"}, "", {"REFOLD_CPU=avx9000"}), 2, {"avx9000", levels.front()});
}

}  // namespace
}  // namespace refold
