#include "engine/ggml/reconstruct.h"

#include <algorithm>

#include "core/error.h"
#include "model/execution.h"

namespace refold {
namespace {

class Reconstruction {
public:
    Reconstruction(const Model& model, const EngineOptions& options)
        : source_(std::make_shared<const Model>(model)), chooser_(*source_), options_(options) {}

    std::optional<Model> run() {
        Model model = *source_;
        for (size_t p = 0; p < model.topology.positions.size(); ++p)
            replace(model, model.topology.positions[p], p);
        replace(model, model.topology.globals, kModelPosition);
        if (made_.empty()) return std::nullopt;
        return model;
    }

private:
    struct Made {
        Expression expression;
        SlotShape shape;
        std::string tensor;
    };

    bool wanted(size_t position, Slot slot, const Expression& expression) const {
        if (!has_factors(expression) || options_.factored == FactoredExecution::factored) return false;
        return options_.factored == FactoredExecution::reconstructed ||
               chooser_.choose(position, std::span(&slot, 1), 1).when_loading;
    }

    void replace(Model& model, Slots& slots, size_t position) {
        for (auto& [slot, expression] : slots) {
            if (!wanted(position, slot, source_expression(position, slot))) continue;
            expression = Dense{tensor_of(model, slot, expression, position)};
        }
    }

    const Expression& source_expression(size_t position, Slot slot) const {
        const Topology& t = source_->topology;
        return position == kModelPosition ? t.globals.at(slot) : t.positions[position].at(slot);
    }

    std::string tensor_of(Model& model, Slot slot, const Expression& expression, size_t position) {
        const SlotShape shape = slot_shape(slot, source_->config, position);
        const auto same = [&](const Made& made) {
            return made.shape.in == shape.in && made.shape.out == shape.out && made.expression == expression;
        };
        if (const auto found = std::find_if(made_.begin(), made_.end(), same); found != made_.end())
            return found->tensor;
        const std::string name = fmt::format("reconstructed.{}", made_.size());
        const DType type = options_.f32 ? DType::F32 : reconstructed_type(*source_, expression);
        Tensor tensor{type, {shape.in, shape.out}, {}, {}};
        tensor.produce = [=, source = source_] {
            return quantise(type, materialise(*source, expression, slot, position), shape.in);
        };
        model.tensors[name] = std::move(tensor);
        made_.push_back({expression, shape, name});
        return name;
    }

    std::shared_ptr<const Model> source_;
    ExecutionChooser chooser_;
    const EngineOptions& options_;
    std::vector<Made> made_;
};

}  // namespace

std::optional<Model> with_reconstructed(const Model& model, const EngineOptions& options) {
    return Reconstruction(model, options).run();
}

}  // namespace refold
