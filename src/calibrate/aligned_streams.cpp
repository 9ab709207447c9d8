#include "calibrate/aligned_streams.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/group.h"
#include "linalg/blas.h"
#include "model/materialize.h"

namespace refold {
namespace {

bool is_same_tensor(const Tensor& a, const Tensor& b) {
    if (a.type != b.type || a.shape != b.shape || a.produce != b.produce) return false;
    // The original may be another file.
    return a.mapped.data() == b.mapped.data() || std::ranges::equal(a.mapped, b.mapped);
}

}  // namespace

bool is_unchanged(const Model& original, const Model& model, size_t p) {
    const Topology &before = original.topology, &after = model.topology;
    if (before.layers[p] != after.layers[p] || !(before.source(p) == after.source(p)) ||
        original.config.n_head_kv_of(p) != model.config.n_head_kv_of(p) ||
        original.config.n_ff_of(p) != model.config.n_ff_of(p))
        return false;
    return std::all_of(after.layers[p].begin(), after.layers[p].end(),
                       [&](const auto& entry) { return is_unchanged(original, model, p, entry.first); });
}

bool is_unchanged(const Model& original, const Model& model, size_t p, Slot slot) {
    const auto before = original.topology.layers[p].find(slot), after = model.topology.layers[p].find(slot);
    if (before == original.topology.layers[p].end() || after == model.topology.layers[p].end() ||
        before->second != after->second)
        return false;
    const auto names = tensors_of(after->second);
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return is_same_tensor(original.tensor(name), model.tensor(name));
    });
}

static bool is_of_ffn(Slot slot) {
    const SlotModule module = properties(slot).module;
    const bool norm = slot == Slot::ffn_output_norm || slot == Slot::ffn_output_norm_bias;
    return module == SlotModule::ffn || module == SlotModule::experts || norm;
}

// The layer's FFN reads nothing of the layer but the stream after the attention.
static bool has_halves(const Model& model, size_t layer) {
    const ModelConfig& config = model.config;
    const Topology& topology = model.topology;
    return !config.parallel_residual && config.n_stream == 1 && config.n_laurel == 0 &&
           topology.has(layer, Slot::attn_o) && !topology.has(layer, Slot::attn_comp_ffn) &&
           topology.source(layer).own() && !topology.lends_probabilities(layer) && !topology.lends_kv(layer);
}

static Model with_ffn_alone(const Model& model, size_t layer) {
    Model out = model;
    std::erase_if(out.topology.layers[layer], [](const auto& entry) { return !is_of_ffn(entry.first); });
    return out;
}

using IsLeftOut = std::function<bool(Slot)>;

// The layer is the same in both but for some slots.
static bool is_same_but(const Model& a, const Model& b, size_t layer, const IsLeftOut& is_left_out) {
    const auto same = [&](const Model& one, const Model& other) {
        return std::ranges::all_of(one.topology.layers[layer], [&](const auto& entry) {
            return is_left_out(entry.first) || is_unchanged(one, other, layer, entry.first);
        });
    };
    return same(a, b) && same(b, a);
}

static bool has_same_attention(const Model& a, const Model& b, size_t layer) {
    return is_same_but(a, b, layer, is_of_ffn);
}

// Attention and FFN add their output map's product and bias to the stream, and nothing else.
static bool adds_maps_alone(const Model& model, size_t layer) {
    return has_halves(model, layer) &&
           std::ranges::none_of(std::array{Slot::attn_post_norm, Slot::attn_output_norm, Slot::ffn_post_norm,
                                           Slot::ffn_output_norm, Slot::attn_comp, Slot::attn_comp_norm},
                                [&](Slot slot) { return model.topology.has(layer, slot); });
}

AlignedStreams::AlignedStreams(const Model& original, const Model& model, const Calibration& calibration,
                               int threads)
    : original_model_(original),
      calibration_(calibration),
      own_(own_sequences(calibration)),
      original_(original, own_.tokens, calibration.options.length, threads) {
    const size_t before = original.topology.layers.size(), after = model.topology.layers.size();
    if (before != after)
        fail(ErrorCode::unsupported, "calibration",
             "the model has {} layers, the original {}: they cannot be compared layer by layer", after,
             before);
    if (original.config.n_prefix != model.config.n_prefix || !model.config.causal)
        fail(ErrorCode::unsupported, "calibration", "only decoders without new prefixes can be calibrated");
    for (const auto& [slot, expression] : model.topology.globals) {
        if (properties(slot).module != SlotModule::embedding) continue;
        const auto names = tensors_of(expression);
        const bool same = original.topology.globals.at(slot) == expression &&
                          std::ranges::all_of(names, [&](const std::string& name) {
                              return is_same_tensor(original.tensor(name), model.tensor(name));
                          });
        if (!same) modified_.emplace(model, own_.tokens, calibration.options.length, threads);
    }
}

