// Refinement with gradients: block by block towards the original's residual stream (on request), then end to
// end towards its predictions. The defaults are those of docs/quality.md, "Refinement": after a closed form,
// the block stage gained nothing, and steps of 5e-5 on batches of 2 made predictions worse.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/method/method.h"
#include "compress/training/end_to_end.h"
#include "compress/training/layerwise.h"
#include "compress/training/run_options.h"
#include "core/error.h"
#include "core/json_text.h"
#include "core/text.h"
#include "engine/torch/plugin.h"
#include "train/train.h"
#include "train/trained.h"

namespace refold::refine_method {
namespace {

using nlohmann::json;
using Kind = OptionSpec::Kind;

// A stage's options have its name before them.
std::vector<OptionSpec> stage_options(const std::string& stage, const char* epochs, const char* rate) {
    return {
        {stage + "_epochs", Kind::number, epochs, "passes over the sequences; 0: without this stage", 0, 1e4},
        {stage + "_steps", Kind::integer, "0", "steps, in place of epochs; 0: by epochs", 0, 1e9},
        {stage + "_learning_rate", Kind::number, rate, "at its peak", 1e-12, 1e3}};
}

std::vector<OptionSpec> all_options() {
    std::vector<OptionSpec> options = {
        {.name = "train",
         .fallback = "layers,norms",
         .help = "all, layers, lora, comp, exit, norms, prefix, head, or patterns of tensors' names; -NAME "
                 "leaves out; packed tensors always stay"}};
    for (const auto& more :
         {stage_options("block", "0", "1e-4"), stage_options("end", "4", "3e-5"), run_options("4")})
        options.insert(options.end(), more.begin(), more.end());
    return options;
}

class Refine {
public:
    Refine(const Model& model, Step& step) : model_(model), step_(step) {}

    Model run() {
        check();
        if (wanted("block")) blocks();
        if (wanted("end")) end_to_end();
        step_.report.details = details_.dump();
        return std::move(model_);
    }

private:
    bool wanted(const std::string& stage) const {
        return step_.options.number(stage + "_epochs") > 0 || step_.options.integer(stage + "_steps") > 0;
    }

    void check() const {
        if (!wanted("block") && !wanted("end"))
            fail(ErrorCode::usage, "refine",
                 "block_epochs=0 and end_epochs=0 leave nothing to do: give one of them");
        check_has_original(model_, step_, "refine");
        trained_tensors(model_, selection());  // throws before any work
    }

    std::string selection() const { return step_.options.text("train") + ",-packed"; }

    TrainOptions options_of(const std::string& stage) const {
        const Options& o = step_.options;
        TrainOptions run = run_options_of(o);
        run.train = selection();
        run.learning_rate = o.number(stage + "_learning_rate");
        const double sequences =
            step_.calibration == nullptr ? 1 : static_cast<double>(step_.calibration->fit.size());
        int64_t steps = o.integer(stage + "_steps");
        if (steps == 0)
            steps = std::llround(o.number(stage + "_epochs") * sequences / static_cast<double>(run.batch));
        set_steps(run, o, std::max<int64_t>(1, steps));
        return run;
    }

    void blocks() {
        const auto tasks = layerwise::layer_tasks(model_, trained_tensors(model_, selection()));
        if (wanted("end") &&
            std::all_of(tasks.begin(), tasks.end(), [](const auto& task) { return task.tensors.empty(); })) {
            step_.report.lines.emplace_back("no block has tensors of its own: they are trained end to end");
            return;
        }
        model_ = train_layerwise(model_, step_, options_of("block"));
        details_["blocks"] = parse_json(step_.report.details, "refine", "the report");
    }

    void end_to_end() {
        const TrainOptions run = options_of("end");
        EndToEnd done = train_end_to_end(model_, step_, run);
        model_ = std::move(done.model);
        step_.report.lines.push_back(fmt::format("end to end: {} tensors trained, {} parameters",
                                                 done.tensors, format_count(done.parameters)));
        json& details = details_["end_to_end"];
        details = {{"steps", run.steps}, {"tensors", done.tensors}, {"trained_parameters", done.parameters}};
        if (step_.dry_run()) return;
        details["kept_step"] = done.steps;
        details["divergence_before"] = done.before;
        details["divergence_after"] = done.after;
        step_.report.lines.push_back(fmt::format(
            "divergence from the original on held-out text {:.4g} -> {:.4g} nats per token, after "
            "{} of {} steps",
            done.before, done.after, done.steps, run.steps));
    }

    Model model_;
    Step& step_;
    json details_ = json::object();
};

Model apply(const Model& model, Step& step) {
    if (!step.dry_run()) torch_plugin::find(kTrainSymbol);  // fails before any work where it is missing
    return Refine(model, step).run();
}

constexpr const char* kDocumentation = R"(
Refines a compressed model with gradients on the calibration text (`--calib`), against the original: the model before the
recipe's first step, or `--original`. Sharing stays: a tensor that several layers use is one parameter with the sum of
their gradients. Packed (quantized) tensors stay as they are, bit for bit; all others keep their type. The torch engine
computes. See docs/training.md.

**Block by block** (`block_epochs`, 0: without, which is the default): layer after layer, its tensors are trained so that the residual stream
after it is the original's; its inputs are the compressed model's. Memory holds one layer with its gradients, and two
residual streams. A whole tensor that several layers use is trained at the first of them, for all of them together; heads
that several layers use wait for the second stage, like embeddings, final norm and output. This is `train` with
`objective=layerwise`.

**End to end** (`end_epochs`, 0: without): all tensors at once, by the divergence of the next token's distribution from
the original's. Memory: 16 bytes for each trained number, 4 for each other, 4 for each of the original's, and the
activations of `micro_batch` sequences (`checkpointing` keeps less).

**Held-out sequences decide**: every eighth sequence is not trained on. A layer keeps the weights with the smallest error on
these; of the block stage's layers all, the first half, a quarter and so on stay, whichever predicts best; the end-to-end stage
keeps the weights with the smallest divergence. So a learning rate that is too large leaves the model as it was.

**Length**: epochs or steps for each layer, and for the whole. 64 to 256 sequences are enough. An interrupted run goes on
where it stopped, and gives the same bits as one without interruption.
)";

}  // namespace

extern const Method method;
const Method method = {
    "refine",
    "train a compressed model towards the original, block by block and then end to end, on a little text",
    "AA-SVD (arXiv 2604.02119), block-level refinement; Hinton et al. 2015 (arXiv 1503.02531)",
    kDocumentation + 1,
    all_options(),
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::refine_method
