#include "engine/ggml/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/mapped_files.h"
#include "core/parallel.h"
#include "engine/ggml/device_run.h"
#include "engine/ggml/head_runs.h"
#include "engine/ggml/row_panels.h"
#include "io/ggml_cpu.h"

namespace refold {
namespace {

// Buffer types with special kernels (repacked quants, AMX), in the order in which llama.cpp tries them.
std::vector<ggml_backend_buffer_type_t> extra_buffer_types() {
    load_ggml_cpu();
    std::vector<ggml_backend_buffer_type_t> types;
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto* get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
    if (get == nullptr) return types;
    for (ggml_backend_buffer_type_t* type = get(cpu); type != nullptr && *type != nullptr; ++type)
        types.push_back(*type);
    return types;
}

// Whether the CPU device runs W x with W [in, out] of this type in a buffer of `buffer_type`.
bool supports_product(ggml_backend_buffer_type_t buffer_type, ggml_type type, int64_t in, int64_t out) {
    const ggml_context_ptr context = make_context(3);
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, in, out);
    ggml_tensor* product =
        ggml_mul_mat(context.get(), weight, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, in, 512));
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(buffer_type, 0));
    weight->buffer = buffer.get();
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), product);
}

bool is_repack(ggml_backend_buffer_type_t type) {
    return strcmp(ggml_backend_buft_name(type), "CPU_REPACK") == 0;
}

// Fills a storage that is not plain from its rows in GGUF's layout.
void fill_storage(Storage& storage, std::span<const std::byte> rows) {
    if (storage.layout != Layout::panels) {
        ggml_backend_tensor_set(storage.tensor, rows.data(), 0, rows.size());
        return;
    }
    const ggml_tensor* t = storage.tensor;
    row_panels::pack(t->type, rows.data(), t->nb[1], t->ne[1], t->ne[0], static_cast<std::byte*>(t->data));
}

// Writes a tensor's numbers as F32 or BF16; returns their bytes.
size_t convert(const Tensor& tensor, std::span<const std::byte> bytes, ggml_type to, std::byte* out) {
    const auto count = static_cast<size_t>(tensor.elements());
    if (to == GGML_TYPE_F32) {
        dequantize(tensor.type, bytes, {reinterpret_cast<float*>(out), count});
        return count * sizeof(float);
    }
    std::vector<float> values(count);
    dequantize(tensor.type, bytes, values);
    ggml_fp32_to_bf16_row(values.data(), reinterpret_cast<ggml_bf16_t*>(out), tensor.elements());
    return count * sizeof(ggml_bf16_t);
}

class WeightLoader {
public:
    WeightLoader(const Model& model, PlannedWeights& planned, const EngineOptions& options,
                 const DeviceRun* device)
        : model_(model),
          planned_(planned),
          plans_(planned.plans),
          device_(device),
          own_operations_(options.shared == SharedExecution::automatic),
          resident_(device == nullptr ? options.resident : nullptr) {}

    WeightMemory load(int threads) {
        choose_panels();
        device_ != nullptr ? choose_memory() : choose_layouts();
        plan_panel_runs();
        if (resident_ != nullptr) find_resident(threads);
        std::vector<Storage*> unread;
        for (const auto& storage : plans_.storages)
            if (storage->tensor->buffer == nullptr) unread.push_back(storage.get());
        allocate();
        if (device_ != nullptr && !device_->has_worker()) plan_banks();
        load_vectors();
        // Others than the CPU take one tensor after the other.
        parallel_for(std::ssize(unread), device_ != nullptr ? 1 : threads,
                     [&](int64_t i) { load_storage(*unread[static_cast<size_t>(i)]); });
        if (device_ == nullptr)
            for (const auto& storage : plans_.storages) memory_.resident->offer(*storage);
        return std::move(memory_);
    }

private:
    void choose_panels();
    void choose_layouts();
    void choose_memory();
    // The first layer that reads a stored tensor, or a vector.
    std::map<std::string, size_t> first_layers() const;
    std::map<const ggml_tensor*, size_t> layers_of_vectors() const;
    bool is_table(const Storage* storage) const;
    bool is_multiplied(const Storage* storage) const;
    void plan_panel_runs();
    // Gives plans of several runs a HeadBank, where their storages lie behind each other.
    void plan_banks();
    HeadBank bank_of(const LinearPlan& plan, size_t layer);
    void put_numbers(ggml_tensor* tensor, std::span<const int32_t> numbers, size_t layer);
    ggml_tensor* alias(ggml_tensor* description, ggml_backend_buffer_t buffer, std::byte* address) const;
    // Gives storages that resident_ holds their place there.
    void find_resident(int threads);
    void allocate();
    void allocate(ggml_backend_buffer_type_t type, std::span<ggml_tensor* const> tensors, size_t total,
                  size_t alignment);
    void load_vectors();
    void load_storage(Storage& storage) const;

