#include "engine/ggml/weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "core/parallel.h"
#include "engine/ggml/parts.h"
#include "engine/ggml/q8_kernels.h"
#include "engine/ggml/reconstruct.h"
#include "model/filled_ranks.h"

namespace refold {
namespace {

constexpr std::array kQkv = {Slot::attn_q, Slot::attn_k, Slot::attn_v};
// Where attention comes from another position.
constexpr std::array kQ = {Slot::attn_q};
constexpr std::array kV = {Slot::attn_v};
constexpr std::array kComp = {Slot::attn_comp};
constexpr std::array kCompFfn = {Slot::attn_comp_ffn};
constexpr std::array kCompO = {Slot::attn_comp_o};
constexpr std::array kCompV = {Slot::attn_comp_v};
constexpr std::array kO = {Slot::attn_o};
constexpr std::array kGateUp = {Slot::ffn_gate, Slot::ffn_up};
constexpr std::array kUp = {Slot::ffn_up};
constexpr std::array kDown = {Slot::ffn_down};
constexpr std::array kHeadDense = {Slot::head_dense};
constexpr std::array kOutput = {Slot::output};
constexpr std::array kPooler = {Slot::pooler};
// Slots that are multiplied with one input; the first of several that fit is taken.
constexpr std::array<std::span<const Slot>, 14> kGroups = {
    kQkv, kQ, kV, kComp, kCompFfn, kCompO, kCompV, kO, kGateUp, kUp, kDown, kHeadDense, kOutput, kPooler};

// Buffer types with special kernels (repacked quants, AMX), in the order in which llama.cpp tries them.
std::vector<ggml_backend_buffer_type_t> extra_buffer_types() {
    std::vector<ggml_backend_buffer_type_t> types;
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto* get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
    if (get == nullptr) return types;
    for (ggml_backend_buffer_type_t* type = get(cpu); type != nullptr && *type != nullptr; ++type)
        types.push_back(*type);
    return types;
}

// Would the CPU device run W x with W of this type and shape in a buffer of `buffer_type`?
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

}  // namespace

const Slots& Weights::slots_at(size_t position) const {
    return position == kModelPosition ? model_->topology.globals : model_->topology.positions[position];
}

std::vector<Weights::TensorRun> Weights::runs_of(const Expression& expression, Slot slot,
                                                 size_t position) const {
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        const SlotShape shape = slot_shape(slot, model_->config, position);
        return {{dense->tensor, 0, heads_are_columns(slot) ? shape.in : shape.out}};
    }
    std::vector<TensorRun> runs;
    const int64_t head_dim = model_->config.head_dim;
    if (const auto* heads = std::get_if<Heads>(&expression)) {
        for (const auto& run : heads->runs)
            runs.push_back({run.tensor, run.first * head_dim, run.count * head_dim});
    }
    return runs;
}

// An expression's weight as a stored tensor would be.
Tensor Weights::materialised(const Expression& expression, Slot slot) const {
    const SlotShape shape = slot_shape(slot, model_->config);
    Tensor tensor{DType::F32, {shape.in, shape.out}, {}, {}};
    tensor.produce = [=, this] {
        return quantise(DType::F32, materialise(*model_, expression, slot), shape.in);
    };
    return tensor;
}

Weights::Weights(const Model& given, const EngineOptions& options)
    : f32_(options.f32), shared_(options.shared), factored_execution_(options.factored) {
    const std::optional<Model> dense = with_reconstructed(given, options);
    const std::optional<Model> aligned = with_filled_ranks(dense ? *dense : given, kRankUnit);
    const Model& model = aligned ? *aligned : dense ? *dense : given;
    const ExecutionChooser chooser(model);
    model_ = &model;
    chooser_ = &chooser;
    // Storages, plans' scratch and vectors: a generous bound on the number of tensor descriptions.
    context_ = make_context(4 * model.tensors.size() + 64 * model.topology.positions.size() + 64);
    for (size_t p = 0; p < model.topology.positions.size(); ++p)
        plan_position(p, model.topology.positions[p]);
    plan_position(kModelPosition, model.topology.globals);
    if (model.config.norm_head) {
        const Expression& output = model.topology.globals.at(Slot::output);
        const auto* stored = std::get_if<Dense>(&output);
        inverse_output_norms_ =
            add_vector(stored != nullptr ? inverse_row_norms(model.tensor(stored->tensor))
                                         : inverse_row_norms(materialised(output, Slot::output)),
                       "output norms");
    }
    mark_partial_use();
    Buffers buffers;
    choose_layouts(buffers);
    plan_scratch(buffers);
    allocate(buffers);
    load(options.threads);
    for (auto& [key, plan] : factored_) plan.finish();
    model_ = nullptr;
    chooser_ = nullptr;
}

