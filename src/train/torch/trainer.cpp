#include "train/torch/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "engine/torch/device.h"
#include "model/materialize.h"
#include "train/schedule.h"
#include "train/torch/agreement.h"
#include "train/torch/checkpoint.h"
#include "train/torch/gradient_buckets.h"
#include "train/trained.h"

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSaveInterval = std::chrono::minutes(5);

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_options(const TrainOptions& o, const TrainData& data, int processes) {
    const auto need = [](bool right, const char* what, auto got, const std::string& expected) {
        if (!right) fail(ErrorCode::usage, "train", "{}: got {}, expected {}", what, got, expected);
    };
    need(o.steps > 0, "steps", o.steps, "at least 1");
    need(o.micro_batch > 0, "micro_batch", o.micro_batch, "at least 1");
    need(o.keep <= o.steps, "keep", o.keep, fmt::format("at most one model for each of {} steps", o.steps));
    need(o.context == data.context(), "context", o.context, "the length that the data is cut to");
    if (o.batch < processes)
        fail(ErrorCode::usage, "train",
             "batch: got {}, expected at least one sequence for each of {} processes", o.batch, processes);
}

// Marks the trained leaves as requiring gradients and returns them.
Leaves select_leaves(const TorchModel& torch, const Model& model, const std::string& selection) {
    const auto names = trained_tensors(model, selection);
    Leaves out;
    for (const auto& [name, leaf] : torch.parameters()) {
        at::Tensor x = leaf;
        x.set_requires_grad(names.contains(name));
        if (names.contains(name)) out[name] = leaf;
    }
    return out;
}

at::ScalarType stored_type(const TrainOptions& options) {
    return options.weights == TrainType::bf16 ? at::kBFloat16 : at::kFloat;
}

// Leaves in the order in which a backward pass gives their gradients: from the output to the embeddings, a
// shared one where it is used first.
std::vector<at::Tensor> in_order_of_gradients(const Leaves& leaves, const Topology& topology) {
    std::map<std::string, size_t> first_use;  // layer + 1; embeddings 0
    const auto use = [&](const Slots& slots, size_t place) {
        for (const auto& [slot, expression] : slots)
            for (const std::string& name : tensors_of(expression)) first_use.try_emplace(name, place);
    };
    Slots output, inputs = topology.globals;
    for (const Slot slot : {Slot::output_norm, Slot::output_norm_bias, Slot::output, Slot::output_bias})
        if (auto found = inputs.extract(slot)) output.insert(std::move(found));
    use(inputs, 0);
    for (size_t p = 0; p < topology.layers.size(); ++p) use(topology.layers[p], p + 1);
    use(output, topology.layers.size() + 1);
    std::vector<std::pair<size_t, std::string>> order;
    for (const auto& [name, leaf] : leaves) order.emplace_back(first_use[name], name);
    std::sort(order.rbegin(), order.rend());
    std::vector<at::Tensor> out;
    for (const auto& [place, name] : order) out.push_back(leaves.at(name));
    return out;
}

class Run {
public:
    Run(const TrainRequest& request, Processes& processes)
        : request_(request),
          options_(request.options),
          processes_(processes),
          device_(device_of(options_.device, processes.local_rank())),
          torch_(request.model, true, at::TensorOptions(stored_type(options_)).device(device_)),
          trained_(select_leaves(torch_, request.model, options_.train)),
          objective_(make_objective(request)),
          optimizer_(trained_, options_, processes),
          buckets_(in_order_of_gradients(trained_, request.model.topology), processes),
          order_(request.data.size(), options_.seed),
          checkpoint_(request.folder, request.identity, processes) {
        torch_.set_execution({options_.products() == TrainType::bf16, options_.checkpointing});
        optimizer_.set_masters(
            [&](const std::string& name) { return at::tensor(floats_of(request.model, name)); });
        if (options_.shares_gradients()) buckets_.share(optimizer_.shares(), optimizer_.shared_gradients());
    }

    TrainResult run() {
        checkpoint_.restore(state_, best_, optimizer_);
        if (!state_.finished) {
            if (processes_.first() && !request_.metrics.empty())
                metrics_.emplace(request_.metrics, state_.step);
            saved_ = Clock::now();
            objective_->prepare(torch_, own_sequences(), own_held_out());
            loop();
            state_.finished = true;
            save();
        }
        return result();
    }

private:
    struct Sums {
        double loss = 0, tokens = 0, penalty = 0;
        bool stop = false, save = false;  // requested by any process
        std::map<std::string, double> parts;
    };

