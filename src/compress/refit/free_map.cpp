#include "compress/refit/free_map.h"

#include <algorithm>

#include "compress/method/lazy.h"
#include "compress/refit/role_core.h"
#include "compress/rewrite/heads.h"
#include "core/error.h"
#include "linalg/blas.h"
#include "model/materialize.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// y = x W^T, all row major: x [rows x in], W [out x in].
Floats times(int64_t rows, const float* x, const Floats& w, int64_t in, int64_t out) {
    Floats y(static_cast<size_t>(rows * out));
    blas::multiply(blas::Op::transposed, blas::Op::plain, {out, rows, in}, w.data(), x, y.data());
    return y;
}

class FreeMapFinder {
public:
    FreeMapFinder(const Model& model, size_t layer, Slot slot)
        : model_(model),
          layer_(layer),
          slot_(slot),
          expression_(model.topology.at(layer, slot)),
          shape_(slot_shape(slot, model.config, layer)) {}

    std::optional<FreeMap> find() const {
        if (const auto* dense = std::get_if<Dense>(&expression_); dense != nullptr && is_free(dense->tensor))
            return whole(dense->tensor);
        if (std::holds_alternative<Dense>(expression_) || std::holds_alternative<Heads>(expression_))
            return heads();
        if (const auto* e = std::get_if<LowRank>(&expression_)) return factor(*e, nullptr);
        if (const auto* e = std::get_if<Plus>(&expression_)) return factor(e->term, e);
        if (const auto* e = std::get_if<Tucker>(&expression_)) return core(*e);
        return std::nullopt;
    }

private:
    // No other slot reads the tensor, and this one only once.
    bool is_free(const std::string& tensor) const {
        size_t uses = 0;
        const auto count = [&](const Slots& slots) {
            for (const auto& [slot, expression] : slots) {
                const auto names = tensors_of(expression);
                uses += static_cast<size_t>(std::count(names.begin(), names.end(), tensor));
            }
        };
        for (const Slots& slots : model_.topology.layers) count(slots);
        count(model_.topology.globals);
        return uses == 1;
    }

    std::string own_name(const char* part) const {
        return fmt::format("blk.{}.{}.{}", layer_, slot_name(slot_), part);
    }

    FreeMap whole(const std::string& tensor) const {
        FreeMap map;
        map.tensors = {tensor};
        map.inputs = shape_.in;
        map.outputs = shape_.out;
        map.values = [finder = *this, tensor] {
            return FreeMap::Values{floats_of(finder.model_, tensor), {}, {}};
        };
        map.install = [tensor](const Model& model, const Tensor& solved, std::vector<Requantized>&) {
            Model out = model;
            out.tensors[tensor] = solved;
            return out;
        };
        return map;
    }

