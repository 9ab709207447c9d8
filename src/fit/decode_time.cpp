#include "fit/decode_time.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "compress/method/lazy.h"
#include "core/progress.h"
#include "engine/single_sequence.h"
#include "fit/candidates.h"
#include "model/accounting.h"
#include "model/quantized.h"

namespace refold {
namespace {

using Kind = TypeSpeeds::Kind;

constexpr Computation kSpeeds{"speeds of types", 1};
// Enough for the memory to be read as in a whole model, and not from a cache.
constexpr uint64_t kMeasuredWeights = uint64_t{1} << 26;
constexpr int kSteps = 9;
constexpr DType kBase = DType::Q8_0;

double bytes_of_weight(DType type) {
    return static_cast<double>(block_bytes(type)) / static_cast<double>(block_elements(type));
}

// Weights that a layer reads of each tensor of an expression.
void add_weights(const Model& model, const Expression& expression, int64_t head_weights,
                 std::map<std::string, uint64_t>& out) {
    if (const auto* heads = std::get_if<Heads>(&expression)) {
        for (const HeadRun& run : heads->runs)
            out[run.tensor] += static_cast<uint64_t>(run.count * head_weights);
        return;
    }
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        std::visit([&](const auto& base) { add_weights(model, base, head_weights, out); }, plus->base);
        return add_weights(model, plus->term, head_weights, out);
    }
    // The core and the factors of several slots are multiplied once.
    for (const std::string& name : tensors_of(expression))
        if (!is_small_factor(expression, name))
            out[name] = static_cast<uint64_t>(model.tensor(name).elements());
}

// Rows of one pattern: what the numbers are changes nothing about the time.
Tensor patterned(DType type, const std::vector<int64_t>& shape) {
    Tensor out{type, shape, {}, {}};
    out.produce = [type, columns = shape[0], bytes = out.bytes()] {
        std::mt19937 random(1);
        std::normal_distribution<float> normal(0, 0.02F);
        std::vector<float> values(static_cast<size_t>(columns * refold::fold(type, columns)));
        for (float& value : values) value = normal(random);
        const std::vector<std::byte> rows = quantize(type, values, columns);
        std::vector<std::byte> all;
        all.reserve(bytes);
        while (all.size() < bytes)
            all.insert(all.end(), rows.begin(),
                       rows.begin() + static_cast<ptrdiff_t>(std::min(rows.size(), bytes - all.size())));
        return all;
    };
    return out;
}

// The first layers of a model with matrices of chosen types.
class MeasuredLayers {
public:
    MeasuredLayers(const Model& model, int threads)
        : model_(model), threads_(threads), uses_(quantized_uses(model)) {
        for (size_t p = 0; p < model.topology.layers.size() && weights_ < kMeasuredWeights; ++p) {
            for (const auto& [slot, expression] : model.topology.layers[p]) {
                for (const std::string& name : tensors_of(expression)) {
                    const auto use = uses_.find(name);
                    if (use == uses_.end() || !use->second.matrix || !names_.insert(name).second) continue;
                    weights_ += static_cast<uint64_t>(model.tensor(name).elements());
                }
            }
            range_.last = p + 1;
        }
    }

    uint64_t weights() const { return weights_; }
    uint64_t weights(Kind kind) const {
        uint64_t out = 0;
        for (const std::string& name : names_)
            if (takes(name, kind)) out += static_cast<uint64_t>(model_.tensor(name).elements());
        return out;
    }
    // Matrices that can have the kind do, the others have the base's type.
    std::unique_ptr<SingleSequence> with(std::optional<Kind> kind) const {
        Model out = model_;
        for (const std::string& name : names_) {
            const DType type = kind && takes(name, *kind) ? kind->type : kBase;
            if (fits(type, uses_.at(name), RowLayout::or_folded))
                out.tensors[name] = patterned(type, model_.tensor(name).shape);
        }
        EngineOptions options;
        options.threads = threads_;
        options.context = decode_context(model_) + 1;
        options.range = range_;
        return std::make_unique<SingleSequence>(out, options);
    }
    // Of the range, as if layers were alike.
    double attention_flops() const {
        return static_cast<double>(account(model_).model.attention_flops_per_context_token) *
               static_cast<double>(range_.last) / static_cast<double>(model_.topology.layers.size());
    }

private:
    bool takes(const std::string& name, Kind kind) const {
        return fits(kind.type, uses_.at(name), RowLayout::or_folded) &&
               kind_of(kind.type, model_.tensor(name).row_elements()) == kind;
    }

