// refold quantize: with text, as the method of the same name.
#include <filesystem>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

class QuantizeVerb : public testing::Test {
protected:
    void SetUp() override { write_random_text(text_); }
    std::vector<std::string> quantize(std::vector<std::string> more) const {
        std::vector<std::string> words = {"quantize", kModel, "--type", "q4_0", "--threads", "1"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }

    TempFolder folder_;
    std::string text_ = folder_ / "text.txt";
};

TEST_F(QuantizeVerb, RoundsAsTheMethod) {
    const std::string by_verb = folder_ / "verb.gguf", by_method = folder_ / "method.gguf";
    const Outcome verb =
        refold(quantize({"--rounding", "gptq", "--calib", text_, "--calib-tokens", "2048", "--types",
                         "attn.v@0=q8_0", "--embedding-type", "q8_0", "-o", by_verb}));
    ASSERT_EQ(verb.code, 0) << verb.err;
    const Outcome method = refold({"compress", kModel, "--method", "quantize", "--set", "type=q4_0", "--set",
                                   "types=attn.v@0=q8_0", "--set", "embedding=q8_0", "--calib", text_,
                                   "--calib-tokens", "2048", "-o", by_method});
    ASSERT_EQ(method.code, 0) << method.err;
    EXPECT_TRUE(read_all(by_verb) == read_all(by_method));
}

TEST_F(QuantizeVerb, ReadsAnImportanceMatrix) {
    const std::string matrix = folder_ / "imatrix.gguf";
    ASSERT_EQ(refold({"imatrix", kModel, "--calib", text_, "--calib-tokens", "2048", "-o", matrix}).code, 0);
    const Outcome out =
        refold(quantize({"--rounding", "imatrix", "--imatrix", matrix, "-o", folder_ / "a.gguf"}));
    ASSERT_EQ(out.code, 0) << out.err;
    const Outcome nearest = refold(quantize({"-o", folder_ / "b.gguf"}));
    ASSERT_EQ(nearest.code, 0) << nearest.err;
    EXPECT_FALSE(read_all(folder_ / "a.gguf") == read_all(folder_ / "b.gguf"));
}

TEST_F(QuantizeVerb, SaysWhatIsWrong) {
    const std::string out = folder_ / "a.gguf";
    const auto refused = [&](const std::vector<std::string>& more, const char* message) {
        expect_error(refold(quantize(more)), 2, {message});
    };
    refused({"-o", out, "--rounding", "gptq"}, "needs text: give --calib");
    refused({"-o", out, "--calib", text_}, "is for --rounding gptq or imatrix");
    refused({"-o", out, "--imatrix", "x.gguf"}, "is for --rounding imatrix");
    refused({"-o", out, "--rounding", "up"}, "up not in");
    refused({"-o", out, "--types", "attn.x=q8_0"}, "attn.x");
    EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace refold
