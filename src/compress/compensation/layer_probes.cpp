#include "compress/compensation/layer_probes.h"

#include <algorithm>

#include "calibrate/calibration_device.h"
#include "model/accounting.h"

namespace refold {
namespace {

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

SingleSequence::RowsSink append_to(std::vector<float>& out) {
    return [&out](size_t, std::span<const float> rows) { out.insert(out.end(), rows.begin(), rows.end()); };
}

using Streams = std::vector<std::vector<float>>;

Streams through(SingleSequence& run, const Streams& streams) {
    Streams out;
    for (const auto& stream : streams) {
        run.truncate(0);
        run.evaluate_range(stream, append_to(out.emplace_back()));
    }
    return out;
}

}  // namespace

std::vector<std::vector<int32_t>> probe_sequences(const Calibration& calibration, int64_t tokens) {
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

bool is_compared_in_float32(const Model& model) {
    constexpr uint64_t kParameters = 500'000'000;
    return account(model).model.parameters <= kParameters;
}

LayerProbes::LayerProbes(const Model& model, std::vector<std::vector<int32_t>> sequences, int threads)
    : model_(model), sequences_(std::move(sequences)), metric_(model), ends_(run_ends(model)) {
    options_ = calibration_engine(threads);
    for (const auto& s : sequences_)
        options_.context = std::max(options_.context, static_cast<int64_t>(s.size()));
    options_.chunk = options_.context;
    options_.f32 = is_compared_in_float32(model);
    options_.range = LayerRange{};
    SingleSequence embeddings(model, options_);
    for (const auto& tokens : sequences_) {
        embeddings.truncate(0);
        embeddings.evaluate_range(tokens, append_to(inputs_.emplace_back()));
    }
    runs_.resize(ends_.size());
    final_ = inputs_;
    for (size_t run = 0; run < runs_.size(); ++run) advance(final_, run);
    for (const auto& stream : final_) metric_.add(stream);
    metric_.finish(1e-6);  // positive definite, with fewer tokens in the vocabulary than features as well
}

double LayerProbes::divergence(const Model& disturbed, size_t layer) {
    for (; layer >= ends_[at_]; ++at_) advance(inputs_, at_);
    auto streams = through(*loaded(disturbed, at_), inputs_);
    for (size_t run = at_ + 1; run < runs_.size(); ++run) advance(streams, run);
    double squares = 0, tokens = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
        for (const float m : metric_.measured(difference(streams[s], final_[s])))
            squares += static_cast<double>(m) * static_cast<double>(m);
        tokens += static_cast<double>(sequences_[s].size());
    }
    return squares / 2 / tokens;
}

// Runs stay loaded, unless only a layer may be.
void LayerProbes::advance(std::vector<std::vector<float>>& streams, size_t run) {
    auto& sequence = runs_[run];
    if (!sequence) sequence = loaded(model_, run);
    streams = through(*sequence, streams);
    if (loads_layer_by_layer()) sequence.reset();
}

std::unique_ptr<SingleSequence> LayerProbes::loaded(const Model& model, size_t run) {
    options_.range = LayerRange{run == 0 ? 0 : ends_[run - 1], ends_[run]};
    return std::make_unique<SingleSequence>(model, options_);
}

// Of the streams divided by their scales, as NextTokenMetric wants.
std::vector<float> LayerProbes::difference(std::span<const float> a, std::span<const float> b) const {
    const auto width = static_cast<size_t>(model_.config.n_embd);
    std::vector<float> out;
    for (size_t at = 0; at < a.size(); at += width) {
        const auto x = a.subspan(at, width), y = b.subspan(at, width);
        const float of_x = metric_.scale(x), of_y = metric_.scale(y);
        for (size_t i = 0; i < width; ++i) out.push_back(x[i] / of_x - y[i] / of_y);
    }
    return out;
}

}  // namespace refold
