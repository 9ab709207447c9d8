// Downloads one file of a hub into one blob of the cache.
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
    std::filesystem::path to;  // the blob; an incomplete download stays in "<to>.incomplete"
};

// Number of bytes that earlier attempts have left.
uint64_t incomplete_bytes(const Download& download);

// Called with the number of bytes received since the last call.
using Received = std::function<void(uint64_t bytes)>;

// Downloads the blob, verifies it and flushes it to disk. Throws Error(input), keeping nothing, when it is
// not the file that the hub announced; other errors keep the received bytes. The caller must hold the blob's
// lock.
void fetch_blob(HttpClient& client, const RemoteRepo& repo, const Download& download,
                const HubOptions& options, const Received& received);

}  // namespace refold::hub
