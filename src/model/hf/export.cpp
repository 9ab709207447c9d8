#include "model/hf/export.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/output_folder.h"
#include "core/error.h"
#include "core/json_text.h"
#include "core/mapped_files.h"
#include "core/progress.h"
#include "io/safetensors.h"
#include "model/families/common/hf_config.h"
#include "model/hf/checkpoint.h"
#include "model/hf/layout.h"
#include "model/hf/mxfp4.h"
#include "model/row_parts.h"
#include "model/without_sharing.h"
#include "vocab/end_tokens.h"
#include "vocab/hf_vocab.h"
#include "vocab/trim.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 17> kCarriedFiles = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
};

bool is_model_file(const std::string& name) {
    return name == "config.json" || name.ends_with(".tiktoken") ||
           std::ranges::find(kCarriedFiles, name) != kCarriedFiles.end();
}

// model.safetensors, its shards and their index.
bool is_weight_file(const std::string& name) {
    return name == "model.safetensors.index.json" ||
           ((name == "model.safetensors" || name.starts_with("model-")) && name.ends_with(".safetensors"));
}

// "1_Pooling": a module of a sentence-transformers model.
bool is_module_folder(const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    const size_t digits = name.find_first_not_of("0123456789");
    return entry.is_directory() && digits > 0 && digits != name.npos && name[digits] == '_';
}

constexpr const char* kInputVocabField = "vocab_size_per_layer_input";

constexpr int64_t kPieceElements = 1 << 20;  // of what is converted at a time

std::optional<DType> type_from_name(const std::string& dtype) {
    for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
        if (dtype == name(type)) return type;
    }
    return std::nullopt;
}

const char* torch_name(DType type) {
    return type == DType::F16 ? "float16" : type == DType::BF16 ? "bfloat16" : "float32";
}

// A slot's weight that goes into a checkpoint tensor.
struct SlotSource {
    SlotDescription slot;
    std::string tensor;  // GGUF name
};

// Of a weight: its values, or a part of its MXFP4 form (mxfp4.h).
enum class HfPart { values, blocks, scales };

struct HfTensor {
    std::string name;
    std::vector<SlotSource> sources;  // Q, K and V where the checkpoint has them as one tensor
    DType type = DType::F32;
    std::vector<int64_t> shape;
    std::optional<int64_t> block =
        std::nullopt;  // head, expert or stream of the source, of which this is a part
    HfPart part = HfPart::values;
    uint64_t bytes() const {
        uint64_t count = 1;
        for (const int64_t n : shape) count *= static_cast<uint64_t>(n);
        return part == HfPart::values ? count * block_bytes(type) : count;
    }
    std::string dtype() const { return part == HfPart::values ? refold::name(type) : "U8"; }
};

// A model whose stored layers run `repeats` times in succession, and all of them `loops` times, with each of
// them once; nothing for other models.
std::optional<Model> without_repeats(const Model& model, size_t repeats, size_t loops) {
    const auto& layers = model.topology.layers;
    const ModelConfig& c = model.config;
    const size_t times = repeats * loops, stored = layers.size() / times;
    if (layers.size() % times != 0 || !model.topology.sources.empty()) return std::nullopt;
    if (repeats > 1 && (!c.windows.empty() || !c.rotated.empty())) return std::nullopt;
    Model out = model;
    out.topology.layers.resize(stored);
    out.topology.loops = 1;
    for (size_t l = 0; l < layers.size(); ++l) {
        const size_t s = l / repeats % stored;
        if (l % repeats == 0 && l < stored * repeats) out.topology.layers[s] = layers[l];
        if (layers[l] != out.topology.layers[s] || c.n_head_kv_of(l) != c.n_head_kv ||
            c.n_ff_of(l) != c.n_ff || c.n_expert_of(l) != c.n_expert)
            return std::nullopt;
    }
    return out;
}

