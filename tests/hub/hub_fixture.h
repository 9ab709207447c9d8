// A hub, an empty cache, and an environment that names no others.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <string>

#include "core/environment.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/temp_folder.h"
#include "hub/hub.h"
#include "hub/hub_server.h"

namespace refold {

class Hub : public testing::Test {
protected:
    Hub() { set_progress_style(ProgressStyle::none); }
    ~Hub() override { set_progress_style(ProgressStyle::automatic); }

    HubModel pull(const std::string& name = HubServer::kRepo, HubOptions options = {}) const {
        if (options.retry_delay == HubOptions{}.retry_delay) options.retry_delay = 0.001;
        return hub_pull(*parse_hub_spec(name), options);
    }
    // Returns the code of the Error that `action` throws and puts its message into text_.
    ErrorCode error(const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& e) {
            text_ = e.what();
            return e.code();
        }
        ADD_FAILURE() << "no error";
        return ErrorCode::internal;
    }
    ErrorCode pull_error(const std::string& name = HubServer::kRepo) {
        return error([&] { pull(name); });
    }
    std::string cached(const std::string& path) const {
        return folder_ / ("cache/models--org--name/" + path);
    }
    std::string blob(const std::string& path) const {
        return cached("blobs/" + server_.files.at(path).etag());
    }
    std::string snapshot(const std::string& path = "") const {
        return cached(std::string("snapshots/") + HubServer::kCommit + (path.empty() ? "" : "/" + path));
    }
    // Leaves `content` as if an earlier attempt had ended there.
    void leave_incomplete(const std::string& path, const std::string& content) const {
        std::filesystem::create_directories(cached("blobs"));
        write_all(blob(path) + ".incomplete", content);
    }
    bool has_incomplete() const {
        for (const auto& entry : std::filesystem::directory_iterator(cached("blobs"))) {
            if (entry.path().extension() == ".incomplete") return true;
        }
        return false;
    }
    // Sends `reply` to the first `times` requests for paths that end with `end`.
    void misbehave(const std::string& end, int times, const HubServer::Reply& reply) {
        server_.hook = [end, times, reply](const HubServer::Request& request) mutable {
            const bool now = request.path.ends_with(end) && times-- > 0;
            return now ? std::optional(reply) : std::nullopt;
        };
    }

    static constexpr const char* kShard = "model-00001-of-00002.safetensors";
    TempFolder folder_;
    HubServer server_;
    Environment cache_{"HF_HUB_CACHE", folder_ / "cache"};
    Environment home_{"HF_HOME", folder_ / "home"};
    Environment endpoint_{"HF_ENDPOINT", server_.url()};
    Environment token_{"HF_TOKEN", ""};
    Environment token_path_{"HF_TOKEN_PATH", ""};
    Environment offline_{"HF_HUB_OFFLINE", ""};
    Environment no_proxy_{"no_proxy", "127.0.0.1"};
    std::string text_;
};

}  // namespace refold
