#include "generation/generator.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <list>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "generation/options.h"
#include "model/token_ids.h"

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

void check(const GenerationRequest& request, const Engine& engine) {
    check_generation(request, engine.capabilities().n_vocab);
    const auto tokens = static_cast<int64_t>(request.prompt.size());
    if (tokens == 0) fail(ErrorCode::input, "generation", "the prompt is empty");
    if (tokens > sequence_room(engine)) {
        fail(ErrorCode::input, "generation",
             "the prompt has {} tokens, the context holds {} - raise the context or shorten the prompt",
             tokens, sequence_room(engine));
    }
    check_token_ids(request.prompt, engine.capabilities().n_vocab, "generation");
}

}  // namespace

// One call of run().
class Generator::Run {
public:
    Run(Generator& generator, std::span<const GenerationRequest> requests,
        const GeneratorCallbacks& callbacks)
        : generator_(generator),
          engine_(generator.engine_),
          requests_(requests),
          callbacks_(callbacks),
          start_(Clock::now()),
          order_(PromptQueue::order(prompts_of(requests))),
          queue_(generator.sequences_, ordered_prompts(), rooms()),
          most_(std::min({generator.options_.sequences, logits_of_step(engine_.capabilities().n_vocab),
                          static_cast<size_t>(engine_.capabilities().max_rows)})),
          results_(requests.size()) {}

    std::vector<GenerationResult> finish() {
        while (!queue_.empty() || !active_.empty()) {
            check_interrupt();
            end_overdue();
            step();
            settle();
        }
        return std::move(results_);
    }

private:
    struct Active {
        size_t prompt;  // in the queue's order
        SharedSequences::Sequence* place;
        Sequence sequence;
        std::optional<Clock::time_point> first_logits = {};
        Clock::time_point latest_token = {};
    };

    static std::vector<PromptQueue::Tokens> prompts_of(std::span<const GenerationRequest> requests) {
        std::vector<PromptQueue::Tokens> prompts;
        for (const GenerationRequest& request : requests) prompts.emplace_back(request.prompt);
        return prompts;
    }
    std::vector<PromptQueue::Tokens> ordered_prompts() const {
        std::vector<PromptQueue::Tokens> prompts;
        for (const size_t request : order_) prompts.emplace_back(requests_[request].prompt);
        return prompts;
    }
    std::vector<size_t> rooms() const {
        std::vector<size_t> rooms;
        for (const size_t r : order_) {
            const auto prompt = static_cast<int64_t>(requests_[r].prompt.size());
            const int64_t room = sequence_room(engine_);
            rooms.push_back(
                static_cast<size_t>(std::min(prompt + std::min(requests_[r].max_tokens, room), room)));
        }
        return rooms;
    }

    const GenerationRequest& request_of(const Active& active) const {
        return requests_[order_[active.prompt]];
    }

    void end_overdue() {
        const auto now = Clock::now();
        for (Active& active : active_) {
            const auto timeout = request_of(active).timeout;
            if (callbacks_.stop.stop_requested())
                active.sequence.continuation().finish(FinishReason::cancelled);
            else if (timeout.count() > 0 && now - start_ >= timeout)
                active.sequence.continuation().finish(FinishReason::timeout);
        }
    }

    Active& admit(const PromptQueue::Admitted& admitted) {
        const size_t r = order_[admitted.prompt];
        const GenerationRequest& request = requests_[r];
        // All of a prompt that is scored is read.
        if (request.prompt_logprobs && admitted.sequence->done > 0) {
            engine_.truncate(admitted.sequence->id, 0);
            admitted.sequence->done = 0;
        }
        // The last token of a full context needs no row in it.
        const Sequence::Start start{admitted.sequence->id, static_cast<int64_t>(admitted.sequence->done),
                                    sequence_room(engine_) + 1};
        results_[r].prompt_tokens = static_cast<int64_t>(request.prompt.size());
        results_[r].evaluated_tokens = results_[r].prompt_tokens - start.known;
        GenerationRequest own = request;
        if (!own.grammar) own.grammar = generator_.grammars_.compile(own.format);
        active_.push_back(
            {admitted.prompt, admitted.sequence,
             Sequence(engine_, generator_.options_.decoding, generator_.counts_, start,
                      Continuation(generator_.tokenizer_, std::move(own), generator_.options_.decode))});
        Active& active = active_.back();
        if (callbacks_.stop.stop_requested()) active.sequence.continuation().finish(FinishReason::cancelled);
        if (active.sequence.empty()) active.sequence.continuation().finish(FinishReason::length);
        return active;
    }

    // Tokens that are decoded first, then prompts.
    void plan() {
        plan_.clear();
        sequence_length_ = 0;
        int64_t room = engine_.capabilities().max_rows;
        const auto add = [&](Active& active) {
            if (active.sequence.continuation().finished()) return;
            if (active.sequence.prefilling())
                sequence_length_ =
                    std::max(sequence_length_, static_cast<int64_t>(request_of(active).prompt.size()));
            int64_t most = room;
            if (request_of(active).prompt_logprobs)  // every row may ask for logits
                most = std::min(room, static_cast<int64_t>(logits_of_step(engine_.capabilities().n_vocab)));
            room -= active.sequence.plan(plan_, most);
        };
        std::vector<Sequence*> generating;
        for (Active& active : active_)
            if (!active.sequence.prefilling()) generating.push_back(&active.sequence);
        plan_.drafts = generator_.drafting_.begin_step(generating);
        for (Active& active : active_)
            if (!active.sequence.prefilling()) add(active);
        for (Active& active : active_)
            if (active.sequence.prefilling()) add(active);
        queue_.begin_step();
        while (room > 0 && active_.size() < most_) {
            const auto admitted = queue_.next();
            if (!admitted) break;
            add(admit(*admitted));
        }
    }

