#include "serve/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

class Pipe {
public:
    Pipe() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
    ~Pipe() {
        close(ends_[0]);
        close_input();
    }
    int input() const { return ends_[1]; }
    void close_input() {
        if (ends_[1] >= 0) close(ends_[1]);
        ends_[1] = -1;
    }
    // Reads until `text` ends with `end`.
    std::string read_until(const std::string& end) const {
        std::string text;
        pollfd state{ends_[0], POLLIN, 0};
        while (!text.ends_with(end) && poll(&state, 1, 20000) > 0) {
            char buffer[4096];
            const ssize_t count = read(ends_[0], buffer, sizeof buffer);
            if (count <= 0) break;
            text.append(buffer, static_cast<size_t>(count));
        }
        return text;
    }

private:
    int ends_[2] = {-1, -1};
};

TEST(LogWriter, WritesLinesInOrder) {
    Pipe pipe;
    LogWriter writer(pipe.input());
    for (const char* line : {"one", "two", "three"}) writer.write(line);
    EXPECT_EQ(pipe.read_until("three\n"), "one\ntwo\nthree\n");
}

// Nobody reads: write() returns, and so does the destructor. What was lost is told later.
TEST(LogWriter, DropsAndCountsWhatNobodyReads) {
    Pipe pipe;
    const std::string line(500, 'x');
    {
        LogWriter writer(pipe.input(), {.most = 10});
        for (int i = 0; i < 5000; ++i) writer.write(line);
        std::string text = pipe.read_until(line + "\n");
        for (int i = 0; i < 20; ++i) {  // the queue is emptied while the pipe is
            writer.write("last");
            text += pipe.read_until("\n");
            if (text.find("lines are missing") != std::string::npos) break;
        }
        EXPECT_NE(text.find("lines are missing"), std::string::npos);
        for (int i = 0; i < 5000; ++i) writer.write(line);
    }
}

// As logrotate does: the file is moved, and the next lines are in a new one.
TEST(LogWriter, ReopensItsFile) {
    TempFolder folder;
    write_all(folder / "log", "before\n");
    {
        LogWriter writer(folder / "log");
        writer.write("one");
        while (read_all(folder / "log") != "before\none\n") std::this_thread::yield();
        std::filesystem::rename(folder / "log", folder / "log.1");
        writer.reopen();
        writer.write("two");
    }
    EXPECT_EQ(read_all(folder / "log.1"), "before\none\n");
    EXPECT_EQ(read_all(folder / "log"), "two\n");
    EXPECT_THROW(LogWriter(folder / "no folder/log"), Error);
}

}  // namespace
}  // namespace refold
