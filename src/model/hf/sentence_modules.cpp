#include "model/hf/sentence_modules.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_text.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "io/dtype.h"
#include "io/safetensors.h"
#include "io/torch_file.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json read_json(const fs::path& file) {
    return parse_json(read_stored_text(file.string()), "embedding", "'" + file.string() + "'");
}

// The fields of a JSON object, all of which have to be understood.
class Fields {
public:
    explicit Fields(const fs::path& file) : file_(file.string()), json_(read_json(file)) {
        if (!json_.is_object()) fail(ErrorCode::input, "embedding", "'{}' is no JSON object", file_);
    }

    template <typename T>
    T get(const std::string& name, T fallback) {
        known_.insert(name);
        const auto it = json_.find(name);
        if (it == json_.end() || it->is_null()) return fallback;
        try {
            return it->get<T>();
        } catch (const json::exception&) {
            fail(ErrorCode::input, "embedding", "'{}': {} is {}, which is of the wrong type", file_, name,
                 it->dump());
        }
    }
    int64_t size(const std::string& name, int64_t fallback) {
        const json value = get<json>(name, fallback);
        if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<int32_t>::max())
            fail(ErrorCode::input, "embedding", "'{}': {} is {}, expected a size", file_, name, value.dump());
        return value.get<int64_t>();
    }
    [[noreturn]] void unknown(const std::string& name) const {
        fail(ErrorCode::unsupported, "embedding", "'{}': {} {} is not known", file_, name,
             json_.at(name).dump());
    }
    void finish() const {
        for (const auto& [name, value] : json_.items()) {
            if (!known_.contains(name) && !value.is_null()) unknown(name);
        }
    }
    const std::string& file() const { return file_; }

private:
    std::string file_;
    json json_;
    std::set<std::string> known_;
};

std::vector<RowPooling> read_pooling(const fs::path& file, size_t width) {
    Fields fields(file);
    std::vector<RowPooling> out;
    // In the order in which the module puts the vectors one after another.
    for (const auto& [field, pooling] : {std::pair{"pooling_mode_cls_token", RowPooling::cls},
                                         {"pooling_mode_max_tokens", RowPooling::max},
                                         {"pooling_mode_mean_tokens", RowPooling::mean},
                                         {"pooling_mode_mean_sqrt_len_tokens", RowPooling::mean_sqrt},
                                         {"pooling_mode_weightedmean_tokens", RowPooling::weighted_mean},
                                         {"pooling_mode_lasttoken", RowPooling::last}}) {
        if (fields.get(field, false)) out.push_back(pooling);
    }
    // In place of the flags since version 6: a name, or several of them.
    const json modes = fields.get<json>("pooling_mode", json::array());
    for (const json& mode : modes.is_array() ? modes : json::array({modes})) {
        const auto pooling = mode.is_string() ? pooling_from_name(mode.get<std::string>()) : std::nullopt;
        if (!pooling) fields.unknown("pooling_mode");
        out.push_back(*pooling);
    }
    if (!fields.get("include_prompt", true)) fields.unknown("include_prompt");
    const int64_t named = fields.size("word_embedding_dimension", static_cast<int64_t>(width)),
                  other = fields.size("embedding_dimension", named);
    fields.finish();
    if (other != static_cast<int64_t>(width)) {
        fail(ErrorCode::input, "embedding",
             "'{}' is for vectors of {} elements, but those of the model have {}", fields.file(), other,
             width);
    }
    if (out.empty()) out = {RowPooling::mean};  // the module's default
    return out;
}

std::vector<float> floats_of_tensor(const SafetensorsFile& file, const std::string& name,
                                    const std::vector<int64_t>& shape, const fs::path& label) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end() || found->second.shape != shape) {
        fail(ErrorCode::input, "embedding", "'{}' has no tensor '{}' of shape [{}]", label.string(), name,
             fmt::join(shape, ", "));
    }
    const SafetensorsView& view = found->second;
    for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
        if (view.dtype != refold::name(type)) continue;
        size_t count = 1;
        for (const int64_t n : shape) count *= static_cast<size_t>(n);
        std::vector<float> out(count);
        dequantize(type, view.data, out);
        return out;
    }
    fail(ErrorCode::unsupported, "embedding", "'{}': the tensor '{}' of type {} is not known", label.string(),
         name, view.dtype);
}

// Modules pass several values on; ours change the vector of a text.
void expect_vectors(Fields& fields) {
    for (const char* field : {"module_input_name", "module_output_name"}) {
        if (fields.get<std::string>(field, "sentence_embedding") != "sentence_embedding")
            fields.unknown(field);
    }
}

void read_normalize(const fs::path& file) {
    if (!fs::exists(file)) return;
    Fields fields(file);
    expect_vectors(fields);
    fields.finish();
}

