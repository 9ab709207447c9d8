#include <filesystem>

#include "compress/calibrated.h"
#include "model/hf/export.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/trim.h"

namespace refold {
namespace {

using Ids = std::vector<int32_t>;

// A model of 448 tokens with a tokenizer of as many.
Model with_tokenizer() {
    Model model = fixture_model("llama_gqa");
    EXPECT_TRUE(
        read_hf_vocabulary(REFOLD_FIXTURES "/tokenizers/bpe_gpt2", model.config.n_vocab, model.metadata));
    return model;
}

Calibration text_of(const Ids& tokens) {
    return make_calibration("text.txt", "text", tokens, {.tokens = 8, .length = 4});
}

const Ids kTokens = {300, 301, 310, 310, 320, 330, 340, 430, 431, 300, 440};

TEST(TrimVocab, RowsOfKeptTokensAreTheSameBits) {
    const Model model = with_tokenizer();
    const Calibration text = text_of(kTokens);
    const Compression made = calibrated(model, {"trim_vocab"}, text);
    const Ids kept = ints_of(made.model.metadata, kKeptTokensKey);
    ASSERT_LT(kept.size(), 448U);
    // 440 is beyond the calibration tokens, but in the text.
    for (const int32_t id : kTokens) EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), id)) << id;
    const std::string name = std::get<Dense>(model.topology.globals.at(Slot::token_embd)).tensor;
    const std::vector<std::byte> before = bytes_of(model, name), after = bytes_of(made.model, name);
    const size_t row = before.size() / 448;
    ASSERT_EQ(after.size(), row * kept.size());
    for (size_t i = 0; i < kept.size(); ++i) {
        const auto from = before.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(kept[i]) * row);
        EXPECT_TRUE(std::equal(from, from + static_cast<ptrdiff_t>(row),
                               after.begin() + static_cast<ptrdiff_t>(i * row)));
    }
    EXPECT_EQ(details_of(made)["tokens"], kept.size());
}

TEST(TrimVocab, LogitsOfKeptTokensAreTheSame) {
    const Model model = with_tokenizer();
    const Model trimmed = saved_and_loaded(calibrated(model, {"trim_vocab least=2"}, text_of(kTokens)).model);
    const Ids kept = ints_of(trimmed.metadata, kKeptTokensKey);
    EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), 310));   // twice
    EXPECT_FALSE(std::binary_search(kept.begin(), kept.end(), 440));  // once
    const EngineOptions options{.threads = 1, .context = 64, .f32 = true};
    Ids tokens, full_tokens;
    for (int32_t i = 0; i < 20; ++i) {
        tokens.push_back(i * 7 % static_cast<int32_t>(kept.size()));
        full_tokens.push_back(kept[static_cast<size_t>(tokens.back())]);
    }
    const std::vector<float> full = all_logits(model, full_tokens, options),
                             part = all_logits(trimmed, tokens, options);
    ASSERT_EQ(part.size(), tokens.size() * kept.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        for (size_t k = 0; k < kept.size(); ++k)
            EXPECT_NEAR(part[i * kept.size() + k], full[i * 448 + static_cast<size_t>(kept[k])], 1e-5);
    }
}

TEST(TrimVocab, FirstIdsStay) {
    const Model model = with_tokenizer();
    const Compression made = planned(model, {"trim_vocab text=false first=300"});
    const Ids kept = ints_of(made.model.metadata, kKeptTokensKey);
    EXPECT_EQ(made.model.config.n_vocab, static_cast<int64_t>(kept.size()));
    EXPECT_GE(kept.size(), 300U);
    EXPECT_LT(kept.size(), 448U);
    EXPECT_EQ(kept[299], 299);
    expect_identical(planned(model, {"trim_vocab text=false first=448"}).model, model);
    // Without the text of a later run there are fewer.
    EXPECT_EQ(planned(model, {"trim_vocab"}).model.config.n_vocab,
              planned(model, {"trim_vocab text=false"}).model.config.n_vocab);
}

TEST(TrimVocab, MustBeLast) {
    const Model model = with_tokenizer();
    expect_error(ErrorCode::usage, {"step 1", "trim_vocab", "last"}, [&] {
        planned(model, {"trim_vocab text=false", "refit"});
    });
    const Model trimmed = planned(model, {"trim_vocab text=false"}).model;
    expect_error(ErrorCode::input, {"--original", "trim_vocab last"},
                 [&] { plan(trimmed, recipe_of({"drop layers=1"}), {.original = &model}); });
}

TEST(TrimVocab, ModelsWithoutATokenizerOfTheirSize) {
    expect_error(ErrorCode::unsupported, {"0 tokens", "448 rows"},
                 [&] { run_method("trim_vocab", fixture_model("llama_gqa"), {"text=false"}); });
}

TEST(TrimVocab, HuggingFaceDirectoryHasTheTrimmedTokenizer) {
    // The model's source is a directory with a tokenizer of its own.
    const TempFolder folder;
    for (const char* part : {"/hf/llama_gqa", "/tokenizers/bpe_gpt2"}) {
        for (const auto& file : std::filesystem::directory_iterator(std::string(REFOLD_FIXTURES) + part)) {
            std::filesystem::create_directories(folder / "in");
            std::filesystem::copy_file(file.path(), folder / ("in/" + file.path().filename().string()),
                                       std::filesystem::copy_options::overwrite_existing);
        }
    }
    const Model trimmed = planned(load_model(folder / "in"), {"trim_vocab text=false"}).model;
    save_hf_model(trimmed, folder / "out", {});
    const Model back = load_model(folder / "out");
    EXPECT_EQ(back.config.n_vocab, trimmed.config.n_vocab);
    EXPECT_EQ(strings_of(back.metadata, "tokenizer.ggml.tokens"),
              strings_of(trimmed.metadata, "tokenizer.ggml.tokens"));
    EXPECT_EQ(strings_of(back.metadata, "tokenizer.ggml.merges"),
              strings_of(trimmed.metadata, "tokenizer.ggml.merges"));
}

}  // namespace
}  // namespace refold