void Weights::plan_position(size_t position, const Slots& slots) {
    std::set<Slot> planned;
    for (const auto group : kGroups) {
        const auto open = [&](Slot slot) { return slots.contains(slot) && !planned.contains(slot); };
        if (!std::all_of(group.begin(), group.end(), open)) continue;
        plan_group(position, group);
        planned.insert(group.begin(), group.end());
    }
    std::set<Slot> matrix_biases;
    for (const auto& [slot, expression] : slots) {
        slots_.emplace(position, slot);
        if (is_matrix(slot) && bias_of(slot)) matrix_biases.insert(*bias_of(slot));
    }
    for (const auto& [slot, expression] : slots) {
        if (is_table(slot)) {
            const std::string name = std::get<Dense>(expression).tensor;
            place_tensors({{TensorRun{name, 0, 0}}}, false);
            tables_[slot] = placed_.at(name).storage;
        } else if (is_vector(slot) && !matrix_biases.contains(slot)) {
            slot_vectors_[{position, slot}] = add_vector(materialise(*model_, expression, slot, position),
                                                         std::get<Dense>(expression).tensor);
        }
    }
}

// Tensors of a group that are not resident yet become one storage where type and input size agree.
void Weights::place_tensors(const std::vector<std::vector<TensorRun>>& slots, bool fuse) {
    Storage* open = nullptr;
    for (const auto& runs : slots) {
        for (const auto& run : runs) {
            if (placed_.contains(run.tensor)) continue;
            const Tensor& tensor = model_->tensor(run.tensor);
            const auto type = f32_ ? GGML_TYPE_F32 : static_cast<ggml_type>(tensor.type);
            if (!fuse || open == nullptr || open->tensor->type != type ||
                open->in() != tensor.row_elements()) {
                storages_.push_back(std::make_unique<Storage>());
                open = storages_.back().get();
                open->tensor = ggml_new_tensor_2d(context_.get(), type, tensor.row_elements(), tensor.rows());
                placed_[run.tensor] = {open, 0};
            } else {
                placed_[run.tensor] = {open, open->rows()};
                // Not allocated yet: the description can still grow.
                open->tensor =
                    ggml_new_tensor_2d(context_.get(), type, open->in(), open->rows() + tensor.rows());
            }
            open->parts.push_back(run.tensor);
        }
    }
}

LinearPlan Weights::make_plan(size_t position, std::span<const Slot> slots,
                              std::span<const std::vector<TensorRun>> runs) const {
    LinearPlan plan;
    plan.columns = heads_are_columns(slots[0]);
    for (size_t s = 0; s < slots.size(); ++s) {
        const SlotShape shape = slot_shape(slots[s], model_->config, position);
        plan.in = shape.in;
        plan.out += shape.out;
        plan.slot_rows.push_back(shape.out);
        for (const auto& run : runs[s]) {
            const Placement& place = placed_.at(run.tensor);
            const int64_t first = plan.columns ? run.first : place.row + run.first;
            if (!plan.runs.empty() && plan.runs.back().storage == place.storage &&
                plan.runs.back().first + plan.runs.back().count == first) {
                plan.runs.back().count += run.count;
            } else {
                plan.runs.push_back({place.storage, first, run.count});
            }
        }
    }
    const auto same_type = [&](const Run& run) { return run.storage->tensor->type == plan.type(); };
    const Run& first = plan.runs.front();
    const int64_t whole = plan.columns ? first.storage->in() : first.storage->rows();
    if (plan.runs.size() == 1 && first.count == whole) {
        plan.kind = LinearPlan::Kind::whole;
    } else if (shared_ == SharedExecution::automatic &&
               std::all_of(plan.runs.begin(), plan.runs.end(), same_type)) {
        plan.kind = LinearPlan::Kind::parts;
    } else {
        plan.kind = LinearPlan::Kind::composed;
    }
    return plan;
}

