#include "model/hf/export.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/progress.h"
#include "io/safetensors.h"
#include "model/hf/checkpoint.h"
#include "model/hf/layout.h"
#include "vocab/hf_vocab.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::array kCarriedFiles = {
    "tokenizer.json",   "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model",  "vocab.json",            "merges.txt",              "vocab.txt",
    "chat_template.jinja", "chat_template.json", "generation_config.json",
};

bool is_float(DType type) { return block_elements(type) == 1; }

std::optional<DType> type_from_name(const std::string& dtype) {
    for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
        if (dtype == name(type)) return type;
    }
    return std::nullopt;
}

const char* torch_name(DType type) {
    return type == DType::F16 ? "float16" : type == DType::BF16 ? "bfloat16" : "float32";
}

// One slot's weight inside a checkpoint tensor.
struct Part {
    SlotDescription slot;
    std::string tensor;  // GGUF name
};

struct HfTensor {
    std::string name;
    std::vector<Part> parts;  // Q, K and V where the checkpoint has them as one
    DType type = DType::F32;
    std::vector<int64_t> shape;
    uint64_t bytes() const {
        uint64_t count = 1;
        for (const int64_t n : shape) count *= static_cast<uint64_t>(n);
        return count * block_bytes(type);
    }
};

class HfWriter {
public:
    HfWriter(const Model& model, const HfExportOptions& options)
        : model_(std::make_shared<const Model>(model.has_sharing() ? without_sharing(model) : model)),
          options_(options),
          record_(checkpoint_record(model.metadata)) {
        const Tensor& embedding = model_->tensor(dense_name(model_->topology.globals, Slot::token_embd));
        main_type_ = options.type ? *options.type : is_float(embedding.type) ? embedding.type : DType::F32;
        for (size_t p = 0; p < model_->topology.positions.size(); ++p)
            add(model_->family->position_slots, model_->topology.positions[p], p);
        add(model_->family->model_slots, model_->topology.globals, 0);
    }

    HfExport write(const std::string& folder) {
        const json config = make_config();  // before anything is written: it may not be expressible
        AtomicFolder out(folder, options_.overwrite);
        write_file(out.path() + "/config.json", config.dump(2) + "\n");
        const HfExport result = write_tensors(out.path());
        write_tokenizer(out.path());
        out.commit();
        return result;
    }

private:
    static std::string dense_name(const Slots& slots, Slot slot) { return std::get<Dense>(slots.at(slot)).tensor; }

    void add(const std::vector<SlotDescription>& descriptions, const Slots& slots, size_t position) {
        for (const auto& slot : descriptions) {
            if (!slots.contains(slot.slot) || slot.hf == nullptr) continue;
            const std::string source = dense_name(slots, slot.slot);
            // Tied embeddings are stored once.
            if (slot.slot == Slot::output && source == dense_name(slots, Slot::token_embd)) continue;
            const std::string name = checkpoint_name(slot, position);
            if (tensors_.empty() || tensors_.back().name != name) {
                const bool fused = (slot.layout & (hf_qkv_blocks | hf_qkv_per_head)) != 0;
                auto known = std::find_if(tensors_.begin(), tensors_.end(),
                                          [&](const HfTensor& tensor) { return fused && tensor.name == name; });
                if (known != tensors_.end()) {
                    known->parts.push_back({slot, source});
                    continue;
                }
                tensors_.push_back({name, {}, output_type(slot, name, source), hf_shape(slot, model_->config)});
            }
            tensors_.back().parts.push_back({slot, source});
        }
    }

    // The name that the source used, else the usual one.
    std::string checkpoint_name(const SlotDescription& slot, size_t position) const {
        const auto names = hf_names(slot.hf, model_->family->hf_prefix, position);
        for (const auto& name : names) {
            if (record_.types.contains(name)) return name;
        }
        return names.front();
    }

    DType output_type(const SlotDescription& slot, const std::string& name, const std::string& source) const {
        if (options_.type) return *options_.type;
        const Tensor& tensor = model_->tensor(source);
        if (!is_vector(slot.slot)) return is_float(tensor.type) ? tensor.type : DType::F32;
        const auto recorded = record_.types.find(name);
        const auto wanted = recorded == record_.types.end() ? std::nullopt : type_from_name(recorded->second);
        if (wanted) return *wanted;
        return main_type_;
    }

    static std::vector<std::byte> produce(const Model& model, const HfTensor& tensor) {
        std::vector<std::byte> out(tensor.bytes());
        const size_t element = block_bytes(tensor.type);
        for (const Part& part : tensor.parts) {
            const SlotRows size = slot_rows(part.slot.slot, model.config);
            const bool transposed = (part.slot.layout & hf_transposed) != 0;
            const std::vector<std::byte> rows = converted(model, part, tensor.type);
            const size_t width = static_cast<size_t>(size.width) * element;
            for (int64_t row = 0; row < size.rows; ++row) {
                const auto to = static_cast<size_t>(hf_row(part.slot, model.config, row));
                const std::byte* from = rows.data() + static_cast<size_t>(row) * width;
                if (!transposed) {
                    memcpy(out.data() + to * width, from, width);
                    continue;
                }
                const auto columns = static_cast<size_t>(tensor.shape.back());
                for (size_t c = 0; c < static_cast<size_t>(size.width); ++c)
                    memcpy(out.data() + (c * columns + to) * element, from + c * element, element);
            }
        }
        return out;
    }

