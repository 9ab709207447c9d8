// One file of a hub into one blob of the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/repo.h"

namespace refold::hub {

struct Download {
    RepoFile file;
    std::string url;
    std::filesystem::path
        to;  // the blob; "<to>.incomplete" is kept for the next try when it does not come whole
};

// How much of it has come in an earlier try.
uint64_t incomplete_bytes(const Download& download);

// Called with the number of bytes that have come.
using Received = std::function<void(uint64_t bytes)>;

// Leaves the blob, complete, verified and flushed to disk. Throws Error(input) when it is not what the hub
// announced; then nothing is kept. Other errors keep what has come. The caller holds the blob's lock.
void fetch_blob(HttpClient& client, const RemoteRepo& repo, const Download& download,
                const HubOptions& options, const Received& received);

}  // namespace refold::hub
