#include "model/hf/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_text.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "io/torch_file.h"
#include "model/families/common/hf_config.h"
#include "model/hf/description.h"
#include "model/hf/known_tensors.h"
#include "model/hf/layout.h"
#include "model/hf/mxfp4.h"
#include "model/hf/sentence_modules.h"
#include "model/validate.h"
#include "vocab/end_tokens.h"
#include "vocab/hf_vocab.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Files of weights, the better ones first.
struct Kind {
    const char* file;
    std::string index() const { return std::string(file) + ".index.json"; }
};
constexpr Kind kKinds[] = {{"model.safetensors"}, {"pytorch_model.bin"}};

constexpr const char* kRecordKey = "refold.checkpoint";

json parse_object(const std::string& text, const fs::path& path) {
    json object = parse_json(text, "checkpoint", "'" + path.string() + "'");
    if (!object.is_object()) fail(ErrorCode::input, "checkpoint", "'{}' is not a JSON object", path.string());
    return object;
}

std::optional<DType> float_type(const std::string& dtype) {
    if (dtype == "F32") return DType::F32;
    if (dtype == "F16") return DType::F16;
    if (dtype == "BF16") return DType::BF16;
    return std::nullopt;
}

bool aligned(std::span<const std::byte> bytes, DType type) {
    return reinterpret_cast<uintptr_t>(bytes.data()) % block_bytes(type) == 0;
}

std::vector<float> as_floats(DType type, std::span<const std::byte> bytes) {
    std::vector<float> values(bytes.size() / block_bytes(type));
    dequantize(type, bytes, values);
    return values;
}

std::vector<std::byte> as_bytes(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
}

}  // namespace

// ---- files ----

HfCheckpoint::HfCheckpoint(const std::string& folder) {
    const auto present = [&](const std::string& name) { return fs::exists(fs::path(folder) / name); };
    const auto kind =
        std::ranges::find_if(kKinds, [&](const Kind& k) { return present(k.file) || present(k.index()); });
    if (kind == std::end(kKinds))
        fail(ErrorCode::io, "checkpoint",
             "no weights in '{}': expected model.safetensors or pytorch_model.bin, or shards of one with its "
             "index",
             folder);
    const fs::path index = fs::path(folder) / kind->index();
    if (present(kind->file)) {
        add_shard((fs::path(folder) / kind->file).string(), nullptr, {});
    } else {
        const json object = parse_object(read_stored_text(index.string()), index);
        const auto map = object.find("weight_map");
        if (map == object.end() || !map->is_object() || map->empty())
            fail(ErrorCode::input, "checkpoint", "'{}' has no 'weight_map'", index.string());
        std::set<std::string> shards;
        for (const auto& [tensor, shard] : map->items()) {
            if (!shard.is_string() ||
                fs::path(shard.get<std::string>()).filename() != shard.get<std::string>())
                fail(ErrorCode::input, "checkpoint",
                     "'{}': tensor '{}' is not in a file of this folder, but in {}", index.string(), tensor,
                     shard.dump());
            shards.insert(shard);
        }
        for (const std::string& shard : shards) add_shard((fs::path(folder) / shard).string(), &*map, shard);
    }
    std::vector<std::shared_ptr<const MappedFile>> files;
    for (auto& shard : shards_) {
        files.push_back(std::move(shard.file));
        for (const auto& [name, view] : shard.tensors) tensors_[name] = &view;
    }
    files_ = std::make_shared<const SourceFiles>(std::move(files));
}

void HfCheckpoint::add_shard(const std::string& path, const json* weight_map, const std::string& shard) {
    if (!fs::exists(path))
        fail(ErrorCode::io, "checkpoint", "shard '{}' is missing, which the index names - download it again",
             path);
    shards_.push_back(path.ends_with(".safetensors") ? read_safetensors(path) : read_torch_file(path));
    if (weight_map == nullptr) return;
    const auto& tensors = shards_.back().tensors;
    for (const auto& [tensor, file] : weight_map->items()) {
        if (file == shard && !tensors.contains(tensor))
            fail(ErrorCode::input, "checkpoint",
                 "tensor '{}' is not in shard '{}', where the index expects it", tensor, path);
    }
    for (const auto& [tensor, view] : tensors) {
        if (!weight_map->contains(tensor) || (*weight_map)[tensor] != shard)
            fail(ErrorCode::input, "checkpoint",
                 "tensor '{}' of shard '{}' is not where the index expects it", tensor, path);
    }
}

