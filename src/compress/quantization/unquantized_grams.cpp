#include "compress/quantization/unquantized_grams.h"

#include "calibrate/final_norm.h"
#include "compress/method/lazy.h"
#include "core/progress.h"
#include "linalg/least_squares.h"

namespace refold {
namespace {

constexpr Computation kGram{"Gram matrices of unquantized inputs", 1};

}  // namespace

UnquantizedGrams::UnquantizedGrams(const Model& model, const Measurement& on, const std::set<Place>& places) {
    // The whole model comes last, as its number is the largest.
    std::map<size_t, std::vector<Tap>> by_layer;
    for (const auto& [layer, tap] : places) by_layer[layer].push_back(tap);
    Progress progress("inputs of matrices", by_layer.size(), "layers");
    for (const auto& [layer, taps] : by_layer) {
        nlohmann::json inputs = {{"model", on.identity}, {"taps", nlohmann::json::array()}};
        if (layer != kWholeModel) inputs["layer"] = layer;
        for (const Tap tap : taps) inputs["taps"].push_back(tap_name(tap));
        const auto found = on.work.results_of_all(
            {kGram, inputs}, [&, at = layer, &taps = taps] { return measure(model, on, at, taps); });
        for (const Tap tap : taps) grams_[{layer, tap}] = found.at(tap_name(tap));
        progress.advance(1);
    }
    stream_.reset();
    progress.finish();
}

Arrays UnquantizedGrams::measure(const Model& model, const Measurement& on, size_t given,
                                 const std::vector<Tap>& taps) {
    const OwnSequences own = own_sequences(on.calibration);
    if (!stream_) stream_.emplace(model, own.tokens, on.calibration.options.length, on.threads);
    const bool head = given == kWholeModel;
    const size_t layer = head ? model.topology.layers.size() - 1 : given;
    if (layer > stream_->layer()) stream_->advance(model, layer - 1);
    // Without shared attention the stream goes on with what this pass returns, so it runs whole layers.
    const bool goes_on = model.topology.sources.empty();
    std::optional<ResidualStream::Pass> pass;
    if (stream_->layer() <= layer)
        pass.emplace(*stream_, model, layer, head ? std::vector<Tap>() : taps, !head && !goes_on);
    const FinalNorm norm(model);
    std::map<Tap, LeastSquares> sums;
    std::vector<std::vector<float>> after;  // for the stream
    for (size_t s = 0; s < stream_->sequences(); ++s) {
        const auto out = pass ? pass->run(s) : stream_->residual(s);
        if (goes_on && pass) after.emplace_back(out.begin(), out.end());
        const auto tokens = static_cast<int64_t>(own.tokens[s].size());
        for (const Tap tap : taps) {
            const std::vector<float> normed = head ? norm(out) : std::vector<float>();
            const std::span<const float> rows = head ? std::span<const float>(normed) : pass->tapped(tap);
            sums.try_emplace(tap, static_cast<int64_t>(rows.size()) / tokens, 0)
                .first->second.add(tokens, rows.data(), nullptr);
        }
    }
    if (goes_on && pass) stream_->advance(layer, std::move(after));
    Arrays out;
    for (auto& [tap, sum] : sums) {
        sum.sum_over_processes();
        out[tap_name(tap)] = {{sum.inputs(), sum.inputs()}, {sum.gram().begin(), sum.gram().end()}};
    }
    return out;
}

std::vector<double> UnquantizedGrams::at(Place place) const { return lazy::numbers(grams_.at(place)); }

}  // namespace refold