    // A slot's weight in the type wanted.
    static std::vector<std::byte> converted(const Model& model, const Part& part, DType type) {
        const Tensor& tensor = model.tensor(part.tensor);
        const TensorBytes bytes(tensor);
        const bool plus_one = (part.slot.layout & hf_plus_one) != 0;
        std::vector<std::byte> out;
        if (tensor.type == type && !plus_one) {
            out.assign(bytes.bytes().begin(), bytes.bytes().end());
        } else {
            std::vector<float> values(static_cast<size_t>(tensor.elements()));
            dequantise(tensor.type, bytes.bytes(), values);
            if (plus_one) {
                if (auto raw = raw_vector(model, part.tensor, values, type)) return *raw;
                for (float& value : values) value -= 1.0F;
            }
            out = quantise(type, values, static_cast<int64_t>(values.size()));
        }
        if (model.source) model.source->release(tensor.mapped);
        return out;
    }

    // The bytes the checkpoint had, if the weight is still what they give.
    static std::optional<std::vector<std::byte>> raw_vector(const Model& model, const std::string& tensor,
                                                            const std::vector<float>& values, DType type) {
        const GgufValue* value = model.metadata.find(raw_vector_key(tensor));
        if (value == nullptr || value->type != GgufType::Array) return std::nullopt;
        const auto& packed = std::get<std::shared_ptr<const GgufArray>>(value->value)->packed;
        if (packed.size() != values.size() * block_bytes(type)) return std::nullopt;
        std::vector<float> stored(values.size());
        dequantise(type, packed, stored);
        for (size_t i = 0; i < values.size(); ++i) {
            if (stored[i] + 1.0F != values[i]) return std::nullopt;
        }
        return packed;
    }

    json make_config() const {
        json config = record_.config.empty() ? json() : json::parse(record_.config, nullptr, false);
        if (config.is_object()) {
            // Methods may have changed the depth.
            for (const char* field : {"num_hidden_layers", "n_layer"}) {
                if (config.contains(field)) config[field] = model_->topology.positions.size();
            }
        } else {
            config = model_->family->write_hf_config(*model_);
        }
        const char* field = config.contains("dtype") ? "dtype" : "torch_dtype";
        if (options_.type || !config.contains(field)) config[field] = torch_name(main_type_);
        return config;
    }

    HfExport write_tensors(const std::string& folder) {
        HfExport result{0, tensors_.size(), 0};
        std::vector<std::vector<SafetensorsOutput>> shards(1);
        uint64_t filled = 0;
        json weight_map = json::object();
        std::vector<size_t> shard_of;
        for (const HfTensor& tensor : tensors_) {
            if (filled > 0 && filled + tensor.bytes() > options_.shard_bytes) {
                shards.emplace_back();
                filled = 0;
            }
            filled += tensor.bytes();
            result.bytes += tensor.bytes();
            shard_of.push_back(shards.size() - 1);
            shards.back().push_back({tensor.name, name(tensor.type), tensor.shape,
                                     [model = model_, tensor] { return produce(*model, tensor); }});
        }
        result.files = shards.size();
        const auto file_name = [&](size_t shard) {
            return shards.size() == 1 ? std::string("model.safetensors")
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
        };
        Progress progress("writing tensors", result.bytes, "bytes");
        for (size_t s = 0; s < shards.size(); ++s) {
            write_safetensors(folder + "/" + file_name(s), false, shards[s], {{"format", "pt"}},
                              [&](uint64_t bytes, const std::string& tensor) { progress.advance(bytes, tensor); });
        }
        progress.finish();
        if (shards.size() > 1) {
            for (size_t i = 0; i < tensors_.size(); ++i) weight_map[tensors_[i].name] = file_name(shard_of[i]);
            const json index = {{"metadata", {{"total_size", result.bytes}}}, {"weight_map", weight_map}};
            write_file(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
        }
        return result;
    }

    void write_tokenizer(const std::string& folder) const {
        if (fs::is_directory(model_->label)) {
            for (const char* file : kCarriedFiles) {
                const fs::path source = fs::path(model_->label) / file;
                std::error_code error;
                if (fs::exists(source)) fs::copy_file(source, fs::path(folder) / file, error);
                if (error) fail(ErrorCode::io, "export", "cannot copy '{}': {}", source.string(), error.message());
            }
        } else if (model_->metadata.string("tokenizer.ggml.model", "none") != "none") {
            write_hf_vocabulary(model_->metadata, folder);
        }
    }

    std::shared_ptr<const Model> model_;
    HfExportOptions options_;
    CheckpointRecord record_;
    DType main_type_ = DType::F32;
    std::vector<HfTensor> tensors_;
};

}  // namespace

HfExport save_hf_model(const Model& model, const std::string& folder, const HfExportOptions& options) {
    return HfWriter(model, options).write(folder);
}

}  // namespace refold
