// refold fit.
#include <filesystem>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Fit : public testing::Test {
protected:
    void SetUp() override { write_random_text(text_); }

    std::vector<std::string> fit(std::vector<std::string> more) const {
        std::vector<std::string> words = {"fit",  kModel,           "--calib", text_, "--calib-tokens",
                                          "2048", "--probe-tokens", "256"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }

    TempFolder folder_;
    std::string text_ = folder_ / "text.txt";
};

TEST_F(Fit, WritesTheModelAndARecipeThatGivesItAgain) {
    const json j = refold_json(fit({"--ratio", "0.9", "-o", folder_ / "a.gguf", "--work", folder_ / "work"}));
    expect_keys(
        j, {"predicted_bytes", "predicted_divergence", "predicted_divergence_of_matrices",
            "predicted_divergence_of_tables", "types", "output", "recipe_file", "file_bytes", "divergence"});
    EXPECT_LE(j["file_bytes"].get<double>(), 0.9 * static_cast<double>(std::filesystem::file_size(kModel)));
    EXPECT_GT(j["divergence"].get<double>(), 0);
    const Outcome again =
        refold({"compress", "--recipe", folder_ / "a.recipe.yaml", "-o", folder_ / "b.gguf"});
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(read_all(folder_ / "a.gguf") == read_all(folder_ / "b.gguf"));

    const json stock = refold_json(
        fit({"--ratio", "0.9", "-o", folder_ / "c.gguf", "--work", folder_ / "work", "--for", "llama.cpp"}));
    EXPECT_LE(stock["file_bytes"].get<double>(),
              0.9 * static_cast<double>(std::filesystem::file_size(kModel)));

    const json plan = refold_json(fit({"--bpw", "9", "--work", folder_ / "work", "--dry-run"}));
    EXPECT_EQ(plan["dry_run"], true);
    EXPECT_THAT(plan["types"].get<std::string>(), HasSubstr("ffn.down"));
}

// Rows of 64 numbers can have types with blocks of 256 only in refold's own layout.
TEST_F(Fit, ForLlamaCppTypesHaveWholeBlocks) {
    const auto types = [&](const std::string& target) -> std::string {
        return refold_json(
            fit({"--ratio", "0.2", "--dry-run", "--work", folder_ / "work", "--for", target}))["types"];
    };
    EXPECT_THAT(types("refold"), HasSubstr("_k"));
    EXPECT_THAT(types("llama.cpp"), testing::Not(HasSubstr("_k")));

    share(folder_ / "shared.gguf");
    const Outcome shared = refold({"fit", folder_ / "shared.gguf", "--for", "llama.cpp", "--ratio", "0.6",
                                   "--calib", text_, "-o", folder_ / "a.gguf"});
    expect_error(shared, 1, {"not a model that llama.cpp loads", "refold export --to gguf"});
}

TEST_F(Fit, MakesTheCacheSmaller) {
    const json out = refold_json(fit({"--ratio", "0.2", "--kv-per-token", "256B", "--moves",
                                      "types,narrow,llmdrop", "-o", folder_ / "a.gguf"}));
    EXPECT_LE(out["kv_bytes_per_token"], 256);
    EXPECT_GE(out["ways"].size(), 2U);
    const json cost = refold_json({"inspect", folder_ / "a.gguf"});
    EXPECT_EQ(cost["accounting"]["model"]["kv_bytes_per_token"], out["kv_bytes_per_token"]);
}

TEST_F(Fit, FindsTheBestSettingsOfAMethod) {
    const std::vector<std::string> words =
        fit({"--ratio", "0.9", "--moves", "direct_share", "--work", folder_ / "work"});
    const auto with = [&](const std::vector<std::string>& more) {
        std::vector<std::string> out = words;
        out.insert(out.end(), more.begin(), more.end());
        return out;
    };
    const json j = refold_json(with({"-o", folder_ / "a.gguf"}));
    EXPECT_LE(j["file_bytes"].get<double>(), 0.9 * static_cast<double>(std::filesystem::file_size(kModel)));
    ASSERT_GT(j["ways"].size(), 3U);
    EXPECT_EQ(j["way"], j["ways"][0]["way"]);
    EXPECT_THAT(j["way"].get<std::string>(), HasSubstr("direct_share match="));
    for (const json& way : j["ways"]) EXPECT_GE(way["divergence"], j["ways"][0]["divergence"]);
    EXPECT_EQ(j["types"], "");
    EXPECT_TRUE(j["decode"].is_null());
    const Outcome again =
        refold({"compress", "--recipe", folder_ / "a.recipe.yaml", "-o", folder_ / "b.gguf"});
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(read_all(folder_ / "a.gguf") == read_all(folder_ / "b.gguf"));
    // The plan that a dry run shows is the one that was carried out.
    const json plan = refold_json(with({"--dry-run"}));
    EXPECT_EQ(plan["ways"], j["ways"]);
    EXPECT_EQ(plan["predicted_divergence"], j["predicted_divergence"]);
}

