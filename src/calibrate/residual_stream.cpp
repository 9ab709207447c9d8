#include "calibrate/residual_stream.h"

#include <algorithm>

#include "calibrate/calibration_device.h"
#include "core/error.h"
#include "io/finite.h"

namespace refold {

struct ResidualStream::Pass::TapValues {
    size_t layer = 0;  // of the values
    std::map<Tap, std::vector<float>> values;
};

static void check_activations(std::span<const float> values, const char* what, size_t layer) {
    if (const auto found = first_not_finite(values))
        fail(ErrorCode::input, "calibration",
             "layer {}: {} is not finite for the calibration text (element {} is {}) - the model's "
             "activations "
             "overflow, or its weights are broken",
             layer, what, found->element, found->value);
}

EngineOptions ResidualStream::options(std::optional<LayerRange> range) const {
    EngineOptions options = calibration_engine(threads_);
    options.context = options.chunk = length_;
    options.f32 = true;
    options.range = range;
    return options;
}

ResidualStream::ResidualStream(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                               int64_t length, int threads)
    : length_(length), threads_(threads) {
    SingleSequence embeddings(model, options(LayerRange{}));
    for (const auto& tokens : sequences) {
        embeddings.truncate(0);
        std::vector<float>& residual = residual_.emplace_back();
        embeddings.evaluate_range(tokens, [&](size_t, std::span<const float> rows) {
            residual.insert(residual.end(), rows.begin(), rows.end());
        });
    }
}

ResidualStream ResidualStream::with(std::vector<std::vector<float>> residual) const {
    return {length_, threads_, layer_, std::move(residual)};
}

ResidualStream::Pass::Pass(const ResidualStream& stream, const Model& model, size_t last,
                           const std::vector<Tap>& taps_of_last, bool only_taps)
    : stream_(stream), taps_(std::make_shared<TapValues>(TapValues{last, {}})) {
    EngineOptions options = stream.options(LayerRange{stream.layer_, last + 1});
    if (!taps_of_last.empty()) {
        auto observer = std::make_shared<Observer>();
        observer->only_taps = only_taps;
        for (const Tap tap : taps_of_last) observer->taps.insert({last, tap});
        observer->see = [taps = taps_](const Tapped& seen) {
            check_activations(seen.values, tap_name(seen.tap), seen.layer);
            taps->values[seen.tap].assign(seen.values.begin(), seen.values.end());
        };
        options.observer = std::move(observer);
    }
    sequence_ = std::make_unique<SingleSequence>(model, options);
}

std::span<const float> ResidualStream::Pass::run(size_t sequence) {
    sequence_->truncate(0);
    out_.clear();
    sequence_->evaluate_range(
        std::span<const float>(stream_.residual_[sequence]),
        [&](size_t, std::span<const float> rows) { out_.insert(out_.end(), rows.begin(), rows.end()); });
    check_activations(out_, "the residual stream", taps_->layer);
    return out_;
}

std::span<const float> ResidualStream::Pass::tapped(Tap tap) const {
    const auto found = taps_->values.find(tap);
    return found == taps_->values.end() ? std::span<const float>() : found->second;
}

std::vector<float> ResidualStream::Pass::take(Tap tap) {
    const auto found = taps_->values.find(tap);
    return found == taps_->values.end() ? std::vector<float>() : std::move(found->second);
}

void ResidualStream::advance(size_t last, std::vector<std::vector<float>> residual) {
    if (last < layer_ || residual.size() != residual_.size())
        fail(ErrorCode::internal, "calibration",
             "got {} sequences after layer {}, the stream has {} before {}", residual.size(), last,
             residual_.size(), layer_);
    residual_ = std::move(residual);
    layer_ = last + 1;
}

void ResidualStream::advance(const Model& model, size_t last) {
    if (last < layer_)
        fail(ErrorCode::internal, "calibration", "layer {} is done, the stream is before layer {}", last,
             layer_);
    size_t target = last + 1;
    for (const auto& [layer, source] : model.topology.sources) {
        if (layer > last) target = std::min(target, source.from(layer));
    }
    if (target <= layer_) return;
    Pass pass(*this, model, target - 1, {});
    for (size_t s = 0; s < residual_.size(); ++s) {
        const auto out = pass.run(s);
        residual_[s].assign(out.begin(), out.end());
    }
    layer_ = target;
}

}  // namespace refold
