// Random weights: models that are trained from scratch, the controls of methods that start from trained
// weights.
#include <nlohmann/json.hpp>
#include <set>

#include "compress/method/selection.h"
#include "compress/training/random_start.h"
#include "core/error.h"

namespace refold::random_init_method {
namespace {

class RandomInit {
public:
    RandomInit(const Model& model, const Step& step)
        : out_(model), type_(step.options.text("type")), gaussian_(random_start(step.options)) {}

    Model run() {
        for (size_t p = 0; p < out_.topology.layers.size(); ++p) fill(out_.topology.layers[p], p);
        fill(out_.topology.globals, kWholeModel);
        return std::move(out_);
    }
    uint64_t parameters() const { return parameters_; }

private:
    void fill(const Slots& slots, size_t layer) {
        for (const auto& [slot, expression] : slots) {
            if (properties(slot).kind == SlotKind::rope_factors) continue;
            const auto* dense = std::get_if<Dense>(&expression);
            if (dense == nullptr)
                fail(ErrorCode::unsupported, "random_init",
                     "{}{} consists of shared heads or factors, which have no random start of their own - do "
                     "this "
                     "step first",
                     layer == kWholeModel ? "" : fmt::format("layer {}: ", layer), slot_name(slot));
            if (!seen_.insert(dense->tensor).second) continue;
            Tensor& tensor = out_.tensors.at(dense->tensor);
            parameters_ += static_cast<uint64_t>(tensor.elements());
            tensor = started(slot, dense->tensor, tensor);
        }
    }

    Tensor started(Slot slot, const std::string& name, const Tensor& tensor) const {
        if (is_vector(slot)) {
            const bool gain = properties(slot).kind == SlotKind::norm_gain;
            return lazy::constant(DType::F32, tensor.shape, gain ? 1.0F : 0.0F);
        }
        const DType type = is_prefix(slot) ? DType::F32 : computed_type(type_, out_, {name});
        return lazy::random(type, tensor.shape, gaussian_, name);
    }

    Model out_;
    std::string type_;
    lazy::Gaussian gaussian_;
    std::set<std::string> seen_;
    uint64_t parameters_ = 0;
};

Model apply(const Model& model, Step& step) {
    RandomInit init(model, step);
    Model out = init.run();
    step.report.lines.push_back(fmt::format(
        "{} parameters start at random: the model knows nothing until it is trained", init.parameters()));
    step.report.details = nlohmann::json{{"parameters", init.parameters()}}.dump();
    return out;
}

std::vector<OptionSpec> option_specs() {
    std::vector<OptionSpec> specs = random_start_options();
    specs.push_back(type_option());
    return specs;
}

constexpr const char* kDocumentation = R"(
All weights become those of a model that was never trained: matrices, embeddings and output are normal numbers of deviation `std`
by `seed`, gains of norms one, biases zero. Shapes, shared tensors, loops and the tokenizer stay.

Use it for controls that train from scratch, after the step that gives a model its shape (Relaxed Recursive Transformers, section
3.2): `repeat layers=0-8` and this step is Gemma 2B's reduced-size baseline with half of its layers; `recursive` and this step is a
looped model from a random start. The paper does not print its deviation; 0.02 is the `initializer_range` of its three models.

Quantized matrices become 16 bits unless `type` says otherwise. Not for heads that are shared and for factors.
)";

}  // namespace

extern const Method method;
const Method method = {
    "random_init",
    "random weights, for baselines that are trained from scratch",
    "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA, section 3.2",
    kDocumentation + 1,
    option_specs(),
    apply,
};

}  // namespace refold::random_init_method
