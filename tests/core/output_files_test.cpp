// What has the name of an output file, or of its temporary file, before refold writes it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error_of.h"
#include "core/files.h"
#include "core/temp_folder.h"
#include "core/temporaries.h"

// File systems without one or both of these.
static bool g_no_renameat2 = false, g_no_linkat = false;

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
    errno = EINVAL;
    return g_no_renameat2 ? -1
                          : static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
    errno = EPERM;
    return g_no_linkat ? -1 : static_cast<int>(syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class OutputFiles : public testing::Test {
protected:
    std::string error(bool overwrite, ErrorCode code = ErrorCode::usage) const {
        return error_of([&] { AtomicFile(path_, overwrite).commit(); }, code);
    }
    void expect_refused(const std::string& part) const {
        const auto type = fs::symlink_status(path_).type();
        for (const bool overwrite : {false, true}) EXPECT_THAT(error(overwrite), HasSubstr(part));
        EXPECT_EQ(fs::symlink_status(path_).type(), type);
    }
    fs::path entry_of_temporary() const {
        for (const auto& entry : fs::directory_iterator(folder_ / ""))
            if (entry.path().string().find(".partial-") != std::string::npos) return entry.path();
        return {};
    }

    TempFolder folder_;
    std::string path_ = folder_ / "out";
};

TEST_F(OutputFiles, AFifoIsRefused) {
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    expect_refused("got a FIFO, expected a regular file");
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
}

TEST_F(OutputFiles, ASocketIsRefused) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    ASSERT_LT(path_.size(), sizeof address.sun_path);
    std::strcpy(address.sun_path, path_.c_str());
    ASSERT_EQ(bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    expect_refused("got a socket");
    close(socket);
}

TEST_F(OutputFiles, ADeviceIsRefused) {
    if (mknod(path_.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0)
        GTEST_SKIP() << "needs the right to make devices";
    expect_refused("got a device");
}

TEST_F(OutputFiles, ALinkToAFifoIsRefused) {
    ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
    fs::create_symlink("fifo", path_);
    expect_refused("got a link to a FIFO");
    EXPECT_TRUE(fs::is_fifo(folder_ / "fifo"));
}

TEST_F(OutputFiles, ALinkThatLeadsNowhereIsReplacedOnlyWithOverwrite) {
    for (const char* target : {"nowhere", "out"}) {  // the second one is a circle
        fs::create_symlink(target, path_);
        EXPECT_THAT(error(false),
                    HasSubstr("is a link to '" + std::string(target) + "', which does not exist"));
        EXPECT_EQ(fs::read_symlink(path_), target);
        write_file(path_, "new");
        EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path_)));
        EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
        fs::remove(path_);
    }
}

TEST_F(OutputFiles, TheTargetOfALinkStays) {
    write_all(folder_ / "target", "old");
    fs::create_symlink("target", path_);
    EXPECT_THAT(error(false), HasSubstr("exists"));
    write_file(path_, "new");
    EXPECT_EQ(read_all(path_), "new");
    EXPECT_EQ(read_all(folder_ / "target"), "old");
}

TEST_F(OutputFiles, OtherHardLinksStay) {
    write_all(path_, "old");
    fs::create_hard_link(path_, folder_ / "other");
    write_file(path_, "new");
    EXPECT_EQ(read_all(folder_ / "other"), "old");
}

TEST_F(OutputFiles, AFifoThatComesMeanwhileIsNotReplaced) {
    AtomicFile file(path_, true);
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    EXPECT_THAT(error_of([&] { file.commit(); }, ErrorCode::usage), HasSubstr("a FIFO"));
    EXPECT_TRUE(fs::is_fifo(path_));
}

TEST_F(OutputFiles, AFileThatComesMeanwhileIsReplacedOnlyWithOverwrite) {
    for (const auto& [no_renameat2, no_linkat] : {std::pair{false, false}, {true, false}, {true, true}}) {
        g_no_renameat2 = no_renameat2;
        g_no_linkat = no_linkat;
        for (const bool overwrite : {false, true}) {
            AtomicFile file(path_, overwrite);
            file.write("ours");
            write_all(path_, "other");
            if (overwrite)
                file.commit();
            else
                EXPECT_THAT(error_of([&] { file.commit(); }, ErrorCode::usage), HasSubstr("--overwrite"));
            EXPECT_EQ(read_all(path_), overwrite ? "ours" : "other");
            fs::remove(path_);
        }
        AtomicFile file(path_, false);
        file.write("ours");
        file.commit();
        EXPECT_EQ(read_all(path_), "ours");
        EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
        fs::remove(path_);
    }
    g_no_renameat2 = g_no_linkat = false;
}

