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

Divergence::Divergence(const Model& original, const std::vector<std::vector<int32_t>>& sequences, int threads,
                       Over over)
    : original_(original),
      own_(over == Over::group ? group().own(sequences) : sequences),
      threads_(threads),
      over_(over) {
    for (const auto& sequence : own_) tokens_ += static_cast<double>(sequence.size());
    if (HeldOutDivergence::possible(original) && !own_.empty()) streams_.emplace(original, own_, threads);
}

double Divergence::of(const Model& model) const {
    std::array<double, 2> sums{0, tokens_};  // of divergences, and of tokens
    if (!own_.empty()) {
        const bool by_streams = streams_ && HeldOutDivergence::possible(model);
        sums[0] = tokens_ * (by_streams ? streams_->of(model) : mean_of(model));
    }
    if (over_ == Over::group) group().sum(sums);
    return sums[0] / sums[1];
}

// Of models whose next token's distribution is not the output of a final norm.
double Divergence::mean_of(const Model& model) const {
    EngineOptions options;
    options.threads = threads_;
    for (const auto& s : own_) options.context = std::max(options.context, static_cast<int64_t>(s.size()));
    options.f32 = is_compared_in_float32(original_);
    SingleSequence a(original_, options), b(model, options);
    double sum = 0;
    for (const auto& sequence : own_) {
        std::vector<float> wanted;
        a.truncate(0);
        b.truncate(0);
        a.evaluate_all(sequence, [&](size_t, std::span<const float> rows) {
            wanted.insert(wanted.end(), rows.begin(), rows.end());
        });
        b.evaluate_all(sequence, [&](size_t first, std::span<const float> rows) {
            const auto width = static_cast<size_t>(model.config.n_vocab);
            for (size_t at = 0; at < rows.size(); at += width)
                sum += kl_divergence(std::span(wanted).subspan(first * width + at, width),
                                     rows.subspan(at, width));
        });
    }
    return sum / tokens_;
}

std::vector<double> sensitivities(const Model& model, const Candidates& candidates, const Measurement& on,
                                  int64_t tokens) {
    const auto sequences = probe_sequences(on.calibration, tokens);
    std::vector<ResultKey> keys;
    for (const FitTensor& tensor : candidates.tensors())
        keys.push_back({kSensitivity, {{"model", on.identity}, {"tensor", tensor.name}, {"tokens", tokens}}});
    std::optional<LayerProbes> probes;
    std::optional<Divergence> of_tables;
    Progress progress("measuring matrices", keys.size(), "matrices");
    const auto compute = [&](size_t t) {
        const FitTensor& tensor = candidates.tensors()[t];
        const Model disturbed = candidates.with_probe(tensor);
        if (tensor.table && !of_tables)
            of_tables.emplace(model, sequences, on.threads, Divergence::Over::process);
        if (!tensor.table && !probes) probes.emplace(model, sequences, on.threads);
        const double value =
            tensor.table ? of_tables->of(disturbed) : probes->divergence(disturbed, tensor.layer);
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
