#include "compress/training/layerwise.h"

#include "compress/calibrated.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/validate.h"

namespace refold {
namespace {

using layerwise::layer_tasks;
using layerwise::LayerTask;
using nlohmann::json;
using Layers = std::vector<size_t>;

constexpr SmallShape kFour{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 24, .vocab = 24};

Model small() { return small_model(kFour, scattered_small); }

std::set<std::string> all_tensors(const Model& model) {
    std::set<std::string> out;
    for (const auto& [name, tensor] : model.tensors) out.insert(name);
    return out;
}

TEST(LayerwiseTasks, OfADenseModelAreItsLayers) {
    const Model model = small();
    const auto all = layer_tasks(model, all_tensors(model));
    ASSERT_EQ(all.size(), 4U);
    for (size_t p = 0; p < 4; ++p) {
        EXPECT_EQ(all[p].layers, Layers{p});
        EXPECT_EQ(all[p].tensors.size(), model.topology.layers[p].size());
        for (const auto& [name, frozen] : all[p].tensors) EXPECT_TRUE(frozen.empty()) << name;
    }
    const auto some = layer_tasks(model, {tensor_of(model, 2, Slot::ffn_norm), "token_embd.weight"});
    EXPECT_EQ(some[2].tensors.size(), 1U);
    EXPECT_TRUE(some[1].tensors.empty());
}

TEST(LayerwiseTasks, HeadsThatOthersUseStay) {
    const Model shared = planned(small(), {"direct_share ratio=0.4 share=qkv match=random seed=2"}).model;
    std::map<std::pair<std::string, int64_t>, std::set<size_t>> users;  // of a key head
    for (size_t p = 0; p < 4; ++p) {
        const Expression& expression = shared.topology.at(p, Slot::attn_k);
        const auto* heads = std::get_if<Heads>(&expression);
        if (heads == nullptr) {
            const std::string& name = std::get<Dense>(expression).tensor;
            for (int64_t h = 0; h < shared.tensor(name).rows() / 4; ++h) users[{name, h}].insert(p);
        } else {
            for (const HeadRef& ref : expand(*heads)) users[{ref.tensor, ref.head}].insert(p);
        }
    }
    const auto all = layer_tasks(shared, all_tensors(shared));
    size_t frozen_heads = 0;
    for (const auto& [head, layers] : users) {
        for (size_t p = 0; p < 4; ++p) {
            const auto found = all[p].tensors.find(head.first);
            bool trained = found != all[p].tensors.end();
            if (trained) {
                for (const FrozenPart& part : found->second) {
                    EXPECT_FALSE(part.columns);
                    if (part.first <= head.second * 4 && head.second * 4 < part.first + part.count)
                        trained = false;
                }
            }
            EXPECT_EQ(trained, layers == std::set<size_t>{p}) << head.first << " " << head.second << " " << p;
        }
        frozen_heads += layers.size() > 1 ? 1 : 0;
    }
    EXPECT_GT(frozen_heads, 0U);
}

TEST(LayerwiseTasks, ALoopIsTrainedTogether) {
    const Model looped = planned(small(), {"recursive loops=2 norms=keep", "lora rank=2"}).model;
    const auto all = layer_tasks(looped, all_tensors(looped));
    EXPECT_EQ(all[0].layers, (Layers{0, 2}));
    EXPECT_EQ(all[1].layers, (Layers{1, 3}));
    EXPECT_EQ(all[0].tensors.size(), 7U + 2 * (2 * 7 + 2));  // the block; LoRA and norms of both
    EXPECT_EQ(all[2].layers, Layers{2});
    EXPECT_EQ(all[2].tensors.size(), 2U * 7 + 2);
    const auto own = layer_tasks(looped, {tensor_of(looped, 3, Slot::attn_norm)});
    EXPECT_TRUE(own[1].tensors.empty());
    EXPECT_EQ(own[3].tensors.size(), 1U);
}

struct Trained {
    Model model;
    json layers;
    size_t reused;
};

// Trains `model`, which was made of `original`, layer by layer.
Trained trained(const Model& original, const Model& model, const TrainOptions& options,
                const std::string& folder = "") {
    static std::vector<std::unique_ptr<Work>> kept;  // results are mapped from it
    kept.push_back(std::make_unique<Work>(folder));
    const Calibration text = random_text(original, 16, 16);
    const Recipe recipe = recipe_from_method("refit", {});
    StepReport report;
    Step step{recipe.steps[0].options, report, kept.back().get(), original, &text, "test", 1};
    Model out = train_layerwise(model, step, options);
    validate(out);
    return {std::move(out), json::parse(report.details).at("layers"), kept.back()->reused()};
}

TrainOptions options_of(int64_t steps, double rate) {
    TrainOptions options;
    options.steps = steps;
    options.batch = 4;
    options.learning_rate = rate;
    options.final_rate = 0;
    return options;
}

std::vector<float> logits(const Model& model) {
    const auto tokens = random_tokens(20, model.config.n_vocab, 77);
    return all_logits(model, tokens, {.threads = 1, .context = 32, .f32 = true});
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i)
        squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    return std::sqrt(squares);
}

class Layerwise : public testing::Test {
    void SetUp() override {
        if (!has_torch_engine()) GTEST_SKIP();
    }
};

TEST_F(Layerwise, ComesNearerToTheOriginalAtEveryLayer) {
    const Model original = small();
    const Model shared = planned(original, {"direct_share ratio=0.4 share=qkv"}).model;
    const Trained done = trained(original, shared, options_of(60, 0.005));
    double before = 0, after = 0;
    for (const json& layer : done.layers) {
        EXPECT_LE(layer["error_after"], layer["error_before"]);
        before += layer["error_before"].get<double>();
        after += layer["error_after"].get<double>();
    }
    EXPECT_LT(after, 0.8 * before);
    EXPECT_LT(distance(logits(done.model), logits(original)), distance(logits(shared), logits(original)));
    EXPECT_EQ(done.model.topology, shared.topology);
    EXPECT_EQ(parameters(done.model), parameters(shared));
}

// A layer without error stays the same, bit for bit.
TEST_F(Layerwise, OfAnUnchangedModelChangesNothing) {
    const Model original = small();
    const Trained done = trained(original, original, options_of(10, 0.01));
    expect_identical(done.model, original);
    for (const json& layer : done.layers) EXPECT_LT(layer["error_before"], 1e-9);
}

TEST_F(Layerwise, RecoversPerturbedNorms) {
    const Model original = small();
    Model changed = original;
    const std::string norm = tensor_of(original, 2, Slot::attn_norm);
    std::vector<float> values = floats_of(original, norm);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= i % 2 == 0 ? 1.2F : 0.8F;
    changed.tensors[norm] = float_tensor({16}, values);
    TrainOptions options = options_of(200, 0.02);
    options.train = "norms";
    const Trained done = trained(original, changed, options);
    EXPECT_LT(largest_difference(floats_of(done.model, norm), floats_of(original, norm)), 0.01);
    EXPECT_LT(distance(logits(done.model), logits(original)),
              0.02 * distance(logits(changed), logits(original)));
}

TEST_F(Layerwise, ALoopStaysALoop) {
    const Model original = small();
    const Model looped = planned(original, {"recursive loops=2 norms=keep", "lora rank=2"}).model;
    const Trained done = trained(original, looped, options_of(60, 0.005));
    EXPECT_EQ(done.model.topology, looped.topology);
    EXPECT_EQ(done.layers[0]["together"], (Layers{0, 2}));
    for (const json& layer : done.layers) EXPECT_LE(layer["error_after"], layer["error_before"]);
    EXPECT_LT(done.layers[0]["error_after"], 0.9 * done.layers[0]["error_before"].get<double>());
    EXPECT_LT(distance(logits(done.model), logits(original)), distance(logits(looped), logits(original)));
    EXPECT_NE(weight(done.model, 1, Slot::ffn_up), weight(looped, 1, Slot::ffn_up));
}

TEST_F(Layerwise, SharedAttentionWithItsCompensation) {
    const Model original = small();
    const Calibration text = random_text(original, 16, 16);
    Model shared = calibrated(original, {"uniattn superblocks=1-3 compensation=lsq"}, text).model;
    const std::string& comp = tensor_of(shared, 2, Slot::attn_comp);
    shared.tensors[comp] =
        float_tensor({16, 16}, std::vector<float>(256));  // zero, so it has nothing to lose
    TrainOptions options = options_of(60, 0.002);
    options.train = "comp";
    const Trained done = trained(original, shared, options);
    ASSERT_EQ(done.layers.size(), 2U);
    for (const json& layer : done.layers) EXPECT_LE(layer["error_after"], layer["error_before"]);
    EXPECT_LT(done.layers[0]["error_after"], done.layers[0]["error_before"]);
}

TEST_F(Layerwise, FinishedLayersAreFoundAgain) {
    const Model original = small();
    const Model shared = planned(original, {"direct_share ratio=0.4 share=qkv"}).model;
    const TempFolder folder;
    const std::string work = folder / "work";
    const Trained first = trained(original, shared, options_of(5, 0.005), work);
    EXPECT_EQ(first.reused, 0U);
    // Interrupted after three layers: the fourth has no result, and none says how many of them to keep.
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(work)) files.push_back(entry.path());
    ASSERT_EQ(files.size(), 5U);
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
        return std::filesystem::last_write_time(a) < std::filesystem::last_write_time(b);
    });
    for (size_t i = 3; i < files.size(); ++i) std::filesystem::remove(files[i]);
    const Trained again = trained(original, shared, options_of(5, 0.005), work);
    EXPECT_EQ(again.reused, 3U);
    expect_identical(again.model, first.model);
    EXPECT_EQ(again.layers, first.layers);
}

