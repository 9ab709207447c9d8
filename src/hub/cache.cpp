#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/temporaries.h"
#include "hub/names.h"

namespace refold::hub {
namespace {

namespace fs = std::filesystem;

std::string folder_name(const std::string& repo, bool dataset) {
    const size_t slash = repo.find('/');
    return (dataset ? "datasets--" : "models--") + repo.substr(0, slash) + "--" + repo.substr(slash + 1);
}

std::string small_text(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

bool have_same_bytes(const fs::path& a, const fs::path& b) {
    const MappedFile first(a), second(b);
    return std::ranges::equal(first.bytes(), second.bytes());
}

}  // namespace

void make_folder(const fs::path& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) {
        fail(ErrorCode::io, "hub", "cannot create '{}': {} - set HF_HUB_CACHE to another folder",
             path.string(), error.message());
    }
}

RepoCache::RepoCache(const fs::path& root, const std::string& repo, bool dataset)
    : folder_(root / folder_name(repo, dataset)), locks_(root / ".locks" / folder_name(repo, dataset)) {}

std::string RepoCache::commit_of(const std::string& revision) const {
    if (is_commit(revision)) return revision;
    std::string commit = small_text(folder_ / "refs" / revision);
    commit.erase(std::find(commit.begin(), commit.end(), '\n'), commit.end());
    return is_commit(commit) ? commit : "";
}

std::vector<std::string> RepoCache::files(const std::string& commit) const {
    const fs::path folder = snapshot(commit);
    std::vector<std::string> paths;
    std::error_code error;
    fs::recursive_directory_iterator it(folder, error);
    for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
        std::error_code broken;  // the blob of a link may be gone
        if (it->is_regular_file(broken)) paths.push_back(it->path().lexically_relative(folder).string());
    }
    std::ranges::sort(paths);
    return paths;
}

void RepoCache::link(const std::string& commit, const std::string& path, const std::string& etag) const {
    const fs::path link = snapshot(commit) / path;
    std::error_code error;
    if (fs::equivalent(link, blob(etag), error)) return;
    make_folder(link.parent_path());
    const fs::path target = blob(etag).lexically_relative(link.parent_path());
    fs::create_symlink(target, link, error);
    if (error == std::errc::file_exists && !fs::is_symlink(link)) {
        // Tools for file systems without links put files there.
        if (fs::is_regular_file(link) && have_same_bytes(link, blob(etag))) return;
        fail(ErrorCode::io, "hub", "'{}' is not a link into the cache, so it is not replaced - move it away",
             link.string());
    }
    if (error == std::errc::file_exists) {
        // A rename is atomic: another process may be making the same link.
        const fs::path fresh = temporary_name(link.string());
        fs::create_symlink(target, fresh, error);
        if (!error) fs::rename(fresh, link, error);
        std::error_code ignored;
        if (error) fs::remove(fresh, ignored);
    }
    if (error) fail(ErrorCode::io, "hub", "cannot create the link '{}': {}", link.string(), error.message());
}

void RepoCache::set_commit(const std::string& revision, const std::string& commit) const {
    if (revision == commit || commit_of(revision) == commit) return;
    const fs::path path = folder_ / "refs" / revision;
    make_folder(path.parent_path());
    write_file(path, commit);
}

void FileLock::Descriptor::reset(int other) {
    if (number >= 0) close(number);
    number = other;
}

FileLock::Descriptor::~Descriptor() { reset(-1); }

FileLock::FileLock(const fs::path& path, const std::function<void()>& waiting) {
    make_folder(path.parent_path());
    for (;;) {
        descriptor_.reset(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
        const int file = descriptor_.number;
        if (file < 0) {
            fail(ErrorCode::io, "hub", "cannot open the lock '{}': {}", path.string(), strerror(errno));
        }
        fchmod(file, 0664);  // a group may share the cache; fails unless we own the file
        while (flock(file, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) {
                fail(ErrorCode::io, "hub",
                     "cannot lock '{}': {} - set HF_HUB_CACHE to a folder of another file system",
                     path.string(), strerror(errno));
            }
            check_interrupt();
            if (waiting) waiting();
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        // If the previous holder has removed the file, nobody else would see this lock: try again.
        struct stat held {
        }, named{};
        if (fstat(file, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino) return;
    }
}

}  // namespace refold::hub
