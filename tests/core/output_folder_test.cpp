// Output folders: what is replaced, and what stays.
#include "core/output_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/error_of.h"
#include "core/files.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

using Files = std::vector<std::pair<std::string, std::string>>;  // by name

class OutputFolders : public testing::Test {
protected:
    void write(const Files& files, const FolderRules& rules = {.overwrite = true}) const {
        OutputFolder out(path_, rules);
        for (const auto& [name, text] : files) {
            fs::create_directories((fs::path(out.path()) / name).parent_path());
            write_all(out.path() + "/" + name, text);
        }
        out.commit();
    }
    std::string error(const Files& files, const FolderRules& rules = {.overwrite = true}) const {
        return error_of([&] { write(files, rules); }, ErrorCode::usage);
    }
    void put(const std::string& name, const std::string& text) const {
        fs::create_directories(fs::path(path_ + "/" + name).parent_path());
        write_all(path_ + "/" + name, text);
    }
    std::string at(const std::string& name) const { return path_ + "/" + name; }
    // All names in it but that of the list.
    std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto& entry : fs::recursive_directory_iterator(path_))
            if (entry.path().filename() != kWrittenFiles)
                out.push_back(entry.path().lexically_relative(path_).string());
        return out;
    }
    static struct stat status(const std::string& path) {
        struct stat out {};
        EXPECT_EQ(lstat(path.c_str(), &out), 0) << path;
        return out;
    }

    TempFolder folder_;
    std::string path_ = folder_ / "out";
};

TEST_F(OutputFolders, OnlyWhatAnEarlierRunWroteIsReplaced) {
    write({{"config", "1"}, {"old", "1"}, {"part/a", "1"}, {"part/b", "1"}, {"gone/c", "1"}});
    put("thesis", "mine");
    put(".git/objects/ab", "mine");
    put("part/notes", "mine");
    write({{"config", "2"}, {"part/a", "2"}, {"new", "2"}});
    EXPECT_THAT(names(), UnorderedElementsAre("config", "new", "part", "part/a", "part/notes", "thesis",
                                              ".git", ".git/objects", ".git/objects/ab"));
    EXPECT_EQ(read_all(at("config")), "2");
    EXPECT_EQ(read_all(at("part/a")), "2");
    EXPECT_EQ(read_all(at("thesis")), "mine");
    EXPECT_EQ(read_all(at(".git/objects/ab")), "mine");
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
    write({});
    EXPECT_THAT(names(), UnorderedElementsAre("part", "part/notes", "thesis", ".git", ".git/objects",
                                              ".git/objects/ab"));
}

TEST_F(OutputFolders, WhatStaysIsTheSameFile) {
    put("read-only/file", "mine");
    put("private", "mine");
    put("part/notes", "mine");
    fs::create_directories(at("empty/inner"));
    fs::create_symlink("/nowhere", at("broken"));
    fs::create_symlink("private", at("link"));
    fs::create_directory_symlink("read-only", at("folder-link"));
    ASSERT_EQ(mkfifo(at("fifo").c_str(), 0640), 0);
    fs::permissions(at("private"), fs::perms(0600));
    fs::permissions(at("read-only/file"), fs::perms(0444));
    fs::permissions(at("empty"), fs::perms(0750));
    fs::permissions(at("part"), fs::perms(0701));
    fs::permissions(path_, fs::perms(0700));
    fs::permissions(at("read-only"), fs::perms(0555));
    const timespec times[] = {{1000, 5}, {2000, 7}};
    for (const char* name : {"private", "read-only", "empty"})
        utimensat(AT_FDCWD, at(name).c_str(), times, AT_SYMLINK_NOFOLLOW);
    std::map<std::string, struct stat> before;
    for (const std::string& name : names()) before[name] = status(at(name));
    for (int run = 0; run < 2; ++run) {
        write({{"config", "1"}, {"part/a", "1"}});
        EXPECT_EQ(names().size(), before.size() + 2);
        for (const auto& [name, then] : before) {
            const struct stat now = status(at(name));
            EXPECT_EQ(now.st_mode, then.st_mode) << name;
            EXPECT_EQ(now.st_mtim.tv_sec, then.st_mtim.tv_sec) << name;
            EXPECT_EQ(now.st_uid, then.st_uid) << name;
            if (S_ISDIR(then.st_mode)) continue;
            EXPECT_EQ(now.st_ino, then.st_ino) << name;
        }
        EXPECT_EQ(status(path_).st_mode & 07777, 0700U);
        EXPECT_EQ(fs::read_symlink(at("broken")), "/nowhere");
        EXPECT_EQ(read_all(at("folder-link/file")), "mine");
        EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
    }
}

