// refold chat.
#include <sstream>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Chat, EvaluatesOnlyWhatIsNew) {
    const std::vector<std::string> words = {"chat", kModel, "-n", "8", "--json", "--quiet"};
    const Outcome outcome = refold(words,
                                   "Tell me a rather long story about the sea\nGo on\n/reset\nTell me a "
                                   "rather long story about the sea\n/exit\nnever\n");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::vector<json> replies;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) replies.push_back(json::parse(line));
    ASSERT_EQ(replies.size(), 3U);
    expect_keys(replies[0], {"role", "content", "tokens", "evaluated_tokens", "stop_reason"});
    const auto count = [](const std::string& text) {
        return refold_json({"tokenize", kModel, text})["ids"].size();
    };
    const std::string opening =
        "<|im_start|>user\nTell me a rather long story about the sea<|im_end|>\n<|im_start|>assistant\n";
    EXPECT_EQ(replies[0]["evaluated_tokens"],
              refold_json({"tokenize", kModel, opening, "--special"})["ids"].size());
    // The last token of a reply that reached its limit has not run in the engine yet.
    const size_t pending = replies[0]["stop_reason"] == "limit" ? 1 : 0;
    EXPECT_EQ(replies[1]["evaluated_tokens"],
              count("<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n") + pending);
    EXPECT_EQ(replies[2]["content"], replies[0]["content"]);
    EXPECT_EQ(replies[2]["evaluated_tokens"], replies[0]["evaluated_tokens"]);
    // The same text in the model's template.
    EXPECT_EQ(refold_json({"run", kModel, "-p", opening, "-n", "8"})["tokens"], replies[0]["tokens"]);
}

TEST(Chat, SaysWhenTheContextIsFull) {
    const Outcome outcome = refold({"chat", kModel, "--context", "20", "-n", "2", "--quiet"},
                                   "A message that is longer than twenty tokens, surely\n");
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("the context holds 20"));
    expect_error(refold({"chat", kFixtures + "/llama_bf16_sharded/model.gguf"}, "x\n"), 1,
                 {"tokenizer", "llama_bf16_sharded"});
}

}  // namespace
}  // namespace refold
