// Files that cannot be read or written, with every verb that takes them.
#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

Outcome shell(const std::string& script) { return Process({"sh", "-c", script}).wait(); }

// `bytes` with the first `from` after `after` replaced by `to`, of the same length.
std::string patched(std::string bytes, const std::string& after, const std::string& from,
                    const std::string& to) {
    const size_t at = bytes.find(from, bytes.find(after));
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, from.size(), to);
}

std::vector<std::vector<std::string>> reading(const std::string& model, const TempFolder& folder) {
    const std::string out = folder / "out";
    return {{"inspect", model},
            {"run", model, "-p", "x"},
            {"chat", model},
            {"logits", model, "--tokens", "1", "-o", out},
            {"tokenize", model, "x"},
            {"compress", model, "--method", "direct_share", "-o", out},
            {"eval", "ppl", model, "--text", kFixtures + "/README.md"},
            {"bench", model},
            {"export", model, "-o", out}};
}

TEST(BadInput, MissingFile) {
    const TempFolder folder;
    for (const auto& words : reading(folder / "missing.gguf", folder))
        expect_error(refold(words), 1, {"missing.gguf"});
    for (const auto& words : reading("nonsense", folder))
        expect_error(refold(words), 2, {"'nonsense'", "smollm2-135m-instruct"});
    EXPECT_THAT(folder.files(), IsEmpty());
}

TEST(BadInput, NotGguf) {
    const TempFolder folder;
    for (const auto& words : reading(kFixtures + "/README.md", folder))
        expect_error(refold(words), 1, {"README.md"});
    for (const auto& words : reading(kFixtures, folder)) expect_error(refold(words), 1, {kFixtures});
    EXPECT_THAT(folder.files(), IsEmpty());
}

TEST(BadInput, TruncatedGguf) {
    const TempFolder folder;
    const std::string whole = read_all(kModel);
    for (size_t part = 0; part < 20; ++part) {
        write_all(folder / "cut.gguf", whole.substr(0, whole.size() * part / 20));
        expect_error(refold({"inspect", folder / "cut.gguf"}), 1, {"cut.gguf"});
        expect_error(refold({"compress", folder / "cut.gguf", "--method", "direct_share", "-o",
                             folder / "out.gguf", "--quiet"}),
                     1, {"cut.gguf"});
        expect_error(refold({"run", folder / "cut.gguf", "-p", "x"}), 1, {"cut.gguf"});
    }
    EXPECT_THAT(folder.files(), UnorderedElementsAre("cut.gguf"));
}

TEST(BadInput, UnsupportedArchitecture) {
    const TempFolder folder;
    write_all(folder / "other.gguf", patched(read_all(kModel), "general.architecture", "llama", "lamas"));
    expect_error(refold({"inspect", folder / "other.gguf"}), 1, {"'lamas'", "other.gguf", "llama"});
    expect_error(refold({"run", folder / "other.gguf", "-p", "x"}), 1, {"'lamas'"});
}

TEST(BadInput, WrongTopology) {
    const TempFolder folder;
    share(folder / "good.gguf");
    const std::string good = read_all(folder / "good.gguf");
    write_all(folder / "dangling.gguf", patched(good, "refold.topology", "blk.0.attn_q", "blk.9.attn_q"));
    expect_error(refold({"inspect", folder / "dangling.gguf"}), 1,
                 {"layer 3 attn.q", "blk.9.attn_q.weight", "dangling.gguf"});
    write_all(folder / "version.gguf", patched(good, "refold.topology", "\"version\":2", "\"version\":7"));
    expect_error(refold({"inspect", folder / "version.gguf"}), 1, {"version", "7", "version.gguf"});
    write_all(folder / "field.gguf", patched(good, "refold.topology", "\"attn.q\"", "\"attn.x\""));
    expect_error(refold({"inspect", folder / "field.gguf"}), 1, {"attn.x", "field.gguf"});
}

TEST(BadInput, WrongRecipe) {
    const TempFolder folder;
    const auto with = [&](const std::string& recipe) {
        write_all(folder / "r.yaml", recipe);
        return refold({"compress", kModel, "-o", folder / "out.gguf", "--recipe", folder / "r.yaml"});
    };
    expect_error(with("steps:\n  - method: direct_shar\n"), 2,
                 {"r.yaml line 2", "did you mean 'direct_share'?"});
    expect_error(with("steps:\n  - method: direct_share\n    ration: 0.1\n"), 2,
                 {"r.yaml line 3", "'ratio'"});
    expect_error(with("steps:\n  - method: direct_share\n    ratio: 1.5\n"), 2, {"ratio", "1.5"});
    expect_error(with("stepps:\n  - method: direct_share\n"), 2, {"stepps", "'steps'"});
    expect_error(with("steps: []\n"), 1, {"r.yaml"});
    expect_error(with(""), 1, {"r.yaml"});
    const std::vector<std::string> words = {"compress", kModel, "-o", folder / "out.gguf"};
    const auto method = [&](std::vector<std::string> more) {
        more.insert(more.begin(), words.begin(), words.end());
        return refold(more);
    };
    expect_error(method({}), 2, {"--recipe", "--method"});
    expect_error(method({"--method", "direct"}), 2, {"direct_share"});
    expect_error(method({"--method", "direct_share", "--set", "ratio"}), 2, {"--set", "option=value"});
    expect_error(method({"--method", "direct_share", "--set", "ratio=lots"}), 2, {"ratio", "lots"});
    expect_error(method({"--method", "direct_share", "--set", "shares=qkv"}), 2, {"did you mean 'share'?"});
    expect_error(method({"--set", "ratio=0.1"}), 2, {"--set", "--method"});
    expect_error(refold({"compress", "-o", folder / "out.gguf", "--method", "direct_share"}), 2, {"MODEL"});
    expect_error(refold({"compress", kModel, "--method", "direct_share"}), 2, {"--output"});
    EXPECT_THAT(folder.files(), UnorderedElementsAre("r.yaml"));
}

