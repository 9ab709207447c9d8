// The cache on disk, in the layout of huggingface_hub:
//   models--org--name/blobs/<etag>                  the bytes
//   models--org--name/snapshots/<commit>/<path>     relative links to the blobs
//   models--org--name/refs/<revision>               the commit of a branch or tag
//   .locks/models--org--name/<etag>.lock            held while a blob is fetched
// and datasets--org--name likewise.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace refold::hub {

class RepoCache {
public:
    RepoCache(const std::filesystem::path& root, const std::string& repo, bool dataset = false);

    std::filesystem::path blob(const std::string& etag) const { return folder_ / "blobs" / etag; }
    std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
    std::filesystem::path lock(const std::string& etag) const { return locks_ / (etag + ".lock"); }

    // Commit of a branch, tag or commit; "" when the cache does not have it.
    std::string commit_of(const std::string& revision) const;
    // Paths in the snapshot whose blobs exist.
    std::vector<std::string> files(const std::string& commit) const;

    // Throw Error(io) when they cannot write.
    void link(const std::string& commit, const std::string& path, const std::string& etag) const;
    void set_commit(const std::string& revision, const std::string& commit) const;

private:
    std::filesystem::path folder_, locks_;
};

// Creates a folder and its parents. Throws Error(io).
void make_folder(const std::filesystem::path& path);

// An exclusive flock() for the life of the object. Calls `waiting` ten times a second while another process
// holds the lock. Throws Error(io) when the file cannot be locked, Error(interrupted).
class FileLock {
public:
    FileLock(const std::filesystem::path& path, const std::function<void()>& waiting);

private:
    struct Descriptor {
        int number = -1;
        Descriptor() = default;
        ~Descriptor();
        Descriptor(const Descriptor&) = delete;
        Descriptor& operator=(const Descriptor&) = delete;
        void reset(int other);
    } descriptor_;
};

}  // namespace refold::hub
