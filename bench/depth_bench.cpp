// Times decoding of a batch of sequences. Looped models run loop by loop, with rows at all loops in every
// step. For bench/depth.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/engine.h"
#include "model/load.h"

namespace refold {
namespace {

struct Settings {
    std::vector<std::string> models;
    std::vector<int64_t> batches = {8, 32};
    int64_t prompt = 64, decode = 16;
    std::string device = "cpu";
    int threads = 1, rounds = 5;
    bool whole = false, together = false;
};

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Seconds {
    double cpu, wall;
};

// Sequences that decode together, each one loop behind the previous one unless Settings::together.
class Subject {
public:
    Subject(const std::string& path, const Settings& s)
        : settings_(s),
          engine_(make_engine(
              load_model(path),
              {.threads = s.threads,
               .context = s.prompt + s.decode + 8,
               .chunk = 256,
               .device = s.device,
               .sequences = 0,
               .kv_tokens = *std::max_element(s.batches.begin(), s.batches.end()) * (s.prompt + s.decode + 8),
               .by_loop = !s.whole})) {}

    int32_t loops() const { return engine_->capabilities().loops; }

    // Seconds for the tokens of all sequences.
    Seconds decode(int64_t batch) {
        std::vector<Row> rows;
        for (int64_t i = 0; i < batch; ++i) {
            const int32_t id = engine_->open(settings_.prompt + settings_.decode + 8).value();
            for (int32_t loop = 0; loop < loops(); ++loop) {
                std::vector<Row> prompt;
                for (int64_t t = 0; t < settings_.prompt; ++t) prompt.push_back(row(id, t, loop));
                engine_->step({.rows = prompt});
            }
            rows.push_back(row(id, settings_.prompt, 0));
        }
        // Every sequence stands at another loop than its neighbors.
        for (int32_t begun = 1; begun < loops() && !settings_.together; ++begun) {
            std::vector<Row> some;
            for (int64_t i = 0; i < batch; ++i)
                if (i % loops() >= begun) some.push_back(rows[static_cast<size_t>(i)]);
            if (some.empty()) continue;
            engine_->step({.rows = some});
            for (int64_t i = 0; i < batch; ++i)
                if (i % loops() >= begun) go_on(rows[static_cast<size_t>(i)]);
        }
        const double cpu = cpu_seconds();
        const auto start = std::chrono::steady_clock::now();
        for (int64_t step = 0; step < settings_.decode * loops(); ++step) {
            engine_->step({.rows = rows});
            for (Row& own : rows) go_on(own);
        }
        const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
        const Seconds seconds{cpu_seconds() - cpu, wall.count()};
        for (const Row& own : rows) engine_->close(own.sequence);
        engine_->pause();
        return seconds;
    }

    uint64_t weight_bytes() const { return engine_->memory().weight_bytes; }

private:
    Row row(int32_t sequence, int64_t position, int32_t loop) const {
        const auto token =
            static_cast<int32_t>((position * 7919 + sequence * 31) % engine_->capabilities().n_vocab);
        return {.sequence = sequence,
                .position = position,
                .loop = loop,
                .token = token,
                .logits = position >= settings_.prompt && loop + 1 == loops()};
    }
    void go_on(Row& own) const {
        const bool ends = own.loop + 1 == loops();
        own = row(own.sequence, own.position + (ends ? 1 : 0), ends ? 0 : own.loop + 1);
    }

    const Settings& settings_;
    std::unique_ptr<Engine> engine_;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

nlohmann::json measure(const Settings& s) {
    std::vector<std::unique_ptr<Subject>> subjects;
    for (const std::string& model : s.models) subjects.push_back(std::make_unique<Subject>(model, s));
    nlohmann::json out = nlohmann::json::array();
    for (const int64_t batch : s.batches) {
        std::vector<std::vector<Seconds>> times(subjects.size());
        for (int round = -1; round < s.rounds; ++round) {
            for (size_t i = 0; i < subjects.size(); ++i) {
                const size_t which = round % 2 == 0 ? i : subjects.size() - 1 - i;
                const Seconds seconds = subjects[which]->decode(batch);
                if (round >= 0) times[which].push_back(seconds);
            }
            std::fprintf(stderr, "batch %ld, round %d of %d\n", static_cast<long>(batch), round + 1,
                         s.rounds);
        }
        for (size_t i = 0; i < subjects.size(); ++i) {
            const auto of_rounds = [&](auto value) {
                std::vector<double> values;
                for (size_t round = 0; round < times[i].size(); ++round) values.push_back(value(round));
                return median(values);
            };
            const auto tokens = static_cast<double>(batch * s.decode);
            // Time relative to the first model in the same round.
            out.push_back(
                {{"model", s.models[i]},
                 {"batch", batch},
                 {"loops", subjects[i]->loops()},
                 {"weight_bytes", subjects[i]->weight_bytes()},
                 {"cpu_ms_per_token", 1e3 * of_rounds([&](size_t r) { return times[i][r].cpu; }) / tokens},
                 {"wall_ms_per_token", 1e3 * of_rounds([&](size_t r) { return times[i][r].wall; }) / tokens},
                 {"cpu_ratio", of_rounds([&](size_t r) { return times[i][r].cpu / times[0][r].cpu; })},
                 {"wall_ratio", of_rounds([&](size_t r) { return times[i][r].wall / times[0][r].wall; })}});
        }
    }
    return out;
}

int run(int argc, char** argv) {
    Settings s;
    CLI::App app("Decoding of a batch of sequences by depth.");
    app.add_option("models", s.models, "Models; the others are compared with the first.")->required();
    app.add_option("--batch", s.batches, "Sequences")->delimiter(',');
    app.add_option("--prompt", s.prompt, "Tokens of each sequence before decoding");
    app.add_option("--decode", s.decode, "Tokens that each sequence decodes");
    app.add_option("--threads", s.threads);
    app.add_option("--rounds", s.rounds);
    app.add_option("--device", s.device);
    app.add_flag("--together", s.together, "All sequences at the same loop.");
    app.add_flag("--whole", s.whole, "All loops in one step.");
    CLI11_PARSE(app, argc, argv);
    try {
        std::printf("%s\n", measure(s).dump(1).c_str());
        return 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "depth_bench: %s\n", error.what());
        return 1;
    }
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) { return refold::run(argc, argv); }
