// The verbs that generate end at every token that generation_config.json names.
#include <gmock/gmock.h>

#include <sstream>

#include "cli/serving.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class EndTokens : public testing::Test {
protected:
    EndTokens() {
        for (const std::string& from : {kFixtures + "/hf/llama_gqa", kFixtures + "/tokenizers/bpe_llama3"}) {
            for (const auto& file : fs::directory_iterator(from)) {
                if (!file.path().filename().string().starts_with("golden"))
                    fs::copy_file(file.path(), model + "/" + file.path().filename().string());
            }
        }
    }
    void set_ends(const json& ends) {
        write_all(model + "/generation_config.json", json({{"eos_token_id", ends}}).dump());
    }
    // Makes one of the tokens that came the third end, and returns those before it.
    std::vector<int> end_within(const std::vector<int>& tokens) {
        for (size_t i = 1; i < tokens.size(); ++i) {
            if (std::count(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i), tokens[i]) > 0)
                continue;
            set_ends({1, 5, tokens[i]});
            return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i)};
        }
        ADD_FAILURE() << "one token again and again: choose another prompt";
        return {};
    }
    TempFolder folder;
    std::string model = folder / "";
};

TEST_F(EndTokens, OfRunServeAndGguf) {
    const std::vector<std::string> words = {"run", model, "-p", "The licence", "-n", "12", "--threads", "1"};
    const std::vector<int> expected = end_within(refold_json(words)["tokens"]);
    const json run = refold_json(words);
    EXPECT_EQ(run["tokens"], expected);
    EXPECT_NE(run["stop_reason"], "limit");
    const json body = {{"prompt", "The licence"}, {"max_tokens", 12}, {"temperature", 0}};
    Serving serving({}, {}, model);
    const json answer = serving.client().post("/v1/completions", body.dump()).json();
    EXPECT_EQ(answer["choices"][0]["text"], run["text"]);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(serving.stop().code, 0);
    const std::string gguf = folder / "model.gguf";
    ASSERT_EQ(refold({"export", model, "-o", gguf}).code, 0);
    std::vector<std::string> of_gguf = words;
    of_gguf[1] = gguf;
    EXPECT_EQ(refold_json(of_gguf)["tokens"], expected);
}

TEST_F(EndTokens, OfChat) {
    write_all(model + "/chat_template.jinja",
              "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + "
              "'\n'}}{% endfor %}");
    const std::vector<std::string> words = {"chat", model, "-n", "12", "--json", "--quiet", "--threads", "1"};
    const auto reply = [&] {
        const Outcome outcome = refold(words, "The licence\n/exit\n");
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(outcome.out);
    };
    const json whole = reply();
    ASSERT_EQ(whole["stop_reason"], "limit");
    const std::vector<int> expected = end_within(whole["tokens"]);
    const json ended = reply();
    EXPECT_NE(ended["stop_reason"], "limit");
    EXPECT_EQ(ended["tokens"], expected);
}

}  // namespace
}  // namespace refold
