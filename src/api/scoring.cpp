#include "refold/scoring.h"

#include "api/impl.h"
#include "core/error.h"
#include "eval/protocols.h"

namespace refold {

std::vector<TokenLogprob> score(LanguageModel& model, std::span<const int32_t> tokens, int top) {
    GenerationRequest request;
    request.prompt.assign(tokens.begin(), tokens.end());
    request.max_tokens = 0;
    request.prompt_logprobs = true;
    request.logprobs = top;
    return std::move(model.impl().generator().run(request).prompt_logprobs);
}

std::vector<TokenLogprob> score(LanguageModel& model, const std::string& text, int top) {
    return score(model, model.tokenizer().encode(text, true, true), top);
}

double score_continuation(LanguageModel& model, const std::string& context, const std::string& continuation) {
    std::vector<int32_t> tokens = model.tokenizer().encode(context, true, true);
    const auto added = model.tokenizer().encode(continuation, false, true);
    if (tokens.empty())
        fail(ErrorCode::input, "scoring",
             "the context is empty, and the model starts with no token of its own");
    tokens.insert(tokens.end(), added.begin(), added.end());
    const auto scores = score(model, tokens);
    double sum = 0;
    for (size_t i = scores.size() - added.size(); i < scores.size(); ++i) sum += scores[i].logprob;
    return sum;
}

TextPerplexity perplexity(LanguageModel& model, const std::string& text,
                          const TextPerplexityOptions& options) {
    const Tokenizer& tokenizer = model.tokenizer();
    if (options.context > model.context()) {
        fail(ErrorCode::usage, "scoring", "windows of {} tokens do not fit the context of {}",
             options.context, model.context());
    }
    const PerplexityPlan plan = plan_windows(
        tokenizer.encode(text, tokenizer.adds_bos(), false),
        {.context = options.context, .stride = options.stride, .max_windows = options.max_windows});
    PerplexitySums sums(plan);
    for (const PerplexityWindow& window : plan.windows) {
        std::vector<int32_t> tokens{window.first};
        tokens.insert(tokens.end(), window.rest.begin(), window.rest.end());
        const auto scores = score(model, tokens);
        std::vector<double> nll;
        for (size_t t = window.first_scored; t < tokens.size(); ++t) nll.push_back(-scores[t - 1].logprob);
        sums.add(window, nll);
    }
    const PerplexityResult result = sums.result(0);
    return {result.perplexity, result.standard_error, result.mean_nll, result.tokens_scored, result.windows};
}

}  // namespace refold
