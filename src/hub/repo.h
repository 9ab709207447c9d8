// A repository as the hub describes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/http.h"
#include "hub/hub.h"

namespace refold::hub {

struct RepoFile {
    std::string path;
    std::string etag;  // name of the blob: SHA-256 of a large file, else git's SHA-1; "" until described
    std::optional<uint64_t> size;  // nothing until described
};

struct Listing {
    std::string commit;
    std::vector<RepoFile> files;
};

// Parses the response of /api/models/... or /api/datasets/.... Throws Error(input) for anything but a listing
// with safe paths.
Listing parse_listing(std::string_view text);

class RemoteRepo {
public:
    RemoteRepo(HttpClient& client, HubSpec spec, const HubOptions& options)
        : client_(client), spec_(std::move(spec)), options_(options) {}

    // Throws Error(usage) when the repository or revision does not exist, Error(io) when access is denied.
    Listing listing();
    // Requests the size and the etag of a file when the listing has none.
    void describe(const std::string& commit, RepoFile& file);

    std::string url(const std::string& commit, const std::string& path) const;
    // Throws the error for an unsuccessful response. `path` is "" for the listing.
    [[noreturn]] void fail_status(const Response& response, const std::string& path) const;

private:
    [[noreturn]] void fail_access(const Response& response) const;
    HttpClient& client_;
    HubSpec spec_;
    HubOptions options_;
};

}  // namespace refold::hub
