// Fuzzes Hugging Face directories: for any config.json, model.safetensors and index, load_model() and reading
// every tensor succeed or throw refold::Error - no crash, no sanitizer report, no other exception.
//     refold_fuzz_hf_model [--iterations N] [--seed N]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "fuzzing.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/model.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using refold::Error;

struct Checkpoint {
    std::string config, tensors, index;  // empty: no index
};

std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A model of one layer, in the checkpoint layout of GPT-2 or Llama.
Checkpoint built_in(const fs::path& folder, bool gpt2) {
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
    const std::string path = folder / "seed.safetensors";
    refold::write_safetensors(path, true, tensors);
    Checkpoint out{config.dump(), read(path), gpt2 ? "" : json{{"weight_map", map}}.dump()};
    fs::remove(path);
    return out;
}

volatile unsigned g_sink = 0;

bool run_one(const fs::path& folder, const Checkpoint& checkpoint) {
    write(folder / "config.json", checkpoint.config);
    write(folder / "model.safetensors", checkpoint.tensors);
    if (checkpoint.index.empty()) {
        fs::remove(folder / "model.safetensors.index.json");
    } else {
        write(folder / "model.safetensors.index.json", checkpoint.index);
    }
    try {
        const refold::Model model = refold::load_model(folder);
        for (const auto& [name, tensor] : model.tensors) {
            const refold::TensorBytes bytes(tensor);
            if (bytes.bytes().size() != tensor.bytes()) abort();
            for (const std::byte b : bytes.bytes()) g_sink = g_sink + static_cast<unsigned>(b);
        }
        return true;
    } catch (const Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
}

class Mutator {
public:
    Mutator(std::vector<Checkpoint> seeds, uint64_t number) : seeds_(std::move(seeds)), random_(number) {}

    Checkpoint next() {
        Checkpoint out = seeds_[below(seeds_.size())];
        for (size_t i = 0, count = 1 + below(3); i < count; ++i) {
            const size_t which = below(6);
            if (which == 0)
                change_text(out.index);
            else if (which < 3)
                change_text(out.config);
            else
                change_tensors(out.tensors);
        }
        return out;
    }

private:
    size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }

    void flip(std::string& bytes) {
        if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
    }

    // Changes a number, a word or a bit of a JSON text.
    void change_text(std::string& text) {
        static const char* const numbers[] = {"0",
                                              "-1",
                                              "1e400",
                                              "1073741824",
                                              "4294967296",
                                              "9223372036854775807",
                                              "18446744073709551616",
                                              "0.5",
                                              "null",
                                              "\"x\"",
                                              "[]",
                                              "{}",
                                              "3",
                                              "64"};
        static const char* const words[] = {"llama",   "gpt_neox", "gptj",   "gpt2", "baichuan", "bert",
                                            "roberta", "qwen2",    "gemma2", "BF16", "F16",      "I64",
                                            "F8_E4M3", "dynamic",  "llama3", "relu"};
        const auto places = [&](auto&& matches) {
            std::vector<size_t> found;
            for (size_t i = 0; i < text.size(); ++i) {
                if (matches(i)) found.push_back(i);
            }
            return found;
        };
        if (below(3) == 0) {
            const auto quotes = places([&](size_t i) { return text[i] == '"'; });
            if (quotes.size() < 2) return flip(text);
            const size_t at = below(quotes.size() - 1);
            text.replace(quotes[at] + 1, quotes[at + 1] - quotes[at] - 1, words[below(std::size(words))]);
        } else if (below(4) == 0) {
            flip(text);
        } else {
            const auto digits = places([&](size_t i) {
                return isdigit(static_cast<unsigned char>(text[i])) != 0 &&
                       (i == 0 || isdigit(static_cast<unsigned char>(text[i - 1])) == 0);
            });
            if (digits.empty()) return flip(text);
            const size_t from = digits[below(digits.size())];
            size_t to = from;
            while (to < text.size() && isdigit(static_cast<unsigned char>(text[to])) != 0) ++to;
            text.replace(from, to - from, numbers[below(std::size(numbers))]);
        }
    }

    void change_tensors(std::string& bytes) {
        uint64_t length = 0;
        if (bytes.size() < 8) return flip(bytes);
        memcpy(&length, bytes.data(), 8);
        switch (below(5)) {
            case 0: bytes.resize(below(bytes.size())); return;
            case 1: {
                const uint64_t lies[] = {0,
                                         1,
                                         length + 1,
                                         length - 1,
                                         bytes.size(),
                                         bytes.size() - 8,
                                         ~uint64_t{0},
                                         uint64_t{1} << 63,
                                         uint64_t{1} << below(64)};
                length = lies[below(std::size(lies))];
                memcpy(bytes.data(), &length, 8);
                return;
            }
            case 2: flip(bytes); return;
            default: {
                if (length > bytes.size() - 8) return flip(bytes);
                std::string header = bytes.substr(8, length);
                change_text(header);
                const uint64_t size = header.size();
                bytes =
                    std::string(reinterpret_cast<const char*>(&size), 8) + header + bytes.substr(8 + length);
            }
        }
    }

    std::vector<Checkpoint> seeds_;
    std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 3000);
    const fs::path folder = fs::temp_directory_path() / ("refold-fuzz-hf-" + std::to_string(getpid()));
    fs::create_directories(folder);
    uint64_t accepted = 0;
    int result = 0;
    try {
        const std::vector<Checkpoint> seeds = {built_in(folder, false), built_in(folder, true)};
        for (const Checkpoint& seed : seeds) {
            if (!run_one(folder, seed)) {
                fprintf(stderr, "refold_fuzz_hf_model: a built-in checkpoint is refused\n");
                result = 1;
            }
        }
        Mutator mutator(seeds, arguments.seed);
        for (uint64_t i = 0; i < arguments.iterations && result == 0; ++i)
            accepted += run_one(folder, mutator.next());
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_hf_model: not allowed to escape: %s (input kept in %s)\n", error.what(),
                folder.c_str());
        return 1;
    }
    fs::remove_all(folder);
    printf("refold_fuzz_hf_model: %llu inputs, %llu accepted, the others refused with a clear error\n",
           static_cast<unsigned long long>(arguments.iterations), static_cast<unsigned long long>(accepted));
    return result;
}
