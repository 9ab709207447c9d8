#include "serve/channel.h"

#include <iterator>
#include <utility>

namespace refold {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T> from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

class ChannelGeneration : public Generation {
public:
    explicit ChannelGeneration(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
    ~ChannelGeneration() override { channel_->cancel(); }
    std::optional<GenerationEvent> next(std::chrono::milliseconds timeout) override {
        return channel_->next(timeout);
    }
    void cancel() override { channel_->cancel(); }

private:
    std::shared_ptr<Channel> channel_;
};

}  // namespace

void append(GenerationEvent& to, GenerationEvent from) {
    to.text += from.text;
    append(to.tokens, std::move(from.tokens));
    append(to.logprobs, std::move(from.logprobs));
    append(to.exits, std::move(from.exits));
    append(to.prompt, std::move(from.prompt));
    to.finished = from.finished;
    to.error = std::move(from.error);
}

void Channel::push(GenerationEvent event) {
    {
        const std::lock_guard lock(mutex_);
        if (event_) {
            append(*event_, std::move(event));
        } else {
            event_ = std::move(event);
        }
    }
    arrived_.notify_one();
}

std::optional<GenerationEvent> Channel::next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (over_ || !arrived_.wait_for(lock, timeout, [this] { return event_.has_value(); }))
        return std::nullopt;
    over_ = event_->finished.has_value();
    return std::exchange(event_, std::nullopt);
}

std::unique_ptr<Generation> make_generation(std::shared_ptr<Channel> channel) {
    return std::make_unique<ChannelGeneration>(std::move(channel));
}

}  // namespace refold
