// Models that are loaded when a request asks for them and unloaded when others need their memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "serve/served_model.h"

namespace refold {

// A model that can be loaded, any number of times, from any thread.
struct ModelSource {
    std::string name;
    std::vector<std::string> adapters = {};  // names of ServedModel::adapted
    // Bytes that its weights and KV cache will take, estimated. Throws as `load` does.
    std::function<uint64_t()> needs;
    // Its info has this name. Throws Error when it cannot be loaded.
    std::function<std::shared_ptr<ServedModel>()> load;
};

struct LoadedModelsOptions {
    uint64_t memory_bytes = 0;    // for weights and KV caches of all models together; 0: no bound
    int64_t most_waiting = 1000;  // requests that wait for one model to be loaded; more are refused (429)
    std::function<void(const std::string& line)> log = {};  // called by any thread
};

// One model is loaded at a time, in the order in which they were asked for. Where memory is needed for it,
// models that no request holds are unloaded, those first that were used longest ago. If that is not enough,
// further models take no new requests: these wait behind the model to be loaded, so that a busy model keeps
// no other one out. A model that has lost its device is loaded again for the next request.
class LoadedModels : public Models {
public:
    // At least one source; all names are different.
    LoadedModels(std::vector<ModelSource> sources, LoadedModelsOptions options);
    // Waits for a model that is being loaded. No request may hold a model.
    ~LoadedModels() override;
    LoadedModels(const LoadedModels&) = delete;
    LoadedModels& operator=(const LoadedModels&) = delete;

    // Loads a model before there are requests, on the caller's thread. Throws what its source does, and
    // Error(usage) when there is too little memory beside the others.
    void load(const std::string& name);
    // Whether a model is being read, which cannot be broken off.
    bool loading() const;

    std::shared_ptr<ServedModel> find(const std::string& name, const std::function<void()>& check) override;
    std::vector<ListedModel> list() override;
    void shutdown(std::chrono::milliseconds grace) override;

private:
    using Clock = std::chrono::steady_clock;

    struct Entry {
        ModelSource source;
        ModelInfo info;
        std::shared_ptr<ServedModel> model;  // null unless it is loaded
        bool leaving = false;                // it takes no new requests and is unloaded when it has no more
        bool queued = false;
        bool loading = false;  // room is made for it, or it is being read
        bool reading = false;
        uint64_t loads = 0, failures = 0;
        std::string error;                // of the latest failure
        int64_t holders = 0;              // of `model`
        uint64_t used = 0;                // higher is later
        std::atomic<int64_t> waiting{0};  // requests
    };

    Entry& named(const std::string& name);
    std::shared_ptr<ServedModel> find(Entry& entry, const std::function<void()>& check);
    // With the lock held. take() returns null while the model is not there for requests.
    std::shared_ptr<ServedModel> take(Entry& entry);
    std::shared_ptr<ServedModel> hold(Entry& entry);
    // The rest is for the loading thread, with the lock held when they are called and when they return.
    void run();
    void load(Entry& entry, std::unique_lock<std::mutex>& lock);
    bool make_room(const Entry& entry, uint64_t bytes, std::unique_lock<std::mutex>& lock);
    void unload(Entry& entry, std::unique_lock<std::mutex>& lock, std::string_view why = {});
    // If it has lost its device: when no request holds it any more, or none waits for it.
    void unload_lost(Entry& entry, std::unique_lock<std::mutex>& lock);
    void keep(Entry& entry, std::shared_ptr<ServedModel> model);
    uint64_t taken() const;
    void say(const std::string& line) const;

    const LoadedModelsOptions options_;
    std::list<Entry> entries_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Entry*> queue_;  // to be loaded; the first is, if any is
    uint64_t uses_ = 0;
    bool stopping_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace refold