std::optional<HfCheckpoint::NamedView> HfCheckpoint::find(const char* names, const char* prefix,
                                                          size_t layer) const {
    for (const std::string& name : hf_names(names, prefix, layer)) {
        if (const auto found = tensors_.find(name); found != tensors_.end())
            return NamedView{name, found->second};
    }
    return std::nullopt;
}

// ---- directory -> model ----

namespace {

class HfReader {
public:
    explicit HfReader(const std::string& folder)
        : folder_(folder),
          description_(read_hf_description((fs::path(folder) / "config.json").string(), folder)),
          checkpoint_(folder),
          model_(description_.model),
          unread_(unread_tensors(model_.family, model_.config, description_.layers)) {}

    Model read() {
        model_.source = checkpoint_.files();
        read_tensors();
        write_record();
        read_vocabulary();
        keep_generation_config(folder_, model_.metadata);
        if (!model_.config.causal) read_embedding();
        validate(model_);
        return std::move(model_);
    }

private:
    void read_tensors() {
        const size_t layers = description_.layers;
        for (size_t l = 0; l < layers; ++l) {
            for (const auto& slot : model_.family->layer_slots)
                if (is_in_layer(*model_.family, slot.slot, l, layers)) read_slot(slot, l);
        }
        for (const auto& slot : model_.family->model_slots)
            if (slot.hf != nullptr) read_slot(slot, 0);
        check_heads();
        check_tied();
        check_all_are_read();
        add_rope_factors(description_);
        model_.topology = described_topology(description_);
    }

    bool is_causal() const { return model_.config.causal; }

    // Encoders come with a head, a pooler, both or none of them: files do not say which.
    bool is_optional(Slot slot) const {
        const SlotModule module = properties(slot).module;
        return !is_causal() && (module == SlotModule::head || module == SlotModule::pooler ||
                                slot == Slot::output || slot == Slot::output_bias || is_score(slot));
    }

    // What an encoder has of them is there completely.
    void check_heads() const {
        const auto missing = [&](const std::vector<Slot>& part) {
            std::vector<const SlotDescription*> absent;
            for (const auto& slot : model_.family->model_slots) {
                if (std::ranges::find(part, slot.slot) != part.end() &&
                    !model_.tensors.contains(tensor_name(slot, 0)))
                    absent.push_back(&slot);
            }
            return absent.empty() || absent.size() == part.size() ? nullptr : absent.front();
        };
        if (is_causal()) return;
        std::vector<Slot> head = {Slot::head_dense, Slot::head_dense_bias, Slot::head_norm,
                                  Slot::head_norm_bias, Slot::output_bias};
        if (!description_.tied) head.push_back(Slot::output);
        const std::vector<std::vector<Slot>> parts = {
            head, {Slot::pooler, Slot::pooler_bias}, {Slot::score, Slot::score_bias}};
        for (const auto& part : parts)
            if (const SlotDescription* slot = missing(part)) fail_missing(*slot, 0);
    }

    const SlotDescription& description_of(Slot slot) const {
        return *std::ranges::find_if(model_.family->model_slots,
                                     [&](const auto& d) { return d.slot == slot; });
    }

    // A tied output that is stored all the same must be the embedding again.
    void check_tied() {
        const SlotDescription& output = description_of(Slot::output);
        if (!is_causal()) check_bias_of_head();
        if (!description_.tied) return;
        const auto stored = checkpoint_.find(output.hf, model_.family->hf_prefix, 0);
        if (!stored) return;
        const auto embedding =
            checkpoint_.find(description_of(Slot::token_embd).hf, model_.family->hf_prefix, 0);
        if (embedding) alike_.emplace(stored->name, embedding->name);
        if (embedding && !is_same(*stored->view, *embedding->view))
            fail(ErrorCode::unsupported, "checkpoint",
                 "tensors '{}' and '{}' differ although config.json ties them (tie_word_embeddings): "
                 "transformers 5 uses both, transformers 4 the latter for both - set tie_word_embeddings to "
                 "false, or remove '{}'",
                 stored->name, embedding->name, stored->name);
    }

