// A Llama of any size with random weights, for settings that the tiny models are too small for.
#pragma once

#include <string>

#include "cli/tiny_model.h"
#include "core/temp_folder.h"
#include "engine/synthetic_models.h"
#include "model/load.h"
#include "model/save.h"
#include "vocab/hf_vocab.h"

namespace refold {

// The tiny model's config.json with other values, its vocabulary and tokenizer.
inline void write_random_model(const std::string& path, const nlohmann::json& values) {
    const TempFolder folder;
    auto config = nlohmann::json::parse(read_all(kFixtures + "/hf/llama_gqa/config.json"));
    config.erase("rope_scaling");
    config["max_position_embeddings"] = 4096;
    config.update(values);
    write_all(folder / "config.json", config.dump());
    Model model = load_model(folder / "");
    RandomWeights random(1);
    for (auto& [name, tensor] : model.tensors) {
        const bool norm = name.find("norm") != std::string::npos;
        const int64_t rows = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
        tensor = random.tensor({tensor.shape[0], rows}, norm ? 1.0F : 0.0F, 0.1F);
    }
    model.shapes_only = false;
    read_hf_vocabulary(kFixtures + "/tokenizers/bpe_llama3", model.config.n_vocab, model.metadata);
    save_model(model, path, false);
}

}  // namespace refold
