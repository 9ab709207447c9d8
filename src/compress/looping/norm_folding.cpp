#include "compress/looping/norm_folding.h"

#include <algorithm>

#include "compress/method/lazy.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold {
namespace {

constexpr auto kReadAttentionNorm =
    slots_where([](const SlotProperties& s) { return s.norm == Slot::attn_norm; });
constexpr auto kReadFfnNorm = slots_where([](const SlotProperties& s) { return s.norm == Slot::ffn_norm; });

class NormFolding {
public:
    NormFolding(const Model& model, const std::string& type) : model_(model), out_(model), type_(type) {}

    Model fold() {
        for (size_t p = 0; p < model_.topology.layers.size(); ++p) {
            std::vector<Slot> attention = to_vector(kReadAttentionNorm);
            const std::vector<Slot> feed_forward = to_vector(kReadFfnNorm);
            // GPT-J feeds both modules from one norm.
            if (model_.config.parallel_residual && !model_.topology.has(p, Slot::ffn_norm))
                attention.insert(attention.end(), feed_forward.begin(), feed_forward.end());
            else
                fold(p, Slot::ffn_norm, feed_forward);
            fold(p, Slot::attn_norm, attention);
        }
        out_.drop_unreferenced();
        return std::move(out_);
    }

private:
    const std::string& tensor_of(size_t p, Slot slot) const {
        return std::get<Dense>(model_.topology.at(p, slot)).tensor;
    }
    const Tensor& stored(size_t p, Slot slot) const { return model_.tensor(tensor_of(p, slot)); }

    void set(size_t p, Slot slot, Tensor tensor) {
        const std::string name = tensor_name(*model_.family, slot, p);
        out_.tensors[name] = std::move(tensor);
        out_.topology.layers[p][slot] = Dense{name};
    }

    void fold(size_t p, Slot norm, const std::vector<Slot>& readers) {
        if (std::none_of(readers.begin(), readers.end(),
                         [&](Slot slot) { return model_.topology.has(p, slot); }))
            return;
        if (!model_.topology.has(p, norm))
            fail(ErrorCode::unsupported, "norms",
                 "layer {} has no {} before its module (family '{}' normalizes after it): norms=fold needs "
                 "one - "
                 "use keep",
                 p, slot_name(norm), model_.family->name);
        const Tensor gain = stored(p, norm);
        const Slot norm_bias = *bias_of(norm);
        const bool shifts = model_.topology.has(p, norm_bias);
        for (const Slot slot : readers) {
            if (!model_.topology.has(p, slot)) continue;
            if (shifts) fold_bias(p, slot, stored(p, norm_bias));
            const Tensor weight = stored(p, slot);
            const DType type = computed_type(type_, model_, {tensor_of(p, slot)});
            set(p, slot, lazy::computed(type, weight.shape, [weight, gain, files = model_.source] {
                    std::vector<float> values = lazy::floats(weight, files);
                    const std::vector<float> g = lazy::floats(gain, files);
                    for (size_t i = 0; i < values.size(); ++i) values[i] *= g[i % g.size()];
                    return values;
                }));
        }
        set(p, norm, lazy::constant(DType::F32, gain.shape, 1.0F));
        if (shifts) set(p, norm_bias, lazy::constant(DType::F32, gain.shape, 0.0F));
    }

    // bias + W shift, with the norm's bias `shift`.
    void fold_bias(size_t p, Slot slot, const Tensor& shift) {
        const auto bias = bias_of(slot);
        const auto& slots = model_.family->layer_slots;
        if (std::none_of(slots.begin(), slots.end(), [&](const auto& d) { return d.slot == bias; }))
            fail(ErrorCode::unsupported, "norms",
                 "family '{}' has no {} that could take the norm's bias: norms=fold is not possible - use "
                 "keep",
                 model_.family->name, bias ? slot_name(*bias) : fmt::format("bias of {}", slot_name(slot)));
        const Tensor weight = stored(p, slot);
        const std::optional<Tensor> given =
            model_.topology.has(p, *bias) ? std::optional(stored(p, *bias)) : std::nullopt;
        set(p, *bias, lazy::computed(DType::F32, {weight.rows()}, [=, files = model_.source] {
                const std::vector<float> w = lazy::floats(weight, files), b = lazy::floats(shift, files);
                std::vector<float> out =
                    given ? lazy::floats(*given, files) : std::vector<float>(w.size() / b.size());
                for (size_t row = 0; row < out.size(); ++row) {
                    double sum = 0;
                    for (size_t i = 0; i < b.size(); ++i)
                        sum += static_cast<double>(w[row * b.size() + i]) * b[i];
                    out[row] = static_cast<float>(out[row] + sum);
                }
                return out;
            }));
    }

    const Model& model_;
    Model out_;
    std::string type_;
};

}  // namespace

Model fold_norms(const Model& model, const std::string& type) { return NormFolding(model, type).fold(); }

}  // namespace refold
