// Gemma 3n (text): Gemma 3 with several residual streams (AltUp), LAuReL, inputs of layers, FFNs with sparse
// gates, and keys and values that the last layers take from earlier ones. Norms multiply by the weight
// itself.
#include <cmath>
#include <limits>
#include <numbers>

#include "core/error.h"
#include "model/families/common/gemma.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::gemma3n_family {
namespace {

constexpr const char* kName = "gemma3n";
constexpr int64_t kPeriod = 5;  // of layers without a window
constexpr const char* kCutsKey = "activation_sparsity_scale";
// Not llama.cpp's: it knows these sizes by heart.
constexpr const char *kLaurelKey = "laurel_rank", *kInputVocabKey = "vocab_size_per_layer_input";

// What llama.cpp computes, whatever the file says.
constexpr int64_t kStockStreams = 4, kStockLaurel = 64, kStockInput = 256;
constexpr size_t kStockOwnKv = 20, kStockCutLayers = 10;
constexpr double kUsualSparsity = 0.95;
constexpr float kUsualCap = 30.0F, kNoCut = -std::numeric_limits<float>::infinity();

double normal_below(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// The x below which a normal number is with probability p, by Newton's method.
float normal_quantile(double p) {
    if (p <= 0) return kNoCut;
    double x = 0;
    for (int i = 0; i < 100; ++i) {
        const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
        const double step = (normal_below(x) - p) / density;
        x -= step;
        if (std::abs(step) < 1e-12) break;
    }
    return static_cast<float>(x);
}

std::vector<float> usual_cuts(size_t layers) {
    std::vector<float> cuts(layers, kNoCut);
    std::fill_n(cuts.begin(), std::min(layers, kStockCutLayers), normal_quantile(kUsualSparsity));
    return cuts;
}

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_gemma_config(keys);
    c.attention_scale = 1.0F;
    c.norm_values = true;
    c.logit_softcap = keys.at_least_zero("final_logit_softcapping", kUsualCap);
    c.windows = read_windows(keys, kPeriod);
    c.local_rope = Rope{.kind = c.rope.kind,
                        .dims = c.rope.dims,
                        .base = keys.positive("rope.freq_base_swa", 10000.0),
                        .original_context = c.rope.original_context};
    const int64_t layers = keys.size("block_count");
    c.n_stream = keys.size("altup.num_inputs", kStockStreams);
    constexpr int64_t kMostStreams = 64;
    if (c.n_stream < 2 || c.n_stream > kMostStreams)
        fail(ErrorCode::unsupported, kName, "key '{}' must be 2 to {}, got {}", keys.name("altup.num_inputs"),
             kMostStreams, c.n_stream);
    if (const uint64_t active = metadata.integer(keys.name("altup.active_idx"), 0); active != 0)
        fail(ErrorCode::unsupported, kName, "key '{}' must be 0, got {}", keys.name("altup.active_idx"),
             active);
    c.n_laurel = keys.size(kLaurelKey, kStockLaurel);
    c.n_layer_input = keys.size("embedding_length_per_layer_input", kStockInput);
    c.n_input_layer = layers;
    if (keys.has(kInputVocabKey)) c.n_layer_input_vocab = keys.size(kInputVocabKey);
    const auto usual =
        static_cast<uint64_t>(std::max<int64_t>(0, layers - static_cast<int64_t>(kStockOwnKv)));
    const std::string name = keys.name("attention.shared_kv_layers");
    const uint64_t shared = metadata.integer(name, usual);
    if (shared >= static_cast<uint64_t>(layers))
        fail(ErrorCode::input, kName, "key '{}' must be less than the {} layers, got {}", name, layers,
             shared);
    if (shared > 0) c.first_kv_shared = static_cast<size_t>(layers) - shared;
    c.ffn_cuts = keys.reals(kCutsKey).value_or(usual_cuts(static_cast<size_t>(layers)));
    for (const float cut : c.ffn_cuts) {
        if (!std::isfinite(cut) && cut != kNoCut)
            fail(ErrorCode::input, kName, "key '{}' has {}", keys.name(kCutsKey), cut);
    }
    return c;
}

std::vector<float> cuts_of(const HfConfig& config) {
    const auto layers = static_cast<size_t>(config.integer("num_hidden_layers"));
    constexpr const char* kField = "activation_sparsity_pattern";
    const nlohmann::json* given = config.find(kField);
    if (given == nullptr)
        return layers > kStockCutLayers ? usual_cuts(layers) : std::vector<float>(layers, kNoCut);
    if (given->is_array() && given->size() != layers)
        fail(ErrorCode::input, "config.json", "field '{}' must have one entry for each of {} layers", kField,
             layers);
    std::vector<float> cuts;
    for (size_t l = 0; l < layers; ++l) {
        const nlohmann::json& part = given->is_array() ? (*given)[l] : *given;
        if (!part.is_number() || !(part.get<double>() >= 0) || !(part.get<double>() < 1))
            fail(ErrorCode::input, "config.json", "field '{}' must have numbers from 0 to below 1, got {}",
                 kField, part.dump());
        cuts.push_back(normal_quantile(part.get<double>()));
    }
    return cuts;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    HfFields fields = kGemmaFields;
    fields.inner_of_layers = true;
    write_gemma_keys(config, fields, out);
    out.real("rope.freq_base_swa", config.real("rope_local_base_freq"));
    write_soft_cap(config, "final_logit_softcapping", out);
    write_windows(config.integer("sliding_window"),
                  layers_with_window(config, [](size_t l) { return (l + 1) % kPeriod != 0; }), out);
    if (!config.boolean("altup_correct_scale", true))
        fail(ErrorCode::unsupported, "config.json", "field 'altup_correct_scale' (false) is not supported");
    out.integer("altup.num_inputs", config.integer("altup_num_inputs"));
    out.integer("altup.active_idx", config.integer("altup_active_idx"));
    out.integer(kLaurelKey, config.integer("laurel_rank"));
    out.integer("embedding_length_per_layer_input", config.integer("hidden_size_per_layer_input"));
    const int64_t vocabulary = config.integer("vocab_size_per_layer_input");
    if (vocabulary != config.integer("vocab_size")) out.integer(kInputVocabKey, vocabulary);
    out.integer("attention.shared_kv_layers", config.integer("num_kv_shared_layers"));
    out.reals(kCutsKey, cuts_of(config));
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    nlohmann::json out = gemma_to_hf(model, "Gemma3nForCausalLM", "gemma3n_text");
    out["final_logit_softcapping"] = c.logit_softcap > 0 ? nlohmann::json(c.logit_softcap) : nlohmann::json();
    out["rope_local_base_freq"] = c.local_rope->base;
    const size_t layers = model.topology.layers.size();
    windows_to_hf(model, out);
    out["altup_num_inputs"] = c.n_stream;
    out["altup_active_idx"] = 0;
    out["altup_correct_scale"] = true;
    out["laurel_rank"] = c.n_laurel;
    out["hidden_size_per_layer_input"] = c.n_layer_input;
    out["vocab_size_per_layer_input"] =
        c.n_layer_input_vocab > 0 ? std::min(c.n_layer_input_vocab, c.n_vocab) : c.n_vocab;
    out["num_kv_shared_layers"] = c.first_kv_shared > 0 ? layers - c.first_kv_shared : 0;
    nlohmann::json& pattern = out["activation_sparsity_pattern"] = nlohmann::json::array();
    // 0.95 rather than 0.9500000029.
    for (const float cut : c.ffn_cuts) pattern.push_back(std::round(normal_below(cut) * 1e6) / 1e6);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = gemma_layer_slots(true, true);
    for (SlotDescription& slot : slots) slot.layout &= ~static_cast<unsigned>(hf_plus_one);
    const std::vector<SlotDescription> own = {
        {Slot::stream_router_norm, "blk.{}.altup_router_norm.weight", true,
         "@layers.{}.altup.router_norm.weight"},
        {Slot::stream_router, "blk.{}.altup_router.weight", true, "@layers.{}.altup.modality_router.weight"},
        {Slot::stream_predict, "blk.{}.altup_predict_coef.weight", true,
         "@layers.{}.altup.prediction_coefs.weight"},
        {Slot::stream_correct, "blk.{}.altup_correct_coef.weight", true,
         "@layers.{}.altup.correction_coefs.weight"},
        {Slot::layer_input_scale, "blk.{}.altup_correct_scale.weight", true,
         "@layers.{}.altup.correct_output_scale"},
        {Slot::laurel_down, "blk.{}.laurel_l.weight", true, "@layers.{}.laurel.linear_left.weight"},
        {Slot::laurel_up, "blk.{}.laurel_r.weight", true, "@layers.{}.laurel.linear_right.weight"},
        {Slot::laurel_norm, "blk.{}.laurel_post_norm.weight", true,
         "@layers.{}.laurel.post_laurel_norm.weight"},
        {Slot::layer_input_gate, "blk.{}.inp_gate.weight", true, "@layers.{}.per_layer_input_gate.weight"},
        {Slot::layer_input_up, "blk.{}.proj.weight", true, "@layers.{}.per_layer_projection.weight"},
        {Slot::layer_input_post_norm, "blk.{}.post_norm.weight", true,
         "@layers.{}.post_per_layer_input_norm.weight"}};
    slots.insert(slots.end(), own.begin(), own.end());
    return slots;
}

std::vector<SlotDescription> model_slots() {
    std::vector<SlotDescription> slots = gemma_model_slots();
    for (SlotDescription& slot : slots) slot.layout &= ~static_cast<unsigned>(hf_plus_one);
    const std::vector<SlotDescription> own = {
        {Slot::streams_in, "altup_proj.weight", true, "@altup_projections.[].weight"},
        {Slot::streams_out, "altup_unembd_proj.weight", true, "@altup_unembed_projections.[].weight"},
        {Slot::layer_input_embd, "per_layer_token_embd.weight", true, "@embed_tokens_per_layer.weight",
         hf_first_rows},
        // transformers 4.57 replaces "model" in the middle of the name too when it writes.
        {Slot::layer_input_map, "per_layer_model_proj.weight", true,
         "@per_layer_model_projection.weight|@per_layer_model.language_model_projection.weight"},
        {Slot::layer_input_norm, "per_layer_proj_norm.weight", true, "@per_layer_projection_norm.weight"}};
    slots.insert(slots.end(), own.begin(), own.end());
    return slots;
}

StockModel to_stock(const Model& model) {
    const ModelConfig& c = model.config;
    const auto layers = static_cast<int64_t>(model.topology.layers.size());
    refuse_rotation_in_stock(model, false);
    refuse_in_stock(model, {Slot::attn_o_bias});  // of Q, K and V it reads them
    const auto need = [&](bool same, const std::string& what) {
        if (!same) fail_stock(model, what);
    };
    need(c.n_stream == kStockStreams, fmt::format("the {} residual streams", c.n_stream));
    need(c.n_laurel == kStockLaurel, fmt::format("LAuReL's rank {}", c.n_laurel));
    need(c.n_layer_input == kStockInput, fmt::format("inputs of layers of {} features", c.n_layer_input));
    need(c.first_kv_shared == kStockOwnKv,
         fmt::format("which of the {} layers have own keys and values", layers));
    need(c.logit_softcap == kUsualCap, "the soft cap of logits");
    need(c.activation == Activation::gelu_tanh, "the activation");
    const std::vector<float> usual = usual_cuts(model.topology.layers.size());
    for (size_t l = 0; l < usual.size(); ++l)
        need(c.cuts_ffn(l) == std::isfinite(usual[l]) &&
                 (!c.cuts_ffn(l) || std::abs(c.ffn_cuts[l] - usual[l]) < 1e-3F),
             "the sparsity of FFNs");
    StockModel out{model,
                   "llama.cpp takes the deviation of gates over n - 1 channels: its logits differ slightly"};
    // It reads keys and values of all layers.
    for (size_t l = c.first_kv_shared; l < usual.size(); ++l) {
        for (const Slot slot : {Slot::attn_k, Slot::attn_v, Slot::attn_k_norm}) {
            Tensor& tensor = out.model.tensors[tensor_name(*model.family, slot, l)];
            const std::vector<int64_t> shape = tensor_shape(slot, c, l);
            if (tensor.shape == shape) continue;
            const size_t bytes =
                row_bytes(DType::F32, shape[0]) * static_cast<size_t>(shape.size() > 1 ? shape[1] : 1);
            tensor = {DType::F32, shape, {}, [bytes] { return std::vector<std::byte>(bytes); }};
        }
    }
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = model_slots(),
    .read_config = read_config,
    .hf_model_types = {"gemma3n_text"},
    .hf_prefix = "model.language_model.|model.",
    // In training, transformers keeps coefficients below altup_coef_clip.
    .hf_unread = {{"altup_coef_clip"}, {"hidden_act"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold::gemma3n_family