    // transformers 4 has one bias of an encoder's head under two names; in transformers 5 the first one
    // counts only as far as it is tied to that of the decoder.
    void check_bias_of_head() const {
        const SlotDescription& bias = description_of(Slot::output_bias);
        const auto names = hf_names(bias.hf, model_.family->hf_prefix, 0);
        const auto& own = names.front();
        if (description_.tied || !types_.contains(own) || checkpoint_.tensors().contains(names.back()))
            return;
        const auto found = checkpoint_.find(bias.hf, model_.family->hf_prefix, 0);
        const std::vector<float> values = as_floats(type_of(*found), found->view->data);
        if (std::ranges::any_of(values, [](float x) { return x != 0; }))
            fail(ErrorCode::unsupported, "checkpoint",
                 "tensor '{}' is there and '{}' is not, and the head is not tied: transformers 5 then adds "
                 "no bias, transformers 4 adds it - store it under both names",
                 own, names.back());
    }

    static bool is_same(const SafetensorsView& one, const SafetensorsView& other) {
        if (one.shape != other.shape) return false;
        if (one.dtype == other.dtype) return std::ranges::equal(one.data, other.data);
        const auto type = float_type(one.dtype), other_type = float_type(other.dtype);
        return type && other_type && as_floats(*type, one.data) == as_floats(*other_type, other.data);
    }

    // A tensor that nothing reads belongs to another model than config.json describes.
    void check_all_are_read() const {
        std::vector<std::string> unread;
        for (const auto& [name, view] : checkpoint_.tensors()) {
            if (types_.contains(name) || changes_nothing(name, *model_.family, description_.is_part))
                continue;
            const auto other = alike_.find(name);
            if (other == alike_.end()) {
                unread.push_back(name);
            } else if (!is_same(*view, *checkpoint_.tensors().at(other->second))) {
                fail(ErrorCode::unsupported, "checkpoint",
                     "tensors '{}' and '{}' are two names of the same weight and differ, and versions of "
                     "transformers disagree about which holds - remove one of them",
                     name, other->second);
            }
        }
        if (unread.empty()) return;
        const std::string more = unread.size() > 1 ? fmt::format(" and {} more", unread.size() - 1) : "";
        fail(ErrorCode::unsupported, "checkpoint",
             "nothing reads tensor '{}'{}: config.json describes a model without it - correct config.json, "
             "or remove it if it changes nothing",
             unread.front(), more);
    }

    [[noreturn]] void fail_missing(const SlotDescription& slot, size_t layer) const {
        const std::string names = is_by_block(slot.hf) ? names_of_block(slot.hf, 0) : slot.hf;
        fail(ErrorCode::input, "checkpoint", "tensor '{}' is missing ({} of family '{}'{})",
             hf_names(names.c_str(), model_.family->hf_prefix, layer).front(), slot_name(slot.slot),
             model_.family->name, slot.required ? "" : ", as config.json says");
    }

    // What the checkpoint has as one tensor for each head (a vector), or each expert or stream (a matrix).
    void read_blocks(const SlotDescription& slot, size_t layer) {
        const SlotRows size = slot_rows(slot.slot, model_.config);
        const int64_t rows = block_size(slot.slot, model_.config);
        const bool vector = is_vector(slot.slot);
        std::vector<HfCheckpoint::NamedView> blocks;
        for (int64_t block = 0; block < size.rows / rows; ++block) {
            const std::string names = names_of_block(slot.hf, block);
            const auto found = checkpoint_.find(names.c_str(), model_.family->hf_prefix, layer);
            if (!found)
                fail(ErrorCode::input, "checkpoint", "tensor '{}' is missing",
                     hf_names(names.c_str(), model_.family->hf_prefix, layer).front());
            check_shape(*found, vector ? std::vector{rows} : std::vector{rows, size.width});
            if (!vector && type_of(*found) != type_of(blocks.empty() ? *found : blocks.front()))
                fail(ErrorCode::unsupported, "checkpoint",
                     "tensor '{}' has type {}, that of the first one {}", found->name, found->view->dtype,
                     blocks.front().view->dtype);
            types_[found->name] = found->view->dtype;
            blocks.push_back(*found);
        }
        Tensor& tensor = model_.tensors[tensor_name(slot, layer)];
        if (!vector) {
            tensor = {type_of(blocks.front()), tensor_shape(slot.slot, model_.config, layer), {}, {}};
            std::vector<std::span<const std::byte>> parts;
            for (const auto& block : blocks) parts.push_back(block.view->data);
            tensor.produce = [parts, files = checkpoint_.files()] {
                std::vector<std::byte> out;
                for (const auto& part : parts) {
                    out.insert(out.end(), part.begin(), part.end());
                    files->release(part);
                }
                return out;
            };
            return;
        }
        std::vector<float> values;
        for (const auto& block : blocks) {
            const std::vector<float> own = as_floats(type_of(block), block.view->data);
            values.insert(values.end(), own.begin(), own.end());
        }
        tensor = {DType::F32, {size.rows}, {}, [bytes = as_bytes(values)] { return bytes; }};
    }

