#include "serve/output.h"

#include <algorithm>
#include <utility>

#include "serve/logprobs.h"

namespace refold {

Histogram make_histogram(std::vector<double> bounds) {
    Histogram histogram;
    histogram.counts.resize(bounds.size() + 1);
    histogram.bounds = std::move(bounds);
    return histogram;
}

void observe(Histogram& histogram, double seconds) {
    const auto bucket = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), seconds);
    ++histogram.counts[static_cast<size_t>(bucket - histogram.bounds.begin())];
    histogram.sum += seconds;
}

Output::Output(const Tokenizer& tokenizer, SchedulerStatus& status, Submitted submitted)
    : tokenizer_(tokenizer),
      status_(status),
      submitted_(std::move(submitted)),
      text_(submitted_.request.stop) {}

void Output::add_prompt(std::span<const float> logits, int32_t token) {
    event_.prompt.push_back(token_logprob(logits, token, submitted_.request.logprobs));
    news_ = true;
}

bool Output::add(std::span<const float> logits, int32_t token, int32_t loop) {
    const GenerationRequest& request = submitted_.request;
    const auto now = Clock::now();
    const auto since = [&](Clock::time_point start) {
        return std::chrono::duration<double>(now - start).count();
    };
    if (latest_) {
        observe(status_.between_tokens, since(*latest_));
    } else {
        observe(status_.first_token, since(submitted_.at));
    }
    latest_ = now;
    ++status_.exits[static_cast<size_t>(loop - 1)];
    if (!request.ignore_eos && tokenizer_.is_end_of_generation(token)) {
        finish(FinishReason::stop);
        return false;
    }
    ++status_.generated_tokens;
    event_.text += text_.push(tokenizer_.piece(token, false));
    event_.tokens.push_back(token);
    event_.exits.push_back(loop);
    if (request.logprobs >= 0) event_.logprobs.push_back(token_logprob(logits, token, request.logprobs));
    news_ = true;
    if (text_.stopped()) finish(FinishReason::stop);
    return true;
}

void Output::finish(FinishReason reason, std::string error) {
    if (finished_) return;
    finished_ = news_ = true;
    event_.text += text_.finish();
    event_.finished = reason;
    event_.error = std::move(error);
    ++status_.finished[reason];
}

void Output::flush() {
    if (!std::exchange(news_, false)) return;
    submitted_.channel->push(std::exchange(event_, {}));
}

}  // namespace refold