    const Model& model_;
    int threads_;
    std::map<std::string, QuantizedUse> uses_;
    std::set<std::string> names_;  // matrices of the range
    uint64_t weights_ = 0;
    LayerRange range_;
};

// Median of decode steps after the first two, at a context of few tokens more than the sequence has.
double step_seconds(SingleSequence& sequence) {
    using Clock = std::chrono::steady_clock;
    const int64_t length = sequence.length();
    const std::vector<int32_t> token = {1};
    std::vector<double> seconds;
    for (int step = -2; step < kSteps; ++step) {
        const auto start = Clock::now();
        sequence.evaluate_range(token, [](size_t, std::span<const float>) {});
        if (step >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        sequence.truncate(length);
    }
    std::ranges::nth_element(seconds, seconds.begin() + kSteps / 2);
    return seconds[kSteps / 2];
}

// Types that a matrix of the model has or may get, as far as its layers have room for them.
std::vector<Kind> kinds_for(const Model& model, const MeasuredLayers& layers) {
    std::set<Kind> all;
    for (const auto& [name, tensor] : model.tensors)
        if (tensor.shape.size() > 1) all.insert({tensor.type, tensor.fold() > 1});
    for (const FitTensor& tensor : fit_tensors(model, RowLayout::or_folded)) {
        for (const Candidate& candidate : tensor.candidates)
            all.insert(kind_of(candidate.type, model.tensor(tensor.name).row_elements()));
    }
    std::vector<Kind> out;
    std::ranges::copy_if(all, std::back_inserter(out), [&](Kind kind) { return layers.weights(kind) > 0; });
    return out;
}

}  // namespace

int64_t decode_context(const Model& model) {
    constexpr int64_t kUsual = 512;
    const int64_t most = model.config.context_length;
    return most > 0 ? std::min(kUsual, most - most / 8) : kUsual;
}

double TypeSpeeds::of(Kind kind) const {
    if (const auto found = per_weight.find(kind); found != per_weight.end()) return found->second;
    double slowest = 0;  // seconds of a byte
    for (const auto& [other, seconds] : per_weight)
        slowest = std::max(slowest, seconds / bytes_of_weight(other.type));
    return slowest * bytes_of_weight(kind.type);
}

TypeSpeeds::Kind kind_of(DType type, int64_t columns) { return {type, fold(type, columns) > 1}; }

std::map<std::string, uint64_t> weights_multiplied(const Model& model) {
    std::map<std::string, uint64_t> out;
    const auto see = [&](const Slots& slots, size_t layer) {
        std::map<std::string, uint64_t> of_layer;
        for (const auto& [slot, expression] : slots) {
            if (!is_matrix(slot) || properties(slot).module == SlotModule::exit) continue;
            const SlotShape shape = slot_shape(slot, model.config, layer);
            if (consists_of_experts(slot)) {
                std::map<std::string, uint64_t> all;
                add_weights(model, expression, block_size(slot, model.config) * shape.in, all);
                for (const auto& [name, weights] : all)
                    of_layer[name] += weights * static_cast<uint64_t>(model.config.n_expert_used) /
                                      static_cast<uint64_t>(model.config.n_expert_of(layer));
                continue;
            }
            add_weights(model, expression,
                        block_size(slot, model.config) * (heads_are_columns(slot) ? shape.out : shape.in),
                        of_layer);
        }
        for (const auto& [name, weights] : of_layer) out[name] += weights;
    };
    for (size_t p = 0; p < model.topology.layers.size(); ++p) see(model.topology.layers[p], p);
    see(model.topology.globals, kWholeModel);
    return out;
}

double token_seconds(const Model& model, const TypeSpeeds& speeds) {
    double out = speeds.per_attention_flop * static_cast<double>(decode_context(model)) *
                 static_cast<double>(account(model).model.attention_flops_per_context_token);
    for (const auto& [name, weights] : weights_multiplied(model)) {
        const Tensor& tensor = model.tensor(name);
        out += static_cast<double>(weights) * speeds.of({tensor.type, tensor.fold() > 1});
    }
    return out;
}

TypeSpeeds measure_type_speeds(const Model& model, Work& work, const SpeedsFor& where) {
    const MeasuredLayers layers(model, where.threads);
    const std::vector<Kind> kinds = kinds_for(model, layers);
    nlohmann::json names = nlohmann::json::array();
    for (const Kind kind : kinds) names.push_back(name(kind.type) + (kind.folded ? " folded" : ""));
    const ResultKey key{kSpeeds,
                        {{"model", where.identity},
                         {"machine", where.machine},
                         {"threads", where.threads},
                         {"types", names}}};
    const auto found = work.results_of_all(key, [&] {
        Progress progress("speeds of types", kinds.size() + 1, "types");
        const auto base = layers.with(std::nullopt);
        const double start = step_seconds(*base);
        const double of_base = start / static_cast<double>(layers.weights());
        Array seconds{{static_cast<int64_t>(kinds.size()) + 1}, {}};
        for (const Kind kind : kinds) {
            const auto other = layers.with(kind);
            const double ratio = step_seconds(*other) / step_seconds(*base);
            const double more = (ratio - 1) * start / static_cast<double>(layers.weights(kind));
            seconds.values.push_back(static_cast<float>(std::max(of_base + more, 0.05 * of_base)));
            progress.advance(1, name(kind.type));
        }
        const std::vector<int32_t> context(static_cast<size_t>(decode_context(model)) - 1, 1);
        base->evaluate_range(context, [](size_t, std::span<const float>) {});
        const double flops = static_cast<double>(decode_context(model)) * layers.attention_flops();
        seconds.values.push_back(
            flops > 0 ? static_cast<float>(std::max(step_seconds(*base) - start, 0.0) / flops) : 0);
        progress.finish();
        return Arrays{{"seconds", std::move(seconds)}};
    });
    const auto seconds = lazy::numbers(found.at("seconds"));
    TypeSpeeds out;
    for (size_t i = 0; i < kinds.size(); ++i) out.per_weight[kinds[i]] = seconds[i];
    out.per_attention_flop = seconds.back();
    return out;
}

}  // namespace refold