    void loop() {
        while (true) {
            if (!state_.stopped_early && evaluation_is_due()) evaluate();
            keep_model();
            if (state_.step >= options_.steps || state_.stopped_early) return;
            const Sums sums = step();
            if (sums.stop) interrupt();
            if (sums.save) save();
        }
    }

    // --- data

    int64_t batch_at(int64_t step, int64_t number) { return order_(step * options_.batch + number); }

    std::vector<int64_t> sequences_of_step(int64_t step, bool all = false) {
        std::vector<int64_t> out;
        for (int64_t n = all ? 0 : processes_.rank(); n < options_.batch; n += all ? 1 : processes_.size())
            out.push_back(batch_at(step, n));
        return out;
    }
    // The sequences of the whole run, even when it is resumed.
    std::vector<int64_t> own_sequences() {
        std::vector<int64_t> out;
        for (int64_t s = 0; s < options_.steps; ++s)
            for (const int64_t sequence : sequences_of_step(s)) out.push_back(sequence);
        return out;
    }
    // A process without a held-out sequence evaluates the first one, with weight 0, so that sums have the
    // same parts in every process.
    std::vector<int64_t> own_held_out() const {
        std::vector<int64_t> out;
        const int64_t size = request_.data.held_out_size();
        for (int64_t i = processes_.rank(); i < size; i += processes_.size()) out.push_back(i);
        if (out.empty() && size > 0) out.push_back(0);
        return out;
    }

    // Forward passes of the first process in a step.
    int64_t passes_of_first() const {
        const auto parts = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
        return parts(parts(options_.batch, processes_.size()), options_.micro_batch);
    }

    template <typename Use>
    void for_batches(const std::vector<int64_t>& sequences, bool held_out, Use&& use) {
        const auto size = static_cast<size_t>(options_.micro_batch);
        for (size_t first = 0; first < sequences.size(); first += size) {
            const size_t count = std::min(size, sequences.size() - first);
            const auto part = std::span(sequences).subspan(first, count);
            use(make_batch(request_.data, part, held_out, device_), first + count == sequences.size());
            stop_at_once();
        }
    }

    double scored_tokens(const std::vector<int64_t>& sequences) const {
        int64_t tokens = 0;
        for (const int64_t s : sequences) {
            const auto scored = request_.data[s].scored.subspan(1);
            tokens += std::count_if(scored.begin(), scored.end(), [](uint8_t x) { return x != 0; });
        }
        return static_cast<double>(std::max<int64_t>(tokens, 1));
    }

    // --- one step

    Sums step() {
        const auto start = Clock::now();
        const double tokens = scored_tokens(sequences_of_step(state_.step, true));
        Sums sums;
        const bool every_pass = options_.shares_gradients();
        int64_t passes = 0;
        for_batches(sequences_of_step(state_.step), false, [&](const TrainBatch& batch, bool last) {
            const BatchLoss loss = objective_->loss(torch_, batch);
            add(sums, loss);
            at::Tensor total = loss.sum / tokens;
            if (last && processes_.first()) {
                if (const at::Tensor penalty = objective_->penalty(torch_); penalty.defined()) {
                    sums.penalty = penalty.item<double>();
                    total = total + penalty;
                }
            }
            if (last || every_pass) buckets_.begin();
            total.backward();
            if (last || every_pass) buckets_.finish();
            ++passes;
        });
        // The first process has the most.
        for (; every_pass && passes < passes_of_first(); ++passes) {
            buckets_.begin();
            buckets_.finish();
        }
        sums.stop = request_.stop && request_.stop();
        sums.save = processes_.first() && save_is_due();
        combine(sums);

        const double loss = sums.loss / tokens + sums.penalty;
        const double norm = optimizer_.gradient_norm();
        if (!std::isfinite(loss) || !std::isfinite(norm)) {
            diverged(fmt::format("the loss is {}, the gradient's norm {}", loss, norm));
            optimizer_.zero_gradients();
            return sums;
        }
        const double rate = learning_rate_at(options_, state_.step);
        const double scale = options_.clip > 0 && norm > options_.clip ? options_.clip / (norm + 1e-6) : 1.0;
        optimizer_.step(rate, scale);
        optimizer_.zero_gradients();
        ++state_.step;
        state_.loss = loss;

        std::map<std::string, double> values = {
            {"loss", loss}, {"learning_rate", rate}, {"gradient_norm", norm}};
        for (const auto& [name, sum] : sums.parts) values[name] = sum / tokens;
        if (sums.penalty != 0) values["penalty"] = sums.penalty;
        values["tokens"] = static_cast<double>(state_.step * options_.batch * options_.context);
        values["tokens_per_s"] =
            static_cast<double>(options_.batch * options_.context) / seconds_since(start);
        tell(values);
        return sums;
    }

