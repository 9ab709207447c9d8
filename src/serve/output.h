// What a running request says to its client, and what is counted of it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "serve/request_queue.h"
#include "serve/scheduler.h"
#include "serve/text_stream.h"

namespace refold {

Histogram make_histogram(std::vector<double> bounds);
void observe(Histogram& histogram, double seconds);

class Output {
public:
    // `status` counts; both outlive it.
    Output(const Tokenizer& tokenizer, SchedulerStatus& status, Submitted submitted);

    const Submitted& submitted() const { return submitted_; }
    bool finished() const { return finished_; }

    // Of the prompt's next token, from the logits behind the one before it.
    void add_prompt(std::span<const float> logits, int32_t token);
    // A token chosen after `loop`. Finishes at the end of generation and at stop texts; false when the token
    // is not part of the generation.
    bool add(std::span<const float> logits, int32_t token, int32_t loop);
    void finish(FinishReason reason, std::string error = {});
    // Sends what has been added.
    void flush();

private:
    const Tokenizer& tokenizer_;
    SchedulerStatus& status_;
    Submitted submitted_;
    TextStream text_;
    GenerationEvent event_;
    std::optional<Clock::time_point> latest_;  // token
    bool news_ = false, finished_ = false;
};

}  // namespace refold
