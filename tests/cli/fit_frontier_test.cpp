// refold fit --frontier.
#include <filesystem>

#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "report/markup_check.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class FitFrontier : public testing::Test {
protected:
    void SetUp() override {
        write_random_text(text_);
        write_random_text(held_out_, 2, 1200);
    }

    std::vector<std::string> fit(const std::string& sizes, std::vector<std::string> more = {}) const {
        std::vector<std::string> words = {"fit",
                                          kModel,
                                          "--frontier",
                                          sizes,
                                          "--calib",
                                          text_,
                                          "--calib-tokens",
                                          "2048",
                                          "--work",
                                          folder_ / "work",
                                          "--threads",
                                          "1",
                                          "--probe-tokens",
                                          "256",
                                          "--max-windows",
                                          "2"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }
    std::vector<std::string> measured(const std::string& sizes, std::vector<std::string> more = {}) const {
        std::vector<std::string> words = fit(sizes, {"--text", held_out_, "-o", folder_ / "out"});
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }
    // Kilobytes of a part of the model's size.
    static std::string part(double of) {
        return std::to_string(static_cast<int>(of * static_cast<double>(fs::file_size(kModel)) / 1000));
    }

    TempFolder folder_;
    std::string text_ = folder_ / "text.txt", held_out_ = folder_ / "held_out.txt";
    const std::vector<std::string> variables_ = {"REFOLD_CACHE=" + (folder_ / "cache")};
    const std::string small_ = part(0.2), large_ = part(0.26);
    const std::string sizes_ = large_ + "," + small_ + "KB";
    const std::string small_file_ = folder_ / ("out/out-" + small_ + "KB.gguf"),
                      large_file_ = folder_ / ("out/out-" + large_ + "KB.gguf");
};

TEST_F(FitFrontier, WritesAFileOfEachSizeAndAPage) {
    const Outcome other = refold({"quantize", kModel, "--type", "q8_0", "-o", folder_ / "theirs.gguf"});
    ASSERT_EQ(other.code, 0) << other.err;
    const json j = refold_json(measured(sizes_, {"--compare", folder_ / "theirs.gguf"}), "", variables_);
    ASSERT_EQ(j["files"].size(), 3U);
    const json &small = j["files"][0], &large = j["files"][1], &theirs = j["files"][2];
    EXPECT_EQ(small["name"], small_ + "KB");
    EXPECT_EQ(small["file_bytes"], fs::file_size(small_file_));
    EXPECT_LE(small["file_bytes"], 1000 * std::stoi(small_));
    EXPECT_GT(small["file_bytes"], 700 * std::stoi(small_));
    EXPECT_GT(small["kl_divergence"], large["kl_divergence"]);
    EXPECT_GT(large["kl_divergence"], 0.0);
    EXPECT_EQ(theirs["name"], "theirs");
    EXPECT_EQ(theirs["made"], false);
    EXPECT_EQ(theirs["types"]["layers"][0]["attn.q"], "Q8_0");
    // The same as the verb that compares two models.
    const json compared = refold_json(
        {"compare", kModel, small_file_, "--text", held_out_, "--max-windows", "2", "--threads", "1"}, "",
        variables_);
    EXPECT_NEAR(small["kl_divergence"], compared["logits"]["kl_divergence"], 1e-9);
    EXPECT_NEAR(small["perplexity"], compared["b"]["perplexity"], 1e-9);
    EXPECT_NEAR(j["perplexity"], compared["a"]["perplexity"], 1e-9);

    EXPECT_EQ(j["page"], folder_ / "out.html");
    const std::string html = read_all(folder_ / "out.html");
    EXPECT_EQ(markup_error(html), "");
    for (const std::string& words : {small_ + "KB", std::string("theirs"), std::string("Recipe of")})
        EXPECT_THAT(html, HasSubstr(words));
    const Outcome again = refold({"compress", "--recipe", folder_ / ("out/out-" + small_ + "KB.recipe.yaml"),
                                  "-o", folder_ / "again.gguf"});
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(read_all(folder_ / "again.gguf") == read_all(small_file_));
}

TEST_F(FitFrontier, GoesOnWhereItWas) {
    const json first = refold_json(measured(sizes_), "", variables_);
    const std::string made = read_all(large_file_);
    const auto kept = fs::last_write_time(small_file_);
    // As when the run was interrupted before the second file.
    fs::remove(large_file_);
    fs::remove(folder_ / "out.html");
    const Outcome on = refold(measured(sizes_), "", variables_);
    EXPECT_EQ(on.code, 0) << on.err;
    EXPECT_THAT(on.err, HasSubstr(small_file_ + " is there already"));
    EXPECT_THAT(on.err, HasSubstr("wrote " + large_file_));
    EXPECT_EQ(fs::last_write_time(small_file_), kept);
    EXPECT_TRUE(read_all(large_file_) == made);

    // A complete run again, without the measurements: nothing is made, and the numbers are the same.
    fs::remove_all(folder_ / "work");
    expect_error(refold(measured(sizes_), "", variables_), 2, {"out.html", "exists"});
    const json second = refold_json(measured(sizes_, {"--overwrite"}), "", variables_);
    EXPECT_EQ(second["files"], first["files"]);
    EXPECT_FALSE(fs::exists(folder_ / "work"));
    EXPECT_EQ(fs::last_write_time(small_file_), kept);

    // Files of other settings are not taken for these.
    fs::remove(folder_ / "out.html");
    expect_error(refold(measured(sizes_, {"--for", "llama.cpp"}), "", variables_), 2,
                 {small_file_, "was made from something else"});
}

TEST_F(FitFrontier, ShowsPlansWithoutWritingThem) {
    const json j = refold_json(fit(sizes_, {"--dry-run"}));
    ASSERT_EQ(j["plans"].size(), 2U);
    EXPECT_EQ(j["plans"][0]["name"], small_ + "KB");
    EXPECT_LT(j["plans"][0]["predicted_bytes"], j["plans"][1]["predicted_bytes"]);
    EXPECT_GT(j["plans"][0]["predicted_divergence"], j["plans"][1]["predicted_divergence"]);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(FitFrontier, SaysWhatIsWrongBeforeAnyWork) {
    const auto refused = [&](const std::vector<std::string>& words, const std::string& message) {
        expect_error(refold(words, "", variables_), 2, {message});
    };
    refused(measured("10,20KB"), "no choice of types makes 9.8 KiB, 19.5 KiB; the smallest file has");
    refused(measured("10," + small_ + "KB"), "no choice of types makes 9.8 KiB; the smallest");
    refused(measured(small_ + "KB,1GB"), "use the model as it is");
    refused(measured(small_ + "," + small_ + "KB"), "is given twice");
    refused(measured(small_ + "kilo"), "expected a size such as");
    refused(measured(","), "expected a size such as");
    refused(fit(sizes_, {"-o", folder_ / "out"}), "give --text");
    refused(fit(sizes_, {"--text", held_out_, "-o", folder_ / "out.gguf"}), "it is a folder");
    refused(fit(sizes_, {"--text", text_, "-o", folder_ / "out"}), "is a calibration text, too");
    refused(
        {"fit", kModel, "--ratio", "0.6", "--calib", text_, "-o", folder_ / "a.gguf", "--text", held_out_},
        "are for --frontier");
    refused(
        {"fit", kModel, "--ratio", "0.6", "--calib", text_, "-o", folder_ / "a.gguf", "--compare", kModel},
        "are for --frontier");
    refused(measured(sizes_, {"--compare", kFixtures + "/llama/model.gguf"}), "as other tokens");
    EXPECT_FALSE(fs::exists(folder_ / "work"));
    EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace refold