    static void add(Sums& sums, const BatchLoss& loss, double weight = 1) {
        sums.loss += weight * loss.sum.item<double>();
        sums.tokens += weight * static_cast<double>(loss.tokens);
        for (const auto& [name, sum] : loss.parts) sums.parts[name] += weight * sum;
    }

    // Sums over all processes.
    void combine(Sums& sums) {
        if (processes_.size() == 1) return;
        std::vector<double> numbers = {sums.loss, sums.tokens, sums.penalty, sums.stop ? 1.0 : 0.0,
                                       sums.save ? 1.0 : 0.0};
        for (const auto& [name, sum] : sums.parts) numbers.push_back(sum);
        at::Tensor x = at::tensor(numbers, at::kDouble);
        processes_.sum(x);
        const double* sum = x.data_ptr<double>();
        sums.loss = sum[0];
        sums.tokens = sum[1];
        sums.penalty = sum[2];
        sums.stop = sum[3] > 0;
        sums.save = sum[4] > 0;
        size_t i = 5;
        for (auto& [name, value] : sums.parts) value = sum[i++];
    }

    // --- held-out text

    bool evaluation_is_due() const {
        if (request_.data.held_out_size() == 0 || state_.evaluated == state_.step) return false;
        const int64_t every =
            options_.evaluate_every > 0 ? options_.evaluate_every : std::max<int64_t>(1, options_.steps / 10);
        return state_.step == 0 || state_.step >= options_.steps || state_.step % every == 0;
    }

    void evaluate() {
        const at::NoGradGuard without_gradients;
        Sums sums;
        const bool counts = processes_.rank() < request_.data.held_out_size();
        for_batches(own_held_out(), true, [&](const TrainBatch& batch, bool) {
            add(sums, objective_->loss(torch_, batch), counts ? 1 : 0);
        });
        combine(sums);
        const double tokens = std::max(sums.tokens, 1.0), loss = sums.loss / tokens;
        if (state_.step == 0) state_.held_out_before = loss;
        if (!std::isfinite(loss)) {
            diverged(fmt::format("the held-out loss is {}", loss));
        } else if (loss > state_.held_out_before + kDivergence) {
            diverged(fmt::format("the held-out loss is {:.3f}, before training it was {:.3f}", loss,
                                 state_.held_out_before));
        }
        state_.held_out = loss;
        state_.evaluated = state_.step;
        if (loss < state_.best) {
            state_.best = loss;
            state_.best_step = state_.step;
            state_.worse = 0;
            if (keeps_best()) keep_best();
        } else {
            ++state_.worse;
            state_.stopped_early |= options_.patience > 0 && state_.worse >= options_.patience;
        }
        std::map<std::string, double> values = {{"held_out_loss", loss}};
        for (const auto& [name, sum] : sums.parts) values["held_out_" + name] = sum / tokens;
        tell(values);
    }

    bool keeps_best() const { return options_.keep_best || options_.patience > 0; }

    void keep_best() { best_ = optimizer_.own_weights().clone(); }

    // --- models that are kept

    // A resumed run keeps the model of its first step again: the run may have been interrupted while it was
    // written.
    void keep_model() {
        const int64_t number = options_.keep > 0 ? kept_number(options_, state_.step) : 0;
        if (number == 0) return;
        at::Tensor written = at::tensor({1.0}, at::kDouble);
        TensorValues values = present_values();
        if (processes_.first()) written.fill_(request_.keep(number, std::move(values)) ? 1.0 : 0.0);
        processes_.broadcast(written, 0);
        if (written.item<double>() == 0) interrupt();
    }

    // All trained weights in float32. Collective.
    TensorValues present_values() const {
        if (optimizer_.has_masters()) return values_of(optimizer_.own_weights());
        TensorValues out;
        for (const auto& [name, leaf] : trained_) {
            const at::Tensor values = leaf.detach().cpu();
            out[name].assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
        }
        return out;
    }

    // The same, of which every process has those of its share.
    TensorValues values_of(const at::Tensor& own) const {
        TensorValues out;
        for (const auto& [name, leaf] : trained_) {
            std::vector<float>& values = out[name];
            values.reserve(static_cast<size_t>(leaf.numel()));
            optimizer_.shares().for_pieces(name, [&](int64_t first, int64_t count) {
                const at::Tensor piece = optimizer_.shares().gathered(own, first, count);
                values.insert(values.end(), piece.data_ptr<float>(), piece.data_ptr<float>() + count);
            });
        }
        return out;
    }

