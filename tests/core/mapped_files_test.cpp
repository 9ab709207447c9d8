// Mapped files that are cut shorter, rewritten, replaced or removed while they are used.
#include "core/mapped_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "core/error_of.h"
#include "core/interrupt.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kSize = 64 << 10;

size_t sum(const MappedFile& file) {
    size_t sum = 0;
    for (const std::byte byte : file.bytes()) sum += static_cast<size_t>(byte);
    return sum;
}

template <typename Action>
std::string io_error_of(Action&& action) {
    return error_of(action, ErrorCode::io);
}

class MappedFiles : public testing::Test {
protected:
    void SetUp() override {
        guard_mapped_files();
        write_all(path_, std::string(kSize, '\1'));
    }

    TempFolder folder_;
    std::string path_ = folder_ / "file";
};

TEST_F(MappedFiles, BytesThatAreGoneAreAnError) {
    {
        const MappedFile file(path_);
        EXPECT_EQ(sum(file), kSize);
        check_unchanged(file);
        check_mapped_files();
        fs::resize_file(path_, 8 << 10);
        EXPECT_EQ(sum(file), 8 << 10) << "what is gone reads as zeros";
        for (int i = 0; i < 2; ++i)
            EXPECT_THAT(io_error_of([] { check_interrupt(); }), HasSubstr("'" + path_ + "' was cut shorter"));
        EXPECT_THAT(io_error_of([&] { check_unchanged(file); }), HasSubstr("cut shorter"));
        EXPECT_THAT(io_error_of([&] { AtomicFile(folder_ / "output", false).commit(); }),
                    HasSubstr("cut shorter"));
    }
    EXPECT_FALSE(fs::exists(folder_ / "output"));
    EXPECT_THAT(io_error_of([] { check_mapped_files(); }), HasSubstr("cut shorter"))
        << "of a map that is gone";
    check_mapped_files();
    EXPECT_EQ(sum(MappedFile(path_)), 8 << 10);
    check_mapped_files();
}

TEST_F(MappedFiles, LargePiecesOfThemAreNotWritten) {
    constexpr size_t kLarge = 4 << 20;  // more than AtomicFile keeps
    write_all(path_, std::string(kLarge, '\1'));
    const MappedFile file(path_);
    fs::resize_file(path_, 0);
    AtomicFile output(folder_ / "output", false);
    EXPECT_THAT(io_error_of([&] { output.write(file.bytes()); }),
                HasSubstr("cannot write '" + (folder_ / "output")));
}

TEST_F(MappedFiles, RewrittenInPlaceIsAnError) {
    const MappedFile file(path_);
    const int descriptor = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(write(descriptor, "other", 5), 5);
    const timespec times[] = {{1, 0}, {1, 0}};  // the clock of files is coarse
    ASSERT_EQ(futimens(descriptor, times), 0);
    close(descriptor);
    EXPECT_THAT(io_error_of([&] { check_unchanged(file); }),
                HasSubstr("'" + path_ + "' was changed while it was read"));
}

TEST_F(MappedFiles, ReplacedOrRemovedTheyStayAsTheyWere) {
    const MappedFile replaced(path_);
    write_file(path_, "another file");
    check_unchanged(replaced);
    EXPECT_EQ(sum(replaced), kSize);
    const MappedFile removed(path_);
    fs::remove(path_);
    check_unchanged(removed);
    EXPECT_EQ(removed.bytes().size(), 12u);
    check_mapped_files();
}

}  // namespace
}  // namespace refold