    const Model& model_;
    PlannedWeights& planned_;
    WeightPlans& plans_;       // of planned_
    const DeviceRun* device_;  // null: the CPU
    bool own_operations_;
    const std::shared_ptr<const ResidentWeights> resident_;  // of another engine; null: none
    std::map<ggml_backend_buffer_type_t, std::vector<ggml_tensor*>> tensors_;  // by the type of their buffer
    std::set<const Storage*> panels_;                                          // those that may be in panels
    WeightMemory memory_;
};

// Whether a run is whole panels of its storage or, of columns, whole groups of inputs.
bool is_in_panels(const Run& run, bool columns) {
    const Storage& storage = *run.storage;
    if (columns) return storage.fold == 1 && run.first % kInputGroup == 0 && run.count % kInputGroup == 0;
    const int64_t rows = row_panels::kRows * storage.fold, end = run.first + run.count;
    return run.first % rows == 0 && (end % rows == 0 || end == storage.rows());
}

// Storages that are read in runs lie in panels only if that suits all their runs, and all other storages that
// one of these products reads.
void WeightLoader::choose_panels() {
    if (!own_operations_) return;
    for (const auto& storage : plans_.storages) {
        if (!storage->needs_plain && row_panels::supports(storage->tensor->type, storage->in()))
            panels_.insert(storage.get());
    }
    for (const auto& [key, plan] : plans_.experts) {
        for (const auto& weights : plan.slots) {
            for (const Run& run : weights.experts) {
                if (!is_in_panels(run, false)) panels_.erase(run.storage);
            }
        }
    }
    for (const auto& [key, plan] : plans_.factored) {
        plan.for_each_segment([&](const factors::Segment& segment) {
            for (const factors::Term& term : segment.terms) {
                if (term.kind == factors::Term::Kind::rows && !is_in_panels(term.run, false))
                    panels_.erase(term.run.storage);
            }
        });
    }
    for (bool changed = true; changed;) {
        changed = false;
        plans_.for_each_linear([&](const LinearPlan& plan) {
            if (plan.kind != LinearPlan::Kind::runs && plan.kind != LinearPlan::Kind::composed) return;
            const auto suits = [&](const Run& run) {
                return panels_.contains(run.storage) && is_in_panels(run, plan.columns);
            };
            if (std::all_of(plan.runs.begin(), plan.runs.end(), suits)) return;
            for (const Run& run : plan.runs) changed |= panels_.erase(run.storage) > 0;
        });
    }
}

void WeightLoader::plan_panel_runs() {
    plans_.for_each_linear([&](LinearPlan& plan) {
        if (plan.kind != LinearPlan::Kind::runs && plan.kind != LinearPlan::Kind::composed) return;
        if (plan.runs.front().storage->layout != Layout::panels) return;
        plan.kind = LinearPlan::Kind::panels;
        int64_t before = 0;  // rows of the result, or columns of x
        for (const Run& run : plan.runs) {
            const Storage& storage = *run.storage;
            const int64_t rows = row_panels::kRows * storage.fold,
                          groups = row_panels::groups_of(storage.in());
            if (plan.columns) {
                plan.panel_runs.push_back(
                    {storage.tensor,
                     1,
                     {0, (storage.rows() + rows - 1) / rows},
                     {run.first / kInputGroup, row_panels::groups_of(run.first + run.count)},
                     0,
                     before / kInputGroup,
                     before > 0});
            } else {
                plan.panel_runs.push_back({storage.tensor,
                                           storage.fold,
                                           {run.first / rows, (run.first + run.count + rows - 1) / rows},
                                           {0, groups},
                                           before,
                                           0,
                                           false});
            }
            before += run.count;
        }
    });
}

