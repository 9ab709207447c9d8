// Runs a program to its end and keeps its output.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/temp_folder.h"

extern char** environ;

namespace refold {

struct Outcome {
    int code = -1;  // exit code; -1 when a signal ended the process
    int signal = 0;
    std::string out, err;
};

class Process {
public:
    // `input` is the whole standard input; `variables` ("NAME=value") override the environment.
    explicit Process(std::vector<std::string> words, const std::string& input = "",
                     std::vector<std::string> variables = {}) {
        write_all(folder_ / "in", input);
        for (char** v = environ; *v != nullptr; ++v) variables.emplace_back(*v);
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        const std::string in = folder_ / "in", out = folder_ / "out", err = folder_ / "err";
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, in.c_str(), O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
        posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
        const int error = posix_spawnp(&id_, words[0].c_str(), &files, nullptr, pointers(words).data(),
                                       pointers(variables).data());
        posix_spawn_file_actions_destroy(&files);
        // A signal to a process that there is not would go to all.
        if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
    }

    ~Process() {
        if (ended_) return;
        kill(id_, SIGKILL);
        waitpid(id_, nullptr, 0);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    void send(int number) const { kill(id_, number); }
    // Standard output so far.
    std::string output() const { return read_all(folder_ / "out"); }

    Outcome wait() {
        int status = 0;
        EXPECT_EQ(waitpid(id_, &status, 0), id_);
        ended_ = true;
        Outcome outcome;
        if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
        if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
        outcome.out = read_all(folder_ / "out");
        outcome.err = read_all(folder_ / "err");
        return outcome;
    }

private:
    static std::vector<char*> pointers(std::vector<std::string>& words) {
        std::vector<char*> out;
        for (auto& word : words) out.push_back(word.data());
        out.push_back(nullptr);
        return out;
    }

    TempFolder folder_;
    pid_t id_ = -1;
    bool ended_ = false;
};

}  // namespace refold
