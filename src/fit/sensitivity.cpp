#include "fit/sensitivity.h"

#include <algorithm>

#include "compress/compensation/next_token_metric.h"
#include "compress/method/lazy.h"
#include "core/progress.h"
#include "engine/single_sequence.h"
#include "exit/log_softmax.h"

namespace refold {
namespace {

constexpr Computation kSensitivity{"divergence of a probe", 1};

std::vector<std::vector<int32_t>> short_sequences(const Calibration& calibration, int64_t tokens) {
    constexpr size_t kLength = 256;
    std::vector<std::vector<int32_t>> out;
    int64_t left = tokens;
    for (const auto& sequence : calibration.fit) {
        if (left <= 0) break;
        out.emplace_back(sequence.begin(),
                         sequence.begin() + static_cast<ptrdiff_t>(std::min(kLength, sequence.size())));
        left -= static_cast<int64_t>(out.back().size());
    }
    return out;
}

// Ends of the shortest runs of layers whose attention no later layer uses.
std::vector<size_t> run_ends(const Model& model) {
    const size_t layers = model.topology.layers.size();
    std::vector<bool> inside(layers + 1, false);  // of a span between a layer and one that uses its attention
    for (const auto& [layer, source] : model.topology.sources)
        for (size_t at = source.from(layer) + 1; at <= layer; ++at) inside[at] = true;
    std::vector<size_t> out;
    for (size_t end = 1; end <= layers; ++end)
        if (!inside[end]) out.push_back(end);
    return out;
}

// Compares the final residual streams of models that differ from the original in one layer. The original's
// layers stand ready in short runs, so that a disturbed model loads one of them anew; layers have to come in
// order.
class Probes {
public:
    Probes(const Model& model, std::vector<std::vector<int32_t>> sequences, int threads)
        : model_(model), sequences_(std::move(sequences)), metric_(model), ends_(run_ends(model)) {
        for (const auto& s : sequences_)
            options_.context = std::max(options_.context, static_cast<int64_t>(s.size()));
        options_.threads = threads;
        options_.chunk = options_.context;
        options_.f32 = true;
        options_.range = LayerRange{};
        SingleSequence embeddings(model, options_);
        for (const auto& tokens : sequences_) {
            embeddings.truncate(0);
            embeddings.evaluate_range(tokens, append_to(inputs_.emplace_back()));
        }
        for (size_t run = 0; run < ends_.size(); ++run) runs_.push_back(loaded(model, run));
        for (size_t s = 0; s < sequences_.size(); ++s) {
            final_.push_back(inputs_[s]);
            for (const auto& run : runs_) final_[s] = through(*run, final_[s]);
            metric_.add(final_[s]);
        }
        metric_.finish(1e-6);  // positive definite, with fewer tokens in the vocabulary than features as well
    }

    double divergence(const Model& disturbed, size_t layer) {
        for (; layer >= ends_[at_]; ++at_)
            for (auto& input : inputs_) input = through(*runs_[at_], input);
        const auto changed = loaded(disturbed, at_);
        double squares = 0, tokens = 0;
        for (size_t s = 0; s < sequences_.size(); ++s) {
            std::vector<float> stream = through(*changed, inputs_[s]);
            for (size_t run = at_ + 1; run < runs_.size(); ++run) stream = through(*runs_[run], stream);
            for (const float m : metric_.measured(difference(stream, final_[s])))
                squares += static_cast<double>(m) * static_cast<double>(m);
            tokens += static_cast<double>(sequences_[s].size());
        }
        return squares / 2 / tokens;
    }

private:
    static SingleSequence::RowsSink append_to(std::vector<float>& out) {
        return
            [&out](size_t, std::span<const float> rows) { out.insert(out.end(), rows.begin(), rows.end()); };
    }

    std::unique_ptr<SingleSequence> loaded(const Model& model, size_t run) {
        options_.range = LayerRange{run == 0 ? 0 : ends_[run - 1], ends_[run]};
        return std::make_unique<SingleSequence>(model, options_);
    }

    static std::vector<float> through(SingleSequence& run, std::span<const float> stream) {
        std::vector<float> out;
        run.truncate(0);
        run.evaluate_range(stream, append_to(out));
        return out;
    }

    // Of the streams divided by their scales, as NextTokenMetric wants.
    std::vector<float> difference(std::span<const float> a, std::span<const float> b) const {
        const auto width = static_cast<size_t>(model_.config.n_embd);
        std::vector<float> out;
        for (size_t at = 0; at < a.size(); at += width) {
            const auto x = a.subspan(at, width), y = b.subspan(at, width);
            const float of_x = metric_.scale(x), of_y = metric_.scale(y);
            for (size_t i = 0; i < width; ++i) out.push_back(x[i] / of_x - y[i] / of_y);
        }
        return out;
    }

    const Model& model_;
    std::vector<std::vector<int32_t>> sequences_;
    NextTokenMetric metric_;
    EngineOptions options_;
    std::vector<size_t> ends_;                           // of the runs
    std::vector<std::unique_ptr<SingleSequence>> runs_;  // of the original
    size_t at_ = 0;                                      // a run, and
    std::vector<std::vector<float>> inputs_;             // its inputs by sequence
    std::vector<std::vector<float>> final_;              // by sequence
};

}  // namespace

double divergence(const Model& original, const Model& model,
                  const std::vector<std::vector<int32_t>>& sequences, int threads) {
    EngineOptions options;
    options.threads = threads;
    for (const auto& s : sequences)
        options.context = std::max(options.context, static_cast<int64_t>(s.size()));
    options.f32 = true;
    SingleSequence a(original, options), b(model, options);
    double sum = 0, tokens = 0;
    for (const auto& sequence : sequences) {
        std::vector<float> wanted;
        a.truncate(0);
        b.truncate(0);
        a.evaluate_all(sequence, [&](size_t, std::span<const float> rows) {
            wanted.insert(wanted.end(), rows.begin(), rows.end());
        });
        b.evaluate_all(sequence, [&](size_t first, std::span<const float> rows) {
            const auto width = static_cast<size_t>(model.config.n_vocab);
            for (size_t at = 0; at < rows.size(); at += width) {
                sum += kl_divergence(std::span(wanted).subspan(first * width + at, width),
                                     rows.subspan(at, width));
                ++tokens;
            }
        });
    }
    return sum / tokens;
}

std::vector<double> sensitivities(const Model& model, const Candidates& candidates, const Measurement& on,
                                  int64_t tokens) {
    const auto sequences = short_sequences(on.calibration, tokens);
    std::optional<Probes> probes;
    std::vector<double> out;
    Progress progress("measuring matrices", candidates.tensors().size(), "matrices");
    for (const FitTensor& tensor : candidates.tensors()) {
        const auto found = on.work.results_of_all(
            {kSensitivity, {{"model", on.identity}, {"tensor", tensor.name}, {"tokens", tokens}}}, [&] {
                const Model disturbed = candidates.with_probe(tensor);
                if (!tensor.table && !probes) probes.emplace(model, sequences, on.threads);
                const double value = tensor.table ? divergence(model, disturbed, sequences, on.threads)
                                                  : probes->divergence(disturbed, tensor.layer);
                return Arrays{{"divergence", {{1}, {static_cast<float>(value)}}}};
            });
        out.push_back(lazy::numbers(found.at("divergence"))[0]);
        progress.advance(1, tensor.name);
    }
    progress.finish();
    return out;
}

}  // namespace refold
