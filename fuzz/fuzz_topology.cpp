// Fuzzes what files say of a model: for any text under "refold.topology", "refold.sizes" and "refold.folded",
// parsing and validate() give a model whose weights can all be computed, or throw refold::Error - no crash,
// no sanitizer report, no other exception.
//     refold_fuzz_topology [--iterations N] [--seed N]
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/expression_models.h"
#include "fuzzing.h"
#include "model/accounting.h"
#include "model/folded.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/sizes.h"
#include "model/validate.h"

namespace {

using refold::Error;
using refold::Model;

struct Texts {
    std::string topology, sizes, folded;
};

// With `fold`, folds the matrices whose uses allow it, and leaves them as files store them.
Texts texts_of(Model& model, bool fold) {
    constexpr refold::DType kType = refold::DType::Q4_K;
    for (const auto& [name, use] : refold::quantized_uses(model)) {
        if (fold && use.matrix && !use.embedding && fits(kType, use, refold::RowLayout::or_folded))
            model.tensors[name] = nearest_tensor(model, name, kType);
    }
    Texts out{refold::topology_to_json(model.topology, model.implied()), refold::sizes_to_json(model.config),
              refold::folded_to_json(model.tensors)};
    for (auto& [name, tensor] : model.tensors) tensor.shape = refold::folded_shape(tensor);
    return out;
}

volatile float g_sink = 0;

void compute_all(const Model& model, const refold::Slots& slots, size_t layer) {
    for (const auto& [slot, expression] : slots) {
        const auto values = refold::materialize(model, expression, slot, layer);
        const refold::SlotShape shape = refold::slot_shape(slot, model.config, layer);
        if (static_cast<int64_t>(values.size()) != shape.in * shape.out) abort();
        for (const float value : values) g_sink = g_sink + value;
    }
}

// Makes a model from the tensors of `source` and these texts. False if they are refused.
bool run_one(const Model& source, const Texts& texts) {
    Model model = source;
    model.config.heads_kv.clear();
    model.config.ffs.clear();
    model.config.n_prefix = 0;
    try {
        if (!texts.folded.empty()) refold::unfold_shapes(texts.folded, model.tensors);
        const refold::Topology implied = source.implied();
        model.topology = refold::topology_from_json(texts.topology, implied);
        const size_t layers = model.topology.layers.size();
        if (layers > 64) return false;  // too slow, no matter what they are
        if (!texts.sizes.empty()) refold::sizes_from_json(texts.sizes, layers, model.config);
        refold::validate(model);
        for (size_t p = 0; p < layers; ++p) compute_all(model, model.topology.layers[p], p);
        compute_all(model, model.topology.globals, refold::kWholeModel);
        const refold::Accounting accounting = refold::account(model);
        if (accounting.model.bytes == 0) abort();
        const std::string again = refold::topology_to_json(model.topology, implied);
        if (refold::topology_from_json(again, implied) != model.topology) abort();
        return true;
    } catch (const Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
}

class Mutator {
public:
    explicit Mutator(uint64_t number) : random_(number) {}

    size_t below(size_t n) { return static_cast<size_t>(random_() % n); }

    Texts next(const Texts& seed, const Texts& other) {
        Texts out = seed;
        for (size_t i = 0, count = 1 + below(8) / 6; i < count; ++i) {
            if (below(4) == 0 && !out.sizes.empty()) {
                change(out.sizes);
            } else if (below(8) == 0 && !out.folded.empty()) {
                change(out.folded);
            } else {
                change(out.topology);
            }
        }
        if (below(16) == 0) out.sizes = other.sizes;
        if (below(32) == 0) out.folded = other.folded;
        return out;
    }

private:
    // Changes a number, a string, a bracketed piece or a bit.
    void change(std::string& text) {
        static const char* const numbers[] = {"0",
                                              "1",
                                              "2",
                                              "3",
                                              "5",
                                              "-1",
                                              "0.5",
                                              "1e400",
                                              "1099511627776",
                                              "4294967296",
                                              "9223372036854775807",
                                              "18446744073709551615",
                                              "18446744073709551616",
                                              "null",
                                              "true",
                                              "[]",
                                              "{}",
                                              "\"x\""};
        static const char* const words[] = {"heads",
                                            "low_rank",
                                            "tucker",
                                            "plus",
                                            "like",
                                            "core",
                                            "model",
                                            "head",
                                            "roles",
                                            "role",
                                            "u",
                                            "v",
                                            "scale",
                                            "row",
                                            "halves",
                                            "loops",
                                            "attn.q",
                                            "attn.k",
                                            "attn.o",
                                            "attn.norm",
                                            "ffn.up",
                                            "ffn.down",
                                            "output",
                                            "prefix",
                                            "kv_heads",
                                            "transposed",
                                            "attn.prefix_k",
                                            "token_embd",
                                            "attention",
                                            "probabilities",
                                            "kv",
                                            "attn.v",
                                            "attn.comp",
                                            "attn.comp_ffn",
                                            "attn.comp_o",
                                            "attn.comp_v",
                                            "rows",
                                            "parts",
                                            "ids"};
        switch (below(4)) {
            case 0: return replace(text, isdigit_at, numbers[below(std::size(numbers))]);
            case 1: return replace_string(text, words[below(std::size(words))]);
            case 2: return swap_strings(text);
            default:
                if (!text.empty()) text[below(text.size())] ^= static_cast<char>(1 << below(7));
        }
    }

    static bool isdigit_at(const std::string& text, size_t i) {
        return isdigit(static_cast<unsigned char>(text[i])) != 0;
    }

    // Replaces a run of characters that `matches`.
    template <typename Matches>
    void replace(std::string& text, Matches&& matches, const char* by) {
        std::vector<size_t> starts;
        for (size_t i = 0; i < text.size(); ++i)
            if (matches(text, i) && (i == 0 || !matches(text, i - 1))) starts.push_back(i);
        if (starts.empty()) return;
        const size_t from = starts[below(starts.size())];
        size_t to = from;
        while (to < text.size() && matches(text, to)) ++to;
        text.replace(from, to - from, by);
    }

    struct Range {
        size_t from, length;
    };
    // The ranges between the quotes of each string.
    static std::vector<Range> strings_of(const std::string& text) {
        std::vector<Range> out;
        for (size_t i = text.find('"'); i != std::string::npos; i = text.find('"', i + 1)) {
            const size_t end = text.find('"', i + 1);
            if (end == std::string::npos) break;
            out.push_back({i + 1, end - i - 1});
            i = end;
        }
        return out;
    }
    void replace_string(std::string& text, const char* by) {
        const auto strings = strings_of(text);
        if (strings.empty()) return;
        const Range at = strings[below(strings.size())];
        text.replace(at.from, at.length, by);
    }
    // Replaces one string by another: tensors in other slots, slots with other names.
    void swap_strings(std::string& text) {
        const auto strings = strings_of(text);
        if (strings.empty()) return;
        const Range from = strings[below(strings.size())];
        const std::string by = text.substr(from.from, from.length);
        replace_string(text, by.c_str());
    }

    std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 6000);
    constexpr refold::ExpressionShape kSmall{
        .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 12, .vocab = 40};
    uint64_t accepted = 0;
    Texts current;
    try {
        std::vector<Model> models;
        std::vector<Texts> seeds;
        size_t folded = 0;
        for (uint32_t seed = 1; seed <= 24; ++seed) {
            models.push_back(refold::random_expression_model(
                seed, {.sizes = true, .prefix = seed % 2 == 0, .sources = true}, kSmall));
            seeds.push_back(current = texts_of(models.back(), seed % 4 == 0));
            folded += current.folded.empty() ? 0 : 1;
            if (!run_one(models.back(), current)) {
                fprintf(stderr, "refold_fuzz_topology: a seed is refused: %s\n", current.topology.c_str());
                return 1;
            }
        }
        if (folded == 0) {
            fprintf(stderr, "refold_fuzz_topology: no seed has folded matrices\n");
            return 1;
        }
        Mutator mutator(arguments.seed);
        for (uint64_t i = 0; i < arguments.iterations; ++i) {
            const size_t seed = mutator.below(seeds.size());
            current = mutator.next(seeds[seed], seeds[mutator.below(seeds.size())]);
            accepted += run_one(models[seed], current);
        }
    } catch (const std::exception& error) {
        fprintf(stderr,
                "refold_fuzz_topology: not allowed to escape: %s\ntopology: %s\nsizes: %s\nfolded: %s\n",
                error.what(), current.topology.c_str(), current.sizes.c_str(), current.folded.c_str());
        return 1;
    }
    printf("refold_fuzz_topology: %llu inputs, %llu accepted, the others refused with a clear error\n",
           static_cast<unsigned long long>(arguments.iterations), static_cast<unsigned long long>(accepted));
    return 0;
}
