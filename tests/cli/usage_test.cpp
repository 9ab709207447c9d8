// Wrong command lines.
#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

TEST(Usage, NearestNamesAreGiven) {
    EXPECT_EQ(refold({}).code, 2);
    expect_error(refold({"compres"}), 2, {"unknown verb 'compres'", "did you mean 'compress'?"});
    expect_error(refold({"help", "rum"}), 2, {"did you mean 'run'?"});
    expect_error(refold({"run", kModel, "-p", "x", "--contxt", "8"}), 2,
                 {"--contxt", "did you mean '--context'?"});
    expect_error(refold({"inspect"}), 2, {"MODEL", "refold inspect --help"});
    expect_error(refold({"eval", "tasks", "--limit", "4"}), 2, {"refold eval tasks --help"});
    expect_error(refold({"eval"}), 2, {"subcommand"});
    expect_error(refold({"eval", "pppl"}), 2, {"did you mean 'ppl'?"});
    expect_error(refold({"pull", "smollm2-135m-instrukt"}), 2, {"did you mean 'smollm2-135m-instruct'?"});
    expect_error(refold({"methods", "direct_shar"}), 2, {"did you mean 'direct_share'?"});
}

TEST(Usage, ValuesOutOfRangeNameTheOption) {
    for (const auto& words : std::vector<std::vector<std::string>>{{"--threads", "0"},
                                                                   {"--threads", "100000"},
                                                                   {"--context", "-5"},
                                                                   {"--context", "many"},
                                                                   {"--max-tokens", "0"},
                                                                   {"--top-k", "-1"},
                                                                   {"--top-p", "1.5"},
                                                                   {"--temperature", "-1"},
                                                                   {"--min-p", "2"},
                                                                   {"--presence-penalty", "3"},
                                                                   {"--frequency-penalty", "-3"},
                                                                   {"--logit-bias", "5"},
                                                                   {"--seed", "-1"},
                                                                   {"--kv", "q8"}}) {
        std::vector<std::string> all = {"run", kModel, "-p", "x"};
        all.insert(all.end(), words.begin(), words.end());
        expect_error(refold(all), 2, {words[0].substr(2)});
    }
    expect_error(refold({"run", kModel}), 2, {"--prompt"});
    expect_error(refold({"logits", kModel, "-o", "x"}), 2, {"--tokens"});
    for (const char* ids : {"", "1,x", "1,,2", "1,", "1 2", "99999999999"}) {
        expect_error(refold({"logits", kModel, "--tokens", ids, "-o", "x"}), 2, {"--tokens"});
        expect_error(refold({"tokenize", kModel, "--decode", ids}), 2, {"--decode"});
    }
    expect_error(refold({"tokenize", kModel}), 2, {"TEXT"});
    expect_error(refold({"export", kModel, "--to", "onnx", "-o", "x"}), 2, {"--to"});
    expect_error(refold({"bench", kModel, "--context", "8", "--prefill", "8", "--decode", "1"}), 2,
                 {"--context 8"});
    expect_error(refold({"eval", "ppl", kModel, "--text", kModel, "--stride", "0"}), 2, {"--stride"});
}

}  // namespace
}  // namespace refold
