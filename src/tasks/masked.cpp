#include "tasks/masked.h"

#include "core/error.h"
#include "engine/single_sequence.h"

namespace refold {

void masked_likelihoods(Engine& engine, int32_t mask_token, Requests requests, const Answered& answered) {
    const auto n_vocab = static_cast<size_t>(engine.capabilities().n_vocab);
    SingleSequence sequence(engine);
    std::vector<int32_t> last;  // the tokens of `encoding`
    Encoding encoding;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Request& r = *requests[i];
        Likelihood sum;
        for (int64_t t = 0; t < r.scored; ++t) {
            const auto at = static_cast<size_t>(r.first_scored + t);
            std::vector<int32_t> tokens = r.tokens;
            tokens[at] = mask_token;
            if (tokens != last) {
                encoding = sequence.encode({.tokens = tokens, .token_types = {}, .mask = {}});
                if (encoding.logits.empty()) {
                    fail(ErrorCode::unsupported, "tasks",
                         "the encoder has no language-model head that would fill a mask");
                }
                last = std::move(tokens);
            }
            const Likelihood one =
                likelihood_of(std::span(encoding.logits).subspan(at * n_vocab, n_vocab), r.tokens[at]);
            sum.log_likelihood += one.log_likelihood;
            sum.greedy = sum.greedy && one.greedy;
        }
        answered(i, sum);
    }
}

}  // namespace refold