class HfWriter {
public:
    HfWriter(const Model& model, const HfExportOptions& options)
        : options_(options), record_(checkpoint_record(model.metadata)) {
        const Model whole = with_whole_tables(model, DType::F32).value_or(model);
        const HfRepeats& fields = model.family->hf_repeats;
        const json fields_of_source = config_of(record_);
        const size_t loops = fields.loops != nullptr ? static_cast<size_t>(model.topology.loops) : 1;
        size_t repeats = 1;
        if (fields.of_layer != nullptr) {
            repeats = !fields_of_source.empty()
                          ? fields.of_layer(HfConfig(fields_of_source))
                          : model.topology.layers.size() / model.topology.stored_layers();
        }
        const std::optional<Model> stored =
            repeats * loops > 1 ? without_repeats(whole, repeats, loops) : std::nullopt;
        if (stored) {
            repeats_ = repeats;
            loops_ = loops;
        }
        model_ = std::make_shared<const Model>(dense(stored ? *stored : whole));
        const Tensor& embedding = model_->tensor(dense_name(model_->topology.globals, Slot::token_embd));
        unread_ = unread_tensors(model_->family, model_->config, model_->topology.layers.size());
        main_type_ = options.type ? *options.type : is_float(embedding.type) ? embedding.type : DType::F32;
        for (size_t l = 0; l < model_->topology.layers.size(); ++l)
            add(model_->family->layer_slots, model_->topology.layers[l], l);
        add(model_->family->model_slots, model_->topology.globals, 0);
    }

    HfExport write(const std::string& folder) {
        const json config = make_config();  // before anything is written: it may not be expressible
        OutputFolder out(folder, {options_.overwrite, rule_for_others(folder)});
        write_file(out.path() + "/config.json", config.dump(2) + "\n");
        const HfExport result = write_tensors(out.path());
        save_hf_tokenizer(*model_, out.path());
        for (const auto& [file, text] : options_.texts) write_file(out.path() + "/" + file, text);
        if (model_->source) check_unchanged(model_->source->files());
        out.commit();
        return result;
    }

private:
    // Exporting a model onto its own folder replaces the model. In another folder, a file that readers take
    // for a part of the model must be refold's.
    std::function<OthersFile(const std::string&)> rule_for_others(const std::string& folder) const {
        std::error_code none;
        if (fs::is_directory(model_->label, none) && fs::equivalent(model_->label, folder, none)) {
            const bool has_copy = fs::exists(fs::path(folder) / kSourceReadme);
            return [has_copy](const std::string& name) {
                if (is_weight_file(name)) return OthersFile::removed;
                const bool replaced = is_model_file(name) || (name == kReadme && !has_copy);
                return replaced ? OthersFile::replaced : OthersFile::stays;
            };
        }
        return [texts = options_.texts](const std::string& name) {
            return is_weight_file(name) || is_model_file(name) || texts.contains(name) ? OthersFile::refused
                                                                                       : OthersFile::stays;
        };
    }
    static Model dense(const Model& model) { return model.has_sharing() ? without_sharing(model) : model; }
    static std::string dense_name(const Slots& slots, Slot slot) {
        return std::get<Dense>(slots.at(slot)).tensor;
    }

    void add(const std::vector<SlotDescription>& descriptions, const Slots& slots, size_t layer) {
        for (const auto& slot : descriptions) {
            const bool unread = !slots.contains(slot.slot) && is_unread(slot, layer);
            if ((!slots.contains(slot.slot) && !unread) || slot.hf == nullptr) continue;
            if (!is_in_layer(*model_->family, slot.slot, layer, model_->topology.layers.size()))
                fail(ErrorCode::unsupported, "export",
                     "layer {} has {}, which a checkpoint of '{}' has at the end of a loop only: the loops "
                     "differ",
                     layer, slot_name(slot.slot), model_->family->name);
            const std::string source = unread ? tensor_name(slot, layer) : dense_name(slots, slot.slot);
            // Tied embeddings are stored once.
            if (slot.slot == Slot::output && source == dense_name(slots, Slot::token_embd)) continue;
            if (is_by_block(slot.hf)) {
                add_blocks(slot, source, layer);
                continue;
            }
            const std::string name = checkpoint_name(slot.hf, layer);
            if (is_mxfp4(slot, name, source)) {
                add_mxfp4(slot, name, source);
                continue;
            }
            if (tensors_.empty() || tensors_.back().name != name) {
                const bool fused = (slot.layout & (hf_stacked | hf_qkv_per_head)) != 0;
                auto known = std::find_if(tensors_.begin(), tensors_.end(), [&](const HfTensor& tensor) {
                    return fused && tensor.name == name;
                });
                if (known != tensors_.end()) {
                    known->sources.push_back({slot, source});
                    continue;
                }
                tensors_.push_back(
                    {name, {}, output_type(slot, name, source), hf_shape(slot, model_->config)});
            }
            tensors_.back().sources.push_back({slot, source});
        }
    }

    // Nothing reads it, but checkpoints have it.
    bool is_unread(const SlotDescription& slot, size_t layer) const {
        const std::string name = tensor_name(slot, layer);
        const auto found = model_->tensors.find(name);
        return unread_.contains(name) && found != model_->tensors.end() &&
               found->second.shape == tensor_shape(slot.slot, model_->config);
    }

