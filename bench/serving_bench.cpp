// Times whole requests through the scheduler: prompts from a text, a random number of generated tokens each,
// arriving all at once or as a Poisson stream. bench/serving compares engines with it.
//
//   refold_serving_bench MODEL --text FILE [--requests 256] [--rate 2.5] [--by-depth] [--exits FILE] ...
//   refold_serving_bench MODEL --text FILE --soak 10000   # compares each response with the same request
//   alone
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "core/round_up.h"
#include "core/text.h"
#include "engine/devices.h"
#include "eval/speed.h"
#include "exit/trajectory.h"
#include "model/load.h"
#include "serve/scheduler.h"

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model, text, exits, record, exit_rule = "none", exited_kv = "catch-up", device = "cpu";
    std::vector<double> exit_thresholds;
    std::vector<int64_t> prompts{64, 512};
    int64_t requests = 256, shortest = 64, longest = 256, soak = 0;
    double rate = 0;
    bool by_loop = false, fixed = false, f32 = false;
    int64_t slots = 16, prefill_rows = 256, draft = 0;
    int32_t draft_loop = 1;
    int threads = 0;
    uint32_t seed = 1;
};

struct Outcome {
    Clock::time_point submitted, first, last;
    size_t generated = 0;
    std::vector<int32_t> tokens, exits;
    std::vector<TokenLogprob> logprobs;
};

std::vector<GenerationRequest> make_requests(const Arguments& a, const std::vector<int32_t>& text,
                                             size_t count) {
    std::mt19937_64 random(a.seed);
    const auto between = [&](int64_t first, int64_t last) {
        return std::uniform_int_distribution<int64_t>(first, last)(random);
    };
    std::vector<int32_t> exits;  // of all sequences, concatenated
    if (!a.exits.empty()) {
        for (const auto& sequence : parse_exit_trajectory(read_text_file(a.exits), a.exits).sequences)
            exits.insert(exits.end(), sequence.begin(), sequence.end());
    }
    size_t next_exit = 0;
    std::vector<GenerationRequest> requests(count);
    for (size_t i = 0; i < count; ++i) {
        GenerationRequest& request = requests[i];
        const int64_t length = a.prompts[i % a.prompts.size()];
        if (static_cast<int64_t>(text.size()) < length)
            fail(ErrorCode::usage, "serving_bench", "the text has {} tokens, a prompt {}", text.size(),
                 length);
        const auto begin = text.begin() + between(0, static_cast<int64_t>(text.size()) - length);
        request.prompt.assign(begin, begin + length);
        request.max_tokens = between(a.shortest, a.longest);
        request.ignore_eos = true;
        request.timeout = std::chrono::hours(24);
        for (int64_t token = 0; token < request.max_tokens && !exits.empty(); ++token)
            request.exits.push_back(exits[next_exit++ % exits.size()]);
    }
    return requests;
}

Outcome follow(Generation& generation, Clock::time_point submitted) {
    Outcome out;
    out.submitted = submitted;
    for (;;) {
        auto event = generation.next(std::chrono::hours(1));
        if (!event) continue;
        if (out.tokens.empty()) out.first = Clock::now();
        out.tokens.insert(out.tokens.end(), event->tokens.begin(), event->tokens.end());
        out.exits.insert(out.exits.end(), event->exits.begin(), event->exits.end());
        out.logprobs.insert(out.logprobs.end(), event->logprobs.begin(), event->logprobs.end());
        if (!event->finished) continue;
        if (*event->finished == FinishReason::error)
            fail(ErrorCode::internal, "serving_bench", "a request failed: {}", event->error);
        out.last = Clock::now();
        out.generated = out.tokens.size();
        return out;
    }
}

// `clients` threads send the requests in order, not before their arrival (seconds; none: at once).
std::vector<Outcome> serve(Scheduler& scheduler, const std::vector<GenerationRequest>& requests,
                           size_t clients, const std::vector<double>& arrivals,
                           const std::function<void(size_t, Outcome&)>& done = {}) {
    std::vector<Outcome> outcomes(requests.size());
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    const auto start = Clock::now();
    const auto client = [&] {
        for (size_t i = next++; i < requests.size() && !failed; i = next++) {
            if (!arrivals.empty())
                std::this_thread::sleep_until(start + std::chrono::duration<double>(arrivals[i]));
            const auto submitted = Clock::now();
            try {
                const auto generation = scheduler.submit(requests[i]);
                if (!generation) fail(ErrorCode::internal, "serving_bench", "request {} was refused", i);
                outcomes[i] = follow(*generation, submitted);
                if (done) done(i, outcomes[i]);
            } catch (const std::exception& error) {
                fmt::print(stderr, "{}\n", error.what());
                failed = true;
            }
        }
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < clients; ++i) threads.emplace_back(client);
    for (std::thread& thread : threads) thread.join();
    if (failed) fail(ErrorCode::internal, "serving_bench", "requests failed");
    return outcomes;
}

