// Ctrl-C while files are written.
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> compress_words(const std::string& output) {
    return {REFOLD_BINARY, "compress",  kModel, "--method", "direct_share",
            "--set",       "ratio=0.3", "-o",   output};
}

TEST(Interrupt, LeavesAllOrNothing) {
    for (int milliseconds = 0; milliseconds < 30; ++milliseconds) {
        const TempFolder folder;
        Process process(compress_words(folder / "out.gguf"));
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        process.send(SIGINT);
        const Outcome outcome = process.wait();
        if (outcome.code == 0) {
            EXPECT_THAT(folder.files(), UnorderedElementsAre("out.gguf", "out.recipe.yaml"));
        } else {
            // A signal before the program has started ends it like any program.
            EXPECT_TRUE(outcome.code == 130 || outcome.signal == SIGINT) << outcome.err;
            EXPECT_THAT(folder.files(), IsEmpty());
        }
    }
}

// The recipe comes from a pipe, so that the signal arrives while the program works.
TEST(Interrupt, StopsWithItsOwnExitCode) {
    const TempFolder folder;
    const std::string pipe = folder / "recipe";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    Process process({REFOLD_BINARY, "compress", kModel, "--recipe", pipe, "-o", folder / "out.gguf"});
    {
        std::ofstream recipe(pipe);  // waits for the reader
        process.send(SIGINT);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        recipe << "steps:\n  - method: direct_share\n";
    }
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.code, 130);
    EXPECT_THAT(outcome.err, HasSubstr("stopped by Ctrl-C"));
    EXPECT_THAT(folder.files(), UnorderedElementsAre("recipe"));
}

}  // namespace
}  // namespace refold
