#include "analyze/attention_errors.h"

#include <algorithm>
#include <cmath>

#include "analyze/statistics.h"
#include "calibrate/aligned_streams.h"
#include "compress/method/lazy.h"
#include "compress/rewrite/modules.h"
#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"

namespace refold {
namespace {

using Rows = AlignedStreams::Rows;
using Floats = std::span<const float>;

bool has_compensation(const Model& model, size_t layer) {
    const auto& slots = model.topology.layers[layer];
    return std::ranges::any_of(slots, [](const auto& entry) { return is_compensation(entry.first); });
}

Model without_compensation(Model model, size_t layer) {
    std::erase_if(model.topology.layers[layer],
                  [](const auto& entry) { return is_compensation(entry.first); });
    return model;
}

// The layer reads what its source reads: the source and the layers between them add nothing.
Model beside_source(Model model, size_t layer, size_t source) {
    for (size_t p = source; p < layer; ++p) {
        remove_ffn(model, p);
        if (p > source) remove_attention(model, p);
    }
    model = without_compensation(std::move(model), source);
    Slots& slots = model.topology.layers[source];
    const SlotShape shape = slot_shape(Slot::attn_o, model.config, source);
    const std::string name = fmt::format("blk.{}.nothing", source);
    model.tensors[name] = lazy::constant(DType::F32, {shape.in, shape.out}, 0);
    slots[Slot::attn_o] = Dense{name};
    slots.erase(Slot::attn_o_bias);
    return model;
}

// Sums over sequences of differences e, by position.
class Errors {
public:
    Errors(int64_t length, int64_t width)
        : width_(static_cast<size_t>(width)),
          sums_(static_cast<size_t>(length) * width_),
          counts_(static_cast<size_t>(length)) {}

    void add(Floats original, Floats now) {
        for (size_t i = 0; i < now.size(); ++i) {
            const double e = static_cast<double>(original[i]) - static_cast<double>(now[i]);
            sums_[i] += e;
            squares_ += e * e;
        }
        for (size_t t = 0; t < now.size() / width_; ++t) counts_[t] += 1;
    }
    ErrorSize size() {
        group().sum(sums_);
        group().sum(counts_);
        group().sum(std::span(&squares_, 1));
        ErrorSize out;
        double tokens = 0;
        for (const double count : counts_) tokens += count;
        for (size_t i = 0; i < sums_.size(); ++i) {
            const double mean = sums_[i] / std::max(1.0, counts_[i / width_]);
            out.of_means += mean * mean;
        }
        out.of_tokens = squares_ / tokens;
        return out;
    }

private:
    size_t width_;
    std::vector<double> sums_, counts_;
    double squares_ = 0;
};

double squared_distance(Floats a, Floats b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        sum += d * d;
    }
    return sum;
}

double squared_norm(Floats a) {
    double sum = 0;
    for (const float x : a) sum += static_cast<double>(x) * static_cast<double>(x);
    return sum;
}

class Measurement {
public:
    Measurement(const Model& original, const Model& model, const Calibration& text, int threads)
        : model_(model), length_(text.options.length), streams_(original, model, text, threads) {}

    AttentionError of(size_t layer) {
        AttentionError out{.layer = layer, .source = {}, .without = {}, .with = {}, .depth = {}};
        const Model bare = without_compensation(model_, layer);
        const AttentionSource& source = model_.topology.source(layer);
        inputs_.clear();
        outputs_.clear();
        out.without = error(bare, layer, !source.own());
        if (has_compensation(model_, layer)) out.with = error(model_, layer, false);
        if (!source.own()) {
            out.source = source.from(layer);
            out.depth = depth(beside_source(bare, layer, *out.source), layer);
        }
        return out;
    }
    void advance(size_t layer) { streams_.advance(model_, layer); }

private:
    // `keep`: the layer's input and its attention's output, for depth().
    ErrorSize error(const Model& model, size_t layer, bool keep) {
        // W_c of the FFN makes up for the difference after the layer.
        const bool whole = model_.topology.has(layer, Slot::attn_comp_ffn);
        Errors errors(length_, model_.config.n_embd);
        streams_.visit(model, layer, {Tap::ffn_output}, {Tap::layer_input, Tap::attn_output, Tap::ffn_output},
                       [&](const Rows& rows) {
                           errors.add(whole ? rows.original.out : rows.original.between(),
                                      whole ? rows.modified.out : rows.modified.between());
                           if (!keep) return;
                           const auto input = rows.modified.tapped(Tap::layer_input),
                                      output = rows.modified.tapped(Tap::attn_output);
                           inputs_.emplace_back(input.begin(), input.end());
                           outputs_.emplace_back(output.begin(), output.end());
                       });
        return errors.size();
    }

