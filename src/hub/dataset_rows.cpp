#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/json_number.h"
#include "core/json_text.h"
#include "core/progress.h"
#include "hub/cache.h"
#include "hub/http.h"
#include "hub/hub.h"
#include "hub/names.h"
#include "hub/retry.h"
#include "hub/settings.h"

namespace refold {
namespace hub {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The server returns at most this many rows per request.
constexpr uint64_t kPage = 100;

std::string server() {
    const char* const set = getenv("HF_DATASETS_SERVER");
    std::string url = set == nullptr || *set == '\0' ? "https://datasets-server.huggingface.co" : set;
    while (url.ends_with('/')) url.pop_back();
    if (!url.starts_with("https://") && !url.starts_with("http://"))
        fail(ErrorCode::usage, "hub",
             "HF_DATASETS_SERVER: got '{}', expected a URL as in https://rows.example.org", url);
    return url;
}

class RowDownload {
public:
    RowDownload(const std::string& repo, const std::string& config, const std::string& split,
                const HubOptions& options)
        : label_(fmt::format("{} ({}, {})", repo, config, split)),
          options_(options),
          client_(server(), token(), options.stall_seconds),
          url_(fmt::format("{}/rows?dataset={}&config={}&split={}", client_.endpoint(), percent_encode(repo),
                           percent_encode(config), percent_encode(split))) {}

    void write_to(const std::string& path) {
        AtomicFile out(path, true);
        uint64_t done = 0, total = 0;
        std::unique_ptr<Progress> progress;
        do {
            check_interrupt();
            const OrderedJson page = fetch(done);
            total = number(page, "num_rows_total");
            if (!progress) progress = std::make_unique<Progress>("fetch " + label_, total, "rows");
            const uint64_t got = write_page(page, done, out);
            if (got == 0 && done < total)
                fail(ErrorCode::input, "hub", "{}: the data set server has {} rows, but sends none after {}",
                     label_, total, done);
            done += got;
            progress->advance(got);
        } while (done < total);
        progress->finish();
        if (total == 0) fail(ErrorCode::input, "hub", "{}: the data set has no rows", label_);
        out.commit();
    }

private:
    uint64_t number(const OrderedJson& object, const char* name) const {
        const auto found = object.is_object() ? object.find(name) : object.end();
        if (!object.is_object() || found == object.end() || !found->is_number_unsigned()) nonsense(object);
        return found->get<uint64_t>();
    }

    [[noreturn]] void nonsense(const OrderedJson& answer) const {
        fail(ErrorCode::input, "hub",
             "{}: the answer is no page of rows - check HF_DATASETS_SERVER; it begins: {}", label_,
             quotable(answer.dump(-1, ' ', true, OrderedJson::error_handler_t::replace)));
    }

    uint64_t write_page(const OrderedJson& page, uint64_t offset, AtomicFile& out) const {
        const auto rows = page.find("rows");
        if (rows == page.end() || !rows->is_array()) nonsense(page);
        uint64_t count = 0;
        for (const OrderedJson& entry : *rows) {
            if (number(entry, "row_idx") != offset + count || !entry.contains("row")) nonsense(entry);
            if (entry.contains("truncated_cells") && !entry["truncated_cells"].empty())
                fail(ErrorCode::unsupported, "hub",
                     "{}: the data set server shortens row {} - get the data set "
                     "elsewhere and give its folder with --data",
                     label_, offset + count);
            out.write(exact_dump(entry["row"]) + "\n");
            ++count;
        }
        return count;
    }

    OrderedJson fetch(uint64_t offset) {
        const std::string url = fmt::format("{}&offset={}&length={}", url_, offset, kPage);
        Retry retry(label_, options_.attempts, options_.retry_delay);
        for (;;) {
            std::string body;
            const Sink sink = [&](const Response&, std::span<const std::byte> piece) {
                if (body.size() + piece.size() > size_t{64} << 20)
                    fail(ErrorCode::input, "hub", "{}: an answer is larger than 64 MiB", label_);
                body.append(reinterpret_cast<const char*>(piece.data()), piece.size());
            };
            try {
                const Response response = client_.exchange({.url = url}, sink);
                if (response.status != 200) fail_status(response);
                OrderedJson page = try_parse_json<OrderedJson>(body, nullptr, {.big_integers = true});
                if (page.is_discarded()) nonsense(OrderedJson(body));
                return page;
            } catch (const Transient& reason) {
                retry.wait(reason);
            }
        }
    }

    [[noreturn]] void fail_status(const Response& response) const {
        const std::string said = quotable(response.text);
        if (response.status == 401 || response.status == 403)
            fail(ErrorCode::io, "hub",
                 "{} is refused (HTTP {}): private or gated - accept its terms on the hub and "
                 "set HF_TOKEN; the server says: {}",
                 label_, response.status, said);
        fail(response.status == 404 ? ErrorCode::usage : ErrorCode::io, "hub",
             "{}: the data set server answers HTTP {}: {}", label_, response.status, said);
    }

    std::string label_;
    HubOptions options_;
    HttpClient client_;
    std::string url_;
};

}  // namespace
}  // namespace hub

std::string hub_dataset_rows(const std::string& repo, const std::string& config, const std::string& split,
                             const HubOptions& options) {
    for (const std::string& name : {config, split}) {
        if (!hub::is_plain_name(name))
            fail(ErrorCode::usage, "hub", "'{}' is no name of rows of a data set", name);
    }
    if (!parse_hub_spec(repo))
        fail(ErrorCode::usage, "hub", "'{}' is no name of a data set (org/name)", repo);
    std::string folder = repo;
    folder.replace(folder.find('/'), 1, "--");
    const auto path = cache_directory() / "datasets" / folder / config / (split + ".jsonl");
    std::error_code missing;
    if (std::filesystem::file_size(path, missing) > 0 && !missing) return path;
    if (hub::is_offline())
        fail(ErrorCode::io, "hub",
             "'{}' ({}, {}) is not in '{}', and HF_HUB_OFFLINE forbids to fetch it - unset it "
             "and run it again",
             repo, config, split, path.parent_path().string());
    hub::make_folder(path.parent_path());
    hub::RowDownload(repo, config, split, options).write_to(path);
    return path;
}

}  // namespace refold
