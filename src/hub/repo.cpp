#include "hub/repo.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"
#include "hub/names.h"
#include "hub/retry.h"

namespace refold::hub {
namespace {

using Json = nlohmann::json;

// A member of an object; null when there is none or `object` is not an object.
const Json& member(const Json& object, const char* name) {
    static const Json null;
    if (!object.is_object()) return null;
    const auto found = object.find(name);
    return found == object.end() ? null : *found;
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

std::optional<uint64_t> size_of(const Json& value) {
    if (!value.is_number_unsigned()) return {};
    return value.get<uint64_t>();
}

RepoFile parse_file(const Json& entry) {
    RepoFile file{.path = text_of(member(entry, "rfilename")), .etag = {}, .size = {}};
    if (!is_safe_path(file.path)) {
        fail(ErrorCode::input, "hub", "the hub lists a file '{}', which is not a path inside a repository",
             quotable(file.path));
    }
    const Json& lfs = member(entry, "lfs");
    const std::string sha256 = text_of(member(lfs, "sha256"));
    const std::string blob = text_of(member(entry, "blobId"));
    // The blobId of a large file is that of its LFS pointer, so only the SHA-256 will do.
    if (is_hex(sha256, 64)) {
        file.etag = sha256;
        file.size = size_of(member(lfs, "size"));
    } else if (lfs.is_null() && is_hex(blob, 40)) {
        file.etag = blob;
        file.size = size_of(member(entry, "size"));
    }
    return file;
}

// Strips the quotes and the W/ of `W/"etag"` and `"etag"`.
std::string bare_etag(std::string text) {
    if (text.starts_with("W/")) text.erase(0, 2);
    std::erase(text, '"');
    return text;
}

}  // namespace

Listing parse_listing(std::string_view text) {
    const Json json = try_parse_json(text);
    Listing listing{.commit = text_of(member(json, "sha")), .files = {}};
    const Json& siblings = member(json, "siblings");
    if (!is_commit(listing.commit) || !siblings.is_array()) {
        fail(ErrorCode::input, "hub",
             "the answer is not a hub's listing of a model (no 'sha' and 'siblings') - check HF_ENDPOINT and "
             "the "
             "proxy settings; it begins: {}",
             quotable(text));
    }
    for (const Json& entry : siblings) listing.files.push_back(parse_file(entry));
    return listing;
}

std::string RemoteRepo::url(const std::string& commit, const std::string& path) const {
    return fmt::format("{}/{}{}/resolve/{}/{}", client_.endpoint(), spec_.dataset ? "datasets/" : "",
                       spec_.repo, commit, percent_encode(path, "/"));
}

Listing RemoteRepo::listing() {
    const std::string url =
        fmt::format("{}/api/{}/{}/revision/{}?blobs=true", client_.endpoint(),
                    spec_.dataset ? "datasets" : "models", spec_.repo, percent_encode(spec_.revision));
    Retry retry(spec_.repo, options_.attempts, options_.retry_delay);
    for (;;) {
        std::string body;
        const Sink sink = [&](const Response&, std::span<const std::byte> piece) {
            constexpr size_t kMost = size_t{64} << 20;
            if (body.size() + piece.size() > kMost) {
                fail(ErrorCode::input, "hub", "{}: the hub's listing is larger than 64 MiB", spec_.repo);
            }
            body.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        };
        try {
            const Response response = client_.exchange({.url = url}, sink);
            if (response.status != 200) fail_status(response, "");
            Listing listing = parse_listing(body);
            if (is_commit(spec_.revision) && listing.commit != spec_.revision) {
                fail(ErrorCode::input, "hub", "{}: the hub answers with commit {}, expected {}", spec_.repo,
                     listing.commit, spec_.revision);
            }
            return listing;
        } catch (const Transient& reason) {
            retry.wait(reason);
        }
    }
}

void RemoteRepo::describe(const std::string& commit, RepoFile& file) {
    if (!file.etag.empty() && file.size) return;
    Retry retry(spec_.repo + "/" + file.path, options_.attempts, options_.retry_delay);
    for (;;) {
        try {
            const Response response = client_.exchange({.url = url(commit, file.path), .head = true});
            if (response.status >= 400) fail_status(response, file.path);
            const std::string etag = response.header("x-linked-etag");
            file.etag = bare_etag(etag.empty() ? response.header("etag") : etag);
            file.size = response.number("x-linked-size");
            // A redirect's content-length is that of its own text.
            if (!file.size && response.status == 200) file.size = response.number("content-length");
            const std::string answered = response.header("x-repo-commit");
            if (!is_plain_name(file.etag) || (!answered.empty() && answered != commit)) {
                fail(ErrorCode::input, "hub",
                     "'{}' of {}: got etag '{}' and commit '{}', expected an etag and commit {} - check "
                     "HF_ENDPOINT and the proxy settings",
                     file.path, spec_.repo, quotable(file.etag), quotable(answered), commit);
            }
            return;
        } catch (const Transient& reason) {
            retry.wait(reason);
        }
    }
}

void RemoteRepo::fail_access(const Response& response) const {
    const std::string page = client_.endpoint() + (spec_.dataset ? "/datasets/" : "/") + spec_.repo;
    if (response.header("x-error-code") == "GatedRepo") {
        fail(ErrorCode::io, "hub",
             "'{}' is gated (HTTP {}) - accept its terms on {}, and set HF_TOKEN to an access token of that "
             "account",
             spec_.repo, response.status, page);
    }
    if (!client_.has_token()) {
        fail(ErrorCode::io, "hub",
             "'{}' is refused without an access token (HTTP {}): private, gated or misspelt - check the "
             "name, set "
             "HF_TOKEN, and if the model is gated accept its terms on {}",
             spec_.repo, response.status, page);
    }
    fail(ErrorCode::io, "hub",
         "'{}' is refused with this access token (HTTP {}) - set HF_TOKEN to a token that may read it, check "
         "the "
         "name, and if the model is gated accept its terms on {}",
         spec_.repo, response.status, page);
}

void RemoteRepo::fail_status(const Response& response, const std::string& path) const {
    if (response.status == 401 || response.status == 403) fail_access(response);
    const std::string where = path.empty() ? "" : fmt::format(" file '{}' in", path);
    if (response.status == 404) {
        const bool known = response.header("x-error-code") == "RevisionNotFound" || !path.empty();
        fail(ErrorCode::usage, "hub", "there is no{} {} '{}' with a revision '{}' on {}{}", where,
             known           ? "repository"
             : spec_.dataset ? "data set"
                             : "model",
             spec_.repo, spec_.revision, client_.endpoint(),
             known ? "" : " - check the name; a private model needs HF_TOKEN");
    }
    const std::string said = response.header("x-error-message");
    fail(ErrorCode::io, "hub", "{} answers HTTP {} for{} '{}': {} - check HF_ENDPOINT and the proxy settings",
         client_.endpoint(), response.status, where, spec_.repo,
         quotable(said.empty() ? response.text : said));
}

}  // namespace refold::hub