    DType type_of(const HfCheckpoint::NamedView& found) const {
        const auto type = float_type(found.view->dtype);
        if (!type)
            fail(ErrorCode::unsupported, "checkpoint", "tensor '{}' has type {}, expected F32, F16 or BF16",
                 found.name, found.view->dtype);
        return *type;
    }

    void check_shape(const HfCheckpoint::NamedView& found, const std::vector<int64_t>& expected) const {
        if (found.view->shape != expected)
            fail(ErrorCode::input, "checkpoint", "tensor '{}' has shape [{}], expected [{}] by config.json",
                 found.name, fmt::join(found.view->shape, ", "), fmt::join(expected, ", "));
    }

    // A classifier has a row for each label.
    void check_labels(const SlotDescription& slot) const {
        const auto labels = label_count(HfConfig(description_.fields));
        const auto found = checkpoint_.find(slot.hf, model_.family->hf_prefix, 0);
        if (!labels || !found || found->view->shape.empty()) return;
        if (const int64_t rows = found->view->shape.front(); rows != static_cast<int64_t>(*labels))
            fail(
                ErrorCode::input, "checkpoint",
                "tensor '{}' has {} {}, but config.json has {} {} (field 'id2label', else 'num_labels', else "
                "2) - correct 'id2label'",
                found->name, rows, rows == 1 ? "row" : "rows", *labels, *labels == 1 ? "label" : "labels");
    }

    void read_slot(const SlotDescription& slot, size_t layer) {
        if (!is_of_layer(slot.slot, model_.config.n_expert_of(layer) > 0)) return;
        if (is_score(slot.slot)) check_labels(slot);
        // Classifiers of other kinds have tensors of the same names.
        if (is_score(slot.slot) && !scores_texts(HfConfig(description_.fields))) return;
        if (slot.slot == Slot::output && description_.tied) return;  // see check_tied()
        const bool announced = is_announced(slot, description_) && !is_optional(slot.slot);
        if (!announced && !is_optional(slot.slot)) return;
        if (is_by_block(slot.hf)) return read_blocks(slot, layer);
        const std::string pattern = names_of(slot);
        auto found = checkpoint_.find(pattern.c_str(), model_.family->hf_prefix, layer);
        // Of two tied tensors either may be left out.
        if (!found && slot.slot == Slot::token_embd && description_.tied)
            found = checkpoint_.find(description_of(Slot::output).hf, model_.family->hf_prefix, 0);
        if (!found && consists_of_experts(slot.slot) && read_mxfp4(slot, layer)) return;
        if (!found) {
            if (announced && !unread_.contains(tensor_name(slot, layer))) fail_missing(slot, layer);
            return;
        }
        for (const std::string& name : hf_names(pattern.c_str(), model_.family->hf_prefix, layer))
            if (name != found->name) alike_.emplace(name, found->name);
        const DType type = type_of(*found);
        check_shape(*found, hf_shape(slot, model_.config));
        types_[found->name] = found->view->dtype;
        const std::string name = tensor_name(slot, layer);
        model_.tensors[name] =
            is_vector(slot.slot) ? vector(slot, *found->view, type, name) : matrix(slot, *found->view, type);
    }

