// Every token that a checkpoint names as an end ends an answer: read from its folder, from a GGUF file, and
// from the folder that is written back.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/temp_folder.h"
#include "generation/continuation.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/save.h"
#include "text/tokenizer.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGeneration =
    R"({"eos_token_id":[ 9, 1, 7, 5 ], "temperature": 0.6, "own": {"a": [1.0]}})";

// A Llama with a tokenizer, whose EOS is 1.
void write_checkpoint(const TempFolder& folder) {
    for (const char* from : {"hf/llama_gqa", "tokenizers/bpe_llama3"}) {
        for (const auto& file : fs::directory_iterator(fs::path(REFOLD_FIXTURES) / from)) {
            if (!file.path().filename().string().starts_with("golden"))
                fs::copy_file(file.path(), folder / file.path().filename().string());
        }
    }
    write_all(folder / "generation_config.json", kGeneration);
}

void expect_ends(const Tokenizer& tokenizer) {
    const std::vector<float> logits(static_cast<size_t>(tokenizer.size()));
    for (int32_t token = 0; token < 20; ++token) {
        Continuation answer(tokenizer, {});
        const bool ends = token == 9 || token == 1 || token == 7 || token == 5;
        EXPECT_EQ(answer.add(logits, token, 1), !ends) << token;
        EXPECT_EQ(answer.finished(), ends) << token;
        const auto event = answer.take();
        ASSERT_TRUE(event);
        EXPECT_EQ(event->end_token, ends ? std::optional(token) : std::nullopt);
    }
    GenerationRequest on;
    on.ignore_eos = true;
    EXPECT_TRUE(Continuation(tokenizer, on).add(logits, 7, 1));
}

TEST(EndTokens, OfFolderGgufAndFolderAgain) {
    const TempFolder folder, work;
    write_checkpoint(folder);
    expect_ends(Tokenizer(folder / ""));
    const std::string gguf = work / "model.gguf", out = work / "out";
    save_model(load_model(folder / ""), gguf, false);
    expect_ends(Tokenizer(gguf));
    fs::remove(folder / "generation_config.json");
    save_hf_model(load_model(gguf), out, {});
    EXPECT_EQ(read_all(out + "/generation_config.json"), kGeneration);
    expect_ends(Tokenizer(out));
    // From folder to folder.
    save_hf_model(load_model(out), work / "again", {});
    EXPECT_EQ(read_all(work / "again/generation_config.json"), kGeneration);
}

// A model without a tokenizer keeps the file too.
TEST(EndTokens, OfAModelWithoutTokenizer) {
    const TempFolder folder, work;
    for (const char* file : {"config.json", "model.safetensors"})
        fs::copy_file(fs::path(REFOLD_FIXTURES "/hf/mistral") / file, folder / file);
    write_all(folder / "generation_config.json", kGeneration);
    save_model(load_model(folder / ""), work / "model.gguf", false);
    save_hf_model(load_model(work / "model.gguf"), work / "out", {});
    EXPECT_EQ(read_all(work / "out/generation_config.json"), kGeneration);
}

}  // namespace
}  // namespace refold
