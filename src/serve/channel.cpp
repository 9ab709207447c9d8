#include "serve/channel.h"

#include <utility>

namespace refold {
namespace {

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
