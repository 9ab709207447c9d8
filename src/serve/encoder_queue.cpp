#include "serve/encoder_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/devices.h"
#include "serve/api_error.h"

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Belongs to the thread that waits for it, and outlives its place in the queue.
struct QueuedTexts {
    size_t texts;
    const EncoderQueue::Work& work;
    size_t begun = 0;
    bool running = false;  // one of its texts is
    std::exception_ptr error = nullptr;

    bool finished() const { return !running && (begun == texts || error); }
};

}  // namespace

struct EncoderQueue::Impl {
    Impl(TextEncoder& the_encoder, int64_t most)
        : encoder(the_encoder), most_requests(most), thread([this] { work(); }) {}

    bool full() const { return std::ssize(present) >= most_requests; }

    void work() {
        std::unique_lock lock(mutex);
        for (;;) {
            came.wait(lock, [&] { return stopping || !waiting.empty(); });
            if (stopping) return;
            QueuedTexts& request = *waiting.front();
            waiting.pop_front();
            const size_t text = request.begun++;
            request.running = true;
            lock.unlock();
            std::exception_ptr error;
            try {
                request.work(encoder, text);
            } catch (const LostDevice&) {
                error = std::current_exception();
                lost = true;
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            request.running = false;
            if (error && !request.error) request.error = error;
            if (!error) ++status.texts;
            if (!request.finished()) waiting.push_back(&request);
            done.notify_all();
        }
    }

    // The request's texts that have not begun will not.
    void end(QueuedTexts& request, std::exception_ptr error) {
        std::erase(waiting, &request);
        if (!request.error) request.error = std::move(error);
    }

    TextEncoder& encoder;
    const int64_t most_requests;
    std::mutex joining;
    mutable std::mutex mutex;  // of all that follows
    std::condition_variable came, done;
    std::deque<QueuedTexts*> waiting;   // for their next text
    std::vector<QueuedTexts*> present;  // all
    EncoderStatus status;
    bool closed = false, stopping = false;
    std::atomic<bool> lost = false;
    std::thread thread;
};

EncoderQueue::EncoderQueue(TextEncoder& encoder, int64_t most_requests)
    : encoder_(encoder), impl_(std::make_unique<Impl>(encoder, most_requests)) {}

EncoderQueue::~EncoderQueue() { shutdown(milliseconds(0)); }

void EncoderQueue::run(size_t texts, const Work& work, const std::function<void()>& check) {
    if (texts == 0) return;
    QueuedTexts request{texts, work};
    std::unique_lock lock(impl_->mutex);
    if (impl_->closed) throw shutting_down();
    if (impl_->full()) {
        ++impl_->status.refused;
        ApiError full(429, "the queue is full - try again later", "", "queue_full");
        full.retry_after = 1;
        throw full;
    }
    impl_->present.push_back(&request);
    impl_->waiting.push_back(&request);
    impl_->came.notify_one();
    while (!request.finished()) {
        constexpr milliseconds kLook(50);
        if (impl_->done.wait_for(lock, kLook, [&] { return request.finished(); })) break;
        lock.unlock();
        std::exception_ptr error;
        try {
            check();
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        if (error) impl_->end(request, std::move(error));
    }
    std::erase(impl_->present, &request);
    impl_->done.notify_all();
    if (request.error) std::rethrow_exception(request.error);
}

void EncoderQueue::count_tokens(size_t tokens) {
    const std::lock_guard lock(impl_->mutex);
    impl_->status.tokens += tokens;
}

EncoderStatus EncoderQueue::status() const {
    const std::lock_guard lock(impl_->mutex);
    EncoderStatus status = impl_->status;
    status.requests = std::ssize(impl_->present);
    return status;
}

bool EncoderQueue::lost() const { return impl_->lost; }

bool EncoderQueue::full() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->full();
}

void EncoderQueue::shutdown(milliseconds grace) {
    const std::lock_guard joining(impl_->joining);
    {
        std::unique_lock lock(impl_->mutex);
        impl_->closed = true;
        const auto all_gone = [&] { return impl_->present.empty(); };
        impl_->done.wait_for(lock, std::min<milliseconds>(grace, std::chrono::years(10)), all_gone);
        for (QueuedTexts* const request : impl_->present)
            impl_->end(*request, std::make_exception_ptr(shutting_down()));
        impl_->done.notify_all();
        impl_->done.wait(lock, all_gone);
        impl_->stopping = true;
    }
    impl_->came.notify_one();
    if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace refold
