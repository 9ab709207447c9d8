// The expected result of a request, whatever else runs: one engine, one sequence, one row at a time.
#pragma once

#include <numeric>

#include "generation/sampler.h"
#include "generation/utf8_stream.h"
#include "serve/fake_engine.h"
#include "serve/scheduler.h"

namespace refold {

inline const Tokenizer& test_tokenizer() {
    static const Tokenizer tokenizer(REFOLD_FIXTURES "/llama_gqa/model.gguf");
    return tokenizer;
}

struct Response {
    std::string text, error;
    std::vector<int32_t> tokens, exits;
    std::vector<TokenLogprob> logprobs, prompt;
    std::optional<FinishReason> finished;
};

// All events until the last; waits for minutes only if there is none.
inline Response collect(Generation& generation) {
    Response response;
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(4);
    while (!response.finished && std::chrono::steady_clock::now() < end) {
        const auto event = generation.next(std::chrono::milliseconds(1000));
        if (!event) continue;
        response.text += event->text;
        append(response.tokens, event->tokens);
        append(response.exits, event->exits);
        append(response.logprobs, event->logprobs);
        append(response.prompt, event->prompt);
        response.finished = event->finished;
        response.error = event->error;
    }
    return response;
}

inline double logprob_of(std::span<const float> logits, int32_t token) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    return logits[static_cast<size_t>(token)] - std::log(sum);
}

// Runs requests one after another. Of `options`, exits apply and drafts do not.
class SingleStream {
public:
    SingleStream(Engine& engine, const SchedulerOptions& options) : engine_(engine), options_(options) {}

    Response run(const GenerationRequest& request) {
        request_ = &request;
        response_ = {};
        bytes_.clear();
        length_ = 0;
        const auto room = std::min(engine_.capabilities().context, engine_.capabilities().kv_tokens);
        const auto limit = std::min(request.max_tokens, room - static_cast<int64_t>(request.prompt.size()));
        sequence_ = *engine_.open(room);
        Sampler sampler(request.sampling);
        std::span<const float> logits;
        for (size_t i = 0; i < request.prompt.size(); ++i) {
            if (i > 0 && request.prompt_logprobs) {
                const int32_t token = request.prompt[i];
                response_.prompt.push_back({token, logprob_of(logits, token), {}});
            }
            logits = run_token(request.prompt[i], true).logits;
        }
        int32_t loop = engine_.capabilities().loops;
        while (!response_.finished) {
            if (static_cast<int64_t>(response_.tokens.size()) == limit) {
                response_.finished = FinishReason::length;
                break;
            }
            std::vector<int32_t> history = request.prompt;
            history.insert(history.end(), response_.tokens.begin(), response_.tokens.end());
            const int32_t token = sampler.choose(
                logits, {request.sampling.seed, static_cast<int64_t>(history.size())}, history);
            if (!request.ignore_eos && test_tokenizer().is_end_of_generation(token)) {
                response_.finished = FinishReason::stop;
                break;
            }
            add(token, loop, logits);
            if (static_cast<int64_t>(response_.tokens.size()) < limit) {
                const Result result = run_token(token, false);
                logits = result.logits;
                loop = result.loop;
            }
        }
        if (!stopped_at_text_) {
            Utf8Stream whole;
            response_.text = whole.push(bytes_) + whole.finish();
        }
        stopped_at_text_ = false;
        engine_.close(sequence_);
        return response_;
    }

private:
    struct Result {
        std::span<const float> logits;
        int32_t loop = 0;
    };

    void add(int32_t token, int32_t loop, std::span<const float> logits) {
        response_.tokens.push_back(token);
        response_.exits.push_back(loop);
        if (request_->logprobs >= 0) response_.logprobs.push_back({token, logprob_of(logits, token), {}});
        bytes_ += test_tokenizer().piece(token, false);
        const std::string text = Utf8Stream().push(bytes_);
        size_t end = std::string::npos;
        for (const std::string& stop : request_->stop)
            if (!stop.empty()) end = std::min(end, text.find(stop));
        if (end == std::string::npos) return;
        response_.text = text.substr(0, end);
        response_.finished = FinishReason::stop;
        stopped_at_text_ = true;
    }

    // Runs the loops that an exit skipped at once.
    Result run_token(int32_t token, bool prompt) {
        const int64_t position = length_++;
        for (int32_t loop = 0; loop < engine_.capabilities().loops; ++loop) {
            Row row;
            row.sequence = sequence_;
            row.position = position;
            row.loop = loop;
            if (loop == 0) row.token = token;
            row.logits = true;
            const auto logits = engine_.step({.rows = {&row, 1}}).logits;
            logits_.assign(logits.begin(), logits.end());
            const int32_t loops_run = loop + 1;
            if (loops_run == engine_.capabilities().loops || (!prompt && exits(loops_run))) {
                leave(position, loops_run);
                return {logits_, loops_run};
            }
        }
        return {};
    }

    bool exits(int32_t loop) const {
        if (request_->exits.empty()) return options_.exit.exits(loop, logits_);
        const size_t next = response_.tokens.size();
        return next < request_->exits.size() && request_->exits[next] == loop;
    }

    void leave(int64_t position, int32_t loops_run) {
        if (loops_run == engine_.capabilities().loops) return;
        if (options_.exit.kv == ExitedKv::share) return engine_.share(sequence_, position, loops_run);
        for (int32_t loop = loops_run; loop < engine_.capabilities().loops; ++loop) {
            Row row;
            row.sequence = sequence_;
            row.position = position;
            row.loop = loop;
            if (options_.exit.kv == ExitedKv::propagate) row.work = Row::Work::keys_only;
            engine_.step({.rows = {&row, 1}});
        }
    }

    Engine& engine_;
    const SchedulerOptions& options_;
    const GenerationRequest* request_ = nullptr;
    Response response_;
    std::string bytes_;
    std::vector<float> logits_;
    int32_t sequence_ = 0;
    int64_t length_ = 0;
    bool stopped_at_text_ = false;
};

inline void expect_same(const Response& got, const Response& expected, const std::string& label) {
    EXPECT_EQ(got.tokens, expected.tokens) << label;
    EXPECT_EQ(got.text, expected.text) << label;
    EXPECT_EQ(got.exits, expected.exits) << label;
    EXPECT_EQ(got.finished, expected.finished) << label << ' ' << got.error;
    const auto same = [&](const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
        ASSERT_EQ(a.size(), b.size()) << label;
        for (size_t i = 0; i < a.size(); ++i) {
            EXPECT_EQ(a[i].token, b[i].token) << label << ' ' << i;
            EXPECT_NEAR(a[i].logprob, b[i].logprob, 1e-4) << label << ' ' << i;
        }
    };
    same(got.logprobs, expected.logprobs);
    same(got.prompt, expected.prompt);
}

}  // namespace refold
