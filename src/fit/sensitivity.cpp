#include "fit/sensitivity.h"

#include <algorithm>
#include <array>

#include "calibrate/calibration_device.h"
#include "compress/compensation/layer_probes.h"
#include "compress/method/lazy.h"
#include "compress/training/divergence.h"
#include "core/group.h"
#include "core/progress.h"
#include "engine/single_sequence.h"
#include "exit/log_softmax.h"

namespace refold {
namespace {

constexpr Computation kSensitivity{"divergence of a probe", 1};

double probe_error(const FitTensor& tensor) {
    const auto found = std::ranges::find(tensor.candidates, kProbe, &Candidate::type);
    return found == tensor.candidates.end() ? 0 : found->error;
}

// Of the error of the tensor's kProbe, that of this part.
double share_of_probe(const FitTensor& tensor, const std::vector<FitTensor>& all) {
    double whole = 0;
    size_t parts = 0;
    for (const FitTensor& other : all) {
        if (other.name != tensor.name) continue;
        whole += probe_error(other);
        ++parts;
    }
    return parts > 1 && whole > 0 ? probe_error(tensor) / whole : 1;
}

}  // namespace

namespace {

// In nats per token, of these sequences.
double mean_divergence(const Model& original, const Model& model,
                       const std::vector<std::vector<int32_t>>& sequences, int threads) {
    if (loads_layer_by_layer() && HeldOutDivergence::possible(original) && HeldOutDivergence::possible(model))
        return HeldOutDivergence(original, sequences, threads).of(model);
    EngineOptions options;
    options.threads = threads;
    for (const auto& s : sequences)
        options.context = std::max(options.context, static_cast<int64_t>(s.size()));
    options.f32 = is_compared_in_float32(original);
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

}  // namespace

double divergence(const Model& original, const Model& model,
                  const std::vector<std::vector<int32_t>>& sequences, int threads) {
    if (group().size() == 1) return mean_divergence(original, model, sequences, threads);
    const auto own = group().own(sequences);
    std::array<double, 2> sums{};  // of divergences, and of tokens
    for (const auto& sequence : own) sums[1] += static_cast<double>(sequence.size());
    if (!own.empty()) sums[0] = mean_divergence(original, model, own, threads) * sums[1];
    group().sum(sums);
    return sums[0] / sums[1];
}

std::vector<double> sensitivities(const Model& model, const Candidates& candidates, const Measurement& on,
                                  int64_t tokens) {
    const auto sequences = probe_sequences(on.calibration, tokens);
    std::vector<ResultKey> keys;
    for (const FitTensor& tensor : candidates.tensors())
        keys.push_back({kSensitivity, {{"model", on.identity}, {"tensor", tensor.name}, {"tokens", tokens}}});
    std::optional<LayerProbes> probes;
    Progress progress("measuring matrices", keys.size(), "matrices");
    const auto compute = [&](size_t t) {
        const FitTensor& tensor = candidates.tensors()[t];
        const Model disturbed = candidates.with_probe(tensor);
        if (!tensor.table && !probes) probes.emplace(model, sequences, on.threads);
        const double value = tensor.table ? mean_divergence(model, disturbed, sequences, on.threads)
                                          : probes->divergence(disturbed, tensor.layer);
        return Arrays{{"divergence", {{1}, {static_cast<float>(value)}}}};
    };
    const auto found = on.work.results_shared_out(keys, compute, [&] { progress.advance(1); });
    std::vector<double> out;
    for (size_t t = 0; t < found.size(); ++t)
        out.push_back(lazy::numbers(found[t].at("divergence"))[0] *
                      share_of_probe(candidates.tensors()[t], candidates.tensors()));
    progress.finish();
    return out;
}

}  // namespace refold
