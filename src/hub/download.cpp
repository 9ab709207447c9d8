#include "hub/download.h"

#include "core/error.h"
#include "core/text.h"
#include "hub/names.h"
#include "hub/partial_file.h"
#include "hub/retry.h"

namespace refold::hub {
namespace {

class Fetch {
public:
    Fetch(HttpClient& client, const RemoteRepo& repo, const Download& download, const Received& received)
        : client_(client), repo_(repo), download_(download), received_(received), file_(download.to) {
        if (wanted() && file_.size() > *wanted()) file_.restart();
    }

    void run(Retry& retry) {
        for (;;) {
            const uint64_t before = file_.size();
            try {
                if (file_.size() != wanted()) exchange();
                if (wanted() && file_.size() < *wanted()) {
                    throw Transient(fmt::format("the connection ended after {} of {} bytes",
                                                format_count(file_.size()), format_count(*wanted())));
                }
                break;
            } catch (const Transient& reason) {
                constexpr uint64_t kProgress = 1 << 20;
                if (file_.size() >= before + kProgress) retry.progressed();
                retry.wait(reason);
            }
        }
        verify();
        file_.commit();
    }

private:
    const std::optional<uint64_t>& wanted() const { return download_.file.size; }
    const std::string& path() const { return download_.file.path; }

    void exchange() {
        const uint64_t offset = file_.size();
        bool begun = false;
        const Response response =
            client_.exchange({.url = download_.url, .offset = offset},
                             [&](const Response& head, std::span<const std::byte> piece) {
                                 if (!begun) begin(head, offset);
                                 begun = true;
                                 take(piece);
                             });
        if (response.status == 416) {
            if (response.range().total == offset && !wanted()) return;
            file_.restart();
            throw Transient("the server does not continue the file where it ended");
        }
        if (response.status != 200 && response.status != 206) repo_.fail_status(response, path());
    }

    // Checks at which offset the body begins.
    void begin(const Response& head, uint64_t offset) {
        const uint64_t start = head.status == 206 ? head.range().begin.value_or(UINT64_MAX) : 0;
        if (start == offset) return;
        file_.restart();
        if (start != 0) throw Transient("the server sent another part of the file than asked for");
    }

    void take(std::span<const std::byte> piece) {
        if (wanted() && file_.size() + piece.size() > *wanted()) {
            file_.remove();
            fail(ErrorCode::input, "hub",
                 "'{}': the server sent more than the {} bytes announced - try again", path(),
                 format_count(*wanted()));
        }
        file_.append(piece);
        if (received_) received_(piece.size());
    }

    void verify() {
        const std::string& etag = download_.file.etag;
        std::string got;
        if (is_hex(etag, 64)) got = file_.sha256();
        if (is_hex(etag, 40)) got = file_.git_sha1();
        if (got.empty() || got == etag) return;
        file_.remove();
        fail(ErrorCode::input, "hub",
             "'{}' is damaged and was deleted: its {} is {}, expected {} - run it again to fetch it anew",
             path(), etag.size() == 64 ? "SHA-256" : "git SHA-1", got, etag);
    }

    HttpClient& client_;
    const RemoteRepo& repo_;
    const Download& download_;
    const Received& received_;
    PartialFile file_;
};

}  // namespace

uint64_t incomplete_bytes(const Download& download) {
    std::error_code missing;
    const uint64_t size = std::filesystem::file_size(PartialFile::incomplete(download.to), missing);
    return missing || size > download.file.size.value_or(UINT64_MAX) ? 0 : size;
}

void fetch_blob(HttpClient& client, const RemoteRepo& repo, const Download& download,
                const HubOptions& options, const Received& received) {
    Retry retry(download.file.path, options.attempts, options.retry_delay);
    Fetch(client, repo, download, received).run(retry);
}

}  // namespace refold::hub
