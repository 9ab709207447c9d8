// --engine and --device of verbs that calibrate.
#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kText = kFixtures + "/README.md";

std::vector<std::string> refit(const std::string& output, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "compress", kModel, "--method",       "quantize", "--set",     "type=q8_0", "--set", "rounding=gptq",
        "--calib",  kText,  "--calib-tokens", "2048",     "--threads", "1",         "-o",    output};
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

TEST(CalibrationDevice, OthersThanTheCpuNeedTheTorchEngine) {
    const TempFolder folder;
    expect_error(refold(refit(folder / "a.gguf", {"--device", "cuda"})), 2, {"cuda", "--engine torch"});
    expect_error(refold({"fit", kModel, "--ratio", "0.9", "--calib", kText, "-o", folder / "a.gguf",
                         "--device", "vulkan0"}),
                 2, {"vulkan0", "--engine torch"});
    expect_error(refold({"imatrix", kModel, "--calib", kText, "-o", folder / "a.gguf", "--device", "auto"}),
                 2, {"auto", "--engine torch"});
    expect_error(refold({"quantize", kModel, "--type", "q8_0", "-o", folder / "a.gguf", "--engine", "torch"}),
                 2, {"--rounding"});
    EXPECT_THAT(folder.files(), IsEmpty());
}

#ifdef REFOLD_HAVE_TORCH
TEST(CalibrationDevice, IsNamedInReports) {
    const TempFolder folder;
    const json by_ggml = refold_json(refit(folder / "a.gguf", {"--device", "cpu"})),
               by_torch = refold_json(refit(folder / "b.gguf", {"--engine", "torch", "--device", "cpu"}));
    EXPECT_EQ(by_ggml["engine"], "ggml");
    EXPECT_EQ(by_ggml["device"], "cpu");
    EXPECT_EQ(by_torch["engine"], "torch");
    EXPECT_EQ(by_torch["device"], "cpu");
    EXPECT_EQ(by_ggml["after"], by_torch["after"]);
    const Outcome text = refold(refit(folder / "c.gguf", {"--engine", "torch", "--device", "cpu"}));
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("computed by the torch engine on cpu"));
    const json fitted = refold_json({"fit",
                                     kModel,
                                     "--ratio",
                                     "0.9",
                                     "--calib",
                                     kText,
                                     "--calib-tokens",
                                     "96",
                                     "--sequence-length",
                                     "16",
                                     "--probe-tokens",
                                     "32",
                                     "--threads",
                                     "1",
                                     "-o",
                                     folder / "d.gguf",
                                     "--engine",
                                     "torch",
                                     "--device",
                                     "cpu"});
    EXPECT_EQ(fitted["engine"], "torch");
    EXPECT_EQ(fitted["device"], "cpu");
}

TEST(CalibrationDevice, HasToBeThere) {
    const TempFolder folder;
    expect_error(refold(refit(folder / "a.gguf", {"--engine", "torch", "--device", "gpu"})), 2,
                 {"'gpu'", "cuda:N"});
    EXPECT_NE(refold(refit(folder / "a.gguf", {"--engine", "torch", "--device", "cuda:99"})).code, 0);
    EXPECT_THAT(folder.files(), IsEmpty());
}
#else
TEST(CalibrationDevice, NeedsLibtorch) {
    const TempFolder folder;
    expect_error(refold(refit(folder / "a.gguf", {"--engine", "torch"})), 1,
                 {"no torch engine", "libtorch-dev"});
}
#endif

}  // namespace
}  // namespace refold