TEST_F(OutputFiles, TemporaryNamesAreNotTheSameTwice) {
    fs::path first;
    {
        const AtomicFile file(path_, false);
        first = entry_of_temporary();
    }
    const AtomicFile file(path_, false);
    EXPECT_NE(first, entry_of_temporary());
    EXPECT_EQ(first.string().size(), path_.size() + strlen(".partial-") + 16);
}

// By the process's number, as in earlier versions.
TEST_F(OutputFiles, ALinkWithAGuessedNameIsNotFollowed) {
    write_all(folder_ / "precious", "precious");
    const std::string guess = path_ + ".partial-" + std::to_string(getpid());
    fs::create_symlink("precious", guess);
    write_file(path_, "new");
    EXPECT_EQ(read_all(folder_ / "precious"), "precious");
    EXPECT_TRUE(fs::is_symlink(guess));
}

TEST_F(OutputFiles, RemoveWhatKilledProcessesHaveLeft) {
    const std::string left = path_ + ".partial-0123456789abcdef", held = path_ + ".partial-1123456789abcdef",
                      link = path_ + ".partial-2123456789abcdef";
    write_all(folder_ / "precious", "precious");
    fs::create_symlink("precious", link);
    std::vector<std::string> others = {"precious", "out.partial-2123456789abcdef",
                                       "out.partial-1123456789abcdef"};
    for (const std::string name :
         {"out.partial-", "out.partial-12", "out.partial-0123456789abcdeg", "out.partial-backup",
          "out2.partial-0123456789abcdef", "out.partial-0123456789abcdef.old"}) {
        write_all(folder_ / name, "another's");
        others.push_back(name);
    }
    write_all(left, "left behind");
    write_all(held, "being written");
    const int writer = open(held.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(flock(writer, LOCK_EX), 0);
    write_file(path_, "new");
    others.emplace_back("out");
    EXPECT_THAT(folder_.files(), testing::UnorderedElementsAreArray(others));
    EXPECT_EQ(read_all(folder_ / "precious"), "precious");
    close(writer);
}

TEST_F(OutputFiles, AFileThatAnotherProcessHasTakenIsNotHeld) {
    const int own = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_TRUE(hold_temporary(own, path_));
    fs::remove(path_);
    EXPECT_FALSE(hold_temporary(own, path_));
    write_all(path_, "another one");
    EXPECT_FALSE(hold_temporary(own, path_));
    close(own);
}

TEST_F(OutputFiles, OnlyOwnFilesOfAFolderAreRemoved) {
    fs::create_directories(folder_ / "work/train/empty");
    fs::create_directories(folder_ / "work/others");
    fs::create_directory(folder_ / "elsewhere");
    for (const char* name : {"work/own", "work/own.partial-0123456789abcdef", "work/thesis", "work/train/own",
                             "work/others/thesis", "elsewhere/own"})
        write_all(folder_ / name, "");
    fs::create_directory_symlink("../elsewhere", folder_ / "work/link");
    fs::create_symlink("../elsewhere/own", folder_ / "work/train/own.partial-1123456789abcdef");
    const auto ours = [](const fs::path& name) { return name.filename() == "own"; };
    remove_files(folder_ / "work", ours);
    std::vector<std::string> left;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / ""))
        left.push_back(entry.path().lexically_relative(folder_ / "").string());
    EXPECT_THAT(left,
                UnorderedElementsAre("work", "work/thesis", "work/others", "work/others/thesis", "work/link",
                                     "work/train", "work/train/own.partial-1123456789abcdef", "elsewhere",
                                     "elsewhere/own"));
    fs::remove_all(folder_ / "work");
    fs::create_directory(folder_ / "work");
    write_all(folder_ / "work/own", "");
    remove_files(folder_ / "work", ours);
    EXPECT_FALSE(fs::exists(folder_ / "work"));
}

}  // namespace
}  // namespace refold
