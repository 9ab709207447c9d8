#include "io/catalogue.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

constexpr const char* kName = "smollm2-135m-instruct";

// Sets an environment variable until the end of the scope.
class Environment {
public:
    Environment(std::string name, const std::string& value) : name_(std::move(name)) {
        if (const char* old = getenv(name_.c_str())) old_ = old;
        setenv(name_.c_str(), value.c_str(), 1);
    }
    ~Environment() {
        if (old_) {
            setenv(name_.c_str(), old_->c_str(), 1);
        } else {
            unsetenv(name_.c_str());
        }
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    std::string name_;
    std::optional<std::string> old_;
};

class Catalogue : public testing::Test {
protected:
    Catalogue() { set_progress_style(ProgressStyle::none); }
    ~Catalogue() override { set_progress_style(ProgressStyle::automatic); }

    // A python3 that stands in front of the real one.
    void fake_python(const std::string& script) {
        std::filesystem::create_directory(folder_ / "bin");
        const std::string path = folder_ / "bin/python3";
        write_all(path, "#!/bin/sh\n" + script);
        chmod(path.c_str(), 0755);
    }
    ErrorCode error(const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& e) {
            text_ = e.what();
            return e.code();
        }
        ADD_FAILURE() << "no error";
        return ErrorCode::internal;
    }
    bool said(const std::string& part) const { return text_.find(part) != std::string::npos; }
    bool cache_is_empty() const {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "cache")) {
            if (!entry.is_directory()) return false;
        }
        return !std::filesystem::exists(folder_ / ("cache/models/" + std::string(kName)));
    }

    TempFolder folder_;
    Environment cache_{"REFOLD_CACHE", folder_ / "cache"};
    Environment path_{"PATH", (folder_ / "bin") + ":/usr/bin:/bin"};
    std::string text_;
};

// Not counting what has ended and only waits for its parent to look.
bool is_running(pid_t process) {
    if (kill(process, 0) != 0) return false;
    std::ifstream status("/proc/" + std::to_string(process) + "/stat");
    std::string number, name, state;
    status >> number >> name >> state;
    return state != "Z";
}

// `pip download` leaves a wheel; whatever unpacks it is another call.
constexpr const char* kPip =
    "if [ \"$2\" = pip ]; then\n"
    "  while [ \"$1\" != --dest ]; do shift; done\n"
    "  echo wheel > \"$2/x-1-py3-none-any.whl\"; exit 0\n"
    "fi\n"
    "for out; do :; done\n";

TEST_F(Catalogue, EntriesAreComplete) {
    ASSERT_FALSE(catalogue().empty());
    for (const auto& entry : catalogue()) {
        EXPECT_EQ(std::string(entry.sha256).size(), 64U) << entry.name;
        EXPECT_GT(entry.bytes, 0U);
        EXPECT_GT(entry.download_bytes, 0U);
        EXPECT_EQ(std::filesystem::path(entry.member).extension(), ".gguf");
    }
}

TEST_F(Catalogue, ExistingPathIsItself) {
    write_all(folder_ / "model.gguf", "x");
    EXPECT_EQ(resolve_model(folder_ / "model.gguf"), folder_ / "model.gguf");
    std::filesystem::create_directory(folder_ / "directory");
    EXPECT_EQ(resolve_model(folder_ / "directory"), folder_ / "directory");
}

TEST_F(Catalogue, WhatIsNotThereSaysWhatToDo) {
    EXPECT_EQ(error([] { resolve_model(kName); }), ErrorCode::usage);
    EXPECT_TRUE(said(std::string("refold pull ") + kName)) << text_;
    EXPECT_EQ(error([] { resolve_model("smolm2-135m-instruct"); }), ErrorCode::usage);
    EXPECT_TRUE(said(std::string("did you mean '") + kName)) << text_;
    EXPECT_EQ(error([] { pull("smollm2-135-instruct"); }), ErrorCode::usage);
    EXPECT_TRUE(said(std::string("did you mean '") + kName)) << text_;
    EXPECT_EQ(error([] { resolve_model(""); }), ErrorCode::usage);
    EXPECT_EQ(error([] { resolve_model("org/name-7B"); }), ErrorCode::unsupported);
    EXPECT_TRUE(said("give a path") && said(kName)) << text_;
    for (const char* path :
         {"./missing", "/missing/model", "missing.gguf", "models/missing.gguf", "a/b/c", "a/"}) {
        EXPECT_EQ(error([&] { resolve_model(path); }), ErrorCode::io) << path;
        EXPECT_TRUE(said("does not exist")) << text_;
    }
}

