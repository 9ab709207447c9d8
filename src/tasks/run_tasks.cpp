#include "tasks/run_tasks.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/files.h"
#include "core/group.h"
#include "core/progress.h"
#include "core/sha256.h"
#include "tasks/generate.h"
#include "tasks/masked.h"

namespace refold {
namespace {

void update(Sha256& hash, const std::string& text) {
    hash.update(std::as_bytes(std::span(text)));
    hash.update(std::as_bytes(std::span("\0", 1)));
}

// Collects answers in any order and counts complete items.
class Collector {
public:
    explicit Collector(TaskRun& run)
        : run_(run),
          missing_(run.task.items.size()),
          place_(run.requests.size()),
          taken_(run.requests.size()) {
        run.answers.assign(missing_.size(), {});
        for (size_t r = 0; r < run.requests.size(); ++r) {
            const Request& request = run.requests[r];
            ++missing_[request.item];
            if (request.scored == 0) continue;
            Answer& answer = run.answers[request.item];
            place_[r] = answer.choices.size();
            answer.choices.emplace_back();
            answer.scored.push_back(request.scored + (request.together ? 1 : 0));
            answer.tokens.push_back(static_cast<int64_t>(request.tokens.size()));
        }
        run.values.clear();
    }

    bool has(size_t request) const { return taken_[request]; }

    void take(size_t request, const Likelihood& likelihood) {
        taken_[request] = true;
        const size_t item = run_.requests[request].item;
        run_.answers[item].choices[place_[request]] = likelihood;
        complete_one(item);
    }
    void take(size_t request, const std::string& text) {
        taken_[request] = true;
        const size_t item = run_.requests[request].item;
        run_.answers[item].text = text;
        run_.answers[item].filled = run_.filled;
        complete_one(item);
    }

    // The first metric of the answers so far.
    std::string note() const {
        if (done_ == 0) return "";
        const TaskSpec& spec = run_.task.spec;
        return fmt::format("{} {:.4f}", spec.metrics.front(),
                           figure(spec, spec.metrics.front(), sums_, static_cast<double>(done_)));
    }

private:
    void complete_one(size_t item) {
        if (--missing_[item] > 0) return;
        const TaskSpec& spec = run_.task.spec;
        for (size_t m = 0; m < spec.metrics.size(); ++m) {
            const auto v = item_values(spec, spec.metrics[m], run_.task.items[item], run_.answers[item]);
            if (run_.values.size() == m)
                run_.values.push_back(
                    {spec.metrics[m], v.size(), std::vector<double>(v.size() * missing_.size())});
            std::copy(v.begin(), v.end(),
                      run_.values[m].values.begin() + static_cast<ptrdiff_t>(item * v.size()));
            if (m > 0) continue;
            sums_.resize(v.size());
            for (size_t w = 0; w < v.size(); ++w) sums_[w] += v[w];
        }
        ++done_;
    }

