// Hugging Face directories on the command line: read, written, quantized, compressed; decoders and encoders.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "cli/refold.h"
#include "core/error.h"
#include "engine/compare.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "model/paper_model.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string fixture(const std::string& name) { return std::string(REFOLD_FIXTURES) + "/hf/" + name; }

std::vector<float> floats(const std::string& path, const std::string& tensor) {
    const SafetensorsFile file = read_safetensors(path);
    const auto found = file.tensors.find(tensor);
    if (found == file.tensors.end()) return {};
    std::vector<float> out(found->second.data.size() / sizeof(float));
    memcpy(out.data(), found->second.data.data(), found->second.data.size());
    return out;
}

std::string listed(const std::string& path, const std::string& tensor) {
    const SafetensorsFile file = read_safetensors(path);
    std::string text;
    const auto& data = file.tensors.at(tensor).data;
    for (size_t i = 0; i < data.size(); i += sizeof(int64_t)) {
        int64_t value = 0;
        memcpy(&value, data.data() + i, sizeof(value));
        text += (text.empty() ? "" : ",") + std::to_string(value);
    }
    return text;
}

class Models : public testing::Test {
protected:
    // The program's logits for row 2 of the golden file.
    std::vector<float> logits(const std::string& model, const std::string& golden,
                              std::vector<std::string> more = {}) {
        std::vector<std::string> words = {
            "logits", model, "--tokens",        listed(golden + "/golden.safetensors", "input_ids.2"),
            "--f32",  "-o",  folder / "logits", "--overwrite"};
        words.insert(words.end(), more.begin(), more.end());
        const Outcome outcome = refold(words);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return floats(folder / "logits", "logits");
    }
    void succeeds(const std::vector<std::string>& words) {
        const Outcome outcome = refold(words);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    TempFolder folder;
};

TEST_F(Models, EveryWayInAndOutGivesTheSameLogits) {
    for (const char* name : {"gemma2", "gpt2_hub", "mistral", "baichuan_13b"}) {
        const std::string source = fixture(name), native = folder / "native.gguf", out = folder / "hf";
        const auto expected = floats(source + "/golden.safetensors", "logits.2");
        EXPECT_LE(largest_difference(logits(source, source), expected), 1e-4) << name;
        succeeds({"export", source, "--to", "native", "-o", native, "--overwrite"});
        EXPECT_LE(largest_difference(logits(native, source), expected), 1e-4) << name;
        succeeds({"export", native, "--to", "hf", "-o", out, "--overwrite"});
        EXPECT_LE(largest_difference(logits(out, source), expected), 1e-4) << name;
    }
}

TEST_F(Models, EncodersHaveTypesMasksAndThreeResults) {
    const std::string source = fixture("bert_hub"), golden = source + "/golden.safetensors",
                      out = folder / "out";
    const json report = refold_json({"logits", source, "--tokens", listed(golden, "input_ids.5"),
                                     "--token-types", listed(golden, "token_type_ids.5"), "--mask",
                                     listed(golden, "attention_mask.5"), "--f32", "-o", out});
    EXPECT_EQ(report["tensors"], (json{"logits", "last_hidden_state", "pooler_output"}));
    for (const auto& [ours, theirs] : {std::pair{"logits", "logits.5"},
                                       {"last_hidden_state", "last_hidden_state.5"},
                                       {"pooler_output", "pooler_output.5"}}) {
        const auto expected = floats(golden, theirs);
        if (!expected.empty()) {
            EXPECT_LE(largest_difference(floats(out, ours), expected), 1e-4) << ours;
        }
    }
    expect_error(refold({"logits", source, "--tokens", "1,2,3", "--mask", "1,1", "-o", out, "--overwrite"}),
                 1, {"2 mask values for 3 tokens"});
    expect_error(
        refold({"logits", source, "--tokens", "1,2", "--token-types", "0,7", "-o", out, "--overwrite"}), 1,
        {"token types must be 0 to 1"});
    expect_error(
        refold({"logits", fixture("gpt2_hub"), "--tokens", "1,2", "--mask", "1,1", "-o", out, "--overwrite"}),
        2, {"is a decoder"});
    expect_error(refold({"run", source, "-p", "x"}), 1, {"no tokenizer"});
    expect_error(refold({"logits", fixture("gpt2_hub"), "--tokens", "1,2", "--context", "4096", "-o", out,
                         "--overwrite"}),
                 2, {"at most 256, the model's learned positions"});
}

TEST_F(Models, QuantisingKeepsSharing) {
    const std::string shared = folder / "shared.gguf", small = folder / "small.gguf";
    succeeds(
        {"compress", fixture("llama_gqa"), "-o", shared, "--method", "direct_share", "--set", "ratio=0.25"});
    const json report = refold_json({"quantize", shared, "--type", "q8_0", "-o", small});
    EXPECT_EQ(report["shared"], true);
    EXPECT_LT(report["bytes"], report["bytes_before"].get<double>() / 3);
    const json before = refold_json({"inspect", shared}), after = refold_json({"inspect", small});
    EXPECT_EQ(before["accounting"]["model"]["parameters"], after["accounting"]["model"]["parameters"]);
    EXPECT_EQ(before["topology"], after["topology"]);
    const auto exact = logits(shared, fixture("llama_gqa")), rounded = logits(small, fixture("llama_gqa"));
    EXPECT_GT(largest_difference(exact, rounded), 1e-5);
    EXPECT_LT(largest_difference(exact, rounded), 0.3);
    // Rows of 64 elements are no K-quant blocks: another type is used and reported.
    EXPECT_FALSE(
        refold_json({"quantize", shared, "--type", "q4_k", "-o", small, "--overwrite"})["fallbacks"].empty());
    expect_error(refold({"quantize", shared, "--type", "q9", "-o", small}), 2, {"unknown type 'q9'"});
}

// TinyLlama: 22 layers of 44,044,288 parameters.
TEST_F(Models, ABareConfigIsInspectedAndPlanned) {
    const std::string config = folder / "config.json", out = folder / "out";
    std::filesystem::copy_file(paper_config("tinyllama-1.1b"), config);
    const json report = refold_json({"inspect", config});
    EXPECT_EQ(report["shapes_only"], true);
    EXPECT_EQ(report["file_bytes"], 0);
    EXPECT_EQ(report["accounting"]["model"]["parameters"], 1100048384);
    const Outcome text = refold({"inspect", folder / ""});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, testing::HasSubstr("shapes from config.json, no weights"));
    EXPECT_THAT(text.out, testing::HasSubstr("    0-21  own\n"));
    const json plan =
        refold_json({"compress", config, "--method", "recursive", "--set", "loops=2", "--dry-run"});
    EXPECT_EQ(plan["before"]["parameters"], 1100048384);
    EXPECT_EQ(plan["after"]["parameters"], 1100048384 - 11 * 44044288LL);
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"logits", config, "--tokens", "1,2", "-o", out},
          {"compress", config, "--method", "recursive", "-o", out},
          {"quantize", config, "--type", "q8_0", "-o", out}}) {
        expect_error(refold(words), 1, {"no weights", "config.json"});
        EXPECT_FALSE(fs::exists(out)) << words.front();
    }
    expect_error(refold({"inspect", "no-such-folder/config.json"}), 1, {"does not exist"});
}

