#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/json_text.h"
#include "core/text.h"

extern char** environ;

namespace refold::cli {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

std::string content(FILE* file) {
    std::string text;
    rewind(file);
    char part[4096];
    for (size_t n = 0; (n = fread(part, 1, sizeof(part), file)) > 0;) text.append(part, n);
    return text;
}

// The process ends when a signal has reached this one. Returns the state of waitpid().
int wait_for(pid_t process) {
    int state = 0;
    bool told = false;
    while (waitpid(process, &state, WNOHANG) == 0) {
        if (interrupted() && !told) {
            kill(process, SIGTERM);
            told = true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return state;
}

}  // namespace

nlohmann::json run_refold(std::vector<std::string> words) {
    words.insert(words.begin(), "refold");
    words.emplace_back("--json");
    const std::string command = join(words, " ");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);

    const File out(tmpfile(), fclose);
    if (!out) fail(ErrorCode::io, "reproduce", "cannot make a temporary file: {}", strerror(errno));
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, fileno(out.get()), STDOUT_FILENO);
    pid_t process = -1;
    const int error = posix_spawn(&process, "/proc/self/exe", &files, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) fail(ErrorCode::io, "reproduce", "cannot start '{}': {}", command, strerror(error));
    const int state = wait_for(process);
    check_interrupt();
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        fail(ErrorCode::input, "reproduce", "'{}' failed", command);
    return parse_json(content(out.get()), "reproduce", fmt::format("the output of '{}'", command),
                      kLargeJson);
}

}  // namespace refold::cli
