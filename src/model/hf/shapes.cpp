#include "model/hf/shapes.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "model/families/common/hf_config.h"
#include "model/hf/description.h"
#include "model/hf/layout.h"
#include "model/validate.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

DType stored_type(const HfConfig& config) {
    const std::string type = config.string("torch_dtype", config.string("dtype", "float32"));
    if (type == "float16") return DType::F16;
    if (type == "bfloat16") return DType::BF16;
    return DType::F32;
}

// Encoders come with a pooler, a masked-language-model head, or both.
struct EncoderHeads {
    bool head = false, pooler = true;
};

EncoderHeads encoder_heads(const HfConfig& config) {
    const nlohmann::json* names = config.find("architectures");
    if (names == nullptr || !names->is_array() || names->empty() || !names->front().is_string()) return {};
    const std::string name = names->front();
    if (name.ends_with("ForPreTraining")) return {true, true};
    if (name.ends_with("ForMaskedLM")) return {true, false};
    return {};
}

// Whether the checkpoint holds the tensor of a slot. Of encoders, "architectures" names the heads.
bool is_stored(const SlotDescription& slot, const HfDescription& description) {
    const HfConfig config(description.fields);
    const EncoderHeads encoder = encoder_heads(config);
    const SlotModule module = properties(slot.slot).module;
    if (!description.model.config.causal) {
        if (slot.slot == Slot::output) return !description.tied && encoder.head;
        if (slot.slot == Slot::output_bias || module == SlotModule::head) return encoder.head;
        if (is_score(slot.slot)) return scores_texts(config);
        if (module == SlotModule::pooler) return encoder.pooler;
    }
    return is_announced(slot, description);
}

Tensor shape_of(Slot slot, const ModelConfig& config, DType type, const std::string& path) {
    return {is_vector(slot) ? DType::F32 : type,
            tensor_shape(slot, config),
            {},
            [path]() -> std::vector<std::byte> {
                fail(ErrorCode::input, "model",
                     "no weights: only config.json was given ('{}') - it serves inspect and compress "
                     "--dry-run; give the whole model",
                     path);
            }};
}

}  // namespace

bool is_bare_config(const std::string& path) {
    std::error_code none;
    if (!fs::is_directory(path, none)) return fs::path(path).extension() == ".json";
    if (!fs::exists(fs::path(path) / "config.json", none)) return false;
    return std::none_of(fs::directory_iterator(path), fs::directory_iterator(), [](const auto& entry) {
        const std::string name = entry.path().filename();
        return name.ends_with(".safetensors") || name.ends_with(".index.json") || name.ends_with(".bin") ||
               name.ends_with(".gguf");
    });
}

Model load_hf_shapes(const std::string& path) {
    const bool folder = fs::is_directory(path);
    const std::string file = folder ? (fs::path(path) / "config.json").string() : path;
    try {
        HfDescription description =
            read_hf_description(file, folder ? path : fs::absolute(path).parent_path().string());
        Model& model = description.model;
        model.label = path;
        model.shapes_only = true;
        const DType type = stored_type(HfConfig(description.fields));
        const auto add = [&](const SlotDescription& slot, size_t layer) {
            if (is_of_layer(slot.slot, model.config.n_expert_of(layer) > 0) && is_stored(slot, description))
                model.tensors[tensor_name(slot, layer)] = shape_of(slot.slot, model.config, type, file);
        };
        for (size_t l = 0; l < description.layers; ++l) {
            for (const auto& slot : model.family->layer_slots)
                if (is_in_layer(*model.family, slot.slot, l, description.layers)) add(slot, l);
        }
        for (const auto& slot : model.family->model_slots) add(slot, 0);
        add_rope_factors(description);
        model.topology = described_topology(description);
        model.metadata.set("tokenizer.ggml.model", GgufValue::string("none"));
        validate(model);
        return std::move(model);
    } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{} (in '{}')", error.what(), file));
    }
}

}  // namespace refold
