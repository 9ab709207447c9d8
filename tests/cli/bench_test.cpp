// refold bench.
#include <sys/stat.h>

#include <filesystem>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Bench, ComparesWithStock) {
    const TempFolder folder;
    share(folder / "small.gguf");
    ASSERT_EQ(mkdir((folder / "tmp").c_str(), 0700), 0);
    const std::vector<std::string> variables = {"TMPDIR=" + folder / "tmp"};
    for (const std::string& model : {kModel, folder / "small.gguf"}) {
        const json j = refold_json({"bench", model, "--prefill", "16", "--decode", "4", "--rounds", "2",
                                    "--threads", "1", "--quiet"},
                                   "", variables);
        expect_keys(j, {"prefill", "decode", "read", "weight_bytes_resident", "weight_bytes_accounted",
                        "kv_bytes", "compute_bytes", "rss_bytes", "peak_rss_bytes", "load_seconds",
                        "first_token_seconds", "cpu", "threads"});
        double seconds = 0;
        for (const char* phase : {"prefill", "decode"}) {
            const double time = j[phase]["seconds"], per_token = j[phase]["ms_per_token"];
            EXPECT_NEAR(j[phase]["tokens_per_s"].get<double>() * per_token, 1000, 1e-6);
            EXPECT_NEAR(time * 1000, per_token * j[std::string(phase) + "_tokens"].get<double>(), 1e-6);
            seconds += time;
            EXPECT_GT(j[phase]["tokens_per_s"].get<double>(), 0);
            EXPECT_GT(j[phase]["baseline_tokens_per_s"].get<double>(), 0);
            EXPECT_GT(j[phase]["ratio"].get<double>(), 0);
            EXPECT_EQ(j[phase]["rounds"].size(), 2U);
            EXPECT_EQ(j[phase]["baseline_rounds"].size(), 2U);
        }
        EXPECT_NEAR(j["seconds"].get<double>(), seconds, 1e-9);
        // The tied table is read as the head; the vectors, too.
        EXPECT_LE(j["read"]["bytes_per_token"], j["weight_bytes_accounted"]);
        EXPECT_GE(j["read"]["bytes_per_token"].get<double>(),
                  0.5 * j["weight_bytes_accounted"].get<double>());
        EXPECT_GT(j["read"]["machine_bytes_per_s"].get<double>(), 1e8);
        EXPECT_EQ(j["baseline"]["engine"], "llama.cpp");
        EXPECT_EQ(j["baseline"]["materialized"], model != kModel);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder / "tmp"));
}

TEST(Bench, OtherBaselines) {
    const std::vector<std::string> words = {"bench",    kModel, "--prefill", "8", "--decode",  "2",
                                            "--rounds", "1",    "--threads", "1", "--baseline"};
    std::vector<std::string> none = words, other = words, unknown = words;
    none.emplace_back("none");
    other.push_back(kModel);
    unknown.emplace_back("/no/such.gguf");
    std::vector<std::string> bf16 = none;
    bf16.insert(bf16.end(), {"--precision", "bf16"});
    EXPECT_EQ(refold_json(bf16)["provenance"]["engine"]["precision"], "bf16");
    const json without = refold_json(none);
    EXPECT_EQ(without["baseline"], nullptr);
    EXPECT_EQ(without["decode"]["ratio"], nullptr);
    EXPECT_EQ(refold_json(other)["baseline"]["engine"], "refold");
    EXPECT_THAT(refold(none).out, HasSubstr("baseline: none"));
    EXPECT_THAT(refold(other).out, HasSubstr("baseline: refold on"));
    std::vector<std::string> stock_text = words;
    stock_text.emplace_back("stock");
    EXPECT_THAT(refold(stock_text).out, HasSubstr("baseline: llama.cpp on"));
    std::vector<std::string> stock_file = words, no_file = words;
    stock_file.push_back("stock:" + kModel);
    no_file.emplace_back("stock:/no/such.gguf");
    const json of_file = refold_json(stock_file);
    EXPECT_EQ(of_file["baseline"]["engine"], "llama.cpp");
    EXPECT_EQ(of_file["baseline"]["model"], kModel);
    expect_error(refold(no_file), 1, {"/no/such.gguf"});
    expect_error(refold(unknown), 1, {"/no/such.gguf"});
    // libllama refuses a file without a tokenizer; this engine does not need one.
    const json stock = refold_json({"bench", kFixtures + "/llama_bf16_sharded/model.gguf", "--prefill", "8",
                                    "--decode", "2", "--rounds", "1", "--threads", "1"});
    EXPECT_TRUE(stock["baseline"].is_object() || stock["baseline_reason"].is_string());
}

}  // namespace
}  // namespace refold