std::vector<double> poisson(const Arguments& a) {
    std::vector<double> arrivals;
    if (a.rate == 0) return arrivals;
    std::mt19937_64 random(a.seed + 1);
    std::exponential_distribution<double> gap(a.rate);
    double at = 0;
    for (int64_t i = 0; i < a.requests; ++i) arrivals.push_back(at += gap(random));
    return arrivals;
}

Json percentiles(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto at = [&](double part) {
        return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
    };
    return {{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}};
}

void record(const Arguments& a, Engine& engine, const std::vector<Outcome>& outcomes) {
    ExitTrajectory trajectory;
    trajectory.loops = engine.capabilities().loops;
    trajectory.about["model"] = a.model;
    for (const Outcome& outcome : outcomes) trajectory.sequences.push_back(outcome.exits);
    AtomicFile file(a.record, true);
    file.write(to_json_lines(trajectory));
    file.commit();
}

Json report(const SchedulerStatus& status, const std::vector<Outcome>& outcomes) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    Clock::time_point first = outcomes[0].submitted, last = outcomes[0].last;
    std::vector<double> latency, first_token, per_token;
    int64_t tokens = 0;
    for (const Outcome& o : outcomes) {
        first = std::min(first, o.submitted);
        last = std::max(last, o.last);
        latency.push_back(seconds(o.last - o.submitted));
        first_token.push_back(seconds(o.first - o.submitted));
        if (o.generated > 1)
            per_token.push_back(seconds(o.last - o.first) / static_cast<double>(o.generated - 1));
        tokens += static_cast<int64_t>(o.generated);
    }
    const double total = seconds(last - first);
    return {{"requests", outcomes.size()},
            {"seconds", total},
            {"tokens_generated", tokens},
            {"prompt_tokens", status.prompt_tokens},
            {"tokens_per_s", static_cast<double>(tokens) / total},
            {"latency_seconds", percentiles(latency)},
            {"first_token_seconds", percentiles(first_token)},
            {"seconds_per_token", percentiles(per_token)},
            {"steps", status.steps},
            {"rows_per_step", static_cast<double>(status.rows) / static_cast<double>(status.steps)},
            {"exits", status.exits},
            {"drafted", status.drafted},
            {"accepted", status.accepted},
            {"resident_bytes", resident_bytes()}};
}

Json run_workload(const Arguments& a, Engine& engine, const Tokenizer& tokenizer,
                  const SchedulerOptions& options, const std::vector<int32_t>& text) {
    const auto requests = make_requests(a, text, static_cast<size_t>(a.requests));
    Scheduler scheduler(engine, tokenizer, options);
    const auto outcomes = serve(scheduler, requests, requests.size(), poisson(a));
    scheduler.shutdown(std::chrono::hours(1));
    if (!a.record.empty()) record(a, engine, outcomes);
    return report(scheduler.status(), outcomes);
}

// Many requests of few kinds. A response may differ from the one alone where two tokens are equally likely
// but for rounding, which depends on how many rows are multiplied together.
Json soak(const Arguments& a, Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options,
          const std::vector<int32_t>& text) {
    constexpr size_t kKinds = 200;
    const auto kinds = make_requests(a, text, kKinds);
    std::vector<Outcome> alone;
    {
        SchedulerOptions single = options;
        single.slots = 1;
        Scheduler scheduler(engine, tokenizer, single);
        alone = serve(scheduler, kinds, 1, {});
    }
    std::vector<GenerationRequest> requests;
    for (int64_t i = 0; i < a.soak; ++i) requests.push_back(kinds[static_cast<size_t>(i) * 7919 % kKinds]);

    Scheduler scheduler(engine, tokenizer, options);
    std::atomic<uint64_t> finished = 0, early_bytes = 0;
    std::atomic<int64_t> wrong = 0;
    // By then graphs of all shapes exist.
    const auto warm = static_cast<uint64_t>(a.soak) / 4 + 1;
    const auto check = [&](size_t i, Outcome& outcome) {
        if (outcome.tokens != alone[i * 7919 % kKinds].tokens) ++wrong;
        // Only the server's memory counts.
        outcome.tokens = outcome.exits = {};
        if (++finished == warm) early_bytes = resident_bytes();
    };
    const auto outcomes = serve(scheduler, requests, static_cast<size_t>(4 * a.slots), {}, check);
    scheduler.shutdown(std::chrono::hours(1));
    Json out = report(scheduler.status(), outcomes);
    out["equal"] = static_cast<int64_t>(outcomes.size()) - wrong;
    out["wrong"] = wrong.load();
    const SchedulerStatus status = scheduler.status();
    out["steps_with_idle_slots"] = static_cast<double>(status.starved) / static_cast<double>(status.steps);
    out["resident_bytes_early"] = early_bytes.load();
    out["resident_growth"] = static_cast<double>(resident_bytes()) / static_cast<double>(early_bytes) - 1;
    return out;
}