DenseModule read_dense(const fs::path& folder, size_t width) {
    Fields fields(folder / "config.json");
    DenseModule out;
    out.in = static_cast<size_t>(fields.size("in_features", 0));
    out.out = static_cast<size_t>(fields.size("out_features", 0));
    const bool bias = fields.get("bias", true);
    // "torch.nn.modules.activation.Tanh"
    std::string activation = fields.get<std::string>("activation_function", "Tanh");
    activation.erase(0, activation.rfind('.') + 1);
    std::ranges::transform(activation, activation.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto known = dense_activation_from_name(activation);
    if (!known) fields.unknown("activation_function");
    out.activation = *known;
    expect_vectors(fields);
    fields.finish();
    if (out.in != width || out.out == 0) {
        fail(ErrorCode::input, "embedding", "'{}' makes {} of {} elements, but gets vectors of {}",
             fields.file(), out.out, out.in, width);
    }
    const bool safe = fs::exists(folder / "model.safetensors");
    const fs::path weights = folder / (safe ? "model.safetensors" : "pytorch_model.bin");
    const SafetensorsFile file =
        safe ? read_safetensors(weights.string()) : read_torch_file(weights.string());
    const auto in = static_cast<int64_t>(out.in), rows = static_cast<int64_t>(out.out);
    out.weight = floats_of_tensor(file, "linear.weight", {rows, in}, weights);
    if (bias) out.bias = floats_of_tensor(file, "linear.bias", {rows}, weights);
    return out;
}

// Of the module that runs the encoder.
void read_encoder_module(const fs::path& folder, EmbeddingConfig& out) {
    for (const char* name : {"sentence_bert_config.json", "sentence_roberta_config.json",
                             "sentence_distilbert_config.json", "sentence_camembert_config.json",
                             "sentence_albert_config.json", "sentence_xlm-roberta_config.json"}) {
        if (!fs::exists(folder / name)) continue;
        Fields fields(folder / name);
        out.max_tokens = fields.size("max_seq_length", 0);
        out.lower_case = fields.get("do_lower_case", false);
        const json text{{"text", {{"method", "forward"}, {"method_output_name", "last_hidden_state"}}}};
        for (const auto& [field, known] : {std::pair{"transformer_task", json("feature-extraction")},
                                           {"modality_config", text},
                                           {"module_output_name", json("token_embeddings")}}) {
            if (fields.get<json>(field, known) != known) fields.unknown(field);
        }
        fields.finish();
        break;
    }
    if (out.max_tokens > 0 || !fs::exists(folder / "tokenizer_config.json")) return;
    const json tokenizer = read_json(folder / "tokenizer_config.json");
    const json longest = tokenizer.is_object() ? tokenizer.value("model_max_length", json()) : json();
    // A huge number stands for none.
    if (longest.is_number_unsigned() && longest < std::numeric_limits<int32_t>::max())
        out.max_tokens = longest;
}

void read_prompt(const fs::path& file, EmbeddingConfig& out) {
    if (!fs::exists(file)) return;
    const json config = read_json(file);
    const json name = config.is_object() ? config.value("default_prompt_name", json()) : json();
    if (!name.is_string()) return;
    const json prompts = config.value("prompts", json::object());
    if (!prompts.is_object() || !prompts.value(name.get<std::string>(), json()).is_string())
        fail(ErrorCode::input, "embedding", "'{}' has no prompt {}", file.string(), name.dump());
    out.prompt = prompts.at(name.get<std::string>()).get<std::string>();
}

}  // namespace

std::optional<EmbeddingConfig> read_sentence_modules(const fs::path& folder, int64_t n_embd) {
    const fs::path file = folder / "modules.json";
    if (!fs::exists(file)) return std::nullopt;
    const json modules = read_json(file);
    EmbeddingConfig out;
    size_t width = static_cast<size_t>(n_embd), index = 0;
    const auto wrong = [&](const char* what) {
        fail(ErrorCode::input, "embedding", "'{}': {} (module {})", file.string(), what, index);
    };
    if (!modules.is_array() || modules.empty()) wrong("expected a list of modules");
    for (const json& module : modules) {
        const json type = module.is_object() ? module.value("type", json()) : json(),
                   path = module.is_object() ? module.value("path", json()) : json();
        if (!type.is_string() || !path.is_string()) wrong("a module has no type or path");
        const std::string whole = type.get<std::string>(), kind = whole.substr(whole.rfind('.') + 1);
        const fs::path part = folder / path.get<std::string>();
        const bool own = whole.starts_with("sentence_transformers.");
        if (own && kind == "Transformer" && index == 0) {
            if (!fs::equivalent(part, folder)) wrong("the encoder lies in a folder of its own");
            read_encoder_module(part, out);
        } else if (own && kind == "Pooling" && index == 1) {
            out.pooling = read_pooling(part / "config.json", width);
            width *= out.pooling.size();
        } else if (own && kind == "Dense" && index > 1) {
            out.steps.push_back({read_dense(part, width)});
            width = out.steps.back().dense->out;
        } else if (own && kind == "Normalize" && index > 1) {
            read_normalize(part / "config.json");
            out.steps.push_back({});
        } else {
            fail(ErrorCode::unsupported, "embedding", "'{}': the module {} at place {} is not known",
                 file.string(), whole, index);
        }
        ++index;
    }
    if (out.pooling.empty()) wrong("there is no module that pools");
    read_prompt(folder / "config_sentence_transformers.json", out);
    return out;
}

}  // namespace refold