TEST_F(Models, InspectShowsLoopsAndFactors) {
    const std::string looped = folder / "looped.gguf", factored = folder / "factored.gguf";
    succeeds({"compress", fixture("llama_gqa"), "-o", looped, "--method", "recursive", "--set", "loops=2"});
    json report = refold_json({"inspect", looped});
    EXPECT_EQ(report["loops"], 2);
    EXPECT_TRUE(report["factors"].empty());
    EXPECT_TRUE(report["sizes"].is_null());
    const size_t block = report["topology"]["layers"].size() / 2;
    EXPECT_THAT(refold({"inspect", looped}).out,
                testing::HasSubstr(fmt::format("2 loops of {} layers\n", block)));
    succeeds({"compress", fixture("llama_gqa"), "-o", factored, "--method", "laser", "--set", "rank=8",
              "--set", "slots=ffn.down"});
    report = refold_json({"inspect", factored});
    ASSERT_EQ(report["factors"].size(), 1U) << report["factors"];
    const json& row = report["factors"][0];
    EXPECT_EQ(row["weights"], "ffn.down low rank 8");
    EXPECT_LT(row["operations"]["factored"], row["operations"]["dense"]);
    EXPECT_LT(row["bytes"]["factored"], row["bytes"]["dense"]);
    EXPECT_EQ(row["execution"], "factored");
    const std::string text = refold({"inspect", factored}).out;
    EXPECT_THAT(text, testing::HasSubstr("ffn.down low rank 8\n"));
    EXPECT_THAT(text, testing::HasSubstr("factored weights"));
}

TEST_F(Models, ErrorsOfDirectoriesAreOneLine) {
    fs::create_directory(folder / "empty");
    expect_error(refold({"inspect", folder / "empty"}), 1, {"config.json"});
    write_all(folder / "empty/config.json", R"({"model_type": "t5"})");
    fs::copy_file(fixture("mistral") + "/model.safetensors", folder / "empty/model.safetensors");
    expect_error(refold({"inspect", folder / "empty"}), 1,
                 {"model_type 't5' is not supported; known: albert, baichuan, bert, cohere"});
    expect_error(refold({"export", fixture("gptj"), "--to", "gguf", "-o", folder / "x.gguf"}), 1,
                 {"stock llama.cpp cannot express"});
    EXPECT_FALSE(fs::exists(folder / "x.gguf"));
    expect_error(refold({"export", fixture("gptj"), "--to", "hf", "--type", "q8_0", "-o", folder / "x"}), 2,
                 {"must be f32, f16 or bf16"});
}

}  // namespace
}  // namespace refold