std::vector<FactoredPlan::Stored> Weights::plan_stored(size_t position, std::span<const Slot> slots,
                                                       std::span<const std::vector<TensorRun>> runs) const {
    std::vector<FactoredPlan::Stored> plans;
    const auto type_of = [&](const TensorRun& run) { return placed_.at(run.tensor).storage->tensor->type; };
    const auto joins = [&](size_t from, size_t next) {
        return !runs[next].empty() && std::all_of(runs[next].begin(), runs[next].end(), [&](const auto& run) {
            return type_of(run) == type_of(runs[from].front());
        });
    };
    for (size_t from = 0, count = 1; from < slots.size(); from += count) {
        count = 1;
        if (runs[from].empty()) continue;
        const bool one_type = joins(from, from);
        while (one_type && from + count < slots.size() && joins(from, from + count)) ++count;
        plans.push_back({from, make_plan(position, slots.subspan(from, count), runs.subspan(from, count))});
    }
    return plans;
}

void Weights::plan_group(size_t position, std::span<const Slot> slots) {
    const Slots& topology = slots_at(position);
    const auto factored = [&](Slot slot) { return refold::has_factors(topology.at(slot)); };
    if (std::any_of(slots.begin(), slots.end(), factored)) return plan_factored(position, slots);
    std::vector<std::vector<TensorRun>> runs;
    for (const Slot slot : slots) runs.push_back(runs_of(topology.at(slot), slot, position));
    place_tensors(runs, !heads_are_columns(slots[0]));
    auto& plans = plans_[{position, slots[0]}];
    for (auto& [first, plan] : plan_stored(position, slots, runs)) {
        plan.bias = concatenated_bias(position, slots.subspan(first, plan.slot_rows.size()));
        plans.push_back(std::move(plan));
    }
}

template <class Function>
void Weights::for_stored_plans(Function&& function) {
    for (auto& [key, plans] : plans_) {
        for (auto& plan : plans) function(plan);
    }
    for (auto& [key, factored] : factored_) {
        for (auto& stored : factored.stored) function(stored.plan);
    }
}

void Weights::mark_partial_use() {
    for_stored_plans([](LinearPlan& plan) {
        if (plan.kind == LinearPlan::Kind::whole) return;
        for (auto& run : plan.runs) {
            run.storage->used_in_parts = true;
            run.storage->needs_plain |= plan.columns && plan.kind == LinearPlan::Kind::composed;
        }
    });
    for (auto& [key, plan] : factored_) plan.mark_use();
}

void Weights::choose_layouts(Buffers& buffers) {
    const auto extra = extra_buffer_types();
    const auto is_read_by_rows = [&](const Storage* storage) {
        return std::any_of(tables_.begin(), tables_.end(),
                           [&](const auto& table) { return table.second == storage; });
    };
    for (auto& storage : storages_) {
        ggml_backend_buffer_type_t chosen = ggml_backend_cpu_buffer_type();
        const ggml_tensor* t = storage->tensor;
        const bool eight_rows = t->type == GGML_TYPE_Q4_0 && t->ne[1] % 8 == 0 && parts::has_q4_0x8() &&
                                (!storage->used_in_parts || model_->config.head_dim % 8 == 0);
        for (ggml_backend_buffer_type_t type : extra) {
            if (storage->needs_plain) break;
            const bool known_layout = is_repack(type) && eight_rows;
            // Parts and rows of tables are read by us, so their layout must be one that we know.
            if ((storage->used_in_parts || is_read_by_rows(storage.get())) && !known_layout) continue;
            if (!supports_product(type, t->type, t->ne[0], t->ne[1])) continue;
            chosen = type;
            storage->layout = known_layout ? Layout::q4_0x8 : Layout::opaque;
            break;
        }
        // Rows of tables are read from panels too.
        const bool in_panels = t->type == GGML_TYPE_Q8_0 && t->ne[1] % q8::kPanelRows == 0 &&
                               q8::available() && own_operations() && !storage->used_in_parts &&
                               !storage->needs_plain;
        if (in_panels && storage->layout == Layout::plain) storage->layout = Layout::q8_0x16;
        buffers[chosen].push_back(storage->tensor);
        bytes_ += ggml_nbytes(storage->tensor);
    }
    for (auto& [name, tensor] : vectors_) {
        buffers[ggml_backend_cpu_buffer_type()].push_back(tensor);
        bytes_ += ggml_nbytes(tensor);
    }
}

