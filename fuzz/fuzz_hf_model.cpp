// Fuzzes Hugging Face directories: for any config.json, model.safetensors and index, load_model() and reading
// every tensor succeed or throw refold::Error - no crash, no sanitizer report, no other exception.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bundle.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/model.h"
#include "safetensors_input.h"
#include "scratch.h"
#include "target.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNames[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};

// A model of one layer, in the checkpoint layout of GPT-2 or Llama.
std::string built_in(bool gpt2) {
    const std::vector<float> zeros(4096, 0.25F);
    std::vector<refold::SafetensorsTensor> tensors;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
        size_t count = 1;
        for (const int64_t n : shape) count *= static_cast<size_t>(n);
        tensors.push_back({name, std::move(shape), std::span(zeros).first(count)});
    };
    json config;
    if (gpt2) {
        config = {{"model_type", "gpt2"}, {"n_embd", 8},       {"n_layer", 1},
                  {"n_head", 2},          {"n_positions", 16}, {"vocab_size", 12}};
        add("wte.weight", {12, 8});
        add("wpe.weight", {16, 8});
        for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
            add(std::string(norm) + ".weight", {8});
            add(std::string(norm) + ".bias", {8});
        }
        add("h.0.attn.c_attn.weight", {8, 24});
        add("h.0.attn.c_attn.bias", {24});
        add("h.0.attn.c_proj.weight", {8, 8});
        add("h.0.attn.c_proj.bias", {8});
        add("h.0.mlp.c_fc.weight", {8, 32});
        add("h.0.mlp.c_fc.bias", {32});
        add("h.0.mlp.c_proj.weight", {32, 8});
        add("h.0.mlp.c_proj.bias", {8});
    } else {
        config = {{"model_type", "gemma3_text"},
                  {"hidden_size", 8},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 2},
                  {"num_key_value_heads", 1},
                  {"head_dim", 4},
                  {"intermediate_size", 16},
                  {"max_position_embeddings", 16},
                  {"sliding_window", 4},
                  {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                  {"vocab_size", 12}};
        add("model.embed_tokens.weight", {12, 8});
        add("model.norm.weight", {8});
        for (const char* norm : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                 "post_feedforward_layernorm"})
            add(std::string("model.layers.0.") + norm + ".weight", {8});
        for (const char* norm : {"q_norm", "k_norm"})
            add(std::string("model.layers.0.self_attn.") + norm + ".weight", {4});
        add("model.layers.0.self_attn.q_proj.weight", {8, 8});
        add("model.layers.0.self_attn.k_proj.weight", {4, 8});
        add("model.layers.0.self_attn.v_proj.weight", {4, 8});
        add("model.layers.0.self_attn.o_proj.weight", {8, 8});
        for (const char* name : {"gate_proj", "up_proj"})
            add(std::string("model.layers.0.mlp.") + name + ".weight", {16, 8});
        add("model.layers.0.mlp.down_proj.weight", {8, 16});
    }
    json map;
    for (const auto& tensor : tensors) map[tensor.name] = "model.safetensors";
    const std::string path = refold::scratch() / "seed.safetensors";
    refold::write_safetensors(path, true, tensors);
    refold::Bundle files = {{"config.json", config.dump()},
                            {"model.safetensors", refold::safetensors_input(refold::read_bytes(path))}};
    if (!gpt2) files["model.safetensors.index.json"] = json{{"weight_map", map}}.dump();
    return refold::bundled(files);
}

constexpr std::string_view kWords[] = {"llama",   "gpt_neox", "gptj",   "gpt2", "baichuan", "bert",
                                       "roberta", "qwen2",    "gemma2", "BF16", "F16",      "I64",
                                       "F8_E4M3", "dynamic",  "llama3", "relu"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    const fs::path folder = scratch() / "model";
    fs::create_directories(folder);
    Bundle files = unbundled(input);
    files["model.safetensors"] = safetensors_bytes(files["model.safetensors"]);
    for (const char* name : kNames) {
        if (files.contains(name)) {
            write_bytes(folder / name, files[name]);
        } else {
            fs::remove(folder / name);
        }
    }
    return reads([&] {
        const Model model = load_model(folder);
        for (const auto& [name, tensor] : model.tensors) {
            const TensorBytes bytes(tensor);
            if (bytes.bytes().size() != tensor.bytes()) abort();
            for (const std::byte b : bytes.bytes()) use(static_cast<size_t>(b));
        }
    });
}

std::vector<std::string> refold::fuzz_seeds() { return {built_in(false), built_in(true)}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
