// Tokens per second of sequences decoded together, compared with stock llama.cpp on the same file. Both
// append one token to every sequence per step and compute the logits of all, in turns in one process.
//
//   refold_batch_bench MODEL.gguf [--sequences 1 4 8 16 32] [--tokens 256] [--steps 16] [--rounds 5]
//   [--device cpu] [--json]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/round_up.h"
#include "engine/devices.h"
#include "engine/engine.h"
#include "eval/speed.h"
#include "eval/stock.h"
#include "model/load.h"

namespace refold {
namespace {

struct Settings {
    std::string model, baseline = "stock", device = "cpu";
    std::vector<int64_t> sequences = {1, 4, 8, 16, 32};
    int64_t tokens = 256, steps = 16;
    int threads = 2, rounds = 5;
    bool bf16 = false, json = false;
};

// Sequences of `tokens` tokens. run() appends tokens and then removes them again.
class Subject {
public:
    virtual ~Subject() = default;
    virtual void run(std::span<const std::vector<int32_t>> steps) = 0;
    virtual void pause() = 0;
};

int64_t padded(int64_t rows) { return round_up<int64_t>(rows, 256); }

using Texts = std::vector<std::vector<int32_t>>;  // by sequence

class Ours : public Subject {
public:
    Ours(const Model& model, const Settings& s, const Texts& texts) : tokens_(s.tokens) {
        const auto count = static_cast<int64_t>(texts.size());
        EngineOptions options;
        options.threads = s.threads;
        options.device = s.device;
        options.context = s.tokens + s.steps;
        options.precision = s.bf16 ? Precision::bf16 : Precision::stored;
        options.sequences = 0;
        // On devices both sides read rows by 256.
        options.kv_tokens = count * (s.device == kCpu ? options.context : padded(options.context));
        engine_ = make_engine(model, options);
        for (const auto& text : texts) {
            ids_.push_back(engine_->open(options.context).value());
            for (int64_t first = 0; first < s.tokens; first += engine_->capabilities().max_rows) {
                std::vector<Row> rows;
                for (int64_t t = first; t < std::min(first + engine_->capabilities().max_rows, s.tokens);
                     ++t) {
                    rows.push_back(
                        {.sequence = ids_.back(), .position = t, .token = text[static_cast<size_t>(t)]});
                }
                engine_->step({.rows = rows});
            }
        }
    }

    void run(std::span<const std::vector<int32_t>> steps) override {
        int64_t position = tokens_;
        for (const auto& tokens : steps) {
            std::vector<Row> rows;
            for (size_t i = 0; i < ids_.size(); ++i)
                rows.push_back(
                    {.sequence = ids_[i], .position = position, .token = tokens[i], .logits = true});
            engine_->step({.rows = rows});
            ++position;
        }
        for (const int32_t id : ids_) engine_->truncate(id, tokens_);
    }

    void pause() override { engine_->pause(); }

private:
    int64_t tokens_;
    std::unique_ptr<Engine> engine_;
    std::vector<int32_t> ids_;
};

class Stock : public Subject {
public:
    Stock(const Settings& s, const Texts& texts)
        : tokens_(static_cast<int32_t>(s.tokens)),
          count_(texts.size()),
          stock_(s.model, {.threads = s.threads,
                           .context = padded(s.tokens + s.steps),
                           .sequences = static_cast<int64_t>(texts.size()),
                           .device = s.device}) {
        for (size_t i = 0; i < texts.size(); ++i) {
            for (int32_t t = 0; t < tokens_; t += 64) {
                std::vector<StockRow> rows;
                for (int32_t j = t; j < std::min(t + 64, tokens_); ++j)
                    rows.push_back({static_cast<int32_t>(i), j, texts[i][static_cast<size_t>(j)]});
                stock_.step(rows);
            }
        }
    }

