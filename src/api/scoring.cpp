#include "refold/scoring.h"

#include "api/impl.h"
#include "core/error.h"
#include "eval/protocols.h"

namespace refold {

std::vector<TokenLogprob> score(LanguageModel& model, std::span<const int32_t> tokens, int top,
                                std::stop_token stop) {
    GenerationRequest request;
    request.prompt.assign(tokens.begin(), tokens.end());
    request.max_tokens = 0;
    request.prompt_logprobs = true;
    request.logprobs = top;
    GeneratorCallbacks callbacks;
    callbacks.stop = std::move(stop);
    GenerationResult result = model.impl().generator().run(request, callbacks);
    if (result.finished == FinishReason::cancelled) fail(ErrorCode::interrupted, "scoring", "cancelled");
    return std::move(result.prompt_logprobs);
}

std::vector<TokenLogprob> score(LanguageModel& model, const std::string& text, int top,
                                std::stop_token stop) {
    return score(model, model.tokenizer().encode(text, true, true), top, std::move(stop));
}

double score_continuation(LanguageModel& model, const std::string& context, const std::string& continuation,
                          std::stop_token stop) {
    std::vector<int32_t> tokens = model.tokenizer().encode(context, true, true);
    const auto added = model.tokenizer().encode(continuation, false, true);
    if (tokens.empty())
        fail(ErrorCode::input, "scoring",
             "the context is empty, and the model starts with no token of its own");
    tokens.insert(tokens.end(), added.begin(), added.end());
    const auto scores = score(model, tokens, 0, std::move(stop));
    double sum = 0;
    for (size_t i = scores.size() - added.size(); i < scores.size(); ++i) sum += scores[i].logprob;
    return sum;
}

TextPerplexity perplexity(LanguageModel& model, const std::string& text, const TextPerplexityOptions& options,
                          const Control& control) {
    const Tokenizer& tokenizer = model.tokenizer();
    if (options.context > model.context()) {
        fail(ErrorCode::usage, "scoring", "windows of {} tokens do not fit the context of {}",
             options.context, model.context());
    }
    const PerplexityPlan plan = plan_windows(
        tokenizer.encode(text, tokenizer.adds_bos(), false),
        {.context = options.context, .stride = options.stride, .max_windows = options.max_windows});
    PerplexitySums sums(plan);
    uint64_t done = 0;
    for (const PerplexityWindow& window : plan.windows) {
        std::vector<int32_t> tokens{window.first};
        tokens.insert(tokens.end(), window.rest.begin(), window.rest.end());
        const auto scores = score(model, tokens, 0, control.stop);
        std::vector<double> nll;
        for (size_t t = window.first_scored; t < tokens.size(); ++t) nll.push_back(-scores[t - 1].logprob);
        sums.add(window, nll);
        if (control.on_progress) control.on_progress({"perplexity", ++done, plan.windows.size(), "windows"});
    }
    const PerplexityResult result = sums.result(0);
    return {result.perplexity, result.standard_error, result.mean_nll, result.tokens_scored, result.windows};
}

}  // namespace refold
