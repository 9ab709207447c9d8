#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/environment.h"
#include "core/error.h"
#include "core/file_hash.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "core/sha256.h"
#include "core/temp_folder.h"
#include "core/text.h"

namespace refold {
namespace {

// Expects an Error of this code with `part` in its text.
template <typename Body>
void expect_error(Body&& body, ErrorCode code, const std::string& part) {
    try {
        body();
        ADD_FAILURE() << "no error, expected one with '" << part << "'";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "no '" << part << "' in: " << error.what();
    }
}

// ---- errors ----

TEST(Error, TextAndExitCodes) {
    expect_error([] { fail(ErrorCode::input, "part", "got {}, expected {}", 1, "two"); }, ErrorCode::input,
                 "[part] got 1, expected two");
    EXPECT_EQ(exit_code(ErrorCode::usage), 2);
    EXPECT_EQ(exit_code(ErrorCode::input), 1);
    EXPECT_EQ(exit_code(ErrorCode::io), 1);
    EXPECT_EQ(exit_code(ErrorCode::unsupported), 1);
    EXPECT_EQ(exit_code(ErrorCode::internal), 1);
    EXPECT_EQ(exit_code(ErrorCode::interrupted), 130);
}

// ---- files ----

TEST(AtomicFile, NothingUnderTheFinalNameBeforeCommit) {
    const TempFolder folder;
    {
        AtomicFile file(folder / "x", false);
        file.write("text");
        file.write(std::string(3 << 20, 'a'));  // beyond the buffer
        EXPECT_FALSE(std::filesystem::exists(folder / "x"));
        EXPECT_EQ(folder.files().size(), 1u);
        file.write("end");
        file.commit();
    }
    EXPECT_EQ(read_all(folder / "x"), "text" + std::string(3 << 20, 'a') + "end");
    EXPECT_EQ(folder.files(), std::vector<std::string>{"x"});
}

TEST(AtomicFile, DestructorRemovesWhatWasNotCommitted) {
    const TempFolder folder;
    write_all(folder / "x", "old");
    {
        AtomicFile file(folder / "x", true);
        file.write(std::string(3 << 20, 'a'));
        EXPECT_EQ(read_all(folder / "x"), "old");
    }
    EXPECT_EQ(read_all(folder / "x"), "old");
    EXPECT_EQ(folder.files(), std::vector<std::string>{"x"});
}

TEST(AtomicFile, Overwrite) {
    const TempFolder folder;
    write_all(folder / "x", "old");
    expect_error([&] { AtomicFile(folder / "x", false); }, ErrorCode::usage, "--overwrite");
    EXPECT_EQ(read_all(folder / "x"), "old");
    AtomicFile file(folder / "x", true);
    file.write("new");
    file.commit();
    EXPECT_EQ(read_all(folder / "x"), "new");
    write_file(folder / "x", "newer");
    EXPECT_EQ(read_all(folder / "x"), "newer");
}

TEST(AtomicFile, PlacesThatCannotBeWritten) {
    const TempFolder folder;
    for (const bool overwrite : {false, true}) {
        expect_error([&] { AtomicFile(folder / "no/such/folder/x", overwrite); }, ErrorCode::io,
                     "no/such/folder/x");
        expect_error([&] { AtomicFile(folder / std::string(300, 'x'), overwrite); }, ErrorCode::io,
                     "cannot write");
        write_all(folder / "file", "");
        expect_error([&] { AtomicFile(folder / "file/x", overwrite); }, ErrorCode::io, "file/x");
    }
    std::filesystem::create_directory(folder / "directory");
    expect_error([&] { AtomicFile(folder / "directory", true); }, ErrorCode::io, "is a directory");
}

TEST(AtomicFile, Alignment) {
    const TempFolder folder;
    AtomicFile file(folder / "x", false);
    file.align(32);
    EXPECT_EQ(file.position(), 0u);
    file.write("abc");
    file.align(32);
    EXPECT_EQ(file.position(), 32u);
    file.align(32);
    EXPECT_EQ(file.position(), 32u);
    file.commit();
    EXPECT_EQ(read_all(folder / "x"), "abc" + std::string(29, '\0'));
}

// A size limit of the process acts like a full disk.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) {
        handler_ = signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &old_);
        rlimit limit = old_;
        limit.rlim_cur = bytes;
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FileSizeLimit() {
        setrlimit(RLIMIT_FSIZE, &old_);
        signal(SIGXFSZ, handler_);
    }

private:
    rlimit old_{};
    void (*handler_)(int) = nullptr;
};

