#include "tasks/loglikelihood.h"

#include <algorithm>
#include <map>

#include "core/argmax.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "engine/finite_logits.h"
#include "exit/log_softmax.h"
#include "generation/prompt_reader.h"

namespace refold {
namespace {

using Tokens = PromptReader::Tokens;

// All tokens except the last, which is only predicted.
Tokens input_of(const Request* r) { return Tokens(r->tokens).first(r->tokens.size() - 1); }

// A request needs the likelihood of `token` after row `row` of a prompt.
struct Want {
    size_t row, request;
    int32_t token;
};

class Scorer {
public:
    Scorer(Engine& engine, Requests requests) : engine_(engine), requests_(requests) {
        std::vector<Tokens> inputs(requests.size());
        std::transform(requests.begin(), requests.end(), inputs.begin(), input_of);
        order_ = PromptQueue::order(inputs);
        shared_.resize(order_.size());
        for (size_t k = 1; k < order_.size(); ++k)
            shared_[k] = common_prefix(inputs[order_[k - 1]], inputs[order_[k]]);
        for (size_t k = 0; k < order_.size(); ++k)
            if (shared_[k] < inputs[order_[k]].size()) read_.push_back(k);
        for (const Request* r : requests) left_.push_back(r->scored);
        results_.resize(requests.size());
    }

    void run(const Answered& answered) {
        std::vector<Tokens> prompts;
        for (const size_t k : read_) prompts.push_back(input_of(requests_[order_[k]]));
        PromptReader reader(engine_, prompts);
        const size_t most_logits = logits_of_step(engine_.capabilities().n_vocab);
        while (!reader.done()) {
            check_interrupt();
            std::vector<Row> rows;
            std::vector<std::span<const Want>> wants;  // of the rows with logits
            const auto ranges = reader.fill(rows, most_logits, [&](size_t prompt, size_t token) {
                const auto wanted = wants_of(prompt, token);
                if (!wanted.empty()) wants.push_back(wanted);
                return !wanted.empty();
            });
            const StepInput step{.rows = rows, .sequence_length = reader.sequence_length(ranges)};
            take(engine_.step(step).logits, wants, answered);
            reader.advance(ranges);
            for (const auto& range : ranges)
                if (range.ends) wants_.erase(range.prompt);
        }
    }

private:
    std::span<const Want> wants_of(size_t prompt, size_t row) {
        const auto [it, first] = wants_.try_emplace(prompt);
        if (first) it->second = wants_from(read_[prompt]);
        const auto [begin, end] =
            std::equal_range(it->second.begin(), it->second.end(), Want{row, 0, 0},
                             [](const Want& a, const Want& b) { return a.row < b.row; });
        return {begin, end};
    }

    // Needs of this and later requests for the rows that this request is the first to compute.
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

    void take(std::span<const float> logits, std::span<const std::span<const Want>> wants,
              const Answered& answered) {
        const auto n_vocab = static_cast<size_t>(engine_.capabilities().n_vocab);
        check_finite_logits(logits, engine_.capabilities().n_vocab,
                            [&](int64_t row) { return wants[static_cast<size_t>(row)].front().row; });
        std::vector<std::pair<double, int32_t>> rows(wants.size());  // log of the sum, the likeliest
        const auto count = static_cast<int64_t>(rows.size());
        parallel_for(count, count < 8 ? 1 : engine_.capabilities().threads, [&](int64_t i) {
            const auto row = logits.subspan(static_cast<size_t>(i) * n_vocab, n_vocab);
            rows[static_cast<size_t>(i)] = {log_sum_exp(row), likeliest(row)};
        });
        for (size_t i = 0; i < rows.size(); ++i) {
            for (const Want& want : wants[i]) {
                Likelihood& result = results_[want.request];
                result.log_likelihood +=
                    static_cast<double>(logits[i * n_vocab + static_cast<size_t>(want.token)]) -
                    rows[i].first;
                result.greedy = result.greedy && rows[i].second == want.token;
                if (--left_[want.request] == 0) answered(want.request, result);
            }
        }
    }

    Engine& engine_;
    Requests requests_;
    std::vector<size_t> order_;
    std::vector<size_t> shared_;  // length of the common beginning of inputs order_[k] and order_[k - 1]
    std::vector<size_t> read_;    // indices into order_ of inputs with tokens of their own: the prompts
    std::map<size_t, std::vector<Want>> wants_;  // by prompt, while it is read; sorted by row
    std::vector<int64_t> left_;                  // open wants of a request
    std::vector<Likelihood> results_;
};

}  // namespace

Likelihood likelihood_of(std::span<const float> logits, int32_t token) {
    return {static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum_exp(logits),
            likeliest(logits) == token};
}

int32_t likeliest(std::span<const float> logits) { return static_cast<int32_t>(argmax(logits)); }

void log_likelihoods(Engine& engine, Requests requests, const Answered& answered) {
    Scorer(engine, requests).run(answered);
}

}  // namespace refold