// Beside the weights, so that it lies in large pages too.
void Weights::plan_scratch(Buffers& buffers) {
    std::map<std::tuple<ggml_type, Layout, int64_t, int64_t>, ggml_tensor*> scratch;
    for_stored_plans([&](LinearPlan& plan) {
        if (plan.kind != LinearPlan::Kind::parts) return;
        // The plan was made before layouts were known.
        const auto differs = [&](const Run& run) { return run.storage->layout != plan.layout(); };
        if (std::any_of(plan.runs.begin(), plan.runs.end(), differs)) {
            plan.kind = LinearPlan::Kind::composed;
            return;
        }
        ggml_tensor*& tensor = scratch[{plan.type(), plan.layout(), plan.in, plan.out}];
        if (tensor == nullptr) {
            tensor = ggml_new_tensor_2d(context_.get(), plan.type(), plan.in, plan.out);
            const auto holds = [&](const auto& entry) {
                const auto& tensors = entry.second;
                return std::find(tensors.begin(), tensors.end(), plan.runs.front().storage->tensor) !=
                       tensors.end();
            };
            std::find_if(buffers.begin(), buffers.end(), holds)->second.push_back(tensor);
            scratch_bytes_ += ggml_nbytes(tensor);
        }
        plan.scratch = tensor;
    });
}

void Weights::allocate(const Buffers& buffers) {
    for (const auto& [type, tensors] : buffers) {
        const size_t alignment = std::max<size_t>(64, ggml_backend_buft_get_alignment(type));
        size_t total = 0;
        for (const ggml_tensor* tensor : tensors)
            total += GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
        ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(type, total));
        if (!buffer)
            fail(ErrorCode::io, "engine", "cannot allocate {} bytes for weights: not enough memory", total);
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        advise_large_pages(buffer.get());
        auto* place = static_cast<char*>(ggml_backend_buffer_get_base(buffer.get()));
        for (ggml_tensor* tensor : tensors) {
            ggml_backend_tensor_alloc(buffer.get(), tensor, place);
            place += GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
        }
        buffers_.push_back(std::move(buffer));
    }
}

ggml_tensor* Weights::add_vector(std::vector<float> data, const std::string& name) {
    ggml_tensor*& vector = vectors_[name];
    if (vector == nullptr) {
        vector = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, static_cast<int64_t>(data.size()));
        vector_data_.emplace_back(vector, std::move(data));
    }
    return vector;
}

ggml_tensor* Weights::concatenated_bias(size_t position, std::span<const Slot> slots) {
    const Slots& topology = slots_at(position);
    const auto has_bias = [&](Slot slot) { return bias_of(slot) && topology.contains(*bias_of(slot)); };
    if (std::none_of(slots.begin(), slots.end(), has_bias)) return nullptr;
    std::vector<float> data;
    std::string name = "bias";  // the same for positions that repeat each other
    for (const Slot slot : slots) {
        const auto rows = static_cast<size_t>(slot_shape(slot, model_->config, position).out);
        if (!has_bias(slot)) {
            name += fmt::format("/{}", rows);
            data.resize(data.size() + rows, 0.0F);
            continue;
        }
        const Expression& bias = topology.at(*bias_of(slot));
        name += "/" + std::get<Dense>(bias).tensor;
        const auto values = materialise(*model_, bias, *bias_of(slot), position);
        data.insert(data.end(), values.begin(), values.end());
    }
    return add_vector(std::move(data), name);
}