// Whatever the speeds of this machine are.
TEST_F(Fit, PredictsAndMeasuresTheDecodeSpeed) {
    const std::vector<std::string> words = fit({"--ratio", "0.3", "--threads", "1", "--work",
                                                folder_ / "work", "-o", folder_ / "a.gguf", "--overwrite"});
    const auto with = [&](const char* speed) {
        std::vector<std::string> out = words;
        out.insert(out.end(), {"--decode-speed", speed});
        return out;
    };
    const json speed = refold_json(with("0.000001"))["decode"];
    expect_keys(speed, {"wanted_ratio", "context", "predicted_ratio", "predicted_tokens_per_s", "ratio",
                        "tokens_per_s", "original_tokens_per_s"});
    EXPECT_GT(speed["predicted_ratio"], 0.000001);
    EXPECT_GT(speed["ratio"], 0.0);
    EXPECT_EQ(speed["context"], 224);
    expect_error(refold(with("1000000")), 2,
                 {"predicted to decode 1000000.00 times as fast", "the fastest one is"});
}

TEST_F(Fit, SaysWhatIsWrong) {
    const auto refused = [&](const std::vector<std::string>& words, const char* message) {
        const Outcome out = refold(words);
        EXPECT_EQ(out.code, 2) << message << out.err;
        EXPECT_THAT(out.err, HasSubstr(message));
    };
    const std::string out = folder_ / "a.gguf";
    refused(fit({"-o", out}), "Exactly 1 option from [--size,--ratio,--bpw,--frontier]");
    refused(fit({"--size", "1GB", "--ratio", "0.5", "-o", out}), "2 were given");
    refused(fit({"--size", "70 bananas", "-o", out}), "expected a size such as 70MiB");
    refused(fit({"--size", "1MiB"}), "give --output");
    refused(fit({"--size", "1MiB", "--dry-run"}), "give --work");
    refused(fit({"--size", "10KiB", "-o", out}), "the smallest file has");
    refused(fit({"--size", "1MiB", "-o", out, "--for", "ollama"}), "ollama not in {refold,llama.cpp}");
    refused(fit({"--size", "1GB", "-o", out}), "use the model as it is");
    refused(fit({"--ratio", "1", "-o", out}), "use the model as it is");
    refused(fit({"--bpw", "32", "-o", out}), "use the model as it is");
    refused(fit({"--ratio", "0.3", "-o", out, "--kv-per-token", "1GB"}), "which is no more than");
    refused(fit({"--ratio", "0.3", "-o", out, "--kv-per-token", "1B"}), "none of narrow, llmdrop");
    refused(fit({"--ratio", "0.3", "-o", out, "--kv-per-token", "256B", "--moves", "types"}),
            "types do not change the KV cache");
    refused(fit({"--ratio", "0.3", "-o", out, "--moves", "direct_share"}),
            "the smallest file they reach has");
    refused(fit({"--ratio", "0.3", "-o", out, "--moves", "narrow", "--for", "llama.cpp"}), "leave out");
    refused(fit({"--frontier", "0.3MiB", "--text", text_, "-o", folder_ / "f", "--moves", "narrow"}),
            "give one size, or add types");
    refused(fit({"--frontier", "0.3MiB", "--text", text_, "-o", folder_ / "f", "--decode-speed", "2"}),
            "the speed goes with one size");
    refused(fit({"--ratio", "0.3", "-o", out, "--decode-speed", "-1"}), "Value -1 not in range");
    refused(fit({"--ratio", "0.3", "-o", out, "--kv-per-token", "x"}), "--kv-per-token x: expected a size");
    refused(fit({"--ratio", "0.3", "-o", out, "--moves", "prune"}), "prune not in");
    refused(fit({"--ratio", "0.3", "-o", out, "--kv-per-token", "256B", "--for", "llama.cpp"}),
            "leave out one of them");
    // Before anything is measured.
    EXPECT_FALSE(std::filesystem::exists(out));
    EXPECT_FALSE(std::filesystem::exists(out + ".fit"));
}

}  // namespace
}  // namespace refold
