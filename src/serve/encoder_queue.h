// The encoder of a served model: one thread runs it for the requests of all clients, one text of each request
// in turn, so that a request with many texts does not hold up the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "encoder/text_encoder.h"
#include "serve/status.h"

namespace refold {

class EncoderQueue {
public:
    // Takes up to `most_requests` at a time. `encoder` outlives it.
    EncoderQueue(TextEncoder& encoder, int64_t most_requests);
    ~EncoderQueue();  // as shutdown(0)
    EncoderQueue(const EncoderQueue&) = delete;
    EncoderQueue& operator=(const EncoderQueue&) = delete;

    // For what any thread may do.
    const TextEncoder& encoder() const { return encoder_; }

    // One text's tokens, of which the queue's thread makes something.
    using Work = std::function<void(TextEncoder& encoder, size_t text)>;
    // Runs `work` for the texts 0 to `texts` - 1 and returns when all are done. Any thread. `check` is called
    // on it now and then and may throw, which ends the request. Throws ApiError: 429 when there are too many
    // requests, 503 after shutdown(); else what `work` throws.
    void run(size_t texts, const Work& work, const std::function<void()>& check);
    // Counts tokens that `work` has run.
    void count_tokens(size_t tokens);
    EncoderStatus status() const;
    // As Scheduler::lost().
    bool lost() const;
    // More requests are refused at present.
    bool full() const;
    // Refuses new requests and waits for the others; those that are not done after `grace` are ended.
    void shutdown(std::chrono::milliseconds grace);

private:
    struct Impl;
    TextEncoder& encoder_;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