void Weights::load(int threads) {
    for (auto& [tensor, data] : vector_data_)
        ggml_backend_tensor_set(tensor, data.data(), 0, ggml_nbytes(tensor));
    vector_data_.clear();
    parallel_for(static_cast<int64_t>(storages_.size()), threads,
                 [&](int64_t i) { load_storage(*storages_[static_cast<size_t>(i)], f32_); });
}

namespace {

// A storage that is not plain, from its rows.
void fill(Storage& storage, std::span<const std::byte> rows) {
    if (storage.layout != Layout::q8_0x16) {
        ggml_backend_tensor_set(storage.tensor, rows.data(), 0, rows.size());
        return;
    }
    q8::pack_panels(rows.data(), storage.tensor->nb[1], storage.rows(), storage.in() / q8::kBlock,
                    static_cast<std::byte*>(storage.tensor->data));
}

}  // namespace

void Weights::load_storage(Storage& storage, bool f32) {
    const size_t total = ggml_nbytes(storage.tensor);
    const bool direct = storage.layout == Layout::plain;
    // Other layouts are made from the whole tensor.
    std::vector<std::byte> staged;
    std::byte* to = static_cast<std::byte*>(storage.tensor->data);
    const SourceFiles* source = model_->source.get();
    if (!direct && storage.parts.size() == 1 && !f32) {
        const Tensor& tensor = model_->tensor(storage.parts[0]);
        const TensorBytes bytes(tensor);
        fill(storage, bytes.bytes());
        if (source != nullptr) source->release(tensor.mapped);
        return;
    }
    if (!direct) {
        staged.resize(total);
        to = staged.data();
    }
    for (const auto& part : storage.parts) {
        const Tensor& tensor = model_->tensor(part);
        const TensorBytes bytes(tensor);
        if (f32) {
            const auto count = static_cast<size_t>(tensor.elements());
            dequantise(tensor.type, bytes.bytes(), {reinterpret_cast<float*>(to), count});
            to += count * sizeof(float);
        } else {
            memcpy(to, bytes.bytes().data(), bytes.bytes().size());
            to += bytes.bytes().size();
        }
        if (source != nullptr) source->release(tensor.mapped);
    }
    if (!direct) fill(storage, staged);
}

const FactoredPlan* Weights::factored(size_t position, std::span<const Slot> slots) const {
    const auto found = factored_.find({position, slots[0]});
    return found == factored_.end() ? nullptr : &found->second;
}

const std::vector<LinearPlan>& Weights::linear(size_t position, std::span<const Slot> slots) const {
    return plans_.at({position, slots[0]});
}

bool Weights::has(size_t position, Slot slot) const { return slots_.contains({position, slot}); }

ggml_tensor* Weights::vector(size_t position, Slot slot) const {
    const auto found = slot_vectors_.find({position, slot});
    return found == slot_vectors_.end() ? nullptr : found->second;
}

void Weights::table_row(Slot slot, int32_t row, std::span<float> out) const {
    const Storage& storage = *tables_.at(slot);
    const ggml_tensor* table = storage.tensor;
    const auto* base = static_cast<const std::byte*>(table->data);
    if (storage.layout == Layout::q4_0x8) {
        parts::dequantise_q4_0x8_row(base, row, out);
        return;
    }
    const size_t stride = table->nb[1];
    if (storage.layout == Layout::q8_0x16) {
        const int32_t lane = row % q8::kPanelRows;
        q8::unpack_row(base + static_cast<size_t>(row - lane) * stride, lane, table->ne[0] / q8::kBlock,
                       out.data());
        return;
    }
    dequantise(static_cast<DType>(table->type), {base + static_cast<size_t>(row) * stride, stride}, out);
}

}  // namespace refold
