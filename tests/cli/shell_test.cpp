// What shells and man are given: refold completion and refold manual.
#include "cli/refold.h"

namespace refold {
namespace {

using testing::HasSubstr;

// What bash completes a command line to; the last word is the one being written.
std::string completed(const std::string& line) {
    const TempFolder folder;
    write_all(folder / "refold.bash", refold({"completion", "bash"}).out);
    write_all(folder / "ask.bash", R"(
        source ")" + (folder / "refold.bash") +
                                       R"("
        COMP_WORDS=()" + line + R"()
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _refold
        printf '%s ' "${COMPREPLY[@]}"
    )");
    const std::string output = folder / "out";
    EXPECT_EQ(system(("cd '" + (folder / "") + "' && bash ask.bash > out 2> error").c_str()), 0);
    EXPECT_EQ(read_all(folder / "error"), "");
    return read_all(output);
}

TEST(Completion, OfBash) {
    EXPECT_EQ(completed("refold repor"), "report ");
    EXPECT_THAT(completed("refold ''"), HasSubstr("compress "));
    EXPECT_EQ(completed("refold compress --calib-to"), "--calib-tokens ");
    EXPECT_EQ(completed("refold eval tas"), "tasks ");
    EXPECT_EQ(completed("refold eval ppl --max-win"), "--max-windows ");
    EXPECT_EQ(completed("refold run smol"), "smollm2-135m-instruct ");
    EXPECT_EQ(completed("refold bench m.gguf --kv q8"), "q8_0 ");
    EXPECT_EQ(completed("refold run -p r"), "refold.bash ");          // a value: a file
    EXPECT_EQ(completed("refold fit m.gguf --fron"), "--frontier ");  // in a group of options
}

TEST(Completion, OfOtherShells) {
    const std::string fish = refold({"completion", "fish"}).out;
    EXPECT_THAT(fish, HasSubstr("complete -c refold -n __fish_use_subcommand -f -a compress -d 'Apply"));
    EXPECT_THAT(
        fish,
        HasSubstr(
            "'__fish_seen_subcommand_from eval; and __fish_seen_subcommand_from ppl' -l max-windows -r"));
    EXPECT_THAT(refold({"completion", "zsh"}).out, HasSubstr("#compdef refold"));
    expect_error(refold({"completion", "csh"}), 2, {"csh", "bash"});
}

TEST(Manual, HasAPageForEveryVerb) {
    const TempFolder folder;
    const std::string pages = folder / "man/man1";
    ASSERT_EQ(refold({"manual", "-o", pages}).code, 0);
    const std::string overview = read_all(pages + "/refold.1");
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(pages)) {
        const std::string name = entry.path().stem();
        if (name == "refold") continue;
        ++count;
        EXPECT_THAT(overview, HasSubstr("refold\\-" + name.substr(7) + "\\fR(1)")) << name;
    }
    EXPECT_GT(count, 20U);
    const std::string compress = read_all(pages + "/refold-compress.1");
    EXPECT_THAT(compress, HasSubstr(".TH refold\\-compress 1"));
    EXPECT_THAT(compress, HasSubstr("\\fB\\-o, \\-\\-output\\fR \\fIFILE\\fR"));
    EXPECT_THAT(compress, HasSubstr(".SH EXAMPLES\n.nf\nrefold compress"));
    EXPECT_THAT(read_all(pages + "/refold-eval.1"), HasSubstr(".SS ppl\n"));
    // A folder with other pages keeps them.
    write_all(pages + "/other.1", "x");
    ASSERT_EQ(refold({"manual", "-o", pages}).code, 0);
    EXPECT_EQ(read_all(pages + "/other.1"), "x");
    expect_error(refold({"manual", "-o", "/proc/none"}), 1, {"/proc/none"});
}

}  // namespace
}  // namespace refold