bool WeightLoader::is_table(const Storage* storage) const {
    return std::any_of(plans_.tables.begin(), plans_.tables.end(), [&](const auto& entry) {
        const auto& parts = entry.second.parts;
        return std::find(parts.begin(), parts.end(), storage) != parts.end();
    });
}

bool WeightLoader::is_multiplied(const Storage* storage) const {
    bool found = false;
    plans_.for_each_linear([&](const LinearPlan& plan) {
        found = found || std::ranges::find(plan.runs, storage, &Run::storage) != plan.runs.end();
    });
    return found || !is_table(storage);
}

std::map<std::string, size_t> WeightLoader::first_layers() const {
    std::map<std::string, size_t> out;
    const Topology& topology = model_.topology;
    for (size_t p = 0; p < topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : topology.layers[p])
            for (const std::string& name : tensors_of(expression)) out.try_emplace(name, p);
    }
    return out;
}

std::map<const ggml_tensor*, size_t> WeightLoader::layers_of_vectors() const {
    std::map<const ggml_tensor*, size_t> out;
    const auto add = [&](const ggml_tensor* vector, size_t layer) {
        if (vector == nullptr) return;
        size_t& first = out.try_emplace(vector, layer).first->second;
        first = std::min(first, layer);
    };
    for (const auto& [key, vector] : plans_.vectors) add(vector, key.first);
    for (const auto& [key, plans] : plans_.linear)
        for (const LinearPlan& plan : plans) add(plan.bias, key.first);
    for (const auto& [key, plan] : plans_.factored) add(plan.bias, key.first);
    for (const auto& [key, plan] : plans_.experts)
        for (const auto& slot : plan.slots) add(slot.bias, key.first);
    add(plans_.inverse_output_norms, kWholeModel);
    return out;
}

// Rows of tables are read on the CPU. What is read in runs of rows comes first, by its type and width, so
// that it lies behind each other.
void WeightLoader::choose_memory() {
    const std::map<std::string, size_t> layers = first_layers();
    std::ranges::stable_sort(plans_.storages, {}, [](const auto& storage) {
        const ggml_tensor* t = storage->tensor;
        return storage->used_in_runs ? std::tuple(0, static_cast<int>(t->type), t->ne[0])
                                     : std::tuple(1, 0, int64_t{0});
    });
    const auto add = [&](ggml_backend_buffer_type_t memory, ggml_tensor* tensor) {
        tensors_[memory].push_back(tensor);
    };
    for (auto& storage : plans_.storages) {
        ggml_tensor* t = storage->tensor;
        const auto found = layers.find(storage->tensors.front());
        const size_t layer = found == layers.end() ? kWholeModel : found->second;
        const bool there =
            is_multiplied(storage.get()) && device_->multiplies(layer, t->type, t->ne[0], t->ne[1]);
        add(there ? device_->memory(layer) : ggml_backend_cpu_buffer_type(), t);
    }
    const std::map<const ggml_tensor*, size_t> vectors = layers_of_vectors();
    for (auto& [name, vector] : planned_.vectors)
        add(device_->memory(vectors.at(vector.tensor)), vector.tensor);
}