    DepthFactor depth(const Model& beside, size_t layer) {
        const auto width = static_cast<size_t>(model_.config.n_embd);
        double ratios = 0, tokens = 0, changed = 0, all = 0;
        streams_.visit(
            beside, layer, {Tap::ffn_output}, {Tap::layer_input, Tap::attn_output}, [&](const Rows& rows) {
                const Floats x = rows.modified.tapped(Tap::layer_input), y = inputs_[rows.sequence];
                for (size_t at = 0; at < x.size(); at += width) {
                    const Floats own = x.subspan(at, width);
                    ratios += std::sqrt(squared_distance(own, y.subspan(at, width)) / squared_norm(own));
                    tokens += 1;
                }
                changed += squared_distance(rows.modified.tapped(Tap::attn_output), outputs_[rows.sequence]);
                all += squared_norm(outputs_[rows.sequence]);
            });
        double sums[] = {ratios, tokens, changed, all};
        group().sum(sums);
        return {sums[0] / sums[1], std::sqrt(sums[2] / sums[3])};
    }

    const Model& model_;
    int64_t length_;
    AlignedStreams streams_;
    std::vector<std::vector<float>> inputs_, outputs_;  // of the layer that is measured, by sequence
};

std::vector<size_t> layers_to_measure(const Model& original, const Model& model) {
    std::vector<size_t> layers;
    const size_t n_layer = std::min(original.topology.layers.size(), model.topology.layers.size());
    for (size_t p = 0; p < n_layer; ++p) {
        const bool lost = original.topology.has(p, Slot::attn_o) && !model.topology.has(p, Slot::attn_o);
        if (lost || !model.topology.source(p).own() || has_compensation(model, p)) layers.push_back(p);
    }
    if (layers.empty())
        fail(ErrorCode::unsupported, "analyze",
             "'{}': no layer's attention is another one's or was left out, so there is no error of it",
             model.label);
    return layers;
}

Calibration text_of(const std::vector<std::vector<int32_t>>& sequences) {
    Calibration text;
    text.fit = sequences;
    text.options.length = 0;
    for (const auto& sequence : sequences)
        text.options.length = std::max(text.options.length, static_cast<int64_t>(sequence.size()));
    return text;
}

ErrorSize mean(const std::vector<AttentionError>& layers, bool with) {
    ErrorSize out;
    for (const AttentionError& layer : layers) {
        const ErrorSize& size = with && layer.with ? *layer.with : layer.without;
        out.of_means += size.of_means / static_cast<double>(layers.size());
        out.of_tokens += size.of_tokens / static_cast<double>(layers.size());
    }
    return out;
}

}  // namespace

ErrorSize AttentionErrors::without() const { return mean(layers, false); }
ErrorSize AttentionErrors::with() const { return mean(layers, true); }

DepthFactor AttentionErrors::depth() const {
    RunningMean size, effect;
    for (const AttentionError& layer : layers) {
        if (!layer.source) continue;
        size.add(layer.depth.size);
        effect.add(layer.depth.effect);
    }
    return {size.mean(), effect.mean()};
}

AttentionErrors attention_errors(const Model& original, const Model& model,
                                 const std::vector<std::vector<int32_t>>& sequences, int threads) {
    const auto layers = layers_to_measure(original, model);
    const Calibration text = text_of(sequences);
    Measurement measurement(original, model, text, threads);
    AttentionErrors out;
    out.positions = text.options.length;
    Progress progress("attention errors", layers.size(), "layers");
    size_t done = 0;
    for (const size_t p : layers) {
        for (; done < p; ++done) measurement.advance(done);
        out.layers.push_back(measurement.of(p));
        progress.advance(1);
    }
    progress.finish();
    return out;
}

double expected_error_on_random_data(int64_t rows, int64_t columns) {
    return static_cast<double>(std::max<int64_t>(0, rows - columns) * columns);
}

}  // namespace refold