    TaskRun& run_;
    std::vector<size_t> missing_;  // number of missing answers by item
    std::vector<size_t> place_;    // index of a request among its item's scored requests
    std::vector<bool> taken_;
    std::vector<double> sums_;
    size_t done_ = 0;
};

// Every process has answered the requests of its own items. Afterwards every process has all answers.
void share(const std::vector<std::pair<size_t, Likelihood>>& likelihoods,
           const std::vector<std::pair<size_t, std::string>>& texts, Collector& collector) {
    using nlohmann::json;
    json own = json::array();
    for (const auto& [request, answer] : likelihoods)
        own.push_back({request, answer.log_likelihood, answer.greedy});
    for (const auto& [request, text] : texts)
        own.push_back({request, json::binary({text.begin(), text.end()})});
    const std::vector<uint8_t> packed = json::to_cbor(own);
    for (const std::string& bytes : group().gather({packed.begin(), packed.end()})) {
        for (const json& v : json::from_cbor(bytes)) {
            const auto request = v[0].get<size_t>();
            if (collector.has(request)) continue;
            if (v.size() == 3) {
                collector.take(request, Likelihood{v[1].get<double>(), v[2].get<bool>()});
            } else {
                const auto& text = v[1].get_binary();
                collector.take(request, std::string(text.begin(), text.end()));
            }
        }
    }
}

ExitCounts of_all_processes(ExitCounts counts) {
    if (group().size() == 1) return counts;
    std::vector<double> values(counts.at_loop.begin(), counts.at_loop.end());
    values.push_back(static_cast<double>(counts.agreed));
    group().sum(values);
    counts.agreed = static_cast<int64_t>(values.back());
    for (size_t i = 0; i < counts.at_loop.size(); ++i) counts.at_loop[i] = static_cast<int64_t>(values[i]);
    return counts;
}

// Answers the open requests: likelihoods, then generated texts.
using Answering =
    std::function<void(Requests requests, const Answered& answered, const Generated& generated)>;

// Answers the requests that have tokens to score by `score`, the others by `write`.
template <typename Score, typename Write>
void answer_both(Requests requests, const Answered& answered, const Generated& generated, Score score,
                 Write write) {
    std::vector<const Request*> scored, written;
    std::vector<size_t> of_scored, of_written;
    for (size_t i = 0; i < requests.size(); ++i) {
        (requests[i]->scored > 0 ? scored : written).push_back(requests[i]);
        (requests[i]->scored > 0 ? of_scored : of_written).push_back(i);
    }
    if (!scored.empty())
        score(scored, [&](size_t i, const Likelihood& likelihood) { answered(of_scored[i], likelihood); });
    if (!written.empty())
        write(written, [&](size_t i, const std::string& text) { generated(of_written[i], text); });
}

// `exiting` answers; null without early exit.
void answer(TaskRun& run, const Answering& answering, int threads, WorkFile* work, size_t index,
            ExitAnswers* exiting = nullptr) {
    const auto start = std::chrono::steady_clock::now();
    const TaskSpec& spec = run.task.spec;
    const Group& processes = group();
    const auto owned = std::count_if(run.requests.begin(), run.requests.end(),
                                     [&](const Request& r) { return processes.owns(r.item); });
    Progress progress(spec.name, static_cast<uint64_t>(owned), "requests");
    Collector collector(run);
    std::vector<std::pair<size_t, Likelihood>> likelihoods;
    std::vector<std::pair<size_t, std::string>> texts;
    const auto keep = [&](size_t r, const auto& answer) {
        collector.take(r, answer);
        if constexpr (std::is_same_v<std::decay_t<decltype(answer)>, Likelihood>) {
            likelihoods.emplace_back(r, answer);
        } else {
            texts.emplace_back(r, answer);
        }
        progress.advance(1, collector.note());
    };
    std::vector<const Request*> open;
    std::vector<size_t> of_open;
    for (size_t r = 0; r < run.requests.size(); ++r) {
        if (!processes.owns(run.requests[r].item)) continue;
        const WorkFile::RequestId request{index, r};
        const ExitCounts* exits = work != nullptr && exiting != nullptr ? work->exits(request) : nullptr;
        const bool there =
            work != nullptr &&
            (exiting == nullptr || (exits != nullptr && exits->at_loop.size() == run.exits.at_loop.size()));
        const auto found = [&](const auto* answer) {
            if (answer == nullptr) return false;
            keep(r, *answer);
            if (exits != nullptr) run.exits.add(*exits);
            return true;
        };
        if (there && (found(work->likelihood(request)) || found(work->text(request)))) continue;
        open.push_back(&run.requests[r]);
        of_open.push_back(r);
    }
    const auto take = [&](size_t i, const auto& answer) {
        const size_t r = of_open[i];
        keep(r, answer);
        std::optional<ExitCounts> exits;
        if (exiting != nullptr) run.exits.add(exits.emplace(exiting->take_counts()));
        if (work != nullptr) work->add({index, r}, answer, exits ? &*exits : nullptr);
    };
    answering(open, take, take);
    if (processes.size() > 1) share(likelihoods, texts, collector);
    progress.finish(collector.note());
    run.results.clear();
    for (const MetricValues& values : run.values) run.results.push_back(aggregate(spec, values, threads));
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int64_t TaskRun::cut_requests() const {
    return std::count_if(requests.begin(), requests.end(), [](const Request& r) { return r.cut > 0; });
}

TaskRun prepare_task(Task task, const Tokenizer& tokenizer, const PromptOptions& options) {
    if (task.items.empty())
        fail(ErrorCode::input, "tasks", "{}: no items in '{}'", task.spec.name, task.data_file);
    if (task.spec.metrics.empty()) fail(ErrorCode::input, "tasks", "{}: no metrics", task.spec.name);
    for (const std::string& metric : task.spec.metrics) check_metric(task.spec, metric);
    TaskRun run;
    run.requests = make_requests(task, tokenizer, options);
    run.task = std::move(task);
    return run;
}

int64_t context_needed(std::span<const TaskRun> runs) {
    int64_t needed = 1;
    for (const TaskRun& run : runs) {
        const bool generates = run.task.spec.output == TaskOutput::generate_until;
        for (const Request& r : run.requests) {
            const bool written = generates && r.scored == 0;
            needed = std::max(needed, static_cast<int64_t>(r.tokens.size()) +
                                          (written ? run.task.spec.generation.max_tokens : 0));
        }
    }
    return needed;
}

std::string run_key(const std::string& model_hash, const std::string& settings,
                    std::span<const TaskRun> runs) {
    Sha256 hash;
    update(hash, model_hash);
    update(hash, settings);
    for (const TaskRun& run : runs) {
        const TaskSpec& spec = run.task.spec;
        update(hash, fmt::format("{} {} {}", spec.name, static_cast<int>(spec.output), run.requests.size()));
        if (spec.output == TaskOutput::generate_until) {
            update(hash, std::to_string(spec.generation.max_tokens));
            for (const std::string& stop : spec.generation.until) update(hash, stop);
        }
        for (const Request& r : run.requests) {
            update(hash, fmt::format("{} {} {}{}", r.tokens.size(), r.first_scored, r.scored,
                                     r.together ? " together" : ""));
            hash.update(std::as_bytes(std::span(r.tokens)));
        }
    }
    return hash.hex();
}

void run_task(TaskRun& run, Engine& engine, const Tokenizer& tokenizer, WorkFile* work, size_t index) {
    const bool causal = engine.capabilities().causal;
    run.filled = !causal;
    const auto score = [&](Requests requests, const Answered& answered) {
        if (causal) {
            log_likelihoods(engine, requests, answered);
        } else {
            masked_likelihoods(engine, tokenizer.mask().value(), requests, answered);
        }
    };
    const auto write = [&](Requests requests, const Generated& generated) {
        if (causal) {
            generate_until(engine, tokenizer, requests, run.task.spec.generation, generated);
        } else {
            fill_masks(engine, tokenizer, requests, generated);
        }
    };
    const auto answering = [&](Requests requests, const Answered& answered, const Generated& generated) {
        answer_both(requests, answered, generated, score, write);
    };
    answer(run, answering, engine.capabilities().threads, work, index);
}

void run_task(TaskRun& run, Engine& engine, const ExitPolicy& policy, const Tokenizer& tokenizer,
              WorkFile* work, size_t index) {
    ExitAnswers answers(engine, policy);
    run.exits = ExitCounts(answers.loops());
    const auto score = [&](Requests requests, const Answered& answered) {
        answers.log_likelihoods(requests, answered);
    };
    const auto write = [&](Requests requests, const Generated& generated) {
        answers.generate_until(tokenizer, requests, run.task.spec.generation, generated);
    };
    const auto answering = [&](Requests requests, const Answered& answered, const Generated& generated) {
        answer_both(requests, answered, generated, score, write);
    };
    answer(run, answering, engine.capabilities().threads, work, index, &answers);
    run.exits = of_all_processes(run.exits);
}

}  // namespace refold
