// Gemma 1.
#include "model/families/common/gemma.h"

#include "core/error.h"
#include "model/activation.h"

namespace refold::gemma_family {
namespace {

constexpr const char* kName = "gemma";

ModelConfig read_config(const GgufMetadata& metadata) {
    return read_gemma_config(FamilyKeys(metadata, kName));
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_gemma_keys(config, {}, out);
    // The first files say "gelu" and mean the tanh form.
    const std::string name = config.string("hidden_act"), usual = "gelu_pytorch_tanh",
                      meant = name == "gelu" ? usual : name;
    if (name != meant) metadata.erase(kActivationKey);
    // In some versions of transformers "hidden_activation" holds where it is there.
    if (const std::string other = config.string("hidden_activation", meant);
        activation_from_name(other, "config.json") != activation_from_name(meant, "config.json"))
        fail(ErrorCode::unsupported, "config.json",
             "fields 'hidden_act' ('{}') and 'hidden_activation' ('{}') differ, and versions of transformers "
             "disagree about which holds; delete one of them",
             name, other);
}

nlohmann::json write_hf_config(const Model& model) {
    if (model.config.activation == Activation::gelu)
        fail(ErrorCode::unsupported, "export", "a configuration of 'gemma' cannot express exact GELU");
    return gemma_to_hf(model, "GemmaForCausalLM", "gemma");
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = gemma_layer_slots(false, false),
    .model_slots = gemma_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"gemma"},
    .hf_prefix = "model.",
    .hf_unread = {{"hidden_activation"}},  // it agrees with hidden_act
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = gemma_to_stock,
};

}  // namespace refold::gemma_family
