#include "tasks/masked.h"

#include <algorithm>

#include "core/error.h"
#include "engine/single_sequence.h"

namespace refold {
namespace {

// Logits [tokens, n_vocab].
std::vector<float> logits_of(SingleSequence& sequence, const std::vector<int32_t>& tokens) {
    Encoding encoding = sequence.encode({.tokens = tokens, .token_types = {}, .mask = {}});
    if (encoding.logits.empty())
        fail(ErrorCode::unsupported, "tasks",
             "the encoder has no language-model head that would fill a mask");
    return std::move(encoding.logits);
}

}  // namespace

void fill_masks(Engine& engine, const Tokenizer& tokenizer, Requests requests, const Generated& generated) {
    const auto n_vocab = static_cast<size_t>(engine.capabilities().n_vocab);
    const int32_t mask = tokenizer.mask().value();
    const DecodeTokens decode = task_decoder(tokenizer);
    SingleSequence sequence(engine);
    for (size_t i = 0; i < requests.size(); ++i) {
        const std::vector<int32_t>& tokens = requests[i]->tokens;
        const std::vector<float> logits = logits_of(sequence, tokens);
        std::vector<int32_t> filled;
        for (size_t t = 0; t < tokens.size(); ++t) {
            if (tokens[t] == mask)
                filled.push_back(likeliest(std::span(logits).subspan(t * n_vocab, n_vocab)));
        }
        generated(i, decode(filled));
    }
}

void masked_likelihoods(Engine& engine, int32_t mask_token, Requests requests, const Answered& answered) {
    const auto n_vocab = static_cast<size_t>(engine.capabilities().n_vocab);
    SingleSequence sequence(engine);
    std::vector<int32_t> last;  // the tokens of `logits`
    std::vector<float> logits;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Request& r = *requests[i];
        Likelihood sum;
        for (int64_t t = 0; t < r.scored; ++t) {
            const auto at = static_cast<size_t>(r.first_scored + t);
            std::vector<int32_t> tokens = r.tokens;
            const auto first =
                tokens.begin() + static_cast<ptrdiff_t>(r.together ? r.first_scored : r.first_scored + t);
            std::fill_n(first, r.together ? r.scored : 1, mask_token);
            if (tokens != last) {
                logits = logits_of(sequence, tokens);
                last = std::move(tokens);
            }
            const Likelihood one =
                likelihood_of(std::span(logits).subspan(at * n_vocab, n_vocab), r.tokens[at]);
            sum.log_likelihood += one.log_likelihood;
            sum.greedy = sum.greedy && one.greedy;
        }
        answered(i, sum);
    }
}

}  // namespace refold
