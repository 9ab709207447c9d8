// Models that are cut shorter, rewritten, replaced or removed while a verb uses them.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "serve/http_client.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class ChangedFiles : public testing::Test {
protected:
    void SetUp() override {
        fs::copy_file(kModel, model_);
        ASSERT_EQ(mkfifo(pipe_.c_str(), 0600), 0);
    }

    // Compresses; `change` is called when the model is mapped and little of it is read: the calibration text
    // comes from a pipe.
    Outcome compress(const std::function<void()>& change, const std::string& output) const {
        Process process({REFOLD_BINARY, "compress", model_, "--method", "quantize", "--set", "type=q4_0",
                         "--calib", pipe_, "--calib-tokens", "2048", "-t", "1", "-o", output});
        {
            std::ofstream text(pipe_);  // waits for the reader
            change();
            for (int i = 0; i < 6000; ++i)
                text << static_cast<char>('a' + i * i % 26) << (i % 6 == 5 ? " " : "");
        }
        return process.wait();
    }

    TempFolder folder_;
    std::string model_ = folder_ / "model.gguf", pipe_ = folder_ / "text";
};

TEST_F(ChangedFiles, CutShorterIsAnErrorThatNamesTheFile) {
    const Outcome outcome =
        compress([&] { fs::resize_file(model_, fs::file_size(model_) / 2); }, folder_ / "out.gguf");
    EXPECT_EQ(outcome.code, 1) << outcome.signal;
    EXPECT_THAT(outcome.err, HasSubstr("refold: error: [file] '" + model_ + "' was cut shorter"));
    EXPECT_FALSE(fs::exists(folder_ / "out.gguf"));
    EXPECT_FALSE(fs::exists(folder_ / "out.recipe.yaml"));
}

TEST_F(ChangedFiles, RewrittenInPlaceIsAnErrorThatNamesTheFile) {
    const std::string bytes = read_all(model_);
    const Outcome outcome = compress(
        [&] {
            std::ofstream out(model_, std::ios::binary | std::ios::in);
            out.seekp(-4, std::ios::end);
            out.write("\0\0\0\0", 4);
            out.close();
            fs::last_write_time(model_, fs::file_time_type::clock::now() + std::chrono::hours(1));
        },
        folder_ / "out.gguf");
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err,
                HasSubstr("refold: error: [file] '" + model_ + "' was changed while it was read"));
    EXPECT_FALSE(fs::exists(folder_ / "out.gguf"));
}

TEST_F(ChangedFiles, ReplacedOrRemovedChangesNothing) {
    const Outcome whole = compress([] {}, folder_ / "whole.gguf");
    ASSERT_EQ(whole.code, 0) << whole.err;
    const Outcome replaced = compress(
        [&] {
            write_all(folder_ / "new", "not a model");
            fs::rename(folder_ / "new", model_);
        },
        folder_ / "replaced.gguf");
    ASSERT_EQ(replaced.code, 0) << replaced.err;
    EXPECT_TRUE(read_all(folder_ / "whole.gguf") == read_all(folder_ / "replaced.gguf"));
    fs::remove(model_);
    fs::copy_file(kModel, model_);
    const Outcome removed = compress([&] { fs::remove(model_); }, folder_ / "removed.gguf");
    ASSERT_EQ(removed.code, 0) << removed.err;
    EXPECT_TRUE(read_all(folder_ / "whole.gguf") == read_all(folder_ / "removed.gguf"));
}

// A server has the weights in memory.
TEST_F(ChangedFiles, ServersAnswerOn) {
    Process server({REFOLD_BINARY, "serve", model_, "--port", "0", "-t", "1", "--context", "128", "--json"});
    for (int i = 0; i < 2000 && server.output().find('\n') == std::string::npos; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const json started = json::parse(server.output(), nullptr, false);
    ASSERT_FALSE(started.is_discarded());
    const json body = {{"prompt", "Once upon"}, {"max_tokens", 8}, {"temperature", 0}};
    const auto answer = [&] {
        return HttpClient(started["port"]).post("/v1/completions", body.dump()).json()["choices"];
    };
    const json before = answer();
    fs::resize_file(model_, 1000);
    EXPECT_EQ(answer(), before);
    fs::remove(model_);
    EXPECT_EQ(answer(), before);
    server.send(SIGTERM);
    EXPECT_EQ(server.wait().code, 0);
}

}  // namespace
}  // namespace refold
