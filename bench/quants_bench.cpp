// Perplexity of a model on texts, and the mean KL divergence of its next token from another model whose log
// probabilities an earlier run kept in a file. So the original runs once for many models. One JSON line.
#include <fmt/format.h>
#include <ggml.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/argmax.h"
#include "core/error.h"
#include "core/files.h"
#include "core/parallel.h"
#include "core/text.h"
#include "engine/single_sequence.h"
#include "eval/perplexity.h"
#include "eval/protocols.h"
#include "exit/log_softmax.h"
#include "model/load.h"

namespace {

using namespace refold;

struct Arguments {
    std::string model, reference;
    std::vector<std::string> texts;
    int64_t windows = 4;
    int threads = 0;
    bool write = false;
};

// The file: log probabilities [tokens, n_vocab] in F16, which is finest near 0, where the probability is.
struct Kept {
    std::unique_ptr<MappedFile> in;
    std::optional<AtomicFile> out;
    size_t at = 0;  // bytes read
};

struct Sums {
    double divergence = 0, same = 0, tokens = 0;
};

void keep(Kept& kept, std::span<const float> logits, size_t n_vocab, int threads) {
    std::vector<ggml_fp16_t> rows(logits.size());
    parallel_for(static_cast<int64_t>(logits.size() / n_vocab), threads, [&](int64_t r) {
        const auto row = logits.subspan(static_cast<size_t>(r) * n_vocab, n_vocab);
        const double sum = log_sum_exp(row);
        std::vector<float> shifted;
        for (const float x : row) shifted.push_back(static_cast<float>(static_cast<double>(x) - sum));
        ggml_fp32_to_fp16_row(shifted.data(), rows.data() + static_cast<size_t>(r) * n_vocab,
                              static_cast<int64_t>(n_vocab));
    });
    kept.out->write(std::as_bytes(std::span<const ggml_fp16_t>(rows)));
}

void compare(Kept& kept, std::span<const float> logits, size_t n_vocab, int threads, Sums& sums) {
    const size_t rows = logits.size() / n_vocab, bytes = logits.size() * sizeof(ggml_fp16_t);
    if (kept.at + bytes > kept.in->bytes().size())
        fail(ErrorCode::input, "quants",
             "the kept log probabilities are of other texts, windows or another vocabulary");
    const auto part = kept.in->bytes().subspan(kept.at, bytes);
    kept.at += bytes;
    std::vector<double> divergence(rows), same(rows);
    parallel_for(static_cast<int64_t>(rows), threads, [&](int64_t r) {
        const size_t at = static_cast<size_t>(r) * n_vocab;
        std::vector<float> original(n_vocab);
        ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t*>(part.data()) + at, original.data(),
                              static_cast<int64_t>(n_vocab));
        const auto row = logits.subspan(at, n_vocab);
        const std::span<const float> first(original);
        divergence[static_cast<size_t>(r)] = kl_divergence(first, row);
        same[static_cast<size_t>(r)] = argmax(first) == argmax(row) ? 1 : 0;
    });
    kept.in->release(part);
    for (size_t r = 0; r < rows; ++r) {
        sums.divergence += divergence[r];
        sums.same += same[r];
        sums.tokens += 1;
    }
}

nlohmann::ordered_json measure(const Arguments& a) {
    const Tokenizer tokenizer(a.model);
    EngineOptions options;
    options.threads = a.threads;
    options.context = 1024;
    SingleSequence sequence(load_model(a.model), options);
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    const int threads = sequence.capabilities().threads;
    Kept kept;
    if (a.write)
        kept.out.emplace(a.reference, true);
    else
        kept.in = std::make_unique<MappedFile>(a.reference);
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const std::string& text : a.texts) {
        const PerplexityPlan plan = plan_perplexity({.context = 1024, .max_windows = a.windows}, tokenizer,
                                                    read_text_file(text), text);
        PerplexitySums likelihood(plan);
        Sums sums;
        for (const PerplexityWindow& window : plan.windows) {
            WindowPass pass(sequence, window);
            while (pass.next(128, [&](size_t, std::span<const float> logits, std::span<const double> nll) {
                likelihood.add(window, nll);
                a.write ? keep(kept, logits, n_vocab, threads)
                        : compare(kept, logits, n_vocab, threads, sums);
            })) {
            }
        }
        nlohmann::ordered_json row = {{"perplexity", likelihood.result(0).perplexity}};
        if (!a.write) {
            row["kl"] = sums.divergence / sums.tokens;
            row["top1"] = sums.same / sums.tokens;
        }
        out.push_back(std::move(row));
    }
    if (kept.out) kept.out->commit();
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Perplexity, and KL divergence from kept log probabilities");
    Arguments a;
    app.add_option("MODEL", a.model)->required();
    app.add_option("--text", a.texts, "May be repeated")->required()->allow_extra_args(false);
    app.add_option("--reference", a.reference, "File of log probabilities")->required();
    app.add_flag("--write", a.write, "Write it from this model");
    app.add_option("--windows", a.windows, "Of 1024 tokens, per text")->capture_default_str();
    app.add_option("--threads", a.threads, "0: all cores")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        fmt::print("{}\n", measure(a).dump());
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "refold_quants_bench: {}\n", error.what());
        return 1;
    }
}
