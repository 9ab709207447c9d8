#include "compress/training/run_options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "calibrate/calibration_device.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold {

using Kind = OptionSpec::Kind;

std::vector<OptionSpec> run_options(const char* batch) {
    return {
        {"batch", Kind::integer, batch, "sequences of one step, over all processes", 1, 1 << 20},
        {"micro_batch", Kind::integer, "1",
         "sequences of one forward pass; more are faster and need more memory", 1, 1 << 16},
        {"beta1", Kind::number, "0.9", "decay of the mean of gradients", 0, 0.999999},
        {"beta2", Kind::number, "0.95", "decay of the mean of their squares", 0, 0.999999},
        {"epsilon", Kind::number, "1e-8", "added to the square root of that mean", 0, 1},
        {.name = "schedule",
         .kind = Kind::choice,
         .fallback = "cosine",
         .help = "of the learning rate after the warm-up",
         .choices = {"cosine", "constant"}},
        {"warmup", Kind::number, "0.03", "part of the steps in which the learning rate grows from 0", 0, 1},
        {"final_rate", Kind::number, "0.1", "part of the peak at which cosine ends", 0, 1},
        {"clip", Kind::number, "1", "largest norm of all gradients together; 0: no limit", 0, 1e9},
        {.name = "precision",
         .kind = Kind::choice,
         .fallback = "f32",
         .help = "of products; activations between them are float32",
         .choices = {"f32", "bf16"}},
        {.name = "device",
         .kind = Kind::choice,
         .fallback = "auto",
         .help = "where it is computed; auto: a CUDA device where libtorch finds one",
         .choices = {"auto", "cpu", "cuda"}},
        {.name = "checkpointing",
         .kind = Kind::boolean,
         .fallback = "false",
         .help = "compute activations again in the backward pass: less memory, a third more work"},
        seed_option("of the order of sequences"),
        {"evaluate_every", Kind::integer, "0",
         "steps between measurements on held-out text; 0: ten times in a run", 0, 1e9},
        {"patience", Kind::integer, "0",
         "stop after so many measurements without a better one, and keep the best weights; 0: never", 0, 1e6},
    };
}

TrainOptions run_options_of(const Options& o) {
    TrainOptions t;
    t.batch = o.integer("batch");
    t.micro_batch = std::min(o.integer("micro_batch"), t.batch);
    t.beta1 = o.number("beta1");
    t.beta2 = o.number("beta2");
    t.epsilon = o.number("epsilon");
    t.schedule = o.text("schedule") == "cosine" ? ScheduleKind::cosine : ScheduleKind::constant;
    t.final_rate = o.number("final_rate");
    t.clip = o.number("clip");
    t.type = o.text("precision") == "bf16" ? TrainType::bf16 : TrainType::f32;
    t.device = gradient_device(o.text("device"));
    t.checkpointing = o.boolean("checkpointing");
    t.seed = seed_of(o);
    t.evaluate_every = o.integer("evaluate_every");
    t.patience = o.integer("patience");
    return t;
}

void set_steps(TrainOptions& run, const Options& options, int64_t steps) {
    run.steps = steps;
    run.warmup = static_cast<int64_t>(std::llround(options.number("warmup") * static_cast<double>(steps)));
}

double parse_learning_rate(const std::string& text, const char* method, const char* option,
                           const char* expected) {
    char* end = nullptr;
    const double rate = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(rate) || rate <= 0)
        fail(ErrorCode::usage, method, "{}: got '{}', expected {}a number above 0, such as 1e-4", option,
             text, expected);
    return rate;
}

}  // namespace refold
