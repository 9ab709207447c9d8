// llama.cpp's adapters.
#include <map>

#include "core/error.h"
#include "io/gguf_parts.h"
#include "model/adapter/modules.h"

namespace refold {
namespace {

std::vector<float> floats(const GgufTensor& tensor) {
    std::vector<float> out(1);
    for (const int64_t size : tensor.shape) out.resize(out.size() * static_cast<size_t>(size));
    dequantize(tensor.type, tensor.data, out);
    return out;
}

}  // namespace

Adapter load_lora_gguf(const std::string& path, const Model& model) {
    const auto file = GgufFile::open(path);
    check_whole(*file, path);
    const GgufMetadata& metadata = file->metadata();
    const auto refuse = [&](const std::string& what) {
        fail(ErrorCode::unsupported, "adapter", "{}: {}", path, what);
    };
    if (metadata.string("general.type", "") != "adapter")
        fail(ErrorCode::input, "adapter", "{}: this GGUF file is no adapter (general.type)", path);
    if (const auto type = metadata.string("adapter.type", ""); type != "lora")
        refuse(fmt::format("an adapter of type '{}' is not supported", type));
    if (metadata.has("adapter.alora.invocation_tokens")) refuse("activated LoRA is not supported");
    const std::string family = metadata.string("general.architecture", "");
    if (family != model.family->name)
        fail(ErrorCode::input, "adapter", "{}: the adapter is for a model of '{}', this one is '{}'", path,
             family, model.family->name);
    const double alpha = metadata.real("adapter.lora.alpha", 0);
    struct Pair {
        const GgufTensor *a = nullptr, *b = nullptr;
    };
    std::map<std::string, Pair> modules;
    for (const GgufTensor& tensor : file->tensors()) {
        const bool is_a = tensor.name.ends_with(".lora_a");
        if (!is_a && !tensor.name.ends_with(".lora_b"))
            refuse(fmt::format("the tensor '{}' is no LoRA", tensor.name));
        Pair& pair = modules[tensor.name.substr(0, tensor.name.rfind('.'))];
        (is_a ? pair.a : pair.b) = &tensor;
    }
    const AdaptedModules known = gguf_modules(model);
    Adapter adapter{path, {}};
    for (const auto& [name, pair] : modules) {
        if (pair.a == nullptr || pair.b == nullptr || pair.a->shape.size() != 2 ||
            pair.b->shape.size() != 2 || pair.a->shape[1] != pair.b->shape[0])
            fail(ErrorCode::input, "adapter", "{}: '{}' has no two factors that fit each other", path, name);
        AdapterFactors factors{name, pair.a->shape[0], pair.b->shape[1], {}};
        factors.term.rank = pair.a->shape[1];
        factors.term.type = is_float(pair.a->type) ? pair.a->type : DType::F32;
        factors.term.scale =
            alpha == 0 ? 1.0F : static_cast<float>(alpha / static_cast<double>(factors.term.rank));
        factors.term.a = floats(*pair.a);
        factors.term.b = floats(*pair.b);
        add_factors(adapter, model, known, factors);
    }
    return adapter;
}

}  // namespace refold