TEST(AtomicFile, FullDisk) {
    const TempFolder folder;
    write_all(folder / "x", "old");
    const auto attempt = [&](rlim_t limit, size_t size) {
        AtomicFile file(folder / "x", true);
        const FileSizeLimit full(limit);
        file.write(std::string(size, 'a'));
        file.commit();
    };
    expect_error([&] { attempt(1 << 20, 4 << 20); }, ErrorCode::io, "cannot write");  // while writing
    expect_error([&] { attempt(100, 1000); }, ErrorCode::io, "cannot write");  // when the buffer is flushed
    EXPECT_EQ(read_all(folder / "x"), "old");
    EXPECT_EQ(folder.files(), std::vector<std::string>{"x"});
}

TEST(MappedFile, MapsWhatIsThere) {
    const TempFolder folder;
    const std::string text(100000, 'm');
    write_all(folder / "x", text);
    const MappedFile file(folder / "x");
    const auto bytes = file.bytes();
    ASSERT_EQ(bytes.size(), text.size());
    EXPECT_EQ(memcmp(bytes.data(), text.data(), text.size()), 0);
    file.release(bytes);
    file.release(bytes.subspan(10, 20));
    file.release({});
    EXPECT_EQ(memcmp(bytes.data(), text.data(), text.size()), 0);
    write_all(folder / "empty", "");
    EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
    expect_error([&] { MappedFile(folder / "none"); }, ErrorCode::io, "none");
    expect_error([&] { MappedFile(folder / "."); }, ErrorCode::io, "is a directory");
}

TEST(CacheDirectory, FollowsTheEnvironment) {
    const auto with = [](const char* own, const char* xdg, const char* home) {
        const auto set = [](const char* name, const char* value) {
            value == nullptr ? unsetenv(name) : setenv(name, value, 1);
        };
        set("REFOLD_CACHE", own);
        set("XDG_CACHE_HOME", xdg);
        set("HOME", home);
        return cache_directory().string();
    };
    const std::string home = getenv("HOME") != nullptr ? getenv("HOME") : "";
    EXPECT_EQ(with("/own", "/xdg", "/home/me"), "/own");
    EXPECT_EQ(with("", "/xdg", "/home/me"), "/xdg/refold");
    EXPECT_EQ(with(nullptr, nullptr, "/home/me"), "/home/me/.cache/refold");
    EXPECT_FALSE(with(nullptr, nullptr, nullptr).empty());
    setenv("HOME", home.c_str(), 1);
}

// ---- interrupts (each in its own process, because a signal cannot be taken back) ----

TEST(InterruptDeathTest, FirstSignalIsAnError) {
    EXPECT_FALSE(interrupted());
    EXPECT_NO_THROW(check_interrupt());
    const auto interrupt_by = [](int number) {
        install_interrupt_handlers();
        raise(number);
        try {
            check_interrupt();
        } catch (const Error& error) {
            fprintf(stderr, "%s\n", error.what());
            std::_Exit(interrupted() ? exit_code(error.code()) : 99);
        }
        std::_Exit(98);
    };
    EXPECT_EXIT(interrupt_by(SIGINT), testing::ExitedWithCode(130), "Ctrl-C");
    EXPECT_EXIT(interrupt_by(SIGTERM), testing::ExitedWithCode(130), "SIGTERM");
}

TEST(InterruptDeathTest, WritingStopsAndLeavesNothing) {
    const TempFolder folder;
    const auto write = [&] {
        install_interrupt_handlers();
        try {
            AtomicFile file(folder / "x", false);
            raise(SIGINT);
            file.write("text");
        } catch (const Error& error) {
            std::_Exit(exit_code(error.code()));
        }
        std::_Exit(98);
    };
    EXPECT_EXIT(write(), testing::ExitedWithCode(130), "");
    EXPECT_TRUE(folder.files().empty());
}

TEST(InterruptDeathTest, SecondSignalEndsTheProcessAndRemovesTemporaries) {
    const TempFolder folder;
    const auto write = [&] {
        install_interrupt_handlers();
        AtomicFile file(folder / "x", false);
        raise(SIGINT);
        raise(SIGINT);
        std::_Exit(98);
    };
    EXPECT_EXIT(write(), testing::ExitedWithCode(128 + SIGINT), "");
    EXPECT_TRUE(folder.files().empty());
}

// ---- text ----

TEST(Text, Formats) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.0 KiB");
    EXPECT_EQ(format_bytes(12897485), "12.3 MiB");
    EXPECT_EQ(format_bytes(uint64_t{5} << 30), "5.0 GiB");
    EXPECT_EQ(format_bytes(uint64_t{5} << 50), "5120.0 TiB");
    EXPECT_EQ(format_count(0), "0");
    EXPECT_EQ(format_count(999), "999");
    EXPECT_EQ(format_count(1000), "1,000");
    EXPECT_EQ(format_count(134515008), "134,515,008");
    EXPECT_EQ(format_count(~uint64_t{0}), "18,446,744,073,709,551,615");
    EXPECT_EQ(format_seconds(0), "0.0 s");
    EXPECT_EQ(format_seconds(4.2), "4.2 s");
    EXPECT_EQ(format_seconds(60), "1 min 00 s");
    EXPECT_EQ(format_seconds(185), "3 min 05 s");
    EXPECT_EQ(format_seconds(3600), "1 h 00 min");
    EXPECT_EQ(format_seconds(7 * 3600 + 5 * 60), "7 h 05 min");
}