std::span<const float> AlignedStreams::Activations::tapped(Tap tap) const {
    const auto found = taps.find(tap);
    return found == taps.end() ? std::span<const float>() : found->second;
}

std::vector<float> AlignedStreams::Activations::between() const {
    if (const auto residual = tapped(Tap::residual); !residual.empty())
        return {residual.begin(), residual.end()};
    std::vector<float> between = out;
    const auto ffn = tapped(Tap::ffn_output);
    for (size_t i = 0; i < ffn.size(); ++i) between[i] -= ffn[i];
    return between;
}

static AlignedStreams::Activations run(ResidualStream::Pass& pass, size_t sequence,
                                       const std::vector<Tap>& taps) {
    const auto out = pass.run(sequence);
    AlignedStreams::Activations activations{{out.begin(), out.end()}, {}};
    for (const Tap tap : taps) {
        if (auto values = pass.take(tap); !values.empty()) activations.taps[tap] = std::move(values);
    }
    return activations;
}

// The original's stream reaches the layer, or the one whose attention a later one uses.
void AlignedStreams::catch_up(size_t layer) {
    for (size_t l = original_.layer(); l < layer; ++l) original_.advance(original_model_, l);
}

// The stream after the module whose inputs the last visit saw; nothing where more than its map has changed.
std::optional<std::vector<std::vector<float>>> AlignedStreams::ended(const Model& model, size_t layer,
                                                                     bool of_ffn,
                                                                     const ResidualStream& before) const {
    const Slot map = of_ffn ? Slot::ffn_down : Slot::attn_o,
               bias = of_ffn ? Slot::ffn_down_bias : Slot::attn_o_bias;
    const auto may_differ = [&](Slot slot) {
        return slot == map || slot == bias || (!of_ffn && is_of_ffn(slot));
    };
    if (!ending_ || ending_->of_ffn != of_ffn || !model.topology.has(layer, map) ||
        !is_same_but(ending_->model, model, layer, may_differ))
        return std::nullopt;
    const auto weights_of = [&](Slot slot) {
        return materialize(model, model.topology.at(layer, slot), slot, layer);
    };
    const std::vector<float> weights = weights_of(map), offsets = model.topology.has(layer, bias)
                                                                      ? weights_of(bias)
                                                                      : std::vector<float>();
    const int64_t outputs = model.config.n_embd, columns = static_cast<int64_t>(weights.size()) / outputs;
    const float scale = model.config.residual_scale;
    std::vector<std::vector<float>> out;
    for (size_t s = 0; s < before.sequences(); ++s) {
        const auto residual = before.residual(s);
        std::vector<float>& sum = out.emplace_back(residual.begin(), residual.end());
        blas::multiply(blas::Op::transposed, blas::Op::plain,
                       {outputs, static_cast<int64_t>(sum.size()) / outputs, columns}, weights.data(),
                       ending_->inputs[s].data(), sum.data(), 1, scale);
        for (size_t i = 0; i < sum.size() && !offsets.empty(); ++i)
            sum[i] += scale * offsets[i % offsets.size()];
    }
    return out;
}

const ResidualStream& AlignedStreams::middle(const Model& model, size_t layer) {
    if (middle_ && has_same_attention(middle_->model, model, layer)) return middle_->stream;
    if (auto between = ended(model, layer, false, modified())) {
        middle_.emplace(model, modified().with(std::move(*between)));
        return middle_->stream;
    }
    std::vector<std::vector<float>> between;
    ResidualStream::Pass pass(modified(), model, layer, {Tap::residual}, true);
    for (size_t s = 0; s < own_.tokens.size(); ++s) {
        pass.run(s);
        const auto seen = pass.tapped(Tap::residual);
        between.emplace_back(seen.begin(), seen.end());
    }
    middle_.emplace(model, modified().with(std::move(between)));
    return middle_->stream;
}

