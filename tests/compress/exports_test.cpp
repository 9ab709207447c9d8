// Every method and every export: what is written reads back as the model that was compressed, or is refused
// with a reason. Methods come from their registry, so a new one is tested without being named here.
#include <map>
#include <optional>

#include "compress/calibrated.h"
#include "compress/registry.h"
#include "core/code_of.h"
#include "engine/adapters.h"
#include "model/adapter/adapter.h"
#include "model/export/lora.h"
#include "model/hf/export.h"
#include "model/stock.h"

namespace refold {
namespace {

// Settings that fit these small models; other methods have their defaults.
const std::map<std::string, std::vector<std::string>> kSettings = {
    {"narrow", {"ratio=0.5", "multiple=8"}},
    {"drop", {"layers=1"}},
    {"direct_share", {"ratio=0.34"}},
    {"prune_magnitude", {"ratio=0.34", "what=both", "multiple=8"}},
    {"llm_pruner", {"multiple=8"}},
    {"gqa", {"group=2"}},
    {"seq", {"part=1"}},
    {"repeat", {"layers=0,1,0,1"}},
    {"recursive", {"loops=2"}},
    {"low_rank", {"ratio=0.5"}},
    {"tensorllm", {"ranks=8,8,2"}},
    {"lora", {"rank=2"}},
    {"llmdrop", {"count=1"}},
    {"trim_vocab", {"first=20"}},
    {"quantize", {"type=q8_0", "rounding=nearest"}},
    {"train",
     {"data=" REFOLD_FIXTURES "/tokenizers/bpe_gpt2/merges.txt", "steps=3", "batch=2", "context=16",
      "learning_rate=0.01", "held_out=0"}},
    {"refine", {"block_steps=1", "end_steps=1", "batch=2"}},
};
// These need libtorch, and a step before them.
const std::map<std::string, std::string> kTrain = {{"train", "lora rank=2"},
                                                   {"refine", "narrow ratio=0.5 multiple=8"}};

class Exports : public testing::TestWithParam<std::string> {
protected:
    // The model with this method, or nothing where the method refuses it.
    std::optional<Model> applied(const Model& model, const Method& method, Work& work) {
        std::vector<std::string> steps = {method.name};
        if (const auto found = kSettings.find(method.name); found != kSettings.end())
            for (const std::string& setting : found->second) steps[0] += " " + setting;
        if (const auto found = kTrain.find(method.name); found != kTrain.end())
            steps.insert(steps.begin(), found->second);
        const auto bytes = [n = model.config.n_vocab](std::string_view text) {
            std::vector<int32_t> tokens;
            for (const char c : text)
                tokens.push_back(static_cast<int32_t>(static_cast<unsigned char>(c) % n));
            return tokens;
        };
        const Training training{[&] { return TrainTokenizer{"bytes", bytes, {}, {}, {}, bytes}; }, run_ / "",
                                ""};
        try {
            const Calibration text = random_text(model, 4, 24);
            return compress(model, recipe_of(steps), "test", work, {&text, 1, &training}).model;
        } catch (const Error& error) {
            EXPECT_TRUE(error.code() == ErrorCode::usage || error.code() == ErrorCode::unsupported)
                << method.name << ": " << error.what();
            return std::nullopt;
        }
    }

    // Runs an export that writes what read() gives back, unless it is refused with a reason.
    template <typename Write, typename Read>
    void expect_same(const std::vector<float>& expected, double tolerance, const Write& write,
                     const Read& read) {
        try {
            write();
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
            return;
        }
        ++written_;
        EXPECT_LE(scaled_difference(outputs_of(read()), expected), tolerance);
    }

    void expect_exports(const Model& model, const std::vector<float>& expected) {
        const TempFolder folder;
        const std::string hf = folder / "hf", gguf = folder / "gguf.gguf", native = folder / "native.gguf";
        {
            SCOPED_TRACE("native");
            expect_same(
                expected, 1e-5, [&] { save_model(model, native, false); },
                [&] { return load_model(native); });
        }
        {
            SCOPED_TRACE("hf");
            expect_same(
                expected, 1e-3, [&] { save_hf_model(model, hf, {.type = DType::F32}); },
                [&] { return load_model(hf); });
        }
        {
            SCOPED_TRACE("gguf");
            expect_same(
                expected, 1e-2, [&] { save_model(for_stock(model).model, gguf, false); },
                [&] { return load_model(gguf); });
        }
        if (has_lora(model)) expect_adapters(model, folder, expected);
    }

