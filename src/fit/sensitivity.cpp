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

// Moves forward through the layers and compares the final residual streams of disturbed models.
class Probes {
public:
    Probes(const Model& model, std::vector<std::vector<int32_t>> sequences, int threads)
        : model_(model),
          sequences_(std::move(sequences)),
          metric_(model),
          stream_(model, sequences_, longest(sequences_), threads),
          last_(model.topology.layers.size() - 1) {
        ResidualStream::Pass pass(stream_, model, last_, {});
        for (size_t s = 0; s < sequences_.size(); ++s) {
            const auto out = pass.run(s);
            final_.emplace_back(out.begin(), out.end());
            metric_.add(out);
        }
        metric_.finish(1e-6);  // positive definite, with fewer tokens in the vocabulary than features as well
    }

    double divergence(const Model& disturbed, size_t layer) {
        if (layer > stream_.layer()) stream_.advance(model_, layer - 1);
        ResidualStream::Pass pass(stream_, disturbed, last_, {});
        double squares = 0, tokens = 0;
        for (size_t s = 0; s < sequences_.size(); ++s) {
            const auto measured = metric_.measured(difference(pass.run(s), final_[s]));
            for (const float m : measured) squares += static_cast<double>(m) * static_cast<double>(m);
            tokens += static_cast<double>(sequences_[s].size());
        }
        return squares / 2 / tokens;
    }

private:
    static int64_t longest(const std::vector<std::vector<int32_t>>& sequences) {
        size_t out = 0;
        for (const auto& s : sequences) out = std::max(out, s.size());
        return static_cast<int64_t>(out);
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
    ResidualStream stream_;
    size_t last_;
    std::vector<std::vector<float>> final_;
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