    std::optional<FreeMap> heads() const {
        if (slot_ != Slot::attn_o) return std::nullopt;
        const HeadUnits units(model_, {Slot::attn_o}, {Slot::attn_o});
        const HeadRefs refs = units.refs()[layer_].at(Slot::attn_o);
        std::vector<size_t> own;
        for (size_t h = 0; h < refs.size(); ++h) {
            if (head_uses(units, refs[h]) == 1 && !serves_elsewhere(refs[h].tensor)) own.push_back(h);
        }
        if (own.empty()) return std::nullopt;
        const auto width = static_cast<size_t>(model_.config.head_dim);
        const auto in = static_cast<size_t>(shape_.in), free = own.size() * width;
        FreeMap map;
        map.what = fmt::format("{} of {} heads", own.size(), refs.size());
        for (const size_t h : own) map.tensors.push_back(refs[h].tensor);
        map.inputs = static_cast<int64_t>(free);
        map.outputs = shape_.out;
        map.values = [finder = *this, own, width, in, free] {
            FreeMap::Values v;
            v.fixed = finder.materialized(finder.expression_);
            v.prior.resize(free * static_cast<size_t>(finder.shape_.out));
            for (size_t row = 0; row < static_cast<size_t>(finder.shape_.out); ++row) {
                for (size_t i = 0; i < own.size(); ++i) {
                    float* from = v.fixed.data() + row * in + own[i] * width;
                    std::copy_n(from, width, v.prior.data() + row * free + i * width);
                    std::fill_n(from, width, 0.0F);
                }
            }
            v.features = [own, width, in, free](int64_t rows, const float* x) {
                Floats z(static_cast<size_t>(rows) * free);
                for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
                    for (size_t i = 0; i < own.size(); ++i)
                        std::copy_n(x + row * in + own[i] * width, width, z.data() + row * free + i * width);
                }
                return z;
            };
            return v;
        };
        map.install = [layer = layer_, own, refs, name = own_name("heads")](
                          const Model& model, const Tensor& solved, std::vector<Requantized>& requantized) {
            Model out = model;
            out.tensors[name] = solved;
            HeadRefs heads = refs;
            for (size_t i = 0; i < own.size(); ++i) heads[own[i]] = {name, static_cast<int64_t>(i)};
            return with_output_heads(out, layer, heads, requantized);
        };
        return map;
    }

    static size_t head_uses(const HeadUnits& units, const HeadRef& head) {
        size_t uses = 0;
        for (const auto& layer : units.refs()) {
            const auto found = layer.find(Slot::attn_o);
            if (found != layer.end())
                uses += static_cast<size_t>(std::count(found->second.begin(), found->second.end(), head));
        }
        return uses;
    }

    // True for a tensor under a LoRA, for instance, whose heads cannot be replaced one by one.
    bool serves_elsewhere(const std::string& tensor) const {
        for (const Slots& slots : model_.topology.layers) {
            for (const auto& [slot, expression] : slots) {
                const auto names = tensors_of(expression);
                const bool read = std::find(names.begin(), names.end(), tensor) != names.end();
                const bool heads =
                    std::holds_alternative<Dense>(expression) || std::holds_alternative<Heads>(expression);
                if (read && (slot != slot_ || !heads)) return true;
            }
        }
        return false;
    }

    // W = U diag(s) V: U is free for given V x; of the transpose, V^T for given U^T x.
    std::optional<FreeMap> factor(const LowRank& e, const Plus* plus) const {
        const std::string& name = e.transposed ? e.v : e.u;
        if (!is_free(name)) return std::nullopt;
        const int64_t rank = model_.tensor(e.u).row_elements();
        FreeMap map;
        map.what = fmt::format("rank {}", rank);
        map.tensors = {name};
        map.inputs = rank;
        map.outputs = shape_.out;
        map.values = [finder = *this, e, has_base = plus != nullptr, name, rank] {
            const Model& model = finder.model_;
            const SlotShape shape = finder.shape_;
            FreeMap::Values v;
            v.prior = floats_of(model, name);
            if (e.transposed) v.prior = transposed(v.prior, rank, shape.out);
            Floats into = floats_of(model, e.transposed ? e.u : e.v);  // [rank x in]
            if (e.transposed) into = transposed(into, shape.in, rank);
            if (!e.scale.empty()) {
                const Floats scale = floats_of(model, e.scale);
                for (size_t i = 0; i < into.size(); ++i)
                    into[i] *= scale[static_cast<size_t>(e.row * rank) + i / static_cast<size_t>(shape.in)];
            }
            if (has_base) v.fixed = finder.materialized(base_of(finder.expression_));
            v.features = [into, in = shape.in, rank](int64_t rows, const float* x) {
                return times(rows, x, into, in, rank);
            };
            return v;
        };
        map.install = [name, turned = e.transposed](const Model& model, const Tensor& solved,
                                                    std::vector<Requantized>&) {
            Model out = model;
            out.tensors[name] = turned ? turned_tensor(solved) : solved;
            return out;
        };
        return map;
    }

    static Tensor turned_tensor(const Tensor& tensor) {
        Tensor out{tensor.type, {tensor.rows(), tensor.row_elements()}, {}, {}};
        out.produce = [tensor] {
            const TensorBytes bytes(tensor);
            Floats values(static_cast<size_t>(tensor.elements()));
            dequantize(tensor.type, bytes.bytes(), values);
            return quantize(tensor.type, transposed(values, tensor.rows(), tensor.row_elements()),
                            tensor.rows());
        };
        return out;
    }

    // The part of the core that no other slot uses is free, for given U2^T x of each head.
    std::optional<FreeMap> core(const Tucker& e) const {
        if (!e.transposed || !is_float(model_.tensor(e.core).type) ||
            is_read_elsewhere(model_, e.core, layer_) || !RoleCore::is_free(model_, e))
            return std::nullopt;
        const int64_t width = model_.tensor(e.head).row_elements(), rank = model_.tensor(e.head).rows(),
                      heads = shape_.in / width;
        FreeMap map;
        map.what = "core";
        map.tensors = {e.core};
        map.inputs = heads * rank;
        map.outputs = shape_.out;
        map.values = [finder = *this, e, heads, width, rank] {
            return FreeMap::Values{
                RoleCore(finder.model_, e).weights(),
                {},
                [u2 = floats_of(finder.model_, e.head), heads, width, rank](int64_t rows, const float* x) {
                    return times(rows * heads, x, u2, width, rank);
                }};
        };
        map.install = [e](const Model& model, const Tensor& solved, std::vector<Requantized>&) {
            const Tensor& given = model.tensor(e.core);
            Model out = model;
            out.tensors[e.core] = lazy::computed(given.type, given.shape, [model, e, solved] {
                return RoleCore(model, e).core_for(lazy::floats(solved, nullptr));
            });
            return out;
        };
        return map;
    }

    template <typename Expressed>
    Floats materialized(const Expressed& expression) const {
        return materialize(model_, expression, slot_, layer_);
    }

    const Model& model_;
    size_t layer_;
    Slot slot_;
    const Expression& expression_;
    SlotShape shape_;
};

}  // namespace

std::optional<FreeMap> free_map(const Model& model, size_t layer, Slot slot) {
    if (!model.topology.has(layer, slot)) return std::nullopt;
    return FreeMapFinder(model, layer, slot).find();
}

bool is_read_elsewhere(const Model& model, const std::string& tensor, size_t layer) {
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        if (p == layer) continue;
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            const auto names = tensors_of(expression);
            if (std::find(names.begin(), names.end(), tensor) != names.end()) return true;
        }
    }
    return false;
}

}  // namespace refold
