// Models with a weight that is NaN, infinite, or too large for the type it is to get: every verb says which
// one.
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "io/gguf.h"

namespace refold {
namespace {

using testing::HasSubstr;

// Every export can hold it.
const std::string kPlainModel = kFixtures + "/llama/model.gguf";

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

class BrokenNumbers : public testing::Test {
protected:
    void SetUp() override { write_random_text(text_); }

    // The tiny model with `bytes` in a tensor from this offset on.
    void write_broken(const std::string& path, const std::string& source, const std::string& tensor,
                      size_t offset, std::string_view bytes) const {
        const auto file = GgufFile::open(source);
        for (const GgufTensor& t : file->tensors()) {
            if (t.name != tensor) continue;
            std::string all = read_all(source);
            const auto at = static_cast<size_t>(t.data.data() - file->file()->bytes().data());
            all.replace(at + offset, bytes.size(), bytes);
            return write_all(path, all);
        }
        FAIL() << tensor;
    }
    // Row 3, column 5 of a matrix of 64 columns.
    std::string with_number(float value) const {
        char bytes[sizeof(value)];
        memcpy(bytes, &value, sizeof(value));
        write_broken(model_, kPlainModel, kTensor, (3 * 64 + 5) * sizeof(value), {bytes, sizeof(value)});
        return model_;
    }

    std::vector<std::string> command(const std::string& verb, const std::string& model) const {
        const std::string out = folder_ / "out";
        const std::vector<std::string> calibration = {"--calib", text_, "--calib-tokens", "512"};
        std::vector<std::string> words;
        if (verb.starts_with("quantize ")) words = {"quantize", model, "--type", verb.substr(9), "-o", out};
        if (verb.starts_with("export ")) words = {"export", model, "--to", verb.substr(7), "-o", out};
        if (verb.starts_with("compress ")) words = {"compress", model, "--method", verb.substr(9), "-o", out};
        if (verb == "fit") words = {"fit", model, "--ratio", "0.5", "--probe-tokens", "256", "-o", out};
        if (verb == "imatrix") words = {"imatrix", model, "-o", out, "--sequence-length", "256"};
        if (verb == "eval ppl") words = {"eval", "ppl", model, "--text", text_, "--max-windows", "1"};
        if (verb == "compare") words = {"compare", model, kPlainModel, "--text", text_, "--max-windows", "1"};
        if (verb == "analyze") words = {"analyze", model};
        if (verb == "run") words = {"run", model, "-p", "abc", "-n", "2"};
        if (verb == "logits") words = {"logits", model, "--tokens", "1,2,3", "-o", out};
        if (verb == "fit" || verb == "imatrix" || verb == "analyze" || verb == "compress narrow")
            words.insert(words.end(), calibration.begin(), calibration.end());
        return words;
    }
    void expect_refused(const std::string& verb, const std::string& model,
                        const std::vector<std::string>& parts) {
        SCOPED_TRACE(verb);
        const Outcome outcome = refold(command(verb, model));
        EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
        EXPECT_THAT(outcome.err, HasSubstr("refold: error: "));
        for (const auto& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
        EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
    }

    static constexpr const char* kTensor = "blk.1.ffn_up.weight";
    TempFolder folder_;
    std::string text_ = folder_ / "text.txt", model_ = folder_ / "broken.gguf";
};

TEST_F(BrokenNumbers, VerbsNameTheTensorAndTheElement) {
    for (const auto& [value, text] : {std::pair{kNan, "nan"}, {kInfinity, "inf"}, {-kInfinity, "-inf"}}) {
        const std::string model = with_number(value);
        for (const char* verb : {"quantize f32", "quantize f16", "quantize bf16", "quantize q8_0",
                                 "quantize q4_0", "quantize q4_k", "export gguf", "export hf",
                                 "export native", "compress direct_share", "compress prune_magnitude",
                                 "compress narrow", "fit", "imatrix", "eval ppl", "compare", "analyze"}) {
            expect_refused(
                verb, model,
                {fmt::format("tensor '{}': row 3, column 5 is {}, expected a finite number", kTensor, text)});
            if (value != kNan && std::string(verb).starts_with("compress")) break;  // as for NaN
        }
    }
}

// Only what is computed shows it where the weights are not read first.
TEST_F(BrokenNumbers, LogitsThatAreNotFinite) {
    for (const float value : {kNan, kInfinity}) {
        const std::string model = with_number(value);
        expect_refused("logits", model,
                       {"the logits after token 0 of the text are not finite", "for token id "});
        expect_refused("run", model, {"of the text are not finite"});
    }
    // Finite weights, activations that overflow.
    expect_refused("logits", with_number(3e38F), {"the logits after token "});
    expect_refused("eval ppl", with_number(3e38F), {"the logits after token "});
    expect_refused("imatrix", with_number(3e38F), {"is not finite for the calibration text"});
}

TEST_F(BrokenNumbers, NumbersThatAreTooLarge) {
    expect_refused("quantize f16", with_number(70000),
                   {kTensor, "row 3, column 5 is 70000", "too large for F16"});
    expect_refused("quantize q4_0", with_number(1e30F),
                   {kTensor, "row 3, column 5 is 1e+30", "too large for Q4_0"});
    expect_refused("quantize q6_k", with_number(1e30F),
                   {kTensor, "row 3, column 5 is 1e+30", "too large for "});
    const Outcome fits = refold(command("quantize bf16", with_number(70000)));
    EXPECT_EQ(fits.code, 0) << fits.err;
}

// Types keep their bytes where nothing changes them, so scales that are NaN went through.
TEST_F(BrokenNumbers, QuantizedSourcesWithBrokenScales) {
    for (const char* type : {"q8_0", "q4_1", "f16"}) {
        const std::string good = folder_ / "good.gguf", broken = folder_ / "broken.gguf";
        const Outcome made = refold({"quantize", kPlainModel, "--type", type, "-o", good, "--overwrite"});
        ASSERT_EQ(made.code, 0) << made.err;
        write_broken(broken, good, kTensor, 0, std::string_view("\x00\x7E", 2));
        for (const char* verb : {"export native", "export gguf", "export hf", "quantize q4_0", "quantize f32",
                                 "compress direct_share", "eval ppl"})
            expect_refused(verb, broken, {fmt::format("tensor '{}': row 0, column 0 is nan", kTensor)});
    }
}

TEST_F(BrokenNumbers, AFolderForTransformersKeepsItsType) {
    const Outcome half =
        refold({"export", with_number(70000), "--to", "hf", "--type", "f16", "-o", folder_ / "out"});
    EXPECT_EQ(half.code, 1);
    EXPECT_THAT(half.err,
                HasSubstr("tensor 'blk.1.ffn_up.weight': row 3, column 5 is 70000, which is too large"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace refold
