#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "hub/cache.h"
#include "hub/choice.h"
#include "hub/download.h"
#include "hub/hub.h"
#include "hub/settings.h"

namespace refold {
namespace hub {
namespace {

namespace fs = std::filesystem;

// Progress over the bytes of several files, in a unit that suits their total.
class ByteProgress {
public:
    ByteProgress(const std::string& label, uint64_t total)
        : unit_(total < (uint64_t{10} << 20) ? uint64_t{1} << 10 : uint64_t{1} << 20),
          total_(total),
          progress_(label, (total + unit_ - 1) / unit_, unit_ == 1024 ? "KiB" : "MiB") {}

    // Capped at the total, which a file that restarts from its beginning would exceed.
    void add(uint64_t bytes, const std::string& note) {
        const uint64_t before = units();
        bytes_ = std::min(total_, bytes_ + bytes);
        progress_.advance(units() - before, note);
    }
    void finish() { progress_.finish(); }

private:
    uint64_t units() const { return bytes_ == total_ ? (total_ + unit_ - 1) / unit_ : bytes_ / unit_; }
    uint64_t unit_, total_, bytes_ = 0;
    Progress progress_;
};

class Pull {
public:
    Pull(const HubSpec& spec, const HubOptions& options)
        : spec_(spec),
          options_(options),
          cache_(hub_cache(), spec.repo, spec.dataset),
          client_(endpoint(), token(), options.stall_seconds),
          remote_(client_, spec, options) {}

    HubModel run() {
        listing_ = remote_.listing();
        const std::vector<RepoFile> files = choose();
        fetch_missing(files);
        // Link and set the revision only now, so that they never refer to an incomplete snapshot.
        HubModel model{.path = {}, .commit = listing_.commit, .files = files.size(), .bytes = 0};
        for (const auto& file : files) {
            cache_.link(listing_.commit, file.path, file.etag);
            model.bytes += fs::file_size(cache_.blob(file.etag));
        }
        cache_.set_commit(spec_.revision, listing_.commit);
        const fs::path folder = cache_.snapshot(listing_.commit);
        model.path = gguf_.empty() ? folder : folder / gguf_;
        return model;
    }

private:
    // The files of the model, with sizes and etags.
    std::vector<RepoFile> choose() {
        if (spec_.dataset) return {data_file()};
        std::vector<std::string> names;
        for (const auto& file : listing_.files) names.push_back(file.path);
        const auto read = [&](const std::string& path) {
            const RepoFile file = described(path);
            if (constexpr uint64_t kMost = 64 << 20; file.size.value_or(0) > kMost) {
                fail(ErrorCode::input, "hub", "'{}' has {}, expected at most {}", path,
                     format_bytes(*file.size), format_bytes(kMost));
            }
            fetch(file, {});
            return read_stored_text(cache_.blob(file.etag));
        };
        const Choice choice = choose_files(names, spec_.file_or_quant, read);
        if (!choice.problem.empty()) {
            fail(spec_.file_or_quant.empty() ? ErrorCode::unsupported : ErrorCode::usage, "hub",
                 "'{}' at revision '{}' has no model to fetch: {}", spec_.repo, spec_.revision,
                 choice.problem);
        }
        gguf_ = choice.gguf;
        std::vector<RepoFile> files;
        for (const auto& path : choice.files) files.push_back(described(path));
        return files;
    }

    RepoFile data_file() {
        gguf_ = spec_.file_or_quant;
        if (std::ranges::find(listing_.files, gguf_, &RepoFile::path) == listing_.files.end()) {
            std::vector<std::string> names;
            for (const auto& file : listing_.files) names.push_back(file.path);
            fail(ErrorCode::usage, "hub", "the data set '{}' has no file '{}'; {}", spec_.repo, gguf_,
                 suggestion(gguf_, names));
        }
        return described(gguf_);
    }

    RepoFile described(const std::string& path) {
        const auto found = std::ranges::find(listing_.files, path, &RepoFile::path);
        remote_.describe(listing_.commit, *found);
        return *found;
    }

    // A crash or another tool may have left a blob of another size.
    bool is_there(const RepoFile& file) const {
        std::error_code missing;
        const uint64_t size = fs::file_size(cache_.blob(file.etag), missing);
        return !missing && (!file.size || size == *file.size);
    }

    Download download(const RepoFile& file) const {
        return {.file = file, .url = remote_.url(listing_.commit, file.path), .to = cache_.blob(file.etag)};
    }

    void fetch(const RepoFile& file, const std::function<void(uint64_t)>& received) {
        check_interrupt();
        if (is_there(file)) return;
        const Download wanted = download(file);
        make_folder(wanted.to.parent_path());
        const FileLock lock(cache_.lock(file.etag), [&] {
            if (received) received(0);
        });
        // The process that held the lock may have fetched the file.
        if (!is_there(file)) fetch_blob(client_, remote_, wanted, options_, received);
    }

    void fetch_missing(const std::vector<RepoFile>& files) {
        uint64_t total = 0;
        for (const auto& file : files) {
            if (is_there(file)) continue;
            total +=
                file.size.value_or(0) - std::min(file.size.value_or(0), incomplete_bytes(download(file)));
        }
        check_space(total);
        ByteProgress progress("pull " + spec_.repo, total);
        for (const auto& file : files) {
            fetch(file, [&](uint64_t bytes) { progress.add(bytes, file.path); });
        }
        if (total > 0) progress.finish();
    }

    void check_space(uint64_t bytes) const {
        if (bytes == 0) return;
        const fs::path folder = cache_.blob("").parent_path();
        make_folder(folder);
        std::error_code error;
        const fs::space_info space = fs::space(folder, error);
        if (!error && space.available < bytes) {
            fail(ErrorCode::io, "hub",
                 "the disk is too full for '{}': {} are needed in '{}', {} are free - make room, or set "
                 "HF_HUB_CACHE to a folder on another disk",
                 spec_.repo, format_bytes(bytes), folder.string(), format_bytes(space.available));
        }
    }

    HubSpec spec_;
    HubOptions options_;
    RepoCache cache_;
    HttpClient client_;
    RemoteRepo remote_;
    Listing listing_;
    std::string gguf_;
};

HubModel offline(const HubSpec& spec) {
    if (auto model = find_cached(spec)) return *model;
    fail(ErrorCode::io, "hub",
         "'{}' at revision '{}' is not, or not completely, in '{}', and HF_HUB_OFFLINE forbids to fetch it - "
         "unset "
         "it and run it again",
         spec.repo, spec.revision, hub_cache().string());
}

}  // namespace
}  // namespace hub

HubModel hub_pull(const HubSpec& spec, const HubOptions& options) {
    return hub::is_offline() ? hub::offline(spec) : hub::Pull(spec, options).run();
}

std::string hub_dataset_file(const std::string& repo, const std::string& path, const HubOptions& options) {
    const HubSpec spec{.repo = repo, .file_or_quant = path, .dataset = true};
    if (const auto cached = find_cached(spec)) return cached->path;
    return hub_pull(spec, options).path;
}

}  // namespace refold