TEST_F(Catalogue, PullWithoutPythonSaysWhatToInstall) {
    const Environment no_path("PATH", folder_ / "nothing");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::io);
    EXPECT_TRUE(said("python3") && said("install")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, PullWithoutPipSaysWhatToInstall) {
    fake_python("echo '/usr/bin/python3: No module named pip' >&2; exit 1\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::io);
    EXPECT_TRUE(said("install pip")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, FailingPipIsQuoted) {
    fake_python(
        "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; echo 'ERROR: no route' >&2; exit 1\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::io);
    EXPECT_TRUE(said("ERROR: no route") && said("line 49") && !said("line 9\n")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, PipThatLeavesNothingIsAnError) {
    fake_python("exit 0\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::io);
    EXPECT_TRUE(said("left no wheel")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, WheelThatCannotBeUnpackedIsAnError) {
    fake_python(std::string(kPip) + "echo 'BadZipFile: File is not a zip file' >&2; exit 1\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::input);
    EXPECT_TRUE(said("BadZipFile")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, WrongSizeOrContentIsAnError) {
    fake_python(std::string(kPip) + "echo short > \"$out\"\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::input);
    EXPECT_TRUE(said("got 6 bytes, expected 98,362,432")) << text_;
    EXPECT_TRUE(cache_is_empty());

    fake_python(std::string(kPip) + "truncate -s 98362432 \"$out\"\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::input);
    EXPECT_TRUE(said("SHA-256")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

// In a process of its own: an interrupt cannot be taken back.
using CatalogueDeathTest = Catalogue;
TEST_F(CatalogueDeathTest, InterruptEndsPipAndLeavesNothing) {
    const std::string pid_file = folder_ / "pid";
    // A wrapper whose child is the one that works.
    fake_python("trap '' INT\nsleep 60 &\necho $! > " + pid_file + ".new; mv " + pid_file + ".new " +
                pid_file + "\nwait\n");
    const auto interrupted_pull = [&] {
        install_interrupt_handlers();
        std::thread signaller([&] {
            while (!std::filesystem::exists(pid_file))
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            raise(SIGINT);
        });
        const ErrorCode code = error([] { pull(kName); });
        signaller.join();
        if (!cache_is_empty()) _exit(99);
        if (is_running(std::stoi(read_all(pid_file)))) _exit(98);
        _exit(exit_code(code));
    };
    GTEST_FLAG_SET(death_test_style, "fast");
    EXPECT_EXIT(interrupted_pull(), testing::ExitedWithCode(130), "");
}

TEST_F(Catalogue, WhatIsInTheCacheIsNotFetchedAgain) {
    fake_python("exit 1\n");
    const auto& entry = catalogue().front();
    const std::string models = folder_ / ("cache/models/" + std::string(entry.name));
    std::filesystem::create_directories(models);
    const std::string path = models + "/" + std::filesystem::path(entry.member).filename().string();
    write_all(path, "x");
    EXPECT_EQ(error([] { resolve_model(kName); }), ErrorCode::usage)
        << "a file of another size is not the model";
    std::filesystem::resize_file(path, entry.bytes);
    EXPECT_EQ(pull(kName), path);
    EXPECT_EQ(resolve_model(kName), path);
}

TEST_F(Catalogue, CacheThatCannotBeWrittenIsAnError) {
    write_all(folder_ / "file", "x");
    const Environment cache("REFOLD_CACHE", folder_ / "file");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::io);
    EXPECT_TRUE(said("REFOLD_CACHE")) << text_;
}

}  // namespace
}  // namespace refold
