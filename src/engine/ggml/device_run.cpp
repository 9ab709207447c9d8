#include "engine/ggml/device_run.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/progress.h"
#include "engine/rpc_worker.h"
#include "io/ggml_log.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

void set_threads(ggml_backend_t backend, int threads) {
    ggml_backend_reg_t module = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    auto* set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(module, "ggml_backend_set_n_threads"));
    if (set != nullptr) set(backend, threads);
}

}  // namespace

DeviceRun::DeviceRun(const Model& model, const EngineOptions& options, int64_t loops)
    : name_(options.device) {
    const auto open = [&](ggml_backend_dev_t handle, const Device& device) {
        clear_ggml_errors();
        ggml_backend_ptr backend(ggml_backend_dev_init(handle, nullptr));
        ggml_backend_buffer_type_t memory = backend ? ggml_backend_dev_buffer_type(handle) : nullptr;
        if (memory == nullptr)
            fail(ErrorCode::unsupported, "engine", "the device {} cannot be used: {}", device.name,
                 ggml_errors());
        set_threads(backend.get(), options.threads);
        backends_.push_back(std::move(backend));
        names_.push_back(device.name);
        remote_.push_back(device.is_remote());
        memory_.push_back(memory);
    };
    const std::vector<Device> devices = find_devices(options.device, options.workers);
    std::vector<size_t> backends;  // by device
    for (const Device& device : devices) {
        backends.push_back(backends_.size());
        if (!device.is_cpu()) open(device.handle, device);
    }
    const Device cpu{.name = std::string(kCpu)};
    open(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), cpu);
    const size_t last = backends_.size() - 1;
    for (size_t d = 0; d < devices.size(); ++d)
        if (devices[d].is_cpu()) backends[d] = last;
    backends.push_back(last);

    const LayerNeeds needs = layer_needs(model, options, loops);
    const DeviceSplit split = split_layers(needs, devices, options.gpu_layers);
    check_room(needs, split, devices);
    for (const size_t device : split.layers) layers_.push_back(backends[device]);
    output_ = backends[split.output];
    has_cpu_ = std::ranges::find(layers_, last) != layers_.end() || has_worker();
}

Model as_placed(const Model& model, const EngineOptions& options) {
    return options.device == kCpu ? model : with_whole_columns(model);
}

std::unique_ptr<DeviceRun> make_device_run(const Model& model, const EngineOptions& options, int64_t loops) {
    if (options.device == kCpu) return nullptr;
    return std::make_unique<DeviceRun>(model, options, loops);
}

bool DeviceRun::supports(size_t layer, const ggml_tensor* operation) const {
    return ggml_backend_supports_op(backends_[backend_of(layer)].get(), operation);
}

bool DeviceRun::multiplies(size_t layer, ggml_type type, int64_t in, int64_t out) const {
    const ggml_context_ptr context = make_context(3);
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, in, out);
    return supports(
        layer, ggml_mul_mat(context.get(), weight, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, in, 2)));
}

// A GPU starts an operation in the time in which it reads some megabytes, and multiplies what it has read for
// a few tokens for little more. A CPU reads some hundred kilobytes in that time, and its time goes to
// products.
AttentionCosts DeviceRun::attention_costs(uint64_t row_bytes) const {
    const auto bytes = static_cast<double>(row_bytes);
    return has_cpu_ ? AttentionCosts{(256 << 10) / bytes, 1} : AttentionCosts{(8 << 20) / bytes, 0.125};
}

bool DeviceRun::put(ggml_cgraph* graph, Place& own) {
    if (has_worker()) ++places_;
    Place& place = has_worker() ? shared_ : own;
    const auto nodes = static_cast<size_t>(ggml_graph_size(graph));
    if (!place.scheduler || nodes > place.nodes) {
        std::vector<ggml_backend_t> backends;
        for (const auto& backend : backends_) backends.push_back(backend.get());
        // Inputs lie in memory of this machine that the first device copies from fastest.
        std::vector<ggml_backend_buffer_type_t> memory = memory_;
        if (auto* pinned = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(backends.front())))
            memory.back() = pinned;
        place.nodes = nodes;
        place.scheduler.reset(ggml_backend_sched_new(
            backends.data(), memory.data(), static_cast<int>(backends.size()), 2 * nodes, false, false));
    }
    ggml_backend_sched_reset(place.scheduler.get());
    const bool enough = ggml_backend_sched_alloc_graph(place.scheduler.get(), graph);
    check_workers();
    if (!enough) place.scheduler.reset();
    if (enough) say_what_it_lacks(graph, place);
    return enough;
}

// Operations that ggml's scheduler gives to the CPU because no device has them.
void DeviceRun::say_what_it_lacks(ggml_cgraph* graph, const Place& place) const {
    const std::span<const ggml_backend_ptr> devices(backends_.data(), backends_.size() - 1);
    std::set<std::string> lacking;
    for (int i = 0; i < ggml_graph_n_nodes(graph) && !devices.empty(); ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        const bool here =
            ggml_backend_sched_get_tensor_backend(place.scheduler.get(), node) == backends_.back().get();
        const auto can = [&](const ggml_backend_ptr& device) {
            return ggml_backend_supports_op(device.get(), node);
        };
        if (!here || node->op == GGML_OP_NONE || std::ranges::any_of(devices, can)) continue;
        const ggml_tensor* weights = node->src[0];
        lacking.insert(fmt::format("{} of {}", ggml_op_desc(node),
                                   ggml_type_name(weights != nullptr ? weights->type : node->type)));
    }
    for (const std::string& operation : lacking)
        remark(fmt::format("{} has no {}: the CPU computes it", name_, operation));
}

void DeviceRun::compute(ggml_cgraph* graph, const Place& own) const {
    const Place& place = has_worker() ? shared_ : own;
    clear_ggml_errors();
    const ggml_status status = ggml_backend_sched_graph_compute(place.scheduler.get(), graph);
    check_workers();
    if (status != GGML_STATUS_SUCCESS)
        throw LostDevice(ErrorCode::io, fmt::format("[engine] the device {} could not compute a step: {}",
                                                    name_, ggml_errors()));
}

void DeviceRun::check_workers() const {
    for (size_t b = 0; b < backends_.size(); ++b)
        if (remote_[b] && has_lost_worker(backends_[b].get()))
            throw LostDevice(ErrorCode::io, fmt::format("[engine] the worker {} is lost", names_[b]));
}

uint64_t DeviceRun::bytes(const Place& place) const {
    uint64_t out = 0;
    for (const auto& backend : backends_)
        if (place.scheduler) out += ggml_backend_sched_get_buffer_size(place.scheduler.get(), backend.get());
    return out;
}

}  // namespace refold