    void step() {
        plan();
        if (active_.empty()) fail(ErrorCode::internal, "generation", "the engine has no room for a prompt");
        if (plan_.rows.empty()) return;
        const StepOutput output = engine_.step({.rows = plan_.rows, .sequence_length = sequence_length_});
        const auto now = Clock::now();
        const bool has_prompts =
            std::ranges::any_of(active_, [](const Active& active) { return active.sequence.prefilling(); });
        plan_.take(output, engine_.capabilities().n_vocab);
        generator_.drafting_.end_step(has_prompts);
        for (Active& active : active_) {
            const Sequence& s = active.sequence;
            active.place->done = std::min(static_cast<size_t>(s.exact()), active.place->tokens.size());
            if (!s.prefilling()) queue_.read(active.prompt);
            if (!active.first_logits && s.continuation().choices() > 0) active.first_logits = now;
        }
    }

    void settle() {
        for (Active& active : active_) tell(active);
        for (auto it = active_.begin(); it != active_.end();) {
            if (!it->sequence.continuation().finished()) {
                ++it;
                continue;
            }
            end(*it);
            it = active_.erase(it);
        }
    }

    void tell(Active& active) {
        const size_t r = order_[active.prompt];
        Continuation& continuation = active.sequence.continuation();
        auto event = continuation.take();
        if (!event) return;
        if (event->finished == FinishReason::error) throw Error(ErrorCode::input, event->error);
        if (!event->tokens.empty()) active.latest_token = Clock::now();
        const bool goes_on = !callbacks_.on_event || callbacks_.on_event(r, *event);
        add(results_[r], std::move(*event));
        if (goes_on) return;
        continuation.finish(FinishReason::cancelled);
        if (auto rest = continuation.take()) add(results_[r], std::move(*rest));
    }

    static void add(GenerationResult& result, GenerationEvent&& event) {
        const auto append = [](auto& to, auto&& from) {
            to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
        };
        append(result.text, event.text);
        append(result.tokens, event.tokens);
        append(result.logprobs, event.logprobs);
        append(result.exits, event.exits);
        append(result.prompt_logprobs, event.prompt);
        if (!event.finished) return;
        result.finished = *event.finished;
        result.stop_text = std::move(event.stop_text);
        result.end_token = event.end_token;
    }

    void end(Active& active) {
        const size_t r = order_[active.prompt];
        GenerationResult& result = results_[r];
        result.context_full = result.finished == FinishReason::length && active.sequence.limited_by_room();
        const Clock::time_point read = active.first_logits.value_or(Clock::now());
        result.prefill_seconds = seconds_between(start_, read);
        if (!result.tokens.empty()) result.decode_seconds = seconds_between(read, active.latest_token);
        SharedSequences::Sequence& place = *active.place;
        if (generator_.options_.keeps_sequences) {
            place.tokens = active.sequence.tokens();
            place.done = static_cast<size_t>(active.sequence.exact());
        }
        queue_.read(active.prompt);
        generator_.drafting_.end(active.sequence);
        if (callbacks_.on_end) callbacks_.on_end({r, place.id}, result);
        generator_.sequences_.end(place);
    }

    Generator& generator_;
    Engine& engine_;
    std::span<const GenerationRequest> requests_;
    const GeneratorCallbacks& callbacks_;
    const Clock::time_point start_;
    std::vector<size_t> order_;
    PromptQueue queue_;
    const size_t most_;
    std::list<Active> active_;
    StepPlan plan_;
    int64_t sequence_length_ = 0;  // of the longest prompt in the step
    std::vector<GenerationResult> results_;
};

Generator::Generator(Engine& engine, const Tokenizer& tokenizer, GeneratorOptions options)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      sequences_(engine),
      counts_(engine.capabilities().loops),
      drafting_(options_.decoding, counts_),
      grammars_(tokenizer, engine.capabilities().n_vocab) {
    check_exit_policy(options_.decoding.exit, engine.capabilities().loops, engine.capabilities().exit_gate);
    check_drafts(options_.decoding, engine.capabilities());
}

std::vector<GenerationResult> Generator::run(std::span<const GenerationRequest> requests,
                                             const GeneratorCallbacks& callbacks) {
    for (const GenerationRequest& request : requests) {
        check(request, engine_);
        if (!request.grammar) grammars_.compile(request.format);  // throws before anything runs
    }
    try {
        auto results = Run(*this, requests, callbacks).finish();
        if (!options_.keeps_sequences) sequences_.clear();
        return results;
    } catch (...) {
        sequences_.clear();  // their state in the engine is unknown
        drafting_.clear();
        throw;
    }
}

GenerationResult Generator::run(const GenerationRequest& request, const GeneratorCallbacks& callbacks) {
    return std::move(run(std::span(&request, 1), callbacks).front());
}

}  // namespace refold