TEST(BadInput, OutputCannotBeWritten) {
    const TempFolder folder;
    const auto to = [&](const std::string& output) {
        return refold({"compress", kModel, "--method", "direct_share", "-o", output});
    };
    // Refused before the work begins.
    for (const std::string& output : {folder / "no/such/out.gguf", std::string("/proc/out.gguf")}) {
        const Outcome outcome = to(output);
        expect_error(outcome, 1, {output});
        EXPECT_THAT(outcome.err, Not(HasSubstr("step 1")));
    }
    expect_error(refold({"compress", kModel, "--method", "direct_share", "-o", folder / ".", "--overwrite"}),
                 1, {"directory"});
    write_all(folder / "old.gguf", "old");
    expect_error(to(folder / "old.gguf"), 2, {"old.gguf", "--overwrite"});
    EXPECT_EQ(read_all(folder / "old.gguf"), "old");
    write_all(folder / "in.gguf", read_all(kModel));
    for (const char* verb : {"compress", "export"}) {
        std::vector<std::string> words = {verb, folder / "in.gguf", "-o", folder / "./in.gguf",
                                          "--overwrite"};
        if (std::string(verb) == "compress") words.insert(words.end(), {"--method", "direct_share"});
        expect_error(refold(words), 2, {"is the input file"});
    }
    EXPECT_TRUE(read_all(folder / "in.gguf") == read_all(kModel));
    EXPECT_THAT(folder.files(), UnorderedElementsAre("old.gguf", "in.gguf"));
}

TEST(BadInput, DiskFull) {
    const TempFolder folder;
    const std::string out = folder / "out.gguf", binary = REFOLD_BINARY;
    for (const std::string& command :
         {" compress " + kModel + " --method direct_share -o " + out, " export " + kModel + " -o " + out}) {
        const Outcome outcome = shell("ulimit -f 200; exec " + binary + command);
        EXPECT_EQ(outcome.code, 1) << outcome.signal;
        EXPECT_THAT(outcome.err, HasSubstr(out));
        EXPECT_THAT(outcome.err, HasSubstr("File too large"));
        EXPECT_THAT(folder.files(), IsEmpty());
    }
    // Neither output can be written: an error, not a crash.
    EXPECT_EQ(shell("exec " + binary + " run " + kModel + " -p x >&- 2>&-").code, 1);
    const Outcome full = shell("exec " + binary + " run " + kModel + " -p x > /dev/full");
    EXPECT_EQ(full.code, 1);
    EXPECT_THAT(full.err, HasSubstr("standard output"));
}

TEST(BadInput, PromptLongerThanTheContext) {
    const size_t count = refold_json({"tokenize", kModel, "--special", "one two three four"})["ids"].size();
    ASSERT_GT(count, 4U);
    expect_error(refold({"run", kModel, "-p", "one two three four", "--context", "4"}), 1,
                 {std::to_string(count) + " tokens", "holds 4", "--context"});
}

TEST(BadInput, EmptyOrForeignText) {
    const TempFolder folder;
    write_all(folder / "empty.txt", "");
    write_all(folder / "latin1.txt", "caf\xE9");
    for (const auto& [name, reason] : {std::pair{"empty.txt", "empty"}, std::pair{"latin1.txt", "offset 3"},
                                       std::pair{"missing.txt", "missing.txt"}}) {
        const std::string file = folder / name;
        for (const auto& words : std::vector<std::vector<std::string>>{
                 {"eval", "ppl", kModel, "--text", file},
                 {"run", kModel, "-f", file},
                 {"tokenize", kModel, "--file", file},
                 {"logits", kModel, "--text-file", file, "-o", folder / "o"}}) {
            expect_error(refold(words), 1, {file, reason});
        }
    }
    expect_error(refold({"run", kModel, "-p", "caf\xE9"}), 1, {"--prompt", "offset 3"});
    expect_error(refold({"tokenize", kModel, "caf\xE9"}), 1, {"TEXT", "offset 3"});
    expect_error(refold({"tokenize", kModel, "-"}, ""), 1, {"standard input is empty"});
    expect_error(refold({"chat", kModel, "--quiet"}, "caf\xE9\n"), 1, {"the message", "offset 3"});
}

}  // namespace
}  // namespace refold
