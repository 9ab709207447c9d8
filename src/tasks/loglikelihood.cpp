#include "tasks/loglikelihood.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/parallel.h"
#include "eval/log_softmax.h"

namespace refold {
namespace {

using Tokens = std::span<const int32_t>;

size_t common_prefix(Tokens a, Tokens b) {
    const size_t n = std::min(a.size(), b.size());
    return static_cast<size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

// The last token is predicted, not read.
Tokens input_of(const Request* r) { return Tokens(r->tokens).first(r->tokens.size() - 1); }

// A token whose likelihood after row `row` a request wants.
struct Want {
    size_t row, request;
    int32_t token;
};

class Scorer {
public:
    Scorer(Engine& engine, Requests requests) : engine_(engine), requests_(requests) {
        std::vector<Tokens> inputs(requests.size());
        std::transform(requests.begin(), requests.end(), inputs.begin(), input_of);
        order_ = order_by_prefix(inputs);
        shared_.resize(order_.size());
        for (size_t k = 1; k < order_.size(); ++k)
            shared_[k] = common_prefix(inputs[order_[k - 1]], inputs[order_[k]]);
        results_.resize(requests.size());
    }

    void run(const Answered& answered) {
        engine_.truncate(0);
        for (size_t k = 0; k < order_.size(); ++k) {
            const Tokens input = input_of(requests_[order_[k]]);
            if (shared_[k] < input.size()) evaluate(input, shared_[k], wants_from(k));
            answered(order_[k], results_[order_[k]]);
        }
    }

private:
    // What this request and those behind it want of the rows that it is about to compute.
    std::vector<Want> wants_from(size_t k) const {
        std::vector<Want> wants;
        size_t shared = input_of(requests_[order_[k]]).size();
        for (size_t m = k; m < order_.size(); ++m) {
            if (m > k) shared = std::min(shared, shared_[m]);
            if (shared <= shared_[k]) break;
            const Request& r = *requests_[order_[m]];
            const size_t first = r.tokens.size() - static_cast<size_t>(r.scored) - 1;
            for (size_t row = std::max(first, shared_[k]); row < shared; ++row)
                wants.push_back({row, order_[m], r.tokens[row + 1]});
        }
        std::stable_sort(wants.begin(), wants.end(),
                         [](const Want& a, const Want& b) { return a.row < b.row; });
        return wants;
    }

    // The engine holds the input before this one: its first `begin` tokens stay.
    void evaluate(Tokens input, size_t begin, const std::vector<Want>& wants) {
        engine_.truncate(static_cast<int64_t>(begin));
        engine_.evaluate_all(
            input.subspan(begin),
            [&](size_t first, std::span<const float> logits) { take(wants, begin + first, logits); },
            wants.front().row - begin);
    }

    // Logits of the rows first, first + 1, ...
    void take(const std::vector<Want>& wants, size_t first, std::span<const float> logits) {
        const auto n_vocab = static_cast<size_t>(engine_.n_vocab());
        const auto before = [](const Want& want, size_t row) { return want.row < row; };
        const auto begin = std::lower_bound(wants.begin(), wants.end(), first, before);
        const auto end = std::lower_bound(begin, wants.end(), first + logits.size() / n_vocab, before);
        std::vector<Likelihood> found(static_cast<size_t>(end - begin));
        parallel_for(end - begin, found.size() < 8 ? 1 : engine_.threads(), [&](int64_t i) {
            const Want& want = begin[i];
            found[static_cast<size_t>(i)] =
                likelihood_of(logits.subspan((want.row - first) * n_vocab, n_vocab), want.token);
        });
        for (size_t i = 0; i < found.size(); ++i) {
            Likelihood& result = results_[begin[static_cast<ptrdiff_t>(i)].request];
            result.log_likelihood += found[i].log_likelihood;
            result.greedy = result.greedy && found[i].greedy;
        }
    }

    Engine& engine_;
    Requests requests_;
    std::vector<size_t> order_;
    std::vector<size_t> shared_;  // tokens that input order_[k] has in common with order_[k - 1]
    std::vector<Likelihood> results_;
};

}  // namespace

Likelihood likelihood_of(std::span<const float> logits, int32_t token) {
    const auto wanted = logits[static_cast<size_t>(token)];
    return {static_cast<double>(wanted) - log_sum_exp(logits),
            std::max_element(logits.begin(), logits.end()) - logits.begin() == token};
}

std::vector<size_t> order_by_prefix(const std::vector<std::span<const int32_t>>& sequences) {
    std::vector<size_t> order(sequences.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return std::lexicographical_compare(sequences[a].begin(), sequences[a].end(), sequences[b].begin(),
                                            sequences[b].end());
    });
    return order;
}

void log_likelihoods(Engine& engine, Requests requests, const Answered& answered) {
    if (engine.evicts()) {
        fail(ErrorCode::usage, "tasks",
             "a KV cache that evicts rows cannot go back to what prompts have in common - leave out "
             "--kv-policy");
    }
    Scorer(engine, requests).run(answered);
}

}  // namespace refold