TEST_F(OutputFolders, AFileOfTheSameNameIsRefusedAndNamed) {
    put("config", "mine");
    put("part/a", "mine");
    put("part/b", "the same");
    put("folder/x", "mine");
    put("file", "mine");
    EXPECT_THAT(
        error({{"config", "1"}, {"part/a", "1"}, {"part/b", "the same"}, {"folder", "1"}, {"file/x", "1"}}),
        AllOf(HasSubstr("'config'"), HasSubstr("'part/a'"), HasSubstr("'folder'"), HasSubstr("'file'"),
              Not(HasSubstr("part/b"))));
    EXPECT_EQ(read_all(at("config")), "mine");
    EXPECT_THAT(names(),
                UnorderedElementsAre("config", "part", "part/a", "part/b", "folder", "folder/x", "file"));
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
}

TEST_F(OutputFolders, AFileThatWasChangedIsNotRefolds) {
    write({{"config", "1"}, {"weights", "1"}});
    put("weights", "trained further");
    EXPECT_THAT(error({{"config", "2"}, {"weights", "2"}}),
                AllOf(HasSubstr("'weights'"), Not(HasSubstr("'config'"))));
    EXPECT_EQ(read_all(at("weights")), "trained further");
    EXPECT_EQ(read_all(at("config")), "1");
    write({{"config", "2"}});
    EXPECT_EQ(read_all(at("weights")), "trained further");
}

TEST_F(OutputFolders, AMovedOrCopiedFolderIsStillRefolds) {
    write({{"config", "1"}, {"old", "1"}});
    fs::rename(path_, folder_ / "moved");
    fs::copy(folder_ / "moved", path_);
    write({{"config", "2"}});
    EXPECT_THAT(names(), UnorderedElementsAre("config"));
    EXPECT_EQ(read_all(at("config")), "2");
}

TEST_F(OutputFolders, AFolderOfAVersionWithoutAListIsSomebodyElses) {
    write({{"config", "1"}});
    fs::remove(at(kWrittenFiles));
    EXPECT_THAT(error({{"config", "2"}}), HasSubstr("'config'"));
}

TEST_F(OutputFolders, AListThatIsNoFileIsSomebodyElses) {
    fs::create_directory(path_);
    fs::create_symlink("/nowhere", at(kWrittenFiles));
    EXPECT_THAT(error({{"config", "2"}}), HasSubstr(kWrittenFiles));
    EXPECT_TRUE(fs::is_symlink(at(kWrittenFiles)));
}

TEST_F(OutputFolders, RulesForFilesOfOthers) {
    for (const char* name : {"refused", "replaced", "removed", "stays"}) put(name, "mine");
    const auto rule = [&](const std::string& name) {
        return name == "refused"    ? OthersFile::refused
               : name == "replaced" ? OthersFile::replaced
               : name == "removed"  ? OthersFile::removed
                                    : OthersFile::stays;
    };
    const FolderRules rules{true, rule};
    // Before anything is written.
    EXPECT_THAT(error_of([&] { OutputFolder(path_, rules); }, ErrorCode::usage), HasSubstr("'refused'"));
    fs::remove(at("refused"));
    write({}, rules);
    EXPECT_THAT(names(), UnorderedElementsAre("replaced", "stays"));
    EXPECT_EQ(read_all(at("replaced")), "mine");
    put("removed", "mine");
    write({{"replaced", "1"}, {"removed", "1"}}, rules);
    EXPECT_EQ(read_all(at("replaced")), "1");
    EXPECT_EQ(read_all(at("removed")), "1");
}

TEST_F(OutputFolders, NeedsOverwriteOnlyForFoldersThatAreNotEmpty) {
    fs::create_directory(path_);
    write({{"config", "1"}}, {});
    EXPECT_THAT(error({{"config", "2"}}, {}), HasSubstr("--overwrite"));
    EXPECT_EQ(read_all(at("config")), "1");
}