    // The source had MXFP4, and the model still has.
    bool is_mxfp4(const SlotDescription& slot, const std::string& name, const std::string& source) const {
        return !options_.type && consists_of_experts(slot.slot) &&
               model_->tensor(source).type == DType::MXFP4 &&
               record_.types.contains(name + mxfp4::kBlocksSuffix);
    }

    void add_mxfp4(const SlotDescription& slot, const std::string& name, const std::string& source) {
        const SlotRows expert = expert_rows(slot, model_->config);
        std::vector<int64_t> shape = {model_->config.n_expert, expert.rows, expert.width / mxfp4::kBlock};
        for (const auto& [part, suffix] :
             {std::pair{HfPart::scales, mxfp4::kScalesSuffix}, {HfPart::blocks, mxfp4::kBlocksSuffix}}) {
            const auto known = std::find_if(tensors_.begin(), tensors_.end(), [&](const HfTensor& tensor) {
                return tensor.name == name + suffix;
            });
            if (part == HfPart::blocks) shape.push_back(mxfp4::kPackedBytes);
            if (known != tensors_.end())
                known->sources.push_back({slot, source});
            else
                tensors_.push_back(
                    {name + suffix, {{slot, source}}, DType::MXFP4, shape, std::nullopt, part});
        }
    }

    static std::vector<std::byte> mxfp4_part(const Model& model, const HfTensor& tensor) {
        std::vector<std::byte> out(tensor.bytes());
        for (const SlotSource& source : tensor.sources) {
            const TensorBytes bytes(model.tensor(source.tensor));
            const SlotRows size = slot_rows(source.slot.slot, model.config);
            const auto groups = static_cast<size_t>(size.width / mxfp4::kBlock),
                       width = row_bytes(DType::MXFP4, size.width);
            std::vector<std::byte> blocks(groups * mxfp4::kPackedBytes), scales(groups);
            for (int64_t row = 0; row < size.rows; ++row) {
                mxfp4::from_ggml(bytes.bytes().data() + static_cast<size_t>(row) * width,
                                 size.width / mxfp4::kBlock, blocks.data(), scales.data());
                const std::vector<std::byte>& part = tensor.part == HfPart::blocks ? blocks : scales;
                memcpy(out.data() + static_cast<size_t>(hf_row(source.slot, model.config, row)) * part.size(),
                       part.data(), part.size());
            }
        }
        return out;
    }

    void add_blocks(const SlotDescription& slot, const std::string& source, size_t layer) {
        const SlotRows size = slot_rows(slot.slot, model_->config);
        const int64_t rows = block_size(slot.slot, model_->config);
        for (int64_t block = 0; block < size.rows / rows; ++block) {
            const std::string name = checkpoint_name(names_of_block(slot.hf, block).c_str(), layer);
            std::vector<int64_t> shape = {rows};
            if (!is_vector(slot.slot)) shape.push_back(size.width);
            tensors_.push_back({name, {{slot, source}}, output_type(slot, name, source), shape, block});
        }
    }

