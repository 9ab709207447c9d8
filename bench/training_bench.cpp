// Times training steps on made-up tokens, for bench/training.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/torch/model.h"
#include "model/load.h"
#include "train/torch/losses.h"
#include "train/torch/optimizer.h"

namespace refold {
namespace {

struct Settings {
    std::string model;
    int64_t steps = 4, batch = 4, context = 512;
    int threads = 2;
    bool bf16 = false, checkpointing = false;
};

// The tokens of bench/training.
at::Tensor tokens_of(const Settings& s, int64_t step, int64_t n_vocab) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < s.batch * (s.context + 1); ++i) {
        const int64_t n = step * 7919 + i;
        tokens.push_back((n * n * 31 + n * 17) % 997 * 37 % n_vocab);
    }
    return at::tensor(at::ArrayRef<int64_t>(tokens)).reshape({s.batch, s.context + 1});
}

nlohmann::json run(const Settings& s) {
    at::set_num_threads(s.threads);
    TorchModel model(load_model(s.model), true);
    model.set_execution({s.bf16, s.checkpointing});
    const TrainOptions options;
    Processes processes;
    Optimizer optimizer(model.parameters(), options, processes);
    const LogitsOf logits = [&](const at::Tensor& x) { return model.logits(x); };
    nlohmann::json seconds = nlohmann::json::array(), losses = nlohmann::json::array();
    for (int64_t step = 0; step < s.steps; ++step) {
        const at::Tensor tokens = tokens_of(s, step, model.config().n_vocab);
        const auto start = std::chrono::steady_clock::now();
        const at::Tensor targets = tokens.narrow(1, 1, s.context).reshape({-1});
        const auto loss = cross_entropy(logits, model.hidden(tokens.narrow(1, 0, s.context)).final, targets,
                                        at::ones_like(targets, at::kBool));
        const at::Tensor mean = loss.sum.div(static_cast<double>(loss.count));
        mean.backward();
        optimizer.step(2e-5, std::min(1.0, 1.0 / optimizer.gradient_norm()));
        optimizer.zero_gradients();
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        seconds.push_back(passed.count());
        losses.push_back(mean.item<double>());
        std::fprintf(stderr, "step %ld: %.2f s, loss %.4f\n", static_cast<long>(step), passed.count(),
                     mean.item<double>());
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return {{"seconds", seconds}, {"losses", losses}, {"peak_bytes", usage.ru_maxrss * 1024}};
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) {
    refold::Settings s;
    CLI::App app{"Steps of training on made-up tokens, timed."};
    app.add_option("model", s.model)->required();
    app.add_option("--steps", s.steps);
    app.add_option("--batch", s.batch);
    app.add_option("--context", s.context);
    app.add_option("--threads", s.threads);
    app.add_flag("--bf16", s.bf16);
    app.add_flag("--checkpointing", s.checkpointing);
    CLI11_PARSE(app, argc, argv);
    try {
        std::puts(refold::run(s).dump().c_str());
    } catch (const refold::Error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