    TrainMemory memory() const {
        int64_t weights = 0;
        for (const auto& [name, leaf] : torch_.parameters()) weights += static_cast<int64_t>(leaf.nbytes());
        at::Tensor all = at::zeros({processes_.size(), 3}, at::kLong);
        all[processes_.rank()] =
            at::tensor({weights, static_cast<int64_t>(buckets_.peak_bytes()),
                        static_cast<int64_t>(optimizer_.bytes() + (best_.defined() ? best_.nbytes() : 0))},
                       at::kLong);
        processes_.sum(all);
        const at::Tensor most = std::get<0>(all.max(0));
        const auto number = [&](int64_t i) { return static_cast<uint64_t>(most[i].item<int64_t>()); };
        return {number(0), number(1), number(2)};
    }

    // --- the folder

    bool save_is_due() const {
        if (options_.save_every > 0) return (state_.step + 1) % options_.save_every == 0;
        return Clock::now() - saved_ >= kSaveInterval;
    }

    void save() {
        checkpoint_.save(state_, best_, optimizer_);
        saved_ = Clock::now();
    }

    [[noreturn]] void interrupt() {
        optimizer_.zero_gradients();
        save();
        fail(ErrorCode::interrupted, "train", "interrupted after {} of {} steps; run the same again to go on",
             state_.step, options_.steps);
    }

    // A single process need not finish a long step. Several processes stop together at its end.
    void stop_at_once() {
        if (processes_.size() == 1 && request_.stop && request_.stop()) interrupt();
    }

    // Ends the run: with the best weights where these are kept. Weights that were NaN before the first step
    // are none.
    void diverged(const std::string& what) {
        state_.stopped_early = true;
        if (options_.keep_best && best_.defined()) return;
        fail(ErrorCode::input, "train",
             "training has failed after {} steps: {} - a smaller learning_rate or a longer warmup may help; "
             "{}",
             state_.step, what,
             std::filesystem::exists(checkpoint_.path())
                 ? fmt::format("the last saved state is in '{}'", checkpoint_.path())
                 : "nothing was saved before");
    }

    // Reports metrics of the current step, which may have several entries.
    void tell(const std::map<std::string, double>& values) {
        if (!processes_.first()) return;
        const StepMetrics metrics{state_.step, values};
        if (metrics_) metrics_->write(metrics);
        if (request_.report) request_.report(metrics);
    }

    TrainResult result() {
        TrainResult out;
        out.tensors = best_.defined() ? values_of(best_) : present_values();
        out.steps = best_.defined() ? state_.best_step : state_.step;
        out.memory = memory();
        out.stopped_early = state_.stopped_early;
        out.kept = state_.step * options_.keep / options_.steps;
        out.device = device_.str();
        out.loss = state_.loss;
        out.held_out_before = state_.held_out_before;
        out.held_out_after = best_.defined() ? state_.best : state_.held_out;
        return out;
    }

    const TrainRequest& request_;
    const TrainOptions& options_;
    Processes& processes_;
    at::Device device_;
    TorchModel torch_;
    Leaves trained_;
    at::Tensor best_;  // weights of this process's share; undefined: none kept
    std::unique_ptr<Objective> objective_;
    Optimizer optimizer_;
    GradientBuckets buckets_;
    SequenceOrder order_;
    Checkpoint checkpoint_;
    std::optional<MetricsFiles> metrics_;
    TrainState state_;
    Clock::time_point saved_;
};

}  // namespace

TrainBatch make_batch(const TrainData& data, std::span<const int64_t> sequences, bool held_out,
                      at::Device device) {
    const auto count = static_cast<int64_t>(sequences.size()), context = data.context();
    const at::Tensor tokens = at::empty({count, context}, at::kLong),
                     targets = at::empty({count * context}, at::kLong),
                     scored = at::empty({count * context}, at::kBool);
    int64_t* token = tokens.data_ptr<int64_t>();
    int64_t* target = targets.data_ptr<int64_t>();
    bool* score = scored.data_ptr<bool>();
    for (const int64_t number : sequences) {
        const TrainData::Sequence s = held_out ? data.held_out(number) : data[number];
        for (size_t i = 0; i < static_cast<size_t>(context); ++i) {
            *token++ = s.tokens[i];
            *target++ = s.tokens[i + 1];
            *score++ = s.scored[i + 1] != 0;
        }
    }
    return {tokens.to(device),
            targets.to(device),
            scored.to(device),
            {sequences.begin(), sequences.end()},
            held_out};
}

TrainResult train_by_steps(const TrainRequest& request, Processes& processes) {
    check_options(request.options, request.data, processes.size());
    check_agreement(request, processes);
    if (request.threads > 0) at::set_num_threads(request.threads);
    return Run(request, processes).run();
}

}  // namespace refold