Json run(const Arguments& a) {
    const Tokenizer tokenizer(a.model);
    const std::vector<int32_t> text = tokenizer.encode(read_text_file(a.text), false, false);
    // Devices read rows by 256.
    const int64_t tokens = *std::max_element(a.prompts.begin(), a.prompts.end()) + a.longest,
                  context = a.device == kCpu ? tokens : round_up<int64_t>(tokens, 256);
    EngineOptions batch;
    batch.threads = a.threads;
    batch.device = a.device;
    batch.context = context;
    batch.f32 = a.f32;
    batch.sequences = 0;
    batch.kv_tokens = a.slots * context;
    batch.by_loop = a.by_loop;
    const auto engine = make_engine(load_model(a.model), batch);
    SchedulerOptions options;
    options.slots = a.slots;
    options.queue = a.soak > 0 ? 4 * a.slots : a.requests;
    options.prefill_rows = a.prefill_rows;
    options.timeout = std::chrono::hours(24);
    options.exit.rule = exit_rule_from_name(a.exit_rule);
    options.exit.thresholds = a.exit_thresholds;
    options.exit.kv = exited_kv_from_name(a.exited_kv);
    options.draft = a.draft;
    options.draft_loop = a.draft_loop;
    if (a.fixed) options.batching = BatchingPolicy::fixed;
    Json out = a.soak > 0 ? soak(a, *engine, tokenizer, options, text)
                          : run_workload(a, *engine, tokenizer, options, text);
    const EngineMemory memory = engine->memory();
    out["weight_bytes"] = memory.weight_bytes;
    out["kv_bytes"] = memory.kv_bytes;
    return out;
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) {
    CLI::App app("Times whole requests through the scheduler");
    refold::Arguments a;
    app.add_option("MODEL", a.model, "GGUF file or Hugging Face directory")->required();
    app.add_option("--text", a.text, "Text for the prompts")->required();
    app.add_option("--requests", a.requests, "Number of requests")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--prompts", a.prompts, "Tokens of prompts, in turns")->check(CLI::PositiveNumber);
    app.add_option("--shortest", a.shortest, "Tokens generated, at least")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--longest", a.longest, "Tokens generated, at most")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--rate", a.rate, "Requests per second, Poisson; 0: all at once")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--slots", a.slots, "Sequences at a time")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--prefill-rows", a.prefill_rows, "Prompt tokens of a step")->capture_default_str();
    app.add_flag("--fixed", a.fixed, "Static batches instead of continuous batching");
    app.add_flag("--by-depth", a.by_loop, "The unit of work is one loop");
    app.add_option("--exits", a.exits, "Exit trajectories to replay");
    app.add_option("--record", a.record, "File to save the exits in");
    app.add_option("--exit", a.exit_rule, "Exit rule")->capture_default_str();
    app.add_option("--exit-threshold", a.exit_thresholds, "Thresholds of the rule");
    app.add_option("--exit-kv", a.exited_kv, "Keys and values of exited tokens")->capture_default_str();
    app.add_option("--draft", a.draft, "Exact mode: tokens drafted")->capture_default_str();
    app.add_option("--draft-loop", a.draft_loop, "Exact mode: loop that drafts")->capture_default_str();
    app.add_option("--soak", a.soak, "Number of requests whose responses are checked")->capture_default_str();
    app.add_option("--threads", a.threads, "0: all cores")->capture_default_str();
    app.add_option("--device", a.device, "What the model runs on")->capture_default_str();
    app.add_option("--seed", a.seed, "Seed of the workload")->capture_default_str();
    app.add_flag("--f32", a.f32, "float32 weights, activations and KV cache");
    CLI11_PARSE(app, argc, argv);
    try {
        fmt::print("{}\n", refold::run(a).dump(2));
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "refold_serving_bench: {}\n", error.what());
        return 1;
    }
}
