// refold --help.
#include <filesystem>
#include <sstream>

#include "cli/refold.h"

namespace refold {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::UnorderedElementsAreArray;

std::vector<std::string> verbs() {
    std::vector<std::string> names;
    std::istringstream lines(refold({"help"}).out);
    for (std::string line; std::getline(lines, line) && line != "Examples:";)
        if (line.starts_with("  ")) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    return names;
}

TEST(Help, ListsAllVerbs) {
    std::vector<std::string> files;
    for (const auto& file : std::filesystem::directory_iterator("cli/verbs"))
        files.push_back(file.path().stem().string());
    EXPECT_THAT(verbs(), UnorderedElementsAreArray(files));
    EXPECT_THAT(verbs(), IsSupersetOf({"pull", "inspect", "run", "chat", "serve", "logits", "tokenize",
                                       "methods", "compress", "train", "compare", "eval", "analyze", "bench",
                                       "report", "quantize", "export"}));
    EXPECT_EQ(refold({"--help"}).out, refold({"help"}).out);
    EXPECT_THAT(refold({"--version"}).out, testing::MatchesRegex("refold [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Help, EveryVerbDescribesItself) {
    for (const auto& verb : verbs()) {
        const Outcome help = refold({verb, "--help"});
        EXPECT_EQ(help.code, 0) << verb;
        EXPECT_THAT(help.out, HasSubstr("Usage: refold " + verb));
        EXPECT_THAT(help.out, HasSubstr("Examples:\n  "));
        EXPECT_THAT(help.out, HasSubstr("refold " + verb + " "));
        EXPECT_EQ(refold({"help", verb}).out, help.out);
    }
    EXPECT_THAT(refold({"eval", "ppl", "--help"}).out, HasSubstr("Examples:"));
}

TEST(Help, DocumentationIsFresh) {
    const TempFolder folder;
    const Outcome made = Process({"scripts/make-cli-docs", REFOLD_BINARY, folder / "cli.md"}).wait();
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_EQ(read_all(folder / "cli.md"), read_all("docs/cli.md")) << "run scripts/make-cli-docs";
}

}  // namespace
}  // namespace refold
