// Models with rows that are no whole blocks of their type: rounding, files, the engine, export, what is
// refused.
#include "model/folded.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/stock.h"
#include "model/validate.h"

namespace refold {
namespace {

// Rows of 64 and 96 numbers: four and eight of them lie together.
const SmallShape kShape{
    .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 96, .vocab = 48};

Model random_model() { return small_model(kShape, scattered_small); }

Compression compressed(const std::vector<std::string>& steps, const std::optional<Model>& given = {}) {
    static std::vector<std::unique_ptr<Work>> kept;
    kept.push_back(std::make_unique<Work>());
    static const Calibration text = random_text(random_model(), 32, 32);
    return compress(given.value_or(random_model()), recipe_of(steps), "test", *kept.back(), {&text, 1});
}

std::vector<float> logits(const Model& model, bool f32, size_t tokens = 30) {
    return all_logits(model, random_tokens(tokens, model.config.n_vocab, 77),
                      {.threads = 2, .context = 64, .f32 = f32});
}

double distance(const std::vector<float>& x, const std::vector<float>& y) {
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i)
        squares += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    return std::sqrt(squares);
}

TEST(Folded, TheMethodQuantizeGivesTypesOfLargeBlocks) {
    for (const std::string type : {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"}) {
        SCOPED_TRACE(type);
        const Compression out = compressed({"quantize embedding=" + type + " type=" + type});
        uint64_t elements = 0, bytes = 0;
        for (const auto& [name, tensor] : out.model.tensors) {
            if (!name.ends_with(".weight") || name.find("norm") != std::string::npos) continue;
            EXPECT_EQ(refold::name(tensor.type), refold::name(quantization_type(type))) << name;
            EXPECT_GT(tensor.fold(), 1) << name;
            elements += static_cast<uint64_t>(tensor.elements());
            bytes += tensor.bytes();
        }
        const DType used = quantization_type(type);
        EXPECT_EQ(bytes, elements / static_cast<uint64_t>(block_elements(used)) * block_bytes(used));
    }
}

TEST(Folded, FeedbackErrsLessThanNearest) {
    const auto wanted = logits(random_model(), true);
    const double nearest =
        distance(logits(compressed({"quantize type=q3_k rounding=nearest"}).model, true), wanted);
    EXPECT_LT(distance(logits(compressed({"quantize type=q3_k resolve=no"}).model, true), wanted),
              0.9 * nearest);
}

// In float32 the engine unpacks all weights; otherwise it multiplies them as they are, a table by rows.
TEST(Folded, TheEngineMultipliesAndTheFileKeepsThem) {
    const TempFolder folder;
    for (const std::string type : {"q3_k", "q6_k", "iq4_xs"}) {
        SCOPED_TRACE(type);
        const Model model =
            compressed({"quantize rounding=nearest embedding=" + type + " type=" + type}).model;
        for (const size_t tokens : {1, 30}) {
            const auto wanted = logits(model, true, tokens);
            EXPECT_LT(scaled_difference(logits(model, false, tokens), wanted), 0.05) << tokens;
        }
        save_model(model, folder / "m.gguf", true);
        const Model again = load_model(folder / "m.gguf");
        for (const auto& [name, tensor] : model.tensors)
            EXPECT_EQ(again.tensor(name).shape, tensor.shape) << name;
        EXPECT_EQ(logits(again, false), logits(model, false));
        save_model(again, folder / "n.gguf", true);
        EXPECT_EQ(std::filesystem::file_size(folder / "n.gguf"),
                  std::filesystem::file_size(folder / "m.gguf"));
    }
}

TEST(Folded, StockLlamaCppGetsLargerTypes) {
    const Model model = compressed({"quantize rounding=nearest embedding=q3_k type=q3_k"}).model;
    const StockModel stock = for_stock(model);
    EXPECT_NE(stock.note.find("larger types"), std::string::npos) << stock.note;
    for (const auto& [name, tensor] : stock.model.tensors) EXPECT_EQ(tensor.fold(), 1) << name;
    for (const auto& [name, tensor] : model.tensors) {
        const auto given = floats_of(model, name), got = floats_of(stock.model, name);
        double errors = 0, squares = 0;
        for (size_t i = 0; i < given.size(); ++i) {
            errors += std::pow(static_cast<double>(given[i]) - static_cast<double>(got[i]), 2);
            squares += std::pow(static_cast<double>(given[i]), 2);
        }
        EXPECT_LT(errors, 0.02 * squares) << name;
    }
}

TEST(Folded, NoMethodChangesThem) {
    const Model model = compressed({"quantize rounding=nearest type=q3_k"}).model;
    EXPECT_EQ(code_of([&] { compressed({"llmdrop count=1"}, model); }), ErrorCode::unsupported);
    EXPECT_EQ(code_of([&] {
                  compressed({"quantize rounding=nearest type=q3_k", "llmdrop count=1"});
              }),
              ErrorCode::unsupported);
}

TEST(Folded, FilesThatLie) {
    const TempFolder folder;
    const Model model = compressed({"quantize rounding=nearest type=q3_k"}).model;
    std::map<std::string, Tensor> tensors = model.tensors;
    for (auto& [name, tensor] : tensors) tensor.shape = folded_shape(tensor);
    const std::string name = "blk.0.attn_q.weight";
    const auto code = [&](const std::string& text) {
        std::map<std::string, Tensor> copy = tensors;
        return code_of([&] { unfold_shapes(text, copy); });
    };
    std::map<std::string, Tensor> whole = tensors;
    unfold_shapes("{\"" + name + "\": 64}", whole);
    EXPECT_EQ(whole.at(name).shape, model.tensor(name).shape);
    for (const std::string& lie :
         {std::string("["), std::string("[]"), "{\"" + name + "\": 48}", "{\"" + name + "\": 0}",
          "{\"" + name + "\": -64}", "{\"" + name + "\": \"64\"}",
          "{\"" + name + "\": " + std::string(100000, '[') + std::string(100000, ']') + "}",
          std::string("{\"other\": 64}"), std::string("{\"blk.0.attn_norm.weight\": 64}")})
        EXPECT_EQ(code(lie), ErrorCode::input) << lie;
    // What could be folded like this, but is no matrix of the model.
    for (const int64_t elements : {32, 256}) {
        Model other = model;
        other.tensors = tensors;
        unfold_shapes("{\"" + name + "\": " + std::to_string(elements) + "}", other.tensors);
        EXPECT_EQ(code_of([&] { validate(other); }), ErrorCode::input) << elements;
    }
}

}  // namespace
}  // namespace refold
