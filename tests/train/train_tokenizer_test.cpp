#include "train/text/train_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "io/gguf.h"
#include "text/tokenizer.h"

namespace refold {
namespace {

using testing::HasSubstr;

// A template that writes ChatML without BOS, which the tokenizer adds. The marks are no tokens of this
// vocabulary.
const std::string kModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

// The fixture's vocabulary with other metadata.
class Changed {
public:
    Changed() : metadata_(GgufFile::open(kModel)->metadata()) {}
    void set(const std::string& key, GgufValue value) { metadata_.set(key, std::move(value)); }
    TrainTokenizer tokenizer() {
        write_gguf(folder_ / "m.gguf", true, metadata_, {});
        return train_tokenizer(folder_ / "m.gguf");
    }

private:
    TempFolder folder_;
    GgufMetadata metadata_;
};

std::vector<std::string> pieces(const Tokenizer& tokenizer, const TrainDocument& document, uint8_t scored) {
    std::vector<std::string> out;
    for (size_t i = 0; i < document.tokens.size(); ++i) {
        if (document.scored[i] == scored) out.push_back(tokenizer.piece(document.tokens[i], true));
    }
    return out;
}

TEST(TrainTokenizer, AnswersOfChatMlAreScoredToTheEndOfTheTurn) {
    const Tokenizer model(kModel);
    const DialogueRecord dialogue{
        {"user", "Hi"}, {"assistant", "Yes."}, {"user", "So"}, {"assistant", "No."}};
    const auto documents = tokenize(dialogue, train_tokenizer(kModel), true, {"x", 1});
    ASSERT_EQ(documents.size(), 1U);
    std::string scored, whole = model.decode(documents[0].tokens, true);
    for (const auto& piece : pieces(model, documents[0], 1)) scored += piece;
    EXPECT_EQ(scored, "Yes.<|im_end|>No.<|im_end|>");
    EXPECT_EQ(whole,
              "<|begin_of_text|><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
              "<|im_start|>user\nSo<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n");
}

TEST(TrainTokenizer, TextIsNotAskedForSpecialTokens) {
    const Tokenizer model(kModel);
    const TrainTokenizer tokenizer = train_tokenizer(kModel);
    EXPECT_EQ(tokenizer.template_tokens("<|begin_of_text|>"), std::vector<int32_t>{*model.bos()});
    EXPECT_GT(tokenizer.tokens("<|begin_of_text|>").size(), 1U);
    EXPECT_EQ(tokenizer.tokens("Some text."), model.encode("Some text.", false, false));
    EXPECT_EQ(tokenizer.after, std::vector<int32_t>{*model.eos()});
    EXPECT_EQ(tokenizer.before, std::vector<int32_t>{*model.bos()});
}

TEST(TrainTokenizer, TemplatesSayWhatTheyRefuse) {
    Changed changed;
    changed.set("tokenizer.chat_template",
                GgufValue::string(
                    "{% if messages[0]['role'] != 'user' %}{{ raise_exception('Roles must alternate') }}"
                    "{% endif %}{{ messages[0]['content'] }}"));
    const TrainTokenizer tokenizer = changed.tokenizer();
    const DialogueRecord dialogue{{"assistant", "Yes."}};
    EXPECT_THAT(error_of([&] {
                    tokenize(dialogue, tokenizer, false, {"x.jsonl", 7});
                }),
                testing::AllOf(HasSubstr("'x.jsonl', line 7"), HasSubstr("Roles must alternate")));
}

TEST(TrainTokenizer, IdentityIsOfVocabularyAndTemplate) {
    const std::string own = train_tokenizer(kModel).identity;
    EXPECT_EQ(own.size(), 64U);
    Changed same, other_template, other_token, other_name;
    EXPECT_EQ(same.tokenizer().identity, own);
    other_name.set("general.name", GgufValue::string("another"));
    EXPECT_EQ(other_name.tokenizer().identity, own);
    other_template.set("tokenizer.chat_template", GgufValue::string("{{ messages }}"));
    EXPECT_NE(other_template.tokenizer().identity, own);
    other_token.set("tokenizer.ggml.eos_token_id", GgufValue::u32(0));
    EXPECT_NE(other_token.tokenizer().identity, own);
}

}  // namespace
}  // namespace refold
