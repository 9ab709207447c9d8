#include "model/hf/export.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/json_text.h"
#include "core/mapped_files.h"
#include "core/output_folder.h"
#include "core/progress.h"
#include "core/stored_text.h"
#include "io/safetensors.h"
#include "model/config_difference.h"
#include "model/families/common/hf_config.h"
#include "model/finite.h"
#include "model/folded.h"
#include "model/hf/changed_config.h"
#include "model/hf/checkpoint.h"
#include "model/hf/description.h"
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

constexpr const char *kWeights = "model.safetensors", *kIndex = "model.safetensors.index.json";

std::string shard_name(size_t number, size_t count) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

bool is_weight_file(const std::string& name) {
    const auto is_same_kind = [](char a, char b) { return (std::isdigit(a) && std::isdigit(b)) || a == b; };
    return name == kWeights || name == kIndex || std::ranges::equal(name, shard_name(1, 1), is_same_kind);
}

// The folders within `folder` that a sentence-transformers model has for its modules ("1_Pooling").
std::set<fs::path> module_folders(const fs::path& folder) {
    const fs::path file = folder / "modules.json";
    const json modules = fs::exists(file) ? try_parse_json(read_stored_text(file.string())) : json();
    std::set<fs::path> out;
    if (!modules.is_array()) return out;
    for (const json& module : modules) {
        const json path = module.is_object() ? module.value("path", json()) : json();
        if (path.is_string()) out.insert(path.get<std::string>());
    }
    return out;
}

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
        const Model unfolded = without_folds(model, DType::F32).value_or(model);
        const Model whole = with_whole_tables(unfolded, DType::F32).value_or(unfolded);
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
        model_ = std::make_shared<const Model>(with_announced_biases(dense(stored ? *stored : whole)));
        const Tensor& embedding = model_->tensor(dense_name(model_->topology.globals, Slot::token_embd));
        unread_ = unread_tensors(model_->family, model_->config, model_->topology.layers.size());
        main_type_ = options.type ? *options.type : is_float(embedding.type) ? embedding.type : DType::F32;
        for (size_t l = 0; l < model_->topology.layers.size(); ++l)
            add(model_->family->layer_slots, model_->topology.layers[l], l);
        add(model_->family->model_slots, model_->topology.globals, 0);
        check_all_have_places();
    }

    HfExport write(const std::string& folder) {
        OutputFolder out(folder, {options_.overwrite, rule_for_others(folder)});
        write_config(out.path());  // first: it may not be expressible
        const HfExport result = write_tensors(out.path());
        save_hf_tokenizer(*model_, out.path());
        for (const auto& [file, text] : options_.texts) write_file(out.path() + "/" + file, text);
        if (model_->source) check_unchanged(model_->source->files());
        check_reads_back(out.path());
        out.commit();
        return result;
    }

