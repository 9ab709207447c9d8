// Training: steps of gradient descent on text, see train/train.h.
#include "train/train.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibrate/calibration_device.h"
#include "compress/head_sharing/head_matches.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/training/kept_models.h"
#include "compress/training/layerwise.h"
#include "compress/training/run_options.h"
#include "compress/training/trained_tensors.h"
#include "compress/training/training.h"
#include "compress/training/training_progress.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/text.h"
#include "engine/single_sequence.h"
#include "engine/torch/plugin.h"
#include "model/load.h"
#include "train/train.h"

namespace refold::train_method {
namespace {

using nlohmann::json;
using Kind = OptionSpec::Kind;

// ---- options ----

// Options of single objectives, which get them by name.
const std::vector<OptionSpec> kObjectiveOptions = {
    {"alpha", Kind::number, "0.5", "distill: weight of the divergence; 1 - alpha is that of cross entropy", 0,
     1},
    {.name = "divergence",
     .kind = Kind::choice,
     .fallback = "fkl",
     .help = "distill: forward or reverse KL, Jensen-Shannon, total variation",
     .choices = {"fkl", "rkl", "jsd", "tvd"}},
    {"temperature", Kind::number, "1", "distill, early_exit: both sides' logits are divided by it", 1e-3,
     1e3},
    {"teacher_cache", Kind::integer, "0",
     "distill: number of most probable tokens of the teacher that are computed once and kept on disk; 0: the "
     "teacher runs along",
     0, 65536},
    {.name = "exits",
     .fallback = "loops",
     .help = "early_exit: 'loops', or numbers of layers after which to exit, such as 10,20"},
    {.name = "coefficients",
     .kind = Kind::choice,
     .fallback = "aggressive",
     .help = "early_exit: 1 for the final output and `coefficient` for each exit, or i / sum of i",
     .choices = {"aggressive", "weighted"}},
    {"coefficient", Kind::number, "0.1", "early_exit: of each exit's loss", 0, 1e3},
    {.name = "exit_target",
     .kind = Kind::choice,
     .fallback = "ce+kd",
     .help = "early_exit: next tokens, the final output's distribution (without gradients), or both",
     .choices = {"ce", "kd", "ce+kd"}},
    {"gamma", Kind::number, "0.5", "postshare: weight of the distance between heads", 0, 1e6},
    {.name = "weighting",
     .kind = Kind::choice,
     .fallback = "paper",
     .help = "postshare: loss + gamma * distance, or the authors' program's half of each",
     .choices = {"paper", "authors"}},
};

std::vector<OptionSpec> all_options() {
    std::vector<std::string> names;
    for (const auto& info : objectives()) names.emplace_back(info.name);
    std::vector<OptionSpec> options = {
        {.name = "objective",
         .kind = Kind::choice,
         .fallback = "uptrain",
         .help = "what is minimized",
         .choices = names},
        {.name = "data", .fallback = "", .help = "text (.txt) and dialogues (.jsonl), with commas between"},
        {.name = "train",
         .fallback = "all",
         .help = "all, layers, lora, comp, exit, norms, prefix, head, packed, or patterns of tensors' names; "
                 "-NAME leaves out"},
        {"context", Kind::integer, "512", "tokens of a sequence", 2, 1 << 20},
        {"steps", Kind::integer, "0", "steps; 0: by `tokens` or `epochs`", 0, 1e9},
        {"tokens", Kind::integer, "0", "tokens to train on; 0: by `epochs`", 0, 1e15},
        {"epochs", Kind::number, "1", "passes over the text", 0, 1e4},
        {.name = "optimizer",
         .kind = Kind::choice,
         .fallback = "adamw",
         .help = "Adam with decoupled weight decay; without `weight_decay` it is Adam",
         .choices = {"adamw"},
         .former_names = {"optimiser"},
         .former_choices = {{"auto", "adamw"}, {"adam", "adamw"}}},
        {.name = "learning_rate",
         .fallback = "auto",
         .help = "at its peak; auto: 5e-5 for postshare, else 2e-4"},
        {"weight_decay", Kind::number, "0",
         "of matrices: a step scales them by 1 - learning rate * weight_decay", 0, 10},
        {"held_out", Kind::number, "0.02", "part of the sequences that is only measured with", 0, 0.9},
        {.name = "responses_only",
         .kind = Kind::boolean,
         .fallback = "true",
         .help = "of dialogues and instructions, only answers count in the loss"},
        {"save_every", Kind::integer, "0", "steps between checkpoints; 0: about every five minutes", 0, 1e9},
        {"keep", Kind::integer, "0",
         "number of models of the run to keep, evenly over its steps, the last one at its end", 0, 1e4},
        {.name = "teacher",
         .fallback = "",
         .help = "distill: a model file; empty: the model before the first step"},
        {.name = "teacher_engine",
         .kind = Kind::choice,
         .fallback = "torch",
         .help = "distill: what runs the teacher; ggml: as it is stored, on the CPU",
         .choices = {"torch", "ggml"}},
        {.name = "weights",
         .kind = Kind::choice,
         .fallback = "f32",
         .help = "of matrices and their gradients in the run; bf16: products as well, with master weights in "
                 "float32 "
                 "in the optimizer's state, of which the result is made",
         .choices = {"f32", "bf16"}},
        {"zero", Kind::integer, "1",
         "what of several processes each has for its share of the weights alone (ZeRO's stages): 1: the "
         "optimizer's "
         "state; 2: the summed gradients as well, as always with weights=bf16",
         1, 2},
        {"ratio", Kind::number, "0.3", "postshare: part of all heads to be replaced, as direct_share's", 0,
         1},
        {.name = "match",
         .kind = Kind::choice,
         .fallback = "qk",
         .help = "postshare: weights whose cosine decides, as direct_share's",
         .choices = {"qk", "q", "k", "v", "qkv"}},
        {.name = "type",
         .kind = Kind::choice,
         .fallback = "same",
         .help = "type of trained matrices; same: as they were, 16 bits where they were quantized",
         .choices = {"same", "f32", "f16", "bf16"}},
    };
    for (const auto& more : {run_options("8"), kObjectiveOptions})
        options.insert(options.end(), more.begin(), more.end());
    return options;
}

std::vector<std::string> files_of(const std::string& list) {
    std::vector<std::string> files;
    for (size_t first = 0; first <= list.size();) {
        const size_t comma = std::min(list.find(',', first), list.size());
        if (comma > first) files.push_back(list.substr(first, comma - first));
        first = comma + 1;
    }
    if (files.empty())
        fail(ErrorCode::usage, "train",
             "data: got no file, expected text to train on, such as data=wiki.train.txt");
    return files;
}

double learning_rate_of(const std::string& text, const std::string& objective) {
    if (text == "auto") return objective == "postshare" ? 5e-5 : 2e-4;
    return parse_learning_rate(text, "train", "learning_rate", "auto or ");
}

TrainOptions train_options(const Options& o) {
    TrainOptions t = run_options_of(o);
    t.objective = o.text("objective");
    t.train = o.text("train");
    t.context = o.integer("context");
    t.learning_rate = learning_rate_of(o.text("learning_rate"), t.objective);
    t.weight_decay = o.number("weight_decay");
    t.save_every = o.integer("save_every");
    t.keep = o.integer("keep");
    t.weights = o.text("weights") == "bf16" ? TrainType::bf16 : TrainType::f32;
    t.zero = static_cast<int>(o.integer("zero"));
    return t;
}

// Sets the length of the run, once the text is known.
void set_length(TrainOptions& t, const Options& o, int64_t sequences) {
    const double per_step = static_cast<double>(t.batch);
    int64_t steps = o.integer("steps");
    if (steps == 0 && o.integer("tokens") > 0)
        steps = static_cast<int64_t>(std::ceil(static_cast<double>(o.integer("tokens")) /
                                               (per_step * static_cast<double>(t.context))));
    if (steps == 0)
        steps = std::max<int64_t>(1, static_cast<int64_t>(std::llround(
                                         o.number("epochs") * static_cast<double>(sequences) / per_step)));
    set_steps(t, o, steps);
}

// Identifies the run that a checkpoint belongs to. Options that do not change what is learned may differ.
std::string identity_of(const Step& step, const TrainData& data) {
    static const std::set<std::string> kFree = {"data",   "save_every", "micro_batch", "checkpointing",
                                                "device", "type",       "zero"};
    std::string identity = fmt::format("model: {}\ntext: {}\n", step.identity_before, data.identity());
    for (const auto& [name, value] : step.options.entries())
        if (!kFree.contains(name)) identity += fmt::format("{}: {}\n", name, value);
    return identity;
}

// ---- the objectives' data ----

std::vector<HeadPair> head_pairs(const Model& model, const Step& step) {
    std::vector<Slot> on;
    for (const char letter : step.options.text("match")) on.push_back(kQkv[std::string("qkv").find(letter)]);
    std::vector<size_t> everywhere(model.topology.layers.size());
    for (size_t p = 0; p < everywhere.size(); ++p) everywhere[p] = p;
    need_stored(model, kQkv, everywhere, "train");
    // The matches of the original, which a direct_share step with matching=original will take.
    const auto selected = largest(best_head_matches(step.original, on, kQkvo),
                                  part_of(step.options.number("ratio"), count_head_units(step.original)));
    const HeadUnits units(model, kQkv, kQkv);
    const auto rows = [&](Unit unit, Slot slot) {
        std::vector<WeightRows> out;
        for (const HeadRef& head : units.heads_of(unit, slot))
            out.push_back({head.tensor, head.head * model.config.head_dim, model.config.head_dim});
        return out;
    };
    std::vector<HeadPair> pairs;
    for (const Match& match : selected) {
        HeadPair pair;
        bool differs = false;  // else the heads are shared already
        for (size_t s = 0; s < kQkv.size(); ++s) {
            differs |= units.heads_of(match.later, kQkv[s]) != units.heads_of(match.former, kQkv[s]);
            pair.qkv[s] = {rows(match.later, kQkv[s]), rows(match.former, kQkv[s])};
        }
        if (differs) pairs.push_back(pair);
    }
    return pairs;
}

bool needs_teacher(const Options& options) { return find_objective(options.text("objective")).teacher; }

void check_teacher(const Model& model, const Step& step) {
    const bool changed = step.number > 1 || step.original.source != model.source;
    if (needs_teacher(step.options) && step.options.text("teacher").empty() && !changed)
        fail(ErrorCode::usage, "train",
             "objective={}: the model is its own teacher before any other step - name one (teacher=FILE, or "
             "--original MODEL), or put this step after one that changes the model",
             step.options.text("objective"));
}

// The engine is made when logits are first asked for: a complete cache needs none.
SequenceLogits logits_by_ggml(const Model& teacher, int64_t context, int threads) {
    auto sequence = std::make_shared<std::unique_ptr<SingleSequence>>();
    return [=, &teacher](std::span<const int32_t> tokens) {
        if (!*sequence)
            *sequence = std::make_unique<SingleSequence>(
                teacher, EngineOptions{.threads = threads, .context = context});
        std::vector<float> out;
        (*sequence)->truncate(0);
        (*sequence)->evaluate_all(tokens, [&](size_t, std::span<const float> logits) {
            out.insert(out.end(), logits.begin(), logits.end());
        });
        return out;
    };
}

// ---- the result ----

// Shows the work before the first step.
class PreparationProgress {
public:
    void operator()(const std::string& what, int64_t done, int64_t total) {
        if (!progress_) progress_.emplace(what, static_cast<uint64_t>(total), "sequences");
        if (interrupted()) return;
        progress_->advance(static_cast<uint64_t>(done - done_));
        done_ = done;
        if (done == total) progress_->finish();
    }

private:
    std::optional<Progress> progress_;
    int64_t done_ = 0;
};

json number(double value) { return std::isfinite(value) ? json(value) : json(); }

json to_json(const TrainMemory& memory) {
    return {{"weights", memory.weights}, {"gradients", memory.gradients}, {"optimizer", memory.optimizer}};
}

// What the run will take in each of several numbers of processes.
void report_expected_memory(const Model& model, const TrainOptions& options, StepReport& report,
                            json& details) {
    const TrainSizes sizes = train_sizes(model, options.train);
    std::vector<std::string> totals;
    for (int processes = 1; processes <= 64; processes *= 2) {
        const TrainMemory memory = expected_memory(sizes, options, processes);
        details["expected_memory"][std::to_string(processes)] = to_json(memory);
        totals.push_back(fmt::format("{}: {}", processes, format_bytes(memory.total())));
    }
    report.lines.push_back(
        fmt::format("expected memory of each process for weights, gradients and the optimizer's state, by "
                    "number of processes: {}; "
                    "activations come on top",
                    join(totals, ", ")));
}

void report_run(const TrainOptions& options, const TrainResult& result, const TrainData& data,
                StepReport& report, json& details) {
    const auto tokens = static_cast<uint64_t>(options.steps * options.batch * options.context);
    details["steps"] = options.steps;
    details["kept_step"] = result.steps;
    details["stopped_early"] = result.stopped_early;
    details["batch_tokens"] = options.batch * options.context;
    details["sequences"] = data.size();
    details["text"] = data.identity();
    details["device"] = result.device;
    details["memory"] = to_json(result.memory);
    details["learning_rate"] = options.learning_rate;
    details["loss"] = number(result.loss);
    details["held_out_before"] = number(result.held_out_before);
    details["held_out_after"] = number(result.held_out_after);
    report.lines.push_back(
        fmt::format("{} steps of {} sequences x {} tokens: {} tokens, {:.2f} times the text; on {}",
                    options.steps, options.batch, options.context, format_count(tokens),
                    static_cast<double>(options.steps * options.batch) / static_cast<double>(data.size()),
                    result.device));
    report.lines.push_back(
        fmt::format("memory of each process but for activations: {} of weights, {} of gradients, {} of the "
                    "optimizer's state",
                    format_bytes(result.memory.weights), format_bytes(result.memory.gradients),
                    format_bytes(result.memory.optimizer)));
    if (std::isfinite(result.held_out_before))
        report.lines.push_back(fmt::format("loss on held-out text {:.4f} -> {:.4f} per token",
                                           result.held_out_before, result.held_out_after));
    if (options.patience > 0)
        report.lines.push_back(fmt::format("{}; kept are the weights after step {}",
                                           result.stopped_early ? "stopped early" : "not stopped early",
                                           result.steps));
}

// Trains on the calibration text; the options of length are those of each layer.
Model apply_layerwise(const Model& model, Step& step, TrainOptions options) {
    if (!step.options.text("data").empty())
        fail(ErrorCode::usage, "train",
             "objective=layerwise trains on the calibration text: give it with --calib or 'calibration', and "
             "no data");
    if (options.shares_gradients())
        fail(ErrorCode::usage, "train",
             "objective=layerwise has the memory of one layer, in float32 - leave out weights and zero");
    if (options.keep > 0)
        fail(ErrorCode::usage, "train", "keep: objective=layerwise has no model before its last layer");
    if (step.calibration != nullptr) options.context = step.calibration->options.length;
    set_length(options, step.options,
               step.calibration == nullptr ? 1 : static_cast<int64_t>(step.calibration->fit.size()));
    return train_layerwise(model, step, options, step.options.text("type"));
}

Model apply(const Model& model, Step& step) {
    const Options& o = step.options;
    TrainOptions options = train_options(o);
    if (!step.dry_run()) torch_plugin::find(kTrainSymbol);  // fails before any work where it is missing
    if (options.objective == "layerwise") return apply_layerwise(model, step, options);
    std::vector<std::string> files;
    if (!step.dry_run()) files = files_of(o.text("data"));  // a plan needs no text
    check_teacher(model, step);
    const TrainedTensors trained(model, o.text("train"), o.text("type"));
    json details = {{"objective", options.objective},
                    {"tensors", trained.count()},
                    {"trained_parameters", trained.parameters()}};
    step.report.lines.push_back(fmt::format("objective {}; {} tensors trained, {} parameters",
                                            options.objective, trained.count(),
                                            format_count(trained.parameters())));
    const auto finish = [&](Model out) {
        if (const auto widened = trained.widened(); !widened.empty()) {
            details["widened"] = widened;
            step.report.lines.push_back(fmt::format(
                "{} quantized tensors were trained and are {} now: refold quantize makes them small again",
                widened.size(), name(out.tensor(widened.front()).type)));
        }
        step.report.details = details.dump();
        return out;
    };
    if (o.integer("steps") > 0 || o.integer("tokens") > 0) {
        set_length(options, o, 1);
        details["steps"] = options.steps;
        details["warmup"] = options.warmup;
        details["batch_tokens"] = options.batch * options.context;
        step.report.lines.push_back(
            fmt::format("{} steps of {} x {} tokens, the first {} with a growing learning rate",
                        options.steps, options.batch, options.context, options.warmup));
    }
    if (step.dry_run()) {
        report_expected_memory(model, options, step.report, details);
        return finish(trained.with({}));
    }
    if (step.training == nullptr)
        fail(ErrorCode::internal, "train", "the recipe is applied without a tokenizer");
    check_gradient_device(options.device);

    const std::string folder = fmt::format("{}/step-{}", step.training->folder, step.number);
    const TrainTokenizer tokenizer = step.training->tokenizer();
    const TrainData data = TrainData::open(
        {files, options.context, o.boolean("responses_only"), o.number("held_out"), folder}, tokenizer);
    set_length(options, o, data.size());
    std::optional<Model> named_teacher;
    if (needs_teacher(o) && !o.text("teacher").empty()) named_teacher = load_model(o.text("teacher"));

    TrainRequest request{model,
                         needs_teacher(o) ? (named_teacher ? &*named_teacher : &step.original) : nullptr,
                         options,
                         {},
                         data,
                         folder,
                         identity_of(step, data),
                         step.threads};
    for (const auto& spec : kObjectiveOptions)
        for (const auto& [name, value] : o.entries())
            if (name == spec.name) request.objective[name] = value;
    if (options.objective == "postshare") request.pairs = head_pairs(model, step);
    if (request.teacher != nullptr && o.text("teacher_engine") == "ggml")
        request.teacher_logits = logits_by_ggml(*request.teacher, options.context, step.threads);
    if (!step.training->metrics.empty())
        request.metrics = fmt::format("{}/step-{}", step.training->metrics, step.number);
    const KeptModels kept(trained, step, options);
    request.keep = std::cref(kept);
    TrainingProgress progress(options);
    PreparationProgress preparation;
    request.report = std::ref(progress);
    request.prepare = std::ref(preparation);
    request.stop = [] { return interrupted(); };
    TrainResult result = train(request);
    progress.finish();

    report_run(options, result, data, step.report, details);
    kept.report(result.kept, step.report, details);
    if (options.objective == "postshare") {
        details["pairs"] = request.pairs.size();
        step.report.lines.push_back(fmt::format("{} pairs of heads were made alike", request.pairs.size()));
    }
    return finish(trained.with(std::move(result.tensors)));
}

constexpr const char* kDocumentation = R"(
Trains the model, as earlier steps left it, on text: on next tokens, and on what the objective adds. A tensor that several
layers share is one parameter, so it stays shared. Factors, LoRA, W_c and prefixes are parameters like others. The torch
engine computes, in one process or many (`torchrun`); see docs/training.md.

**Objectives**
- `uptrain`: cross entropy of the next token.
- `distill`: (1 - alpha) cross entropy + alpha D(teacher, model); D is the forward or reverse Kullback-Leibler divergence,
  Jensen-Shannon, or total variation. The teacher is the model before the first step, or `teacher=FILE`. It runs along, or
  its `teacher_cache` most probable tokens for each token are computed once and kept on disk. `teacher_engine=ggml` runs it
  in its stored types, so that a quantized teacher takes no more memory than its file.
- `early_exit`: L_final + coefficient * sum of L_i over the exits (`aggressive`; 0.1, 0.3 for models with LoRA), or the sum
  of alpha_i L_i with alpha_i = i / sum of i over all outputs (`weighted`). L_i is cross entropy, the divergence from the
  final output without gradients, or their sum. Exits are the ends of loops, or the numbers of layers in `exits`. The
  paper trains all weights after uptraining; its frozen variant is `exit_lora` and `train=exit`.
- `postshare`: L + gamma * 1/|N| * sum over pairs of sum over q, k, v of ||W_i - W_j||_2, the pairs being those that
  direct_share selects in the original model (`ratio`, `match`). Follow with `direct_share` of the same ratio and
  `matching=original`.
- `layerwise`: layer by layer, trains the layer's own tensors so that the residual stream after the layer is the original
  model's, with the memory of one layer, on the calibration text (`--calib`) instead of `data`. `steps`, `tokens` and `epochs`
  count for each layer. The weights that are best on the held-out sequences are kept. See docs/training.md.

**What is trained** (`train`): groups and patterns in order, separated by commas: `lora,norms`, `blk.*.attn_*`, `all,-head`.

**UniAttn, CLA, LLM-Drop**: two of these steps after the method and its `compensation`: `train=comp` with `patience` (stage 1),
then `train=all` (stage 2); see recipes/uniattn_*.yaml.

**Text** (`data`): plain text; JSONL with `text`, Alpaca, ShareGPT or OpenAI records. The part `held_out` of the sequences is
only measured with.

**Length**: `steps`, or `tokens`, or else `epochs`. The paper's context is 2048 and its batch two million tokens; the defaults
are for small machines.

**Along the run**: `keep=10` keeps ten models of the run, evenly over its steps, beside the metrics: OUT.train/step-1/kept-03-of-10.gguf.
`refold eval tasks` and others take them; see docs/training.md.

**Many processes and memory**: `zero=2` divides gradients over the processes, `weights=bf16` halves weights and adds master
weights to the divided state; `--dry-run` says what each process will need. See docs/training.md.

**Interruption**: Ctrl-C and SIGTERM save a checkpoint; the same command resumes, bit for bit, also on another number of
processes, up to rounding. A checkpoint of another model, text or option is refused. Metrics (JSON lines and TensorBoard events) lie beside the output.

**Types**: trained tensors keep their type; quantized ones become 16 bits unless `type` says otherwise.
)";

}  // namespace

extern const Method method;
const Method method = {
    "train",
    "train the model on text: uptraining, distillation, early exits, heads made alike",
    "Relaxed Recursive Transformers, section 3; Head-wise Shareable Attention, section 4.3; UniAttn, section "
    "3.2",
    kDocumentation + 1,
    all_options(),
    apply,
    [](const Options& options) { return options.text("objective") == "layerwise"; },
};

}  // namespace refold::train_method
