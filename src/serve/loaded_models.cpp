#include "serve/loaded_models.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

using std::chrono::milliseconds;

ApiError not_loaded(const std::string& name, const std::string& why) {
    return ApiError(503, fmt::format("the model '{}' cannot be loaded: {}", name, why), "model",
                    "model_not_loaded");
}

std::string too_large(uint64_t bytes, uint64_t most) {
    return fmt::format("it needs {} for weights and KV cache, and --memory allows {}", format_bytes(bytes),
                       format_bytes(most));
}

}  // namespace

LoadedModels::LoadedModels(std::vector<ModelSource> sources, LoadedModelsOptions options)
    : options_(std::move(options)) {
    for (ModelSource& source : sources) {
        Entry& entry = entries_.emplace_back();
        entry.info.name = source.name;
        entry.info.created = seconds_since_1970();
        entry.source = std::move(source);
    }
    thread_ = std::thread([this] { run(); });
}

LoadedModels::~LoadedModels() {
    shutdown(milliseconds(0));
    thread_.join();
}

LoadedModels::Entry& LoadedModels::named(const std::string& name) {
    if (name.empty()) return entries_.front();
    const auto found = std::ranges::find_if(entries_, [&](const Entry& e) {
        return e.source.name == name || std::ranges::count(e.source.adapters, name) > 0;
    });
    if (found == entries_.end()) {
        std::vector<std::string> served;
        for (const Entry& entry : entries_) {
            served.push_back(entry.source.name);
            served.insert(served.end(), entry.source.adapters.begin(), entry.source.adapters.end());
        }
        throw no_such_model(name, served);
    }
    return *found;
}

void LoadedModels::say(const std::string& line) const {
    if (options_.log) options_.log(line);
}

uint64_t LoadedModels::taken() const {
    uint64_t bytes = 0;
    for (const Entry& entry : entries_)
        if (entry.model) bytes += entry.info.memory_bytes;
    return bytes;
}

void LoadedModels::load(const std::string& name) {
    Entry& entry = named(name);
    const uint64_t bytes = options_.memory_bytes == 0 ? 0 : entry.source.needs();
    std::unique_lock lock(mutex_);
    if (entry.model) return;
    if (options_.memory_bytes > 0 && taken() + bytes > options_.memory_bytes)
        fail(ErrorCode::usage, "serve", "the model '{}': {}, {} of them for other models", name,
             too_large(bytes, options_.memory_bytes), format_bytes(taken()));
    lock.unlock();
    auto model = entry.source.load();
    lock.lock();
    keep(entry, std::move(model));
}

bool LoadedModels::loading() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.reading; });
}

void LoadedModels::keep(Entry& entry, std::shared_ptr<ServedModel> model) {
    entry.info = model->info;
    entry.model = std::move(model);
    entry.leaving = false;
    entry.used = ++uses_;
    ++entry.loads;
}

std::shared_ptr<ServedModel> LoadedModels::take(Entry& entry) {
    if (stopping_) throw shutting_down();
    if (!entry.model || entry.leaving || entry.model->lost()) return nullptr;
    entry.used = ++uses_;
    return hold(entry);
}

std::shared_ptr<ServedModel> LoadedModels::hold(Entry& entry) {
    ++entry.holders;
    return {entry.model.get(), [this, &entry](ServedModel*) {
                const std::lock_guard lock(mutex_);
                --entry.holders;
                changed_.notify_all();
            }};
}

// The model or one of its adapters; holding on to it holds on to the model.
static std::shared_ptr<ServedModel> of_name(std::shared_ptr<ServedModel> model, const std::string& name) {
    ServedModel* chosen = name.empty() ? model.get() : model->named(name);
    return {std::move(model), chosen};
}

std::shared_ptr<ServedModel> LoadedModels::find(const std::string& name, const std::function<void()>& check) {
    return of_name(find(named(name), check), name);
}

std::shared_ptr<ServedModel> LoadedModels::find(Entry& entry, const std::function<void()>& check) {
    std::unique_lock lock(mutex_);
    if (auto model = take(entry)) return model;
    if (entry.waiting == options_.most_waiting) {
        ApiError full(
            429, fmt::format("too many requests wait for the model '{}' to be loaded", entry.source.name), "",
            "queue_full");
        full.retry_after = 1;
        throw full;
    }
    struct Waiting {
        Entry& entry;
        std::unique_lock<std::mutex>& lock;
        std::condition_variable& changed;
        ~Waiting() {
            if (!lock.owns_lock()) lock.lock();
            --entry.waiting;
            changed.notify_all();
        }
    } const waiting{entry, lock, changed_};
    ++entry.waiting;
    const uint64_t failures = entry.failures;
    for (;;) {
        if (!entry.queued) {
            entry.queued = true;
            queue_.push_back(&entry);
            changed_.notify_all();
        }
        constexpr milliseconds kCheck(100);
        changed_.wait_for(lock, kCheck);
        if (auto model = take(entry)) return model;
        if (entry.failures > failures) throw not_loaded(entry.source.name, entry.error);
        lock.unlock();
        check();
        lock.lock();
    }
}