void WeightLoader::choose_layouts() {
    const auto extra = extra_buffer_types();
    for (auto& storage : plans_.storages) {
        ggml_backend_buffer_type_t chosen = ggml_backend_cpu_buffer_type();
        const ggml_tensor* t = storage->tensor;
        const bool in_panels = panels_.contains(storage.get());
        const bool eight_rows = t->type == GGML_TYPE_Q4_0 && t->ne[1] % 8 == 0 && head_runs::has_q4_0x8() &&
                                (!storage->used_in_runs || model_.config.head_dim % 8 == 0);
        for (ggml_backend_buffer_type_t type : extra) {
            if (storage->needs_plain || storage->used_by_experts || storage->layout == Layout::folded) break;
            if (is_repack(type) && in_panels) break;
            const bool known_layout = is_repack(type) && eight_rows;
            // Our code reads runs and rows of tables, so their layout must be a known one.
            if ((storage->used_in_runs || is_table(storage.get())) && !known_layout) continue;
            if (!supports_product(type, t->type, t->ne[0], t->ne[1])) continue;
            chosen = type;
            storage->layout = known_layout ? Layout::q4_0x8 : Layout::opaque;
            break;
        }
        // table_row() reads panels too.
        if (in_panels && (storage->layout == Layout::plain || storage->layout == Layout::folded))
            storage->layout = Layout::panels;
        tensors_[chosen].push_back(storage->tensor);
    }
    for (auto& [name, vector] : planned_.vectors)
        tensors_[ggml_backend_cpu_buffer_type()].push_back(vector.tensor);
}

// A storage's bytes depend on its layout, so they are loaded to be compared.
void WeightLoader::find_resident(int threads) {
    std::map<const ggml_tensor*, ggml_backend_buffer_type_t> memory_of;
    for (const auto& [type, tensors] : tensors_)
        for (const ggml_tensor* tensor : tensors) memory_of[tensor] = type;
    parallel_for(std::ssize(plans_.storages), threads, [&](int64_t i) {
        Storage& storage = *plans_.storages[static_cast<size_t>(i)];
        ggml_backend_buffer_type_t memory = memory_of.at(storage.tensor);
        if (!resident_->may_hold(storage, memory)) return;
        const ggml_context_ptr context = make_context(1);
        Storage loaded = storage;
        loaded.tensor = ggml_dup_tensor(context.get(), storage.tensor);
        const ggml_backend_buffer_ptr buffer(
            ggml_backend_buft_alloc_buffer(memory, ggml_backend_buft_get_alloc_size(memory, loaded.tensor)));
        if (!buffer) return;
        alias(loaded.tensor, buffer.get(),
              static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer.get())));
        load_storage(loaded);
        const ggml_tensor* held = resident_->equal_to(loaded);
        if (held != nullptr) alias(storage.tensor, held->buffer, static_cast<std::byte*>(held->data));
    });
    for (auto& [type, tensors] : tensors_) {
        for (const ggml_tensor* tensor : tensors)
            if (tensor->buffer != nullptr) memory_.shared_bytes += ggml_nbytes(tensor);
        std::erase_if(tensors, [](const ggml_tensor* tensor) { return tensor->buffer != nullptr; });
    }
    if (memory_.shared_bytes > 0) memory_.resident->keep(resident_);
}

void WeightLoader::allocate() {
    for (const auto& [type, tensors] : tensors_) {
        const size_t alignment = std::max<size_t>(64, ggml_backend_buft_get_alignment(type));
        const auto size_of = [&](const ggml_tensor* tensor) {
            return GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
        };
        // Some devices have a largest buffer.
        const size_t most = ggml_backend_buft_get_max_size(type);
        for (size_t first = 0, last = 0; first < tensors.size(); first = last) {
            size_t total = 0;
            while (last < tensors.size() && (last == first || size_of(tensors[last]) <= most - total))
                total += size_of(tensors[last++]);
            allocate(type, std::span(tensors).subspan(first, last - first), total, alignment);
        }
    }
}

ggml_tensor* WeightLoader::alias(ggml_tensor* description, ggml_backend_buffer_t buffer,
                                 std::byte* address) const {
    ggml_backend_tensor_alloc(buffer, description, address);
    return description;
}