bool AlignedStreams::adds_maps_alone(const Model& model, size_t layer) const {
    return (modified_ ? *modified_ : original_).layer() == layer && refold::adds_maps_alone(model, layer);
}

void AlignedStreams::visit(const Model& model, size_t layer, const std::vector<Tap>& original_taps,
                           const std::vector<Tap>& taps, const std::function<void(const Rows&)>& see,
                           Extent extent) {
    static const Activations kNone;
    const bool with_original = extent != Extent::model_taps;
    if (with_original && (activations_.empty() || visited_ != layer)) {
        catch_up(layer);
        activations_.clear();
        ResidualStream::Pass pass(original_, original_model_, layer, original_taps);
        for (size_t s = 0; s < own_.tokens.size(); ++s) activations_.push_back(run(pass, s, original_taps));
        visited_ = layer;
    }
    const auto is_of_second_half = [](Tap tap) {
        return tap == Tap::ffn_input || tap == Tap::ffn_inner || tap == Tap::ffn_projected ||
               tap == Tap::ffn_output;
    };
    const bool half = modified().layer() == layer && has_halves(model, layer) && !taps.empty() &&
                      std::ranges::all_of(taps, is_of_second_half);
    const Model ffn = half ? with_ffn_alone(model, layer) : Model();
    const ResidualStream& before = half ? middle(model, layer) : modified();
    ResidualStream::Pass pass(before, half ? ffn : model, layer, taps, extent != Extent::whole);
    const bool shows_before = adds_maps_alone(model, layer);
    const Tap inner = half ? Tap::ffn_inner : Tap::attn_inner;
    ending_.reset();
    std::optional<Ending> ending;
    if (shows_before && std::ranges::find(taps, inner) != taps.end()) ending.emplace(Ending{half, model, {}});
    for (size_t s = 0; s < own_.tokens.size(); ++s) {
        Activations modified = run(pass, s, taps);
        see({s, s >= own_.fit, static_cast<int64_t>(own_.tokens[s].size()),
             with_original ? activations_[s] : kNone, modified,
             shows_before ? before.residual(s) : std::span<const float>()});
        if (ending) ending->inputs.push_back(std::move(modified.taps[inner]));
    }
    ending_ = std::move(ending);
}

std::vector<std::vector<float>> AlignedStreams::original_before(size_t layer, bool between) {
    catch_up(std::min(between ? layer : layer - 1, modified().layer()));
    std::vector<std::vector<float>> out;
    const std::vector<Tap> taps = between ? std::vector{Tap::residual} : std::vector<Tap>();
    ResidualStream::Pass pass(original_, original_model_, between ? layer : layer - 1, taps, between);
    for (size_t s = 0; s < own_.tokens.size(); ++s) {
        const auto after = pass.run(s), seen = between ? pass.tapped(Tap::residual) : after;
        out.emplace_back(seen.begin(), seen.end());
    }
    return out;
}

void AlignedStreams::advance(const Model& model, size_t layer) {
    // A stream has to wait before a layer whose attention later layers use.
    const bool lends = model.topology.lends_probabilities(layer) || model.topology.lends_kv(layer);
    if (!modified_ && (lends || !is_unchanged(original_model_, model, layer))) {
        catch_up(layer);
        modified_ = original_;
    }
    if (modified_ && middle_ && modified_->layer() == layer &&
        has_same_attention(middle_->model, model, layer)) {
        if (auto after = ended(model, layer, true, middle_->stream)) {
            modified_->advance(layer, std::move(*after));
        } else {
            middle_->stream.advance(with_ffn_alone(model, layer), layer);
            modified_ = std::move(middle_->stream);
        }
    } else if (modified_) {
        modified_->advance(model, layer);
    }
    middle_.reset();
    ending_.reset();
    // The visit has computed the original's stream after the layer, unless that stream has to wait as well.
    if (!activations_.empty() && visited_ == layer && original_model_.topology.sources.empty()) {
        std::vector<std::vector<float>> residual;
        for (Activations& at : activations_) residual.push_back(std::move(at.out));
        original_.advance(layer, std::move(residual));
    } else if (!modified_) {
        original_.advance(original_model_, layer);
    }
    activations_.clear();
}

}  // namespace refold
