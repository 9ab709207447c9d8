#include "engine/ggml/reconstruct.h"

#include <algorithm>

#include "core/error.h"
#include "model/execution.h"
#include "model/materialize.h"

namespace refold {
namespace {

class Reconstruction {
public:
    Reconstruction(const Model& model, const EngineOptions& options)
        : source_(std::make_shared<const Model>(model)), chooser_(*source_), options_(options) {}

    std::optional<Model> run() {
        Model model = *source_;
        for (size_t p = 0; p < model.topology.layers.size(); ++p) replace(model, model.topology.layers[p], p);
        replace(model, model.topology.globals, kWholeModel);
        if (dense_.empty()) return std::nullopt;
        return model;
    }

private:
    struct DenseTensor {
        Expression expression;
        SlotShape shape;
        std::string tensor;
    };

    bool wanted(size_t layer, Slot slot, const Expression& expression) const {
        if (!has_factors(expression)) return false;
        if (consists_of_experts(slot)) return true;  // their products read stored rows
        if (options_.factored == FactoredExecution::factored) return false;
        return options_.factored == FactoredExecution::reconstructed ||
               chooser_.choose(layer, std::span(&slot, 1)).execution == Execution::reconstructed;
    }

    void replace(Model& model, Slots& slots, size_t layer) {
        for (auto& [slot, expression] : slots) {
            if (!wanted(layer, slot, source_expression(layer, slot))) continue;
            expression = Dense{tensor_of(model, slot, expression, layer)};
        }
    }

    const Expression& source_expression(size_t layer, Slot slot) const {
        const Topology& t = source_->topology;
        return layer == kWholeModel ? t.globals.at(slot) : t.layers[layer].at(slot);
    }

    std::string tensor_of(Model& model, Slot slot, const Expression& expression, size_t layer) {
        const SlotShape shape = slot_shape(slot, source_->config, layer);
        const auto same = [&](const DenseTensor& dense) {
            return dense.shape.in == shape.in && dense.shape.out == shape.out &&
                   dense.expression == expression;
        };
        if (const auto found = std::find_if(dense_.begin(), dense_.end(), same); found != dense_.end())
            return found->tensor;
        std::string name = fmt::format("reconstructed.{}", dense_.size());
        const DType type = options_.f32 ? DType::F32 : reconstructed_type(*source_, expression);
        Tensor tensor{type, tensor_shape(slot, source_->config, layer), {}, {}};
        tensor.produce = [=, source = source_] {
            return quantize(type, materialize(*source, expression, slot, layer), shape.in);
        };
        model.tensors[name] = std::move(tensor);
        dense_.push_back({expression, shape, name});
        return name;
    }

    std::shared_ptr<const Model> source_;
    ExecutionChooser chooser_;
    const EngineOptions& options_;
    std::vector<DenseTensor> dense_;
};

}  // namespace

std::optional<Model> with_reconstructed(const Model& model, const EngineOptions& options) {
    return Reconstruction(model, options).run();
}

}  // namespace refold