HeadBank WeightLoader::bank_of(const LinearPlan& plan, size_t layer) {
    const ggml_tensor* first = plan.runs.front().storage->tensor;
    const auto address_of = [](const ggml_tensor* t) { return static_cast<std::byte*>(t->data); };
    std::byte *begin = address_of(first), *end = begin;
    for (const Run& run : plan.runs) {
        const ggml_tensor* t = run.storage->tensor;
        if (t->buffer != first->buffer || t->type != first->type || t->ne[0] != first->ne[0] ||
            run.storage->fold > 1)
            return {};
        begin = std::min(begin, address_of(t));
        end = std::max(end, address_of(t) + ggml_nbytes(t));
    }
    // In rows of the bank.
    const auto row = static_cast<ptrdiff_t>(first->nb[1]);
    int64_t unit = 0;
    for (const Run& run : plan.runs) {
        const ptrdiff_t offset = address_of(run.storage->tensor) - begin;
        if (offset % row != 0) return {};
        unit = std::gcd(std::gcd(unit, run.count), offset / row + run.first);
    }
    constexpr int64_t kLeastRows = 16;
    const int64_t block_bytes = unit * row;
    if (unit < kLeastRows || block_bytes % static_cast<int64_t>(sizeof(int32_t)) != 0) return {};
    const int64_t blocks = (end - begin) / block_bytes;
    std::vector<int32_t> numbers;
    for (const Run& run : plan.runs) {
        const int64_t at = (address_of(run.storage->tensor) - begin) / row + run.first;
        for (int64_t r = 0; r < run.count; r += unit)
            numbers.push_back(static_cast<int32_t>((at + r) / unit));
    }
    // ggml's Vulkan copies the first 512 of every 1024 words only.
    constexpr int64_t kMostWords = 512;
    const int64_t block_words = block_bytes / static_cast<int64_t>(sizeof(int32_t));
    int64_t words = std::min(block_words, kMostWords);
    while (block_words % words != 0) --words;
    std::vector<int32_t> pieces;
    for (const int32_t block : numbers)
        for (int64_t piece = 0; piece < block_words / words; ++piece)
            pieces.push_back(static_cast<int32_t>(block * (block_words / words) + piece));
    const auto count = static_cast<int64_t>(numbers.size());
    for (int64_t i = 0; i < count * (HeadBank::kFewTokens - 1); ++i)
        numbers.push_back(numbers[static_cast<size_t>(i)]);
    ggml_context* c = plans_.context.get();
    HeadBank bank;
    bank.blocks = alias(ggml_new_tensor_3d(c, first->type, first->ne[0], unit, blocks), first->buffer, begin);
    bank.numbers = ggml_new_tensor_2d(c, GGML_TYPE_I32, count, HeadBank::kFewTokens);
    bank.words = alias(ggml_new_tensor_2d(c, GGML_TYPE_I32, words, blocks * (block_words / words)),
                       first->buffer, begin);
    bank.pieces = ggml_new_tensor_1d(c, GGML_TYPE_I32, std::ssize(pieces));
    const ggml_context_ptr asked = make_context(4);
    ggml_tensor* x = ggml_new_tensor_3d(asked.get(), GGML_TYPE_F32, first->ne[0], 1, HeadBank::kFewTokens);
    if (!device_->supports(layer, ggml_mul_mat_id(asked.get(), bank.blocks, x, bank.numbers)) ||
        !device_->supports(layer, ggml_get_rows(asked.get(), bank.words, bank.pieces)))
        return {};
    put_numbers(bank.numbers, numbers, layer);
    put_numbers(bank.pieces, pieces, layer);
    return bank;
}

void WeightLoader::put_numbers(ggml_tensor* tensor, std::span<const int32_t> numbers, size_t layer) {
    ggml_backend_buffer_ptr buffer(
        ggml_backend_buft_alloc_buffer(device_->memory(layer), ggml_nbytes(tensor)));
    if (!buffer)
        fail(ErrorCode::io, "engine", "cannot allocate the numbers of heads on {}: not enough memory",
             device_->name());
    alias(tensor, buffer.get(), static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer.get())));
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_tensor_set(tensor, numbers.data(), 0, numbers.size_bytes());
    memory_.bytes += ggml_nbytes(tensor);
    memory_.resident->keep(std::move(buffer));
}