TEST_F(Layerwise, QuantizedTensorsBecomeSixteenBits) {
    const SmallShape shape{
        .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 64, .vocab = 24};
    const Model original = small_model(shape, scattered_small);
    const Model quantized = quantize_model(original, {DType::Q4_0, DType::Q4_0, 1}).model;
    const Trained done = trained(original, quantized, options_of(40, 0.001));
    EXPECT_EQ(done.model.tensor("blk.1.ffn_down.weight").type, DType::F16);
    EXPECT_EQ(done.model.tensor("blk.1.ffn_norm.weight").type, DType::F32);
    EXPECT_LT(distance(logits(done.model), logits(original)), distance(logits(quantized), logits(original)));
}

TEST(LayerwiseBadInput, IsNamed) {
    const Model original = small();
    TrainOptions options = options_of(0, 0.01);
    expect_error(ErrorCode::usage, {"steps", "got 0"}, [&] { trained(original, original, options); });
    options.steps = 1;
    options.weight_decay = 0.1;
    expect_error(ErrorCode::usage, {"weight_decay"}, [&] { trained(original, original, options); });
    options.weight_decay = 0;
    options.train = "head";
    expect_error(ErrorCode::usage, {"train=head", "no tensor of a layer"},
                 [&] { trained(original, original, options); });
    const Model shorter = small_model(
        {.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 24, .vocab = 24},
        scattered_small);
    expect_error(ErrorCode::unsupported, {"3 layers", "4"}, [&] { trained(original, shorter, options); });
}

}  // namespace
}  // namespace refold