TEST_F(OutputFolders, WhatIsNoFolderIsRefused) {
    const auto refused = [&](const std::string& part) {
        const auto type = fs::symlink_status(path_).type();
        for (const bool overwrite : {false, true})
            EXPECT_THAT(error({{"config", "1"}}, {.overwrite = overwrite}),
                        AllOf(HasSubstr(path_), HasSubstr(part)));
        EXPECT_EQ(fs::symlink_status(path_).type(), type);
        fs::remove(path_);
    };
    write_all(path_, "mine");
    refused("is a file, not a folder");
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    refused("is not a folder");
    fs::create_symlink("nowhere", path_);
    refused("is a link to 'nowhere', which does not exist");
    write_all(folder_ / "file", "mine");
    fs::create_symlink("file", path_);
    refused("is a file, not a folder");
    EXPECT_EQ(read_all(folder_ / "file"), "mine");
}

TEST_F(OutputFolders, ALinkToAFolderStays) {
    fs::create_directory(folder_ / "target");
    write_all(folder_ / "target/thesis", "mine");
    fs::create_directory_symlink("target", path_);
    write({{"config", "1"}});
    EXPECT_TRUE(fs::is_symlink(path_));
    EXPECT_EQ(read_all(folder_ / "target/config"), "1");
    EXPECT_EQ(read_all(folder_ / "target/thesis"), "mine");
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out", "target"));
}

TEST_F(OutputFolders, TheCurrentFolderIsRefused) {
    fs::create_directories(at("inner"));
    const fs::path before = fs::current_path();
    fs::current_path(at("inner"));
    for (const char* name : {".", "..", "../../out"})
        EXPECT_THAT(error_of([&] { OutputFolder(name, {.overwrite = true}); }, ErrorCode::usage),
                    HasSubstr("current folder"));
    EXPECT_EQ(fs::current_path(), fs::canonical(at("inner")));
    fs::current_path(before);
}

TEST_F(OutputFolders, WhatComesMeanwhileStays) {
    write({{"config", "1"}});
    OutputFolder out(path_, {.overwrite = true});
    write_all(out.path() + "/config", "2");
    put("thesis", "mine");
    out.commit();
    EXPECT_EQ(read_all(at("thesis")), "mine");
    OutputFolder other(path_, {.overwrite = true});
    write_all(other.path() + "/late", "3");
    put("late", "mine");
    EXPECT_THAT(error_of([&] { other.commit(); }, ErrorCode::usage), HasSubstr("'late'"));
    EXPECT_EQ(read_all(at("late")), "mine");
}

TEST_F(OutputFolders, WithoutCommitNothingChanges) {
    put("thesis", "mine");
    {
        const OutputFolder out(path_, {.overwrite = true});
        write_all(out.path() + "/config", "1");
    }
    EXPECT_THAT(names(), UnorderedElementsAre("thesis"));
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
}

TEST_F(OutputFolders, RemoveWhatKilledProcessesHaveLeft) {
    for (const char* left : {"out.partial-0123456789abcdef", "out.partial-12"}) {
        fs::create_directory(folder_ / left);
        write_all(folder_ / (std::string(left) + "/file"), "left behind");
    }
    fs::create_directory_symlink("out.partial-12", folder_ / "out.partial-1123456789abcdef");
    write({{"file", "new"}});
    EXPECT_THAT(folder_.files(),
                UnorderedElementsAre("out", "out.partial-12", "out.partial-1123456789abcdef"));
    EXPECT_EQ(read_all(folder_ / "out.partial-12/file"), "left behind");
    EXPECT_EQ(read_all(at("file")), "new");
}

// Where folders cannot be exchanged, a killed run may have moved the old one away.
TEST_F(OutputFolders, AFolderThatWasMovedAwayIsBroughtBack) {
    fs::create_directory(folder_ / "out.partial-0123456789abcdef");
    fs::create_directory(folder_ / "out.partial-0123456789abcdef.old");
    write_all(folder_ / "out.partial-0123456789abcdef.old/thesis", "mine");
    write({{"file", "new"}});
    EXPECT_EQ(read_all(at("thesis")), "mine");
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out"));
    // Killed after both renames.
    const std::string old = folder_ / "out.partial-0123456789abcdef.old";
    fs::copy(path_, old);
    fs::remove(old + "/thesis");
    fs::create_hard_link(at("thesis"), old + "/thesis");
    write_all(old + "/late", "mine");
    write({{"file", "newer"}});
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out", "out.partial-0123456789abcdef.old"));
    EXPECT_EQ(std::distance(fs::directory_iterator(old), {}), 1);
    EXPECT_EQ(read_all(old + "/late"), "mine");
}

}  // namespace
}  // namespace refold