    std::string names_of(const SlotDescription& slot) const {
        const bool is_classifier =
            scores_texts(HfConfig(description_.fields)) &&
            checkpoint_.find(classifier_names(slot, true).c_str(), model_.family->hf_prefix, 0);
        return classifier_names(slot, is_classifier);
    }

    // Experts in MXFP4 (mxfp4.h); false: there are none.
    bool read_mxfp4(const SlotDescription& slot, size_t layer) {
        const auto part = [&](const char* suffix) {
            return checkpoint_.find((std::string(slot.hf) + suffix).c_str(), model_.family->hf_prefix, layer);
        };
        const auto blocks = part(mxfp4::kBlocksSuffix), scales = part(mxfp4::kScalesSuffix);
        if (!blocks || !scales) return false;
        const SlotRows expert = expert_rows(slot, model_.config), own = slot_rows(slot.slot, model_.config);
        const int64_t groups = expert.width / mxfp4::kBlock;
        if (expert.width % mxfp4::kBlock != 0 || blocks->view->dtype != "U8" || scales->view->dtype != "U8")
            fail(ErrorCode::input, "checkpoint", "tensors '{}' ({}) and '{}' ({}) are no MXFP4 of {} columns",
                 blocks->name, blocks->view->dtype, scales->name, scales->view->dtype, expert.width);
        std::vector<int64_t> shape = {model_.config.n_expert, expert.rows, groups};
        check_shape(*scales, shape);
        shape.push_back(mxfp4::kPackedBytes);
        check_shape(*blocks, shape);
        types_[blocks->name] = types_[scales->name] = "U8";
        Tensor& tensor = model_.tensors[tensor_name(slot, layer)];
        tensor = {DType::MXFP4, tensor_shape(slot.slot, model_.config), {}, {}};
        tensor.produce = [=, config = model_.config, packed = blocks->view->data,
                          exponents = scales->view->data, files = checkpoint_.files()] {
            const size_t width = row_bytes(DType::MXFP4, own.width), count = static_cast<size_t>(groups);
            std::vector<std::byte> out(static_cast<size_t>(own.rows) * width);
            for (int64_t row = 0; row < own.rows; ++row) {
                const auto from = static_cast<size_t>(hf_row(slot, config, row)) * count;
                mxfp4::to_ggml(packed.data() + from * mxfp4::kPackedBytes, exponents.data() + from, groups,
                               out.data() + static_cast<size_t>(row) * width);
            }
            files->release(packed);
            return out;
        };
        return true;
    }

    Tensor matrix(const SlotDescription& slot, const SafetensorsView& view, DType type) const {
        const SlotRows size = slot_rows(slot.slot, model_.config);
        Tensor tensor{type, tensor_shape(slot.slot, model_.config), {}, {}};
        const size_t width = row_bytes(type, size.width);
        const bool transposed = (slot.layout & hf_transposed) != 0;
        const bool in_order = (slot.layout & (hf_rotary | hf_qkv_per_head)) == 0 &&
                              ((slot.layout & hf_stacked) == 0 || !belongs_to_experts(slot.slot));
        if (const size_t whole = static_cast<size_t>(size.rows) * width;
            (slot.layout & hf_first_rows) != 0 && view.data.size() < whole) {
            tensor.produce = [whole, data = view.data, files = checkpoint_.files()] {
                std::vector<std::byte> out(data.begin(), data.end());
                files->release(data);
                out.resize(whole);
                return out;
            };
            return tensor;
        }
        if (!transposed && in_order && aligned(view.data, type)) {
            const int64_t first = hf_row(slot, model_.config, 0);
            tensor.mapped =
                view.data.subspan(static_cast<size_t>(first) * width, static_cast<size_t>(size.rows) * width);
            return tensor;
        }
        tensor.produce = [slot, size, width, transposed, type, data = view.data, columns = view.shape.back(),
                          config = model_.config, files = checkpoint_.files()] {
            std::vector<std::byte> out(static_cast<size_t>(size.rows) * width);
            const size_t element = block_bytes(type);
            for (int64_t row = 0; row < size.rows; ++row) {
                const auto from = static_cast<size_t>(hf_row(slot, config, row));
                std::byte* to = out.data() + static_cast<size_t>(row) * width;
                if (!transposed) {
                    memcpy(to, data.data() + from * width, width);
                    continue;
                }
                // Experts lie one after the other.
                const auto across = static_cast<size_t>(columns), inputs = static_cast<size_t>(size.width);
                const std::byte* block = data.data() + from / across * inputs * across * element;
                for (size_t c = 0; c < inputs; ++c)
                    memcpy(to + c * element, block + (c * across + from % across) * element, element);
            }
            files->release(data);
            return out;
        };
        return tensor;
    }