    void run(std::span<const std::vector<int32_t>> steps) override {
        stock_.resume();
        int32_t position = tokens_;
        for (const auto& tokens : steps) {
            std::vector<StockRow> rows;
            for (size_t i = 0; i < count_; ++i)
                rows.push_back({static_cast<int32_t>(i), position, tokens[i]});
            stock_.step(rows);
            ++position;
        }
        for (size_t i = 0; i < count_; ++i) stock_.truncate(static_cast<int32_t>(i), tokens_);
    }

    void pause() override { stock_.pause(); }

private:
    int32_t tokens_;
    size_t count_;
    StockLlama stock_;
};

double tokens_per_second(Subject& subject, const Texts& steps) {
    const auto start = std::chrono::steady_clock::now();
    subject.run(steps);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    subject.pause();
    return static_cast<double>(steps.size() * steps.front().size()) / seconds;
}

nlohmann::ordered_json measure(const Settings& s, const Model& model, const Model* other, int64_t count) {
    std::mt19937 random(1);
    const auto some = [&](int64_t rows, int64_t columns) {
        Texts texts(static_cast<size_t>(rows), std::vector<int32_t>(static_cast<size_t>(columns)));
        for (auto& text : texts)
            for (int32_t& token : text)
                token = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config.n_vocab));
        return texts;
    };
    const Texts texts = some(count, s.tokens), steps = some(s.steps, count);
    Ours ours(model, s, texts);
    ours.pause();
    std::unique_ptr<Subject> baseline;
    if (other != nullptr) {
        baseline = std::make_unique<Ours>(*other, s, texts);
    } else {
        baseline = std::make_unique<Stock>(s, texts);
    }
    baseline->pause();
    SpeedSeries mine, theirs;
    for (int round = -1; round < s.rounds; ++round) {
        // The two take turns in being first.
        double speeds[2];
        for (int i = 0; i < 2; ++i) {
            const int which = (round + i) & 1;
            speeds[which] = tokens_per_second(which == 0 ? static_cast<Subject&>(ours) : *baseline, steps);
        }
        if (round < 0) continue;
        mine.tokens_per_s.push_back(speeds[0]);
        theirs.tokens_per_s.push_back(speeds[1]);
    }
    return {{"sequences", count},
            {"tokens_per_s", mine.median()},
            {"baseline_tokens_per_s", theirs.median()},
            {"ratio", ratio(mine, theirs)}};
}

int run(int argc, char** argv) {
    CLI::App app("Speed of sequences that are continued together, beside stock llama.cpp");
    Settings s;
    app.add_option("model", s.model)->required();
    app.add_option("--baseline", s.baseline, "stock, or another model for the same engine")
        ->capture_default_str();
    app.add_option("--sequences", s.sequences)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--tokens", s.tokens, "of each sequence before the steps")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--steps", s.steps, "of a round")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--threads", s.threads)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--device", s.device, "of both")->capture_default_str();
    app.add_option("--rounds", s.rounds)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_flag("--bf16", s.bf16, "refold's products with F16 weights in BF16");
    app.add_flag("--json", s.json);
    CLI11_PARSE(app, argc, argv);
    try {
        const Model model = load_model(s.model);
        std::optional<Model> other;
        if (s.baseline != "stock") other = load_model(s.baseline);
        nlohmann::ordered_json results;
        if (!s.json) fmt::print("sequences  tokens/s  baseline  ratio\n");
        for (const int64_t count : s.sequences) {
            const auto r = measure(s, model, other ? &*other : nullptr, count);
            results.push_back(r);
            if (s.json) continue;
            fmt::print("{:9}  {:8.0f}  {:8.0f}  {:5.2f}\n", count, r["tokens_per_s"].get<double>(),
                       r["baseline_tokens_per_s"].get<double>(), r["ratio"].get<double>());
            std::fflush(stdout);
        }
        if (s.json) fmt::print("{}\n", results.dump(2));
    } catch (const Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) { return refold::run(argc, argv); }