void WeightLoader::plan_banks() {
    const auto plan_bank = [&](LinearPlan& plan, size_t layer) {
        const bool runs = plan.kind == LinearPlan::Kind::runs || plan.kind == LinearPlan::Kind::composed;
        if (runs && !plan.columns && plan.runs.size() > plan.slot_rows.size())
            plan.bank = bank_of(plan, layer);
    };
    for (auto& [key, plans] : plans_.linear)
        for (LinearPlan& plan : plans) plan_bank(plan, key.first);
    for (auto& [key, plan] : plans_.factored)
        for (auto& stored : plan.stored) plan_bank(stored.plan, key.first);
}

void WeightLoader::allocate(ggml_backend_buffer_type_t type, std::span<ggml_tensor* const> tensors,
                            size_t total, size_t alignment) {
    ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(type, total));
    if (!buffer) {
        fail(ErrorCode::io, "engine", "cannot allocate {} bytes for weights: not enough memory{}", total,
             device_ != nullptr ? fmt::format(" on {} ({})", device_->name(), ggml_backend_buft_name(type))
                                : "");
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (ggml_backend_buffer_is_host(buffer.get())) advise_large_pages(buffer.get());
    auto* address = static_cast<char*>(ggml_backend_buffer_get_base(buffer.get()));
    for (ggml_tensor* tensor : tensors) {
        ggml_backend_tensor_alloc(buffer.get(), tensor, address);
        address += GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
        memory_.bytes += ggml_nbytes(tensor);
    }
    memory_.resident->keep(std::move(buffer));
}

void WeightLoader::load_vectors() {
    for (auto& [name, vector] : planned_.vectors)
        ggml_backend_tensor_set(vector.tensor, vector.values.data(), 0, ggml_nbytes(vector.tensor));
    planned_.vectors.clear();
}

void WeightLoader::load_storage(Storage& storage) const {
    const ggml_type type = storage.tensor->type;
    const bool host = ggml_backend_buffer_is_host(storage.tensor->buffer);
    const bool direct = host && (storage.layout == Layout::plain || storage.layout == Layout::folded);
    const bool keeps_rows = device_ != nullptr && !host && is_table(&storage);
    // Other layouts are packed from all rows of the storage.
    std::vector<std::byte> rows;
    std::byte* to = static_cast<std::byte*>(storage.tensor->data);
    const SourceFiles* source = model_.source.get();
    const auto converted = [&](const Tensor& tensor) { return static_cast<ggml_type>(tensor.type) != type; };
    if (!direct && !keeps_rows && storage.tensors.size() == 1 &&
        !converted(model_.tensor(storage.tensors[0]))) {
        const Tensor& tensor = model_.tensor(storage.tensors[0]);
        const TensorBytes bytes(tensor);
        fill_storage(storage, bytes.bytes());
        if (source != nullptr) source->release(tensor.mapped);
        return;
    }
    if (!direct) {
        rows.resize(ggml_nbytes(storage.tensor));
        to = rows.data();
    }
    for (const auto& name : storage.tensors) {
        const Tensor& tensor = model_.tensor(name);
        const TensorBytes bytes(tensor);
        if (converted(tensor)) {
            to += convert(tensor, bytes.bytes(), type, to);
        } else {
            memcpy(to, bytes.bytes().data(), bytes.bytes().size());
            to += bytes.bytes().size();
        }
        if (source != nullptr) source->release(tensor.mapped);
    }
    if (!direct) fill_storage(storage, rows);
    if (keeps_rows) storage.host_rows = std::move(rows);
}

}  // namespace

WeightMemory load_weights(const Model& model, PlannedWeights& planned, const EngineOptions& options,
                          const DeviceRun* device) {
    WeightMemory memory = WeightLoader(model, planned, options, device).load(options.threads);
    if (model.source) check_unchanged(model.source->files());
    return memory;
}

}  // namespace refold