TEST(Text, Nearest) {
    const std::vector<std::string> known{"perplexity", "compress", "generate"};
    EXPECT_EQ(nearest("perplexty", known), "perplexity");
    EXPECT_EQ(nearest("compres", known), "compress");
    EXPECT_EQ(nearest("generate", known), "generate");
    EXPECT_EQ(nearest("xyz", known), "");
    EXPECT_EQ(nearest("", known), "");
    EXPECT_EQ(nearest("word", {}), "");
    EXPECT_EQ(suggestion("compres", known), "did you mean 'compress'? known: perplexity, compress, generate");
    EXPECT_EQ(suggestion("xyz", known), "known: perplexity, compress, generate");
    EXPECT_EQ(join(known, " | "), "perplexity | compress | generate");
    EXPECT_EQ(join({}, ", "), "");
}

TEST(Text, FindInvalidUtf8) {
    const size_t none = std::string::npos;
    const std::vector<std::pair<std::string, size_t>> table{
        {"", none},
        {"plain", none},
        {std::string("a\0b", 3), none},
        {"gr\xC3\xBC\xC3\x9F", none},
        {"\xE2\x82\xAC", none},              // U+20AC
        {"\xF0\x9F\x98\x80", none},          // U+1F600
        {"\xED\x9F\xBF\xEE\x80\x80", none},  // around the surrogates
        {"\xF4\x8F\xBF\xBF", none},          // U+10FFFF
        {"\x80", 0},                         // continuation without lead
        {"abc\xFF", 3},
        {"\xFE", 0},
        {"a\xC3", 1},  // cut short
        {"\xC3(", 0},
        {"\xE2\x82", 0},
        {"\xE2(\xA1", 0},
        {"\xF0\x9F\x98", 0},
        {"ok\xF0\x9F\x98(", 2},
        {"\xC0\x80", 0},  // overlong
        {"\xC1\xBF", 0},
        {"\xE0\x80\x80", 0},
        {"\xE0\x9F\xBF", 0},
        {"\xF0\x80\x80\x80", 0},
        {"\xF0\x8F\xBF\xBF", 0},
        {"\xED\xA0\x80", 0},  // surrogates
        {"\xED\xBF\xBF", 0},
        {"\xF4\x90\x80\x80", 0},  // above U+10FFFF
        {"\xF5\x80\x80\x80", 0},
        {"\xC3\xBC\xC3\xBC\x80", 4},
    };
    for (const auto& [text, at] : table)
        EXPECT_EQ(find_invalid_utf8(text), at) << testing::PrintToString(text);
}

TEST(Text, ReadTextFile) {
    const TempFolder folder;
    write_all(folder / "good", "grüße\n");
    EXPECT_EQ(read_text_file(folder / "good"), "grüße\n");
    write_all(folder / "empty", "");
    expect_error([&] { read_text_file(folder / "empty"); }, ErrorCode::input, "is empty");
    write_all(folder / "latin1", "gr\xFC\xDF");
    expect_error([&] { read_text_file(folder / "latin1"); }, ErrorCode::input, "0xfc at offset 2");
    expect_error([&] { read_text_file(folder / "none"); }, ErrorCode::io, "none");
    expect_error([&] { read_text_file(folder / "."); }, ErrorCode::io, "cannot read");
}

TEST(Text, Table) {
    TextTable table({"name", "size"});
    table.add({"grüße", "1"});
    table.add({"b", "1,000"});
    EXPECT_EQ(table.str(),
              "name    size\n"
              "------------\n"
              "grüße      1\n"
              "b      1,000\n");
}

// ---- SHA-256 (FIPS 180-4 examples) ----