    // What the adapter adds to the model without its LoRA is the LoRA.
    void expect_adapters(const Model& model, const TempFolder& folder, const std::vector<float>& expected) {
        const Model base = without_lora(model);
        for (const char* name : {"peft", "lora.gguf"}) {
            SCOPED_TRACE(name);
            const std::string path = folder / name;
            try {
                const AdapterExport done = path.ends_with(".gguf") ? save_lora_gguf(model, path, false)
                                                                   : save_peft(model, path, false);
                const Adapter adapter = load_adapter(path, base);
                EXPECT_EQ(adapter.terms.size(), done.matrices);
                EXPECT_LE(scaled_difference(outputs_of(with_adapter(base, adapter)), expected), 1e-5);
                ++adapters_;
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
            }
        }
    }

    TempFolder run_;  // of training
    size_t written_ = 0, adapters_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Families, Exports,
                         testing::Values("llama_gqa", "gemma2", "gpt2_hub", "gpt_neox", "mixtral",
                                         "qwen3_moe", "bert_encoder"),
                         [](const auto& test) { return test.param; });

TEST_P(Exports, ReadBackAsTheModelOrAreRefused) {
    const Model source = fixture_model(GetParam());
    size_t methods_applied = 0;
    for (const Method* method : methods()) {
        if (kTrain.contains(method->name) && !has_torch_engine()) continue;
        SCOPED_TRACE(method->name);
        Work work;
        const auto model = applied(source, *method, work);
        if (!model) continue;
        ++methods_applied;
        const std::vector<float> expected = outputs_of(*model);
        {
            SCOPED_TRACE("of a checkpoint");
            expect_exports(*model, expected);
        }
        SCOPED_TRACE("of a GGUF file");
        Model of_gguf = *model;
        for (const auto& [key, value] : model->metadata.entries())
            if (key.starts_with("refold.checkpoint")) of_gguf.metadata.erase(key);
        of_gguf.label = "model.gguf";
        expect_exports(of_gguf, expected);
    }
    EXPECT_GE(methods_applied, 8U);
    EXPECT_GE(written_, 3 * methods_applied);
    if (GetParam() == "llama_gqa") {
        EXPECT_GE(adapters_, 8U);
    }
}

// All layers of one new size: config.json says it, under the name that the family has for it.
TEST(NarrowedExports, HaveTheirSizeInTheConfiguration) {
    for (const auto& [name, field] : {std::pair{"mistral", "intermediate_size"}, {"gpt2_hub", "n_inner"}}) {
        SCOPED_TRACE(name);
        const Model source = fixture_model(name);
        Work work;
        const Calibration text = random_text(source, 4, 24);
        Model model =
            compress(source, recipe_of({"narrow ratio=0.5 multiple=8 bias=no"}), "test", work, {&text, 1})
                .model;
        const std::vector<float> expected = outputs_of(model);
        for (const bool of_checkpoint : {true, false}) {
            if (!of_checkpoint) {
                model.metadata.erase("refold.checkpoint");
                model.label = "model.gguf";
            }
            const TempFolder folder;
            save_hf_model(model, folder / "out", {});
            const auto config = nlohmann::json::parse(read_all(folder / "out/config.json"));
            EXPECT_EQ(config[field], source.config.n_ff / 2);
            EXPECT_LE(scaled_difference(outputs_of(load_model(folder / "out")), expected), 1e-4);
        }
    }
}

// transformers reads biases only where config.json announces them, for all maps of a module.
TEST(SolvedBiases, AreAnnouncedOrRefused) {
    for (const char* name : {"llama_gqa", "mistral"}) {
        SCOPED_TRACE(name);
        Model model = fixture_model(name);
        model.tensors["blk.0.ffn_down.bias"] = float_tensor(
            {model.config.n_embd}, std::vector<float>(static_cast<size_t>(model.config.n_embd), 0.5F));
        model.topology.layers[0][Slot::ffn_down_bias] = Dense{"blk.0.ffn_down.bias"};
        const TempFolder folder;
        const auto write = [&] { save_hf_model(model, folder / "out", {}); };
        if (std::string(name) == "mistral") {
            EXPECT_EQ(code_of(write, "layer 0 has biases, which a checkpoint of model_type 'mistral'"),
                      ErrorCode::unsupported);
            EXPECT_TRUE(folder.files().empty());
            continue;
        }
        write();
        const auto config = nlohmann::json::parse(read_all(folder / "out/config.json"));
        EXPECT_EQ(config["mlp_bias"], true);
        const Model back = load_model(folder / "out");
        for (size_t l = 0; l < back.topology.layers.size(); ++l)
            for (const Slot slot : {Slot::ffn_gate_bias, Slot::ffn_up_bias, Slot::ffn_down_bias})
                EXPECT_TRUE(back.topology.has(l, slot)) << l;
        EXPECT_LE(scaled_difference(outputs_of(back), outputs_of(model)), 1e-4);
    }
}

}  // namespace
}  // namespace refold
