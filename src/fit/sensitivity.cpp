#include "fit/sensitivity.h"

#include <algorithm>

#include "calibrate/calibration_device.h"
#include "compress/compensation/layer_probes.h"
#include "compress/method/lazy.h"
#include "compress/training/divergence.h"
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

double divergence(const Model& original, const Model& model,
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

std::vector<double> sensitivities(const Model& model, const Candidates& candidates, const Measurement& on,
                                  int64_t tokens) {
    const auto sequences = probe_sequences(on.calibration, tokens);
    std::optional<LayerProbes> probes;
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
        out.push_back(lazy::numbers(found.at("divergence"))[0] *
                      share_of_probe(tensor, candidates.tensors()));
        progress.advance(1, tensor.name);
    }
    progress.finish();
    return out;
}

}  // namespace refold
