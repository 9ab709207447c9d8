#include "model/embedding_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_text.h"
#include "vocab/gguf_arrays.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr const char* kKey = "refold.embedding";
constexpr std::array<std::pair<RowPooling, const char*>, 6> kPoolings{
    {{RowPooling::cls, "cls"},
     {RowPooling::max, "max"},
     {RowPooling::mean, "mean"},
     {RowPooling::mean_sqrt, "mean_sqrt_len_tokens"},
     {RowPooling::weighted_mean, "weightedmean"},
     {RowPooling::last, "lasttoken"}}};
constexpr std::array<std::pair<DenseActivation, const char*>, 5> kDenseActivations{
    {{DenseActivation::identity, "identity"},
     {DenseActivation::tanh, "tanh"},
     {DenseActivation::relu, "relu"},
     {DenseActivation::gelu, "gelu"},
     {DenseActivation::sigmoid, "sigmoid"}}};
// llama.cpp's values of "pooling_type".
constexpr std::array<std::pair<RowPooling, uint32_t>, 3> kLlamaPoolings{
    {{RowPooling::mean, 1}, {RowPooling::cls, 2}, {RowPooling::last, 3}}};

template <typename Table, typename Key>
auto second_of(const Table& table, Key key) {
    const auto found = std::ranges::find_if(table, [&](const auto& entry) { return entry.first == key; });
    return found == table.end() ? std::nullopt : std::optional(found->second);
}

template <typename Table>
auto first_of(const Table& table, const std::string& name) {
    const auto found = std::ranges::find_if(table, [&](const auto& entry) { return entry.second == name; });
    return found == table.end() ? std::nullopt : std::optional(found->first);
}

std::string dense_key(size_t step, const char* part) {
    return std::string(kKey) + ".dense." + std::to_string(step) + "." + part;
}

DenseModule read_dense(const json& description, size_t step, const GgufMetadata& metadata) {
    DenseModule out;
    const auto activation = dense_activation_from_name(description.at("activation").get<std::string>());
    out.weight = floats_of(metadata, dense_key(step, "weight"));
    out.bias = floats_of(metadata, dense_key(step, "bias"));
    out.in = description.at("in").get<size_t>();
    out.out = description.at("out").get<size_t>();
    const bool fits = out.in > 0 && out.weight.size() % out.in == 0 &&
                      out.weight.size() / out.in == out.out &&
                      (out.bias.empty() || out.bias.size() == out.out);
    if (!fits || !activation)
        fail(ErrorCode::input, "embedding", "key '{}' is malformed", dense_key(step, "weight"));
    out.activation = *activation;
    return out;
}

EmbeddingConfig parse(const json& description, const GgufMetadata& metadata) {
    EmbeddingConfig out;
    for (const auto& name : description.at("pooling")) {
        const auto pooling = pooling_from_name(name.get<std::string>());
        if (!pooling)
            fail(ErrorCode::input, "embedding", "key '{}': the pooling {} is not known", kKey, name.dump());
        out.pooling.push_back(*pooling);
    }
    for (const auto& step : description.at("steps")) {
        const bool normalize = step.at("type").get<std::string>() == "normalize";
        out.steps.push_back(
            {normalize ? std::nullopt : std::optional(read_dense(step, out.steps.size(), metadata))});
    }
    out.max_tokens = description.at("max_tokens").get<int64_t>();
    out.lower_case = description.at("lower_case").get<bool>();
    out.prompt = description.at("prompt").get<std::string>();
    return out;
}

double activated(DenseActivation activation, double x) {
    switch (activation) {
        case DenseActivation::identity: return x;
        case DenseActivation::tanh: return std::tanh(x);
        case DenseActivation::relu: return std::max(x, 0.0);
        case DenseActivation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case DenseActivation::sigmoid: return 1 / (1 + std::exp(-x));
    }
    return x;
}

}  // namespace

const char* pooling_name(RowPooling pooling) { return *second_of(kPoolings, pooling); }
std::optional<RowPooling> pooling_from_name(const std::string& name) { return first_of(kPoolings, name); }
const char* dense_activation_name(DenseActivation activation) {
    return *second_of(kDenseActivations, activation);
}
std::optional<DenseActivation> dense_activation_from_name(const std::string& name) {
    return first_of(kDenseActivations, name);
}