private:
    // Exporting a model onto its own folder replaces the model. In another folder, a file that readers take
    // for a part of the model must be refold's.
    std::function<OthersFile(const std::string&)> rule_for_others(const std::string& folder) const {
        std::error_code none;
        if (!fs::is_directory(model_->label, none) || !fs::equivalent(model_->label, folder, none)) {
            return [texts = options_.texts](const std::string& name) {
                const bool refused = is_weight_file(name) || is_model_file(name) || texts.contains(name);
                return refused ? OthersFile::refused : OthersFile::stays;
            };
        }
        std::set<std::string> read;
        if (model_->source)
            for (const auto& file : model_->source->files())
                if (file->path().ends_with(".safetensors"))
                    read.insert(fs::path(file->path()).filename().string());
        if (read.size() > 1) read.insert(kIndex);
        const bool has_copy = fs::exists(fs::path(folder) / kSourceReadme);
        return [read, has_copy](const std::string& name) {
            if (read.contains(name)) return OthersFile::removed;
            const bool replaced = is_model_file(name) || name == kIndex || (name == kReadme && !has_copy);
            return replaced ? OthersFile::replaced : OthersFile::stays;
        };
    }
    static Model dense(const Model& model) { return model.has_sharing() ? without_sharing(model) : model; }
    static std::string dense_name(const Slots& slots, Slot slot) {
        return std::get<Dense>(slots.at(slot)).tensor;
    }

    // Checkpoints have no tensors for some weights that methods add. Factors of the rotation are in
    // config.json.
    void check_all_have_places() const {
        const auto check = [&](const std::vector<SlotDescription>& descriptions, const Slots& slots,
                               size_t layer) {
            for (const auto& [slot, expression] : slots) {
                if (properties(slot).kind == SlotKind::rope_factors) continue;
                const auto found = std::ranges::find(descriptions, slot, &SlotDescription::slot);
                if (found == descriptions.end() || found->hf == nullptr)
                    fail(ErrorCode::unsupported, "export",
                         "{}{}: a checkpoint of '{}' has no place for it; --to native keeps it",
                         layer == kWholeModel ? "" : fmt::format("layer {} ", layer), slot_name(slot),
                         model_->family->name);
            }
        };
        for (size_t l = 0; l < model_->topology.layers.size(); ++l)
            check(model_->family->layer_slots, model_->topology.layers[l], l);
        check(model_->family->model_slots, model_->topology.globals, kWholeModel);
    }

    [[noreturn]] void refuse_kv_heads() const {
        fail(ErrorCode::unsupported, "export",
             "a checkpoint of '{}' cannot have {} key/value heads for {} query heads; --to native keeps them",
             model_->family->name, model_->config.n_head_kv, model_->config.n_head);
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
            if ((slot.layout & hf_qkv_per_head) != 0 && model_->config.n_head_kv != model_->config.n_head)
                refuse_kv_heads();  // the tensor has queries, keys and values head by head
            const std::string source = unread ? tensor_name(slot, layer) : dense_name(slots, slot.slot);
            // Tied embeddings are stored once.
            if (slot.slot == Slot::output && source == dense_name(slots, Slot::token_embd)) continue;
            if (is_by_block(slot.hf)) {
                add_blocks(slot, source, layer);
                continue;
            }
            const std::string names = classifier_names(slot, slots.contains(Slot::score)),
                              name = checkpoint_name(names.c_str(), layer);
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
            const TensorBytes bytes = finite_bytes(model.tensor(source.tensor), source.tensor);
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
        const auto rows = [&](int64_t first, int64_t count) {
            return bytes.bytes().subspan(static_cast<size_t>(first) * row_bytes,
                                         static_cast<size_t>(count) * row_bytes);
        };
        // A vector is one row in messages.
        const bool vector = is_vector(source.slot.slot);
        const int64_t row_elements = vector ? size.rows : size.width;
        naming_tensor("export", source.tensor, [&] {
            in_rows_from(vector ? 0 : wanted.first,
                         [&] { check_finite(tensor.type, rows(wanted.first, wanted.count), row_elements); });
            if ((source.slot.layout & hf_plus_one) != 0) {
                sink(without_one(model, source, type, bytes.bytes()));
            } else if (tensor.type == type) {
                sink(rows(wanted.first, wanted.count));
            } else {
                const int64_t step = std::max<int64_t>(1, kPieceElements / size.width),
                              end = wanted.first + wanted.count;
                for (int64_t row = wanted.first; row < end; row += step) {
                    const int64_t count = std::min(step, end - row);
                    std::vector<float> values(static_cast<size_t>(count * size.width));
                    dequantize(tensor.type, rows(row, count), values);
                    in_rows_from(vector ? 0 : row,
                                 [&] { sink(quantize(type, values, vector ? count : size.width)); });
                }
            }
        });
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

    static void write_json(const std::string& file, const json& object) {
        write_file(file, object.dump(2) + "\n");
    }

    // Writes config.json so that it describes the model, which read_hf_description() decides.
    void write_config(const std::string& folder) const {
        const std::string file = folder + "/config.json";
        json config = config_of(record_);
        if (config.empty()) {
            config = model_->family->write_hf_config(*model_);
            if (config.contains("n_head_kv"))
                refuse_kv_heads();  // transformers' GPT-2 and GPT-J have no such field
        } else {
            write_json(file, config);
            config =
                changed_config(std::move(config), read_hf_description(file, folder).model.config, *model_);
        }
        announce_biases(*model_, config);
        const HfRepeats& repeats = model_->family->hf_repeats;
        if (repeats.write != nullptr) repeats.write(config, model_->topology.layers.size(), repeats_);
        if (repeats.loops != nullptr) config[repeats.loops] = loops_;
        const bool packed = std::any_of(tensors_.begin(), tensors_.end(),
                                        [](const HfTensor& t) { return t.part != HfPart::values; });
        if (!packed) config.erase("quantization_config");
        const char* field = config.contains("dtype") ? "dtype" : "torch_dtype";
        if (has_other_types() || !config.contains(field)) config[field] = torch_name(declared_type());
        write_json(file, config);
        // Layers that were left out or put in another order may have other windows than their new places.
        const ModelConfig read = read_hf_description(file, folder).model.config;
        if (set_layer_kinds(read, *model_, config)) write_json(file, config);
        check_description(read_hf_description(file, folder));
    }

    // Than the source: its config.json may say another one than its tensors have, and then stays as it is.
    bool has_other_types() const {
        return options_.type || std::ranges::any_of(tensors_, [&](const HfTensor& tensor) {
                   const auto recorded = record_.types.find(tensor.name);
                   return recorded != record_.types.end() && recorded->second != tensor.dtype();
               });
    }
    // transformers converts all tensors to this type, so it is the widest one of matrices.
    DType declared_type() const {
        const bool wide = std::ranges::any_of(tensors_, [](const HfTensor& tensor) {
            return tensor.type == DType::F32 && !is_vector(tensor.sources.front().slot.slot);
        });
        return options_.type ? *options_.type : wide ? DType::F32 : main_type_;
    }

    void check_description(const HfDescription& description) const {
        const size_t layers = model_->topology.layers.size();
        if (description.layers != layers || description.repeats != repeats_ || description.loops != loops_)
            fail(ErrorCode::unsupported, "export",
                 "config.json of '{}' describes {} layers that run {} x {} times, the model has {} that run "
                 "{} x {} "
                 "times; --to native keeps it as it is",
                 model_->family->name, description.layers, description.repeats, description.loops, layers,
                 repeats_, loops_);
        const std::string difference = config_difference(description.model.config, model_->config, layers);
        if (!difference.empty())
            fail(ErrorCode::unsupported, "export",
                 "config.json of '{}' cannot describe this model: it would say {}; --to native keeps it as "
                 "it is",
                 model_->family->name, difference);
    }

    // What is written is read as any other checkpoint before it gets its name.
    void check_reads_back(const std::string& folder) const {
        const auto refuse = [](const std::string& difference) {
            fail(ErrorCode::internal, "export",
                 "the checkpoint would not hold the model: {} - nothing was written", difference);
        };
        try {
            const Model back = load_hf_model(folder);
            const size_t layers = model_->topology.layers.size();
            for (size_t l = 0; l < layers; ++l)
                check_slots(back, back.topology.layers.at(l * repeats_), model_->topology.layers[l], l,
                            refuse);
            check_slots(back, back.topology.globals, model_->topology.globals, kWholeModel, refuse);
            const CheckpointRecord read = checkpoint_record(back.metadata);
            for (const HfTensor& tensor : tensors_)
                if (!read.types.contains(tensor.name))
                    refuse(fmt::format("nothing reads tensor '{}'", tensor.name));
            if (is_tied(back.topology) != is_tied(model_->topology)) refuse("tie_word_embeddings");
        } catch (const Error& error) {
            if (error.code() == ErrorCode::internal) throw;
            refuse(error.what());
        }
    }

    static bool is_tied(const Topology& topology) {
        const auto output = topology.globals.find(Slot::output);
        return output != topology.globals.end() && output->second == topology.globals.at(Slot::token_embd);
    }

    void check_slots(const Model& back, const Slots& got, const Slots& expected, size_t layer,
                     const std::function<void(const std::string&)>& refuse) const {
        const auto where = [&](Slot slot) {
            return layer == kWholeModel ? slot_name(slot)
                                        : fmt::format("layer {} {}", layer, slot_name(slot));
        };
        for (const auto& [slot, expression] : expected) {
            const auto found = got.find(slot);
            if (found == got.end()) return refuse(fmt::format("{} is missing", where(slot)));
            const Tensor &a = back.tensor(std::get<Dense>(found->second).tensor),
                         &b = model_->tensor(std::get<Dense>(expression).tensor);
            if (a.elements() != b.elements())
                return refuse(
                    fmt::format("{} has {} elements instead of {}", where(slot), a.elements(), b.elements()));
        }
        for (const auto& [slot, expression] : got)
            if (!expected.contains(slot)) return refuse(fmt::format("{} appears", where(slot)));
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
            return shards.size() == 1 ? kWeights : shard_name(shard + 1, shards.size());
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
            write_file(folder + "/" + kIndex, index.dump(2) + "\n");
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
        const std::set<fs::path> modules = module_folders(model.label);
        for (const auto& entry : fs::directory_iterator(model.label)) {
            const fs::path& source = entry.path();
            const bool carried =
                std::ranges::find(kCarriedFiles, source.filename().string()) != kCarriedFiles.end();
            const bool module = entry.is_directory() && modules.contains(source.filename());
            if (!carried && source.extension() != ".tiktoken" && !module) continue;
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