    // Norms and biases are float32 in GGUF.
    Tensor vector(const SlotDescription& slot, const SafetensorsView& view, DType type,
                  const std::string& name) {
        const int64_t length = slot_rows(slot.slot, model_.config).rows;
        const std::vector<float> stored = as_floats(type, view.data);
        std::vector<float> values(static_cast<size_t>(length));
        for (int64_t row = 0; row < length; ++row)
            values[static_cast<size_t>(row)] = stored[static_cast<size_t>(hf_row(slot, model_.config, row))];
        if ((slot.layout & hf_plus_one) != 0) {
            for (float& value : values) value += 1.0F;
            keep_if_lossy(values, view, type, name);
        }
        return {DType::F32, {length}, {}, [bytes = as_bytes(values)] { return bytes; }};
    }

    void keep_if_lossy(std::vector<float> values, const SafetensorsView& view, DType type,
                       const std::string& name) {
        for (float& value : values) value -= 1.0F;
        const auto back = quantize(type, values, static_cast<int64_t>(values.size()));
        if (std::equal(back.begin(), back.end(), view.data.begin(), view.data.end())) return;
        auto array = std::make_shared<GgufArray>();
        array->element = GgufType::U8;
        array->count = view.data.size();
        array->packed.assign(view.data.begin(), view.data.end());
        model_.metadata.set(raw_vector_key(name), {GgufType::Array, std::move(array)});
    }

    // A model whose tokenizer cannot be run still takes token ids.
    void read_vocabulary() {
        bool found = false;
        try {
            found = read_hf_vocabulary(folder_, model_.config.n_vocab, model_.metadata);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::unsupported) throw;
            model_.metadata.set(kTokenizerReasonKey, GgufValue::string(error.what()));
        }
        if (!found) model_.metadata.set("tokenizer.ggml.model", GgufValue::string("none"));
    }

    // Without it an encoder still gives hidden states.
    void read_embedding() {
        try {
            if (const auto config = read_sentence_modules(folder_, model_.config.n_embd))
                set_embedding_config(*config, model_.metadata.string("general.architecture"),
                                     model_.metadata);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::unsupported) throw;
            model_.metadata.set(kEmbeddingReasonKey, GgufValue::string(error.what()));
        }
    }

    void write_record() {
        if (description_.text.empty()) return;
        const json record = {{"config", description_.text}, {"types", types_}};
        model_.metadata.set(kRecordKey, GgufValue::string(record.dump()));
    }

    std::string folder_;
    HfDescription description_;
    HfCheckpoint checkpoint_;
    Model& model_;
    std::set<std::string> unread_;
    std::map<std::string, std::string> types_;  // of the tensors that were read
    std::map<std::string, std::string> alike_;  // another name of a tensor -> the one that was read
};

}  // namespace

Model load_hf_model(const std::string& folder) {
    try {
        return HfReader(folder).read();
    } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{} (in '{}')", error.what(), folder));
    } catch (const fs::filesystem_error& error) {  // a link to itself
        fail(ErrorCode::io, "checkpoint", "cannot read '{}': {}", error.path1().string(),
             error.code().message());
    }
}

CheckpointRecord checkpoint_record(const GgufMetadata& metadata) {
    if (!metadata.has(kRecordKey)) return {};
    const json record = try_parse_json(metadata.string(kRecordKey));
    try {
        return {record.at("config"), record.at("types")};
    } catch (const json::exception&) {
        fail(ErrorCode::input, "checkpoint", "key '{}' is malformed", kRecordKey);
    }
}

std::string raw_vector_key(const std::string& tensor) { return std::string(kRecordKey) + ".raw." + tensor; }

}  // namespace refold