std::string sha256_of(std::string_view text) {
    return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(Sha256, KnownDigests) {
    EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256_of(std::string(1000000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, Streaming) {
    const std::string text(1000000, 'a');
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    Sha256 hash;
    for (size_t at = 0; at < bytes.size(); at += 777)
        hash.update(bytes.subspan(at, std::min<size_t>(777, bytes.size() - at)));
    EXPECT_EQ(hash.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// ---- parallel_for ----

TEST(ParallelFor, EveryIndexOnce) {
    for (const int threads : {0, 1, 2, 7}) {
        std::vector<std::atomic<int>> visits(1000);
        parallel_for(1000, threads, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
        for (const auto& n : visits) ASSERT_EQ(n, 1);
    }
    parallel_for(0, 4, [](int64_t) { FAIL(); });
    EXPECT_GE(default_threads(), 1);
}

TEST(ParallelFor, DefaultThreadsAreWhatWasSetOrThisProcessesPartOfTheCores) {
    const int cores = default_threads();
    set_default_threads(cores + 3);
    EXPECT_EQ(default_threads(), cores + 3);
    set_default_threads(0);
    const Environment many("LOCAL_WORLD_SIZE", "100000");
    EXPECT_EQ(default_threads(), 1);
}

TEST(ParallelFor, FirstExceptionIsRethrown) {
    for (const int threads : {1, 4}) {
        std::atomic<int> calls{0};
        expect_error(
            [&] {
                parallel_for(1000000, threads, [&](int64_t i) {
                    ++calls;
                    if (i == 10) fail(ErrorCode::input, "body", "item {}", i);
                });
            },
            ErrorCode::input, "[body] item 10");
        EXPECT_LT(calls, 1000000);
    }
}

// ---- progress ----

TEST(Progress, AnyTotalAndStyle) {
    for (const auto style : {ProgressStyle::automatic, ProgressStyle::none}) {
        set_progress_style(style);
        testing::internal::CaptureStderr();
        for (const uint64_t total : {uint64_t{0}, uint64_t{3}, ~uint64_t{0}}) {
            Progress progress("work", total, "items");
            progress.advance(0);
            progress.advance(1, "a note");
            progress.advance(10);
            progress.finish("done");
            progress.finish();
        }
        { const Progress unused("nothing", 1, "items"); }
        const std::string text = testing::internal::GetCapturedStderr();
        if (style == ProgressStyle::none) {
            EXPECT_EQ(text, "");
        } else {
            EXPECT_NE(text.find("work: 11 items in 0.0 s  done\n"), std::string::npos) << text;
        }
    }
    set_progress_style(ProgressStyle::automatic);
}

// A terminal's line is redrawn, by other code than a pipe's lines.
TEST(Progress, OnATerminal) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
        GTEST_SKIP() << "no pseudo terminal";
    const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    ASSERT_GE(end, 0);
    const int old = dup(STDERR_FILENO);
    dup2(end, STDERR_FILENO);
    {
        Progress progress("work", 4, "items");
        std::this_thread::sleep_for(std::chrono::milliseconds(120));
        progress.advance(1, "first");
        progress.finish();
    }
    {
        Progress stopped("half", 4, "items");
        std::this_thread::sleep_for(std::chrono::milliseconds(120));
        stopped.advance(2);
    }
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    char text[1024] = {};
    const ssize_t got = read(terminal, text, sizeof(text) - 1);
    close(end);
    close(terminal);
    ASSERT_GT(got, 0);
    EXPECT_NE(std::string(text).find("work:  25 %  1/4 items  ETA"), std::string::npos) << text;
}

// ---- hashes of files ----

TEST(FileHash, IsRememberedUntilTheFileChanges) {
    const TempFolder folder;
    const Environment cache("REFOLD_CACHE", folder / "cache");
    const std::string path = folder / "big";
    std::string bytes(2 << 20, 'x');
    write_all(path, bytes);
    const std::string first = remembered_sha256(path);
    EXPECT_EQ(first, sha256_hex(std::as_bytes(std::span(bytes))));
    const auto entries = [&] {
        std::vector<std::filesystem::path> found;
        for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/sha256"))
            found.push_back(entry.path());
        return found;
    };
    ASSERT_EQ(entries().size(), 1u);
    // The hash comes from the cache ...
    write_all(entries()[0], std::string(64, 'a'));
    EXPECT_EQ(remembered_sha256(path), std::string(64, 'a'));
    // ... unless the cache holds no digest
    write_all(entries()[0], "nonsense");
    EXPECT_EQ(remembered_sha256(path), first);
    // or the file has changed.
    bytes[5] = 'y';
    write_all(path, bytes);
    EXPECT_EQ(remembered_sha256(path), sha256_hex(std::as_bytes(std::span(bytes))));
    EXPECT_EQ(entries().size(), 2u);
}

TEST(FileHash, WithoutACacheToWriteTo) {
    const TempFolder folder;
    write_all(folder / "file", "not a folder");
    const Environment cache("REFOLD_CACHE", folder / "file");
    const std::string bytes(2 << 20, 'x');
    write_all(folder / "big", bytes);
    EXPECT_EQ(remembered_sha256(folder / "big"), sha256_hex(std::as_bytes(std::span(bytes))));
    expect_error([&] { remembered_sha256(folder / "missing"); }, ErrorCode::io, "missing");
}

}  // namespace
}  // namespace refold