std::vector<ListedModel> LoadedModels::list() {
    const std::lock_guard lock(mutex_);
    std::vector<ListedModel> out;
    for (Entry& entry : entries_) {
        ListedModel& listed = out.emplace_back();
        listed.info = entry.info;
        listed.loads = entry.loads;
        listed.state = entry.loading ? ModelState::loading
                       : entry.model ? ModelState::loaded
                                     : ModelState::unloaded;
        if (entry.model) listed.model = hold(entry);
        const ListedModel base = listed;  // push_back() may move it
        for (const std::string& name : entry.source.adapters) {
            ListedModel adapted = base;
            adapted.info.parent = std::exchange(adapted.info.name, name);
            adapted.info.memory_bytes = 0;
            if (adapted.model) adapted.model = of_name(base.model, name);
            out.push_back(std::move(adapted));
        }
    }
    return out;
}

void LoadedModels::shutdown(milliseconds grace) {
    const auto end = Clock::now() + std::min<milliseconds>(grace, std::chrono::years(10));
    std::vector<std::shared_ptr<ServedModel>> models;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
        for (Entry& entry : entries_)
            if (entry.model) models.push_back(hold(entry));
    }
    for (const auto& model : models)
        model->shutdown(std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), milliseconds(0)));
}

void LoadedModels::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        Entry& entry = *queue_.front();
        load(entry, lock);
        queue_.pop_front();
        entry.queued = false;
        // They may go on if the model that needed their memory was not loaded.
        for (Entry& other : entries_) other.leaving = false;
        changed_.notify_all();
        // Those who waited for it have it before it may have to go again.
        changed_.wait(lock, [&] { return stopping_ || !entry.model || entry.waiting == 0; });
    }
}

void LoadedModels::load(Entry& entry, std::unique_lock<std::mutex>& lock) {
    unload_lost(entry, lock);
    if (entry.model) return;
    entry.loading = true;
    lock.unlock();
    std::string error;
    std::shared_ptr<ServedModel> model;
    try {
        const uint64_t bytes = options_.memory_bytes == 0 ? 0 : entry.source.needs();
        if (bytes > options_.memory_bytes)
            fail(ErrorCode::usage, "serve", "{}", too_large(bytes, options_.memory_bytes));
        lock.lock();
        const bool room = make_room(entry, bytes, lock);
        entry.reading = room;
        lock.unlock();
        const auto begin = Clock::now();
        if (room) model = entry.source.load();
        if (model)
            say(fmt::format("loaded '{}' in {}: {}", entry.source.name,
                            format_seconds(std::chrono::duration<double>(Clock::now() - begin).count()),
                            format_bytes(model->info.memory_bytes)));
    } catch (const std::exception& e) {
        error = e.what();
    }
    if (!error.empty()) say(fmt::format("the model '{}' cannot be loaded: {}", entry.source.name, error));
    lock.lock();
    entry.loading = entry.reading = false;
    if (!error.empty()) {
        entry.error = std::move(error);
        ++entry.failures;
    } else if (model) {
        keep(entry, std::move(model));
    }
}

// Returns false when nobody waits for the model any more.
bool LoadedModels::make_room(const Entry& entry, uint64_t bytes, std::unique_lock<std::mutex>& lock) {
    const auto in_vain = [&] { return stopping_ || entry.waiting == 0; };
    while (!in_vain()) {
        if (options_.memory_bytes == 0 || taken() + bytes <= options_.memory_bytes) return true;
        std::vector<Entry*> victims;
        for (Entry& other : entries_)
            if (other.model) victims.push_back(&other);
        std::ranges::sort(victims, {}, [](const Entry* e) { return std::pair(e->holders > 0, e->used); });
        // Not empty: more memory than allowed is taken, and the model alone does not need so much.
        if (victims.front()->holders == 0) {
            unload(*victims.front(), lock);
            continue;
        }
        uint64_t left = taken();
        for (Entry* victim : victims) {
            if (left + bytes <= options_.memory_bytes) break;
            victim->leaving = true;
            left -= victim->info.memory_bytes;
        }
        changed_.wait(lock);
    }
    return false;
}

void LoadedModels::unload_lost(Entry& entry, std::unique_lock<std::mutex>& lock) {
    const auto lost = [&] { return entry.model && entry.model->lost() && !stopping_; };
    changed_.wait(lock, [&] { return !lost() || entry.holders == 0 || entry.waiting == 0; });
    if (lost() && entry.holders == 0) unload(entry, lock, ", as one of its workers is lost");
}

void LoadedModels::unload(Entry& entry, std::unique_lock<std::mutex>& lock, std::string_view why) {
    auto model = std::move(entry.model);
    lock.unlock();
    model.reset();
    say(fmt::format("unloaded '{}'{}", entry.source.name, why));
    lock.lock();
}

}  // namespace refold