    // The name that the source used, else the usual one.
    std::string checkpoint_name(const char* given, size_t layer) const {
        const auto names = hf_names(given, model_->family->hf_prefix, layer);
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

    using Sink = std::function<void(std::span<const std::byte>)>;

    static void write(const Model& model, const HfTensor& tensor, const Sink& sink) {
        if (tensor.part != HfPart::values) {
            sink(mxfp4_part(model, tensor));
        } else if (tensor.block) {
            const int64_t rows = tensor.shape.front();
            converted(model, tensor.sources.front(), tensor.type, sink, Rows{*tensor.block * rows, rows});
        } else if (tensor.sources.size() == 1 && is_in_order(tensor.sources.front(), model.config)) {
            const bool rows = (tensor.sources.front().slot.layout & hf_first_rows) != 0;
            converted(model, tensor.sources.front(), tensor.type, sink,
                      rows ? std::optional(Rows{0, tensor.shape.front()}) : std::nullopt);
        } else {
            sink(rearranged(model, tensor));
        }
    }

    static bool is_in_order(const SlotSource& source, const ModelConfig& config) {
        if ((source.slot.layout & hf_transposed) != 0) return false;
        const int64_t rows = slot_rows(source.slot.slot, config).rows;
        for (int64_t row = 0; row < rows; ++row) {
            if (hf_row(source.slot, config, row) != row) return false;
        }
        return true;
    }

    static std::vector<std::byte> rearranged(const Model& model, const HfTensor& tensor) {
        std::vector<std::byte> out(tensor.bytes());
        const size_t element = block_bytes(tensor.type);
        for (const SlotSource& source : tensor.sources) {
            const bool transposed = (source.slot.layout & hf_transposed) != 0;
            const size_t width =
                static_cast<size_t>(slot_rows(source.slot.slot, model.config).width) * element;
            const auto columns = static_cast<size_t>(tensor.shape.back());
            int64_t row = 0;
            converted(model, source, tensor.type, [&](std::span<const std::byte> rows) {
                for (const std::byte* from = rows.data(); from < rows.data() + rows.size(); from += width) {
                    const auto to = static_cast<size_t>(hf_row(source.slot, model.config, row++));
                    if (!transposed) {
                        memcpy(out.data() + to * width, from, width);
                        continue;
                    }
                    std::byte* block =
                        out.data() + to / columns * width * columns;  // experts follow each other
                    for (size_t c = 0; c < width; c += element)
                        memcpy(block + c * columns + to % columns * element, from + c, element);
                }
            });
        }
        return out;
    }

    struct Rows {
        int64_t first, count;
    };
    // A slot's weight, or some rows of it, in the type wanted, in pieces of whole rows.
    static void converted(const Model& model, const SlotSource& source, DType type, const Sink& sink,
                          std::optional<Rows> some = std::nullopt) {
        const Tensor& tensor = model.tensor(source.tensor);
        const TensorBytes bytes(tensor);
        const SlotRows size = slot_rows(source.slot.slot, model.config);
        const Rows wanted = some.value_or(Rows{0, size.rows});
        const size_t row_bytes = bytes.bytes().size() / static_cast<size_t>(size.rows);
        if ((source.slot.layout & hf_plus_one) != 0) {
            sink(without_one(model, source, type, bytes.bytes()));
        } else if (tensor.type == type) {
            sink(bytes.bytes().subspan(static_cast<size_t>(wanted.first) * row_bytes,
                                       static_cast<size_t>(wanted.count) * row_bytes));
        } else {
            const int64_t step = std::max<int64_t>(1, kPieceElements / size.width),
                          end = wanted.first + wanted.count;
            for (int64_t row = wanted.first; row < end; row += step) {
                const auto count = static_cast<size_t>(std::min(step, end - row));
                std::vector<float> values(count * static_cast<size_t>(size.width));
                dequantize(tensor.type,
                           bytes.bytes().subspan(static_cast<size_t>(row) * row_bytes, count * row_bytes),
                           values);
                sink(quantize(type, values, static_cast<int64_t>(values.size())));
            }
        }
        if (model.source) model.source->release(tensor.mapped);
    }

    static std::vector<std::byte> without_one(const Model& model, const SlotSource& source, DType type,
                                              std::span<const std::byte> stored) {
        const Tensor& tensor = model.tensor(source.tensor);
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        dequantize(tensor.type, stored, values);
        if (auto raw = raw_vector(model, source.tensor, values, type)) return *raw;
        for (float& value : values) value -= 1.0F;
        return quantize(type, values, static_cast<int64_t>(values.size()));
    }

    // The bytes the checkpoint had, if the weight is still what they give.
    static std::optional<std::vector<std::byte>> raw_vector(const Model& model, const std::string& tensor,
                                                            const std::vector<float>& values, DType type) {
        const GgufValue* value = model.metadata.find(raw_vector_key(tensor));
        if (value == nullptr || value->type != GgufType::Array) return std::nullopt;
        const auto& packed = std::get<std::shared_ptr<const GgufArray>>(value->value)->packed;
        if (packed.size() != values.size() * block_bytes(type)) return std::nullopt;
        std::vector<float> stored(values.size());
        dequantize(type, packed, stored);
        for (size_t i = 0; i < values.size(); ++i) {
            if (stored[i] + 1.0F != values[i]) return std::nullopt;
        }
        return packed;
    }

    // An empty object for models that did not come from a directory.
    static json config_of(const CheckpointRecord& record) {
        const json config = try_parse_json(record.config);
        return config.is_object() ? config : json::object();
    }

    json make_config() const {
        json config = config_of(record_);
        if (!config.empty()) {
            // Methods may have changed the number of layers.
            for (const char* field : {"num_hidden_layers", "n_layer"}) {
                if (config.contains(field)) config[field] = model_->topology.layers.size();
            }
            const ModelConfig& c = model_->config;
            for (const char* field : {"num_local_experts", "num_experts"}) {
                if (config.contains(field) && c.n_expert > 0) config[field] = c.n_expert;
            }
            if (const auto types = config.find("layer_types");
                types != config.end() && types->size() != model_->topology.layers.size()) {
                *types = json::array();
                for (size_t p = 0; p < model_->topology.layers.size(); ++p)
                    types->push_back(c.window(p) > 0 ? "sliding_attention" : "full_attention");
            }
            if (const auto flags = config.find("no_rope_layers");
                flags != config.end() && flags->is_array() &&
                flags->size() != model_->topology.layers.size()) {
                *flags = json::array();
                for (size_t p = 0; p < model_->topology.layers.size(); ++p)
                    flags->push_back(c.rotates(p) ? 1 : 0);
            }
            if (const auto dense = config.find("mlp_only_layers"); dense != config.end()) {
                *dense = json::array();
                for (size_t p = 0; p < model_->topology.layers.size(); ++p)
                    if (c.n_expert_of(p) == 0) dense->push_back(p);
                config["decoder_sparse_step"] = 1;
            }
            if (config.contains(kInputVocabField) && c.n_layer_input_vocab > 0)
                config[kInputVocabField] = std::min(c.n_layer_input_vocab, c.n_vocab);
            // ... or the number of key/value heads.
            if (config.contains("num_key_value_heads")) {
                config["num_key_value_heads"] = c.n_head_kv;
            } else if (c.n_head_kv != c.n_head) {
                fail(ErrorCode::unsupported, "export",
                     "the checkpoint's config.json has no num_key_value_heads: {} key/value heads for {} "
                     "query "
                     "heads cannot be written",
                     c.n_head_kv, c.n_head);
            }
        } else {
            config = model_->family->write_hf_config(*model_);
        }
        const HfRepeats& repeats = model_->family->hf_repeats;
        if (repeats.write != nullptr) repeats.write(config, model_->topology.layers.size(), repeats_);
        if (repeats.loops != nullptr) config[repeats.loops] = loops_;
        const bool packed = std::any_of(tensors_.begin(), tensors_.end(),
                                        [](const HfTensor& t) { return t.part != HfPart::values; });
        if (!packed) config.erase("quantization_config");
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
            shards.back().push_back(
                {tensor.name, tensor.dtype(), tensor.shape,
                 [model = model_, tensor](const auto& sink) { write(*model, tensor, sink); }});
        }
        result.files = shards.size();
        const auto file_name = [&](size_t shard) {
            return shards.size() == 1
                       ? std::string("model.safetensors")
                       : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
        };
        Progress progress("writing tensors", result.bytes, "bytes");
        for (size_t s = 0; s < shards.size(); ++s) {
            write_safetensors(
                folder + "/" + file_name(s), false, shards[s], {{"format", "pt"}},
                [&](uint64_t bytes, const std::string& tensor) { progress.advance(bytes, tensor); });
        }
        progress.finish();
        if (shards.size() > 1) {
            for (size_t i = 0; i < tensors_.size(); ++i)
                weight_map[tensors_[i].name] = file_name(shard_of[i]);
            const json index = {{"metadata", {{"total_size", result.bytes}}}, {"weight_map", weight_map}};
            write_file(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
        }
        return result;
    }

    std::shared_ptr<const Model> model_;
    HfExportOptions options_;
    CheckpointRecord record_;
    size_t repeats_ = 1, loops_ = 1;  // of the layers that are written
    std::set<std::string> unread_;
    DType main_type_ = DType::F32;
    std::vector<HfTensor> tensors_;
};

}  // namespace

void save_hf_tokenizer(const Model& model, const std::string& folder) {
    // A trimmed vocabulary is no longer that of the source directory.
    if (fs::is_directory(model.label) && !model.metadata.has(kKeptTokensKey)) {
        for (const auto& entry : fs::directory_iterator(model.label)) {
            const fs::path& source = entry.path();
            const bool carried =
                std::ranges::find(kCarriedFiles, source.filename().string()) != kCarriedFiles.end();
            if (!carried && source.extension() != ".tiktoken" && !is_module_folder(entry)) continue;
            std::error_code error;
            fs::copy(source, fs::path(folder) / source.filename(), fs::copy_options::recursive, error);
            if (error)
                fail(ErrorCode::io, "export", "cannot copy '{}': {}", source.string(), error.message());
        }
        return;
    }
    if (model.metadata.string("tokenizer.ggml.model", "none") != "none")
        write_hf_vocabulary(model.metadata, folder);
    write_generation_config(model.metadata, folder);
}

HfExport save_hf_model(const Model& model, const std::string& folder, const HfExportOptions& options) {
    return HfWriter(model, options).write(folder);
}

}  // namespace refold