std::vector<double> DenseModule::operator()(std::span<const double> x) const {
    std::vector<double> y(out);
    for (size_t row = 0; row < out; ++row) {
        double sum = bias.empty() ? 0 : double{bias[row]};
        for (size_t i = 0; i < in; ++i) sum += double{weight[row * in + i]} * x[i];
        y[row] = activated(activation, sum);
    }
    return y;
}

std::vector<double> pooled(RowPooling how, std::span<const float> rows, size_t width) {
    const size_t count = rows.size() / width;
    const auto row = [&](size_t t) { return rows.subspan(t * width, width); };
    const auto copy = [](std::span<const float> values) {
        return std::vector<double>(values.begin(), values.end());
    };
    if (how == RowPooling::cls) return copy(row(0));
    if (how == RowPooling::last) return copy(row(count - 1));
    std::vector<double> out(width, how == RowPooling::max ? -INFINITY : 0);
    double weights = 0;
    for (size_t t = 0; t < count; ++t) {
        const double weight = how == RowPooling::weighted_mean ? static_cast<double>(t + 1) : 1;
        weights += weight;
        for (size_t i = 0; i < width; ++i) {
            const double value = double{row(t)[i]};
            out[i] = how == RowPooling::max ? std::max(out[i], value) : out[i] + weight * value;
        }
    }
    if (how == RowPooling::max) return out;
    const double divisor = how == RowPooling::mean_sqrt ? std::sqrt(weights) : weights;
    for (double& value : out) value /= divisor;
    return out;
}

void scale_to_length_1(std::vector<double>& x) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    if (squares == 0) return;
    for (double& value : x) value /= std::sqrt(squares);
}

void set_embedding_config(const EmbeddingConfig& config, const std::string& architecture,
                          GgufMetadata& metadata) {
    json pooling = json::array(), steps = json::array();
    for (const RowPooling how : config.pooling) pooling.push_back(pooling_name(how));
    for (size_t i = 0; i < config.steps.size(); ++i) {
        const auto& dense = config.steps[i].dense;
        if (!dense) {
            steps.push_back({{"type", "normalize"}});
            continue;
        }
        steps.push_back({{"type", "dense"},
                         {"in", dense->in},
                         {"out", dense->out},
                         {"activation", dense_activation_name(dense->activation)}});
        metadata.set(dense_key(i, "weight"), float_array(dense->weight));
        if (!dense->bias.empty()) metadata.set(dense_key(i, "bias"), float_array(dense->bias));
    }
    const json description{{"pooling", pooling},
                           {"steps", steps},
                           {"max_tokens", config.max_tokens},
                           {"lower_case", config.lower_case},
                           {"prompt", config.prompt}};
    metadata.set(kKey, GgufValue::string(description.dump()));
    const auto known =
        config.pooling.size() == 1 ? second_of(kLlamaPoolings, config.pooling.front()) : std::nullopt;
    if (known) metadata.set(architecture + ".pooling_type", GgufValue::u32(*known));
}

std::optional<EmbeddingConfig> embedding_config(const GgufMetadata& metadata) {
    if (metadata.has(kEmbeddingReasonKey))
        throw Error(ErrorCode::unsupported, metadata.string(kEmbeddingReasonKey));
    if (metadata.has(kKey)) {
        try {
            return parse(parse_json(metadata.string(kKey), "embedding", fmt::format("key '{}'", kKey)),
                         metadata);
        } catch (const json::exception& error) {
            fail(ErrorCode::input, "embedding", "key '{}' is malformed: {}", kKey, error.what());
        }
    }
    const std::string key = metadata.string("general.architecture", "") + ".pooling_type";
    if (!metadata.has(key)) return std::nullopt;
    for (const auto& [pooling, value] : kLlamaPoolings) {
        if (metadata.integer(key) == value) return EmbeddingConfig{.pooling = {pooling}, .steps = {{}}};
    }
    return std::nullopt;
}

}  // namespace refold
