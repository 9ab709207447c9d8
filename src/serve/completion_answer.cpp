#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "serve/fill_in_middle.h"
#include "serve/logprobs_json.h"
#include "serve/openai_answer.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

class CompletionAnswer : public OpenAiAnswer {
public:
    CompletionAnswer(const CompletionRequest& request, const ServedModel& model,
                     const std::function<void()>& check)
        : OpenAiAnswer(request, model, {"cmpl", "text_completion", "text_completion"}),
          echo_(request.echo),
          logprobs_(request.options.logprobs >= 0),
          best_(static_cast<size_t>(request.n)) {
        const Tokenizer& tokenizer = model.tokenizer;
        common_.prompt_logprobs = echo_ && logprobs_;
        if (choices_of_prompt() > best_) common_.logprobs = std::max(common_.logprobs, 0);
        const auto fill =
            request.suffix.empty() ? std::nullopt : std::optional(needed_fill_tokens(tokenizer));
        model.limits.check_length(request.suffix.size(), "suffix");
        for (const ApiPrompt& given : request.prompts) {
            check();
            EchoedPrompt prompt;
            std::vector<int32_t> tokens;
            if (const auto* text = std::get_if<std::string>(&given)) {
                model.limits.check_length(text->size(), "prompt");
                tokens = tokenizer.encode(*text, true, true);
                prompt.text = *text;
                const bool bos = tokenizer.adds_bos() && !tokens.empty() && tokens[0] == tokenizer.bos();
                prompt.added = bos && !text->starts_with(tokenizer.piece(tokens[0], true)) ? 1 : 0;
            } else {
                tokens = std::get<std::vector<int32_t>>(given);
                check_ids(tokens, model.limits.n_vocab, "prompt");
                if (echo_) prompt.text = tokenizer.decode(tokens, true);
            }
            if (fill) tokens = fill_prompt(*fill, tokenizer, tokens, request.suffix);
            add_prompt(std::move(tokens), request.max_tokens.value_or(16), "prompt");
            for (size_t i = 0; i < choices_of_prompt(); ++i)
                choices_.push_back({echoed_.size(), false, {tokenizer, request.options.logprobs > 0}});
            echoed_.push_back(std::move(prompt));
        }
    }

    Json body(const std::vector<GenerationEvent>& all) override {
        Json out = OpenAiAnswer::body(all);
        if (choices_of_prompt() == best_) return out;
        Json chosen = Json::array();
        for (size_t begin = 0; begin < all.size(); begin += choices_of_prompt()) {
            std::vector<size_t> order(choices_of_prompt());
            std::iota(order.begin(), order.end(), begin);
            std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return likelihood(all[i]); });
            for (size_t i = 0; i < best_; ++i) {
                chosen.push_back(std::move(out["choices"][order[i]]));
                chosen.back()["index"] = chosen.size() - 1;
            }
        }
        out["choices"] = std::move(chosen);
        return out;
    }

    Json choice(size_t index, const GenerationEvent& event) override {
        Choice& choice = choices_[index];
        const bool first = !std::exchange(choice.begun, true);
        const EchoedPrompt& prompt = echoed_[choice.prompt];
        if (first && echo_ && logprobs_)
            choice.logprobs.add_prompt(prompt_of(index).tokens, prompt.added, prompt.text, event.prompt);
        if (logprobs_) choice.logprobs.add(event.logprobs);
        return {{"text", (first && echo_ ? prompt.text : "") + event.text},
                {"index", index},
                {"logprobs", logprobs_ ? choice.logprobs.take() : Json()},
                {"finish_reason", event.finished ? Json(finish_name(event)) : Json()}};
    }

private:
    struct EchoedPrompt {
        std::string text;
        size_t added = 0;  // leading tokens that the text does not show
    };
    struct Choice {
        size_t prompt;
        bool begun;
        LegacyLogprobs logprobs;
    };
    // Mean log probability of the tokens; those of no tokens come last.
    static double likelihood(const GenerationEvent& event) {
        if (event.logprobs.empty()) return -std::numeric_limits<double>::infinity();
        double sum = 0;
        for (const TokenLogprob& token : event.logprobs) sum += token.logprob;
        return sum / static_cast<double>(event.logprobs.size());
    }

    bool echo_, logprobs_;
    const size_t best_;  // choices of each prompt that are given
    std::vector<EchoedPrompt> echoed_;
    std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<ApiAnswer> make_answer(const CompletionRequest& request, const ServedModel& model,
                                       const std::function<void()>& check) {
    return std::make_unique<CompletionAnswer>(request, model, check);
}

}  // namespace refold
