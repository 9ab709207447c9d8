// LASER: single matrices replaced by their truncated singular value decomposition (arXiv 2312.13558).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/factorization/factoring.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "linalg/blas.h"
#include "linalg/svd.h"

namespace refold::laser_method {

namespace {

using factoring::Layers;
using nlohmann::json;

constexpr int kPowerIterations = 2;  // torch.svd_lowrank's niter in the authors' program

// A stored matrix, out x in.
struct Target {
    Layers layers;
    Slot slot;
    std::string source;
    SlotShape shape;
    int64_t rank = 0;  // 0: by energy, not known yet

    int64_t full() const { return std::min(shape.in, shape.out); }
    int64_t dense() const { return shape.in * shape.out; }
    int64_t factors() const { return rank * (shape.in + shape.out); }
    std::string place() const { return factoring::place_text(layers) + " " + slot_name(slot); }
};

// The option that says how much is kept: exactly one is given.
enum class Rule { rho, rank, energy, rate };

Rule rule_of(const Options& options) {
    std::vector<Rule> given;
    if (options.number("rho") > 0) given.push_back(Rule::rho);
    if (options.integer("rank") > 0) given.push_back(Rule::rank);
    if (options.number("energy") > 0) given.push_back(Rule::energy);
    if (options.number("rate") >= 0) given.push_back(Rule::rate);
    if (given.size() != 1)
        fail(ErrorCode::usage, "laser",
             "give one of rho (kept part of the largest rank, above 0), rank, energy and rate, got {}",
             given.empty() ? "none" : fmt::format("{}", given.size()));
    return given.front();
}

int64_t stated_rank(Rule rule, const Options& options, const Target& target) {
    if (rule == Rule::energy) return 0;
    if (rule == Rule::rank) return std::min(options.integer("rank"), target.full());
    const double part = rule == Rule::rho ? options.number("rho") : (10 - options.number("rate")) * 0.1;
    const int64_t rank = factoring::rank_of(part, target.full());
    if (rank < 1)
        fail(ErrorCode::usage, "laser", "{}: {:g} of {} leaves rank 0", target.place(), part, target.full());
    return rank;
}

std::vector<Target> targets_of(const Model& model, const Options& options) {
    const std::vector<size_t> layers = parse_layers(options.text("layers"), model.topology.layers.size());
    const Rule rule = rule_of(options);
    const std::vector<Slot> slots = parse_slots(options.text("slots"), *model.family);
    std::vector<Target> targets;
    for (const Slot slot : slots) {
        for (const Layers& group : factoring::groups_of(model, layers, {slot})) {
            const std::string source = factoring::sources_of(model, group.front(), {slot}).front();
            Target target{group, slot, source, slot_shape(slot, model.config, group.front())};
            target.rank = stated_rank(rule, options, target);
            targets.push_back(std::move(target));
        }
    }
    if (targets.empty())
        fail(ErrorCode::usage, "laser", "layers {} have no {}", layers_text(layers),
             factoring::slots_text(slots));
    return targets;
}

factoring::Job job_of(const Model& model, const Target& target) {
    factoring::Job job;
    job.place = target.place();
    job.memory = 4 * 4 * target.dense() + 8 * 3 * target.full() * target.full();
    job.input = [&model, &target] {
        return factoring::weights_of(model, target.layers.front(), target.slot);
    };
    return job;
}

constexpr Computation kRankForEnergy{"laser rank", 1};

void find_ranks(const Model& model, std::vector<Target>& targets, double energy, Work* work) {
    std::vector<factoring::Job> jobs;
    for (const Target& target : targets) {
        factoring::Job job = job_of(model, target);
        job.key = {kRankForEnergy, {{"rows", target.shape.out}, {"energy", energy}}};
        job.compute = [&target, energy](const std::vector<float>& matrix) -> Arrays {
            const auto values = singular_values(matrix, target.shape.out, target.shape.in);
            return {{"rank", {{1}, {static_cast<float>(rank_for_energy(values, energy))}}}};
        };
        jobs.push_back(std::move(job));
    }
    const auto results = factoring::run(jobs, work, "singular values");
    for (size_t i = 0; i < targets.size(); ++i)
        targets[i].rank = static_cast<int64_t>(lazy::numbers(results[i].at("rank")).front());
}

struct Settings {
    bool randomized;
    uint64_t seed;
};

constexpr Computation kDecomposition{"laser", 1};

// U S, V^T and the error.
Arrays decompose(const Target& target, const Settings& settings, const std::vector<float>& matrix) {
    const auto [in, out] = target.shape;
    Svd svd = settings.randomized
                  ? randomized_svd(matrix, out, in, target.rank, kPowerIterations, settings.seed)
                  : truncated_svd(matrix, out, in, target.rank);
    for (size_t i = 0; i < svd.u.size(); ++i)
        svd.u[i] = static_cast<float>(svd.u[i] * svd.s[i % static_cast<size_t>(svd.rank)]);
    return {{"u", {{svd.rank, out}, std::move(svd.u)}},
            {"v", {{in, svd.rank}, std::move(svd.v)}},
            {"error", {{1}, {static_cast<float>(svd.relative_error)}}}};
}

std::vector<factoring::Tensors> decompose_all(const Model& model, const std::vector<Target>& targets,
                                              const Settings& settings, Work* work) {
    std::vector<factoring::Job> jobs;
    for (const Target& target : targets) {
        factoring::Job job = job_of(model, target);
        job.key = {kDecomposition, {{"rows", target.shape.out}, {"rank", target.rank}}};
        if (settings.randomized) job.key.inputs["seed"] = settings.seed;
        job.shapes = {{"u", {target.rank, target.shape.out}}, {"v", {target.shape.in, target.rank}}};
        job.compute = [&target, settings](const std::vector<float>& matrix) {
            return decompose(target, settings, matrix);
        };
        jobs.push_back(std::move(job));
    }
    return factoring::run(jobs, work, "singular value decompositions");
}

Tensor product(const Tensor& u, const Tensor& v, DType type) {
    const int64_t rank = u.row_elements(), out = u.rows(), in = v.row_elements();
    return lazy::computed(type, {in, out}, [=] {
        const std::vector<float> left = lazy::floats(u, nullptr), right = lazy::floats(v, nullptr);
        std::vector<float> values(static_cast<size_t>(in * out));
        blas::multiply(blas::Op::plain, blas::Op::plain, {in, out, rank}, right.data(), left.data(),
                       values.data());
        return values;
    });
}

bool stored_as_factors(const std::string& store, const Target& target) {
    return store == "factors" || (store == "auto" && target.factors() < target.dense());
}

void store(Model& model, const Target& target, const factoring::Tensors& factors, DType type,
           bool as_factors) {
    Expression expression = Dense{target.source};
    if (as_factors) {
        const std::string name = stem(target.source);
        expression = LowRank{name + ".u", name + ".v"};
        model.tensors[name + ".u"] = as_type(factors.at("u"), type);
        model.tensors[name + ".v"] = as_type(factors.at("v"), type);
    } else {
        model.tensors[target.source] = product(factors.at("u"), factors.at("v"), type);
    }
    for (const size_t p : target.layers) model.topology.layers[p][target.slot] = expression;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    StepReport& report = step.report;
    std::vector<Target> targets = targets_of(model, options);
    if (rule_of(options) == Rule::energy) {
        if (step.dry_run()) {
            report.lines.push_back(fmt::format(
                "{} matrices: ranks by energy are known when the weights are read; the plan counts the "
                "matrices as they are",
                targets.size()));
            return model;
        }
        find_ranks(model, targets, options.number("energy"), step.work);
    }

    json details = json::array();
    std::vector<Target> changed;
    for (Target& target : targets) {
        if (target.rank < target.full()) {
            changed.push_back(std::move(target));
            continue;
        }
        report.lines.push_back(
            fmt::format("{}: rank {} is the full rank, unchanged", target.place(), target.full()));
    }
    const Settings settings{options.text("svd") == "randomized", seed_of(options)};
    const auto results = decompose_all(model, changed, settings, step.work);

    Model out = model;
    for (size_t i = 0; i < changed.size(); ++i) {
        const Target& target = changed[i];
        const bool as_factors = stored_as_factors(options.text("store"), target);
        store(out, target, results[i], computed_type(options.text("type"), model, {target.source}),
              as_factors);
        const int64_t after = as_factors ? target.factors() : target.dense();
        details.push_back({{"layers", target.layers},
                           {"slot", slot_name(target.slot)},
                           {"rank", target.rank},
                           {"full_rank", target.full()},
                           {"stored", as_factors ? "factors" : "dense"},
                           {"parameters_before", target.dense()},
                           {"parameters_after", after}});
        std::string line =
            fmt::format("{}: rank {} of {} as {}, {}", target.place(), target.rank, target.full(),
                        as_factors ? "U V" : "one matrix", factoring::sizes_text(target.dense(), after));
        if (!step.dry_run()) {
            const double error = lazy::numbers(results[i].at("error")).front();
            details.back()["relative_error"] = error;
            line += fmt::format("; relative error {:.5f}", error);
        }
        report.lines.push_back(std::move(line));
    }
    report.details = json{{"matrices", details}}.dump();
    out.drop_unreferenced();
    return out;
}

constexpr const char* kDocumentation = R"(
Chosen matrices of chosen layers are replaced by their best approximation of a lower rank; no data, no training.

**How much is kept**: one of
- `rho`: the kept part of the largest possible rank, int(min(rows, columns) * rho): 57 of 576 at 0.1;
- `rate`: the option of the authors' program, from 0 (keep all) to 10 (keep nothing): rho = (10 - rate) * 0.1;
- `rank`: the rank itself, at most the largest possible one;
- `energy`: the smallest rank whose squared singular values are this part of the sum of all (a dry run cannot know it and
  counts the matrices as they are).

A matrix at full rank stays as it is, bit for bit.

**What is stored.** `store=auto`: W = U V with the singular values in U, where that has fewer numbers than W (rank below
rows * columns / (rows + columns)); else the product as one matrix, as the authors' program always does, which is the same
function and saves nothing. `factors` and `dense` choose one of the two.

**Decomposition.** `svd=exact`: from the Gram matrix in float64. `svd=randomized`: the authors' torch.svd_lowrank with two
power iterations and no oversampling, whose error is a few percent larger; `seed` chooses its random numbers.

**Which matrices.** The authors found FFN matrices of single late layers best, chosen per task. Their fc_in is ffn.up, fc_out
is ffn.down (in Llama models their program calls ffn.gate fc_in and ffn.up fc_up).

**Stacking.** Layers that share the matrix (looped models) are decomposed once. Shared heads, factors and LoRAs of earlier
steps are refused.
)";

}  // namespace

extern const Method method;
const Method method = {
    "laser",
    "truncated singular value decomposition of chosen matrices",
    "The Truth is in There: Improving Reasoning in Language Models with Layer-Selective Rank Reduction, "
    "section 3",
    kDocumentation + 1,
    {
        slots_option("ffn", "matrices to decompose, each on its own: ffn.down, attn.q, ffn, attn, all"),
        layers_option(),
        {"rho", OptionSpec::Kind::number, "0", "kept part of the largest rank; 0: given by another option",
         0.0, 1.0},
        {"rank", OptionSpec::Kind::integer, "0", "kept rank; 0: given by another option", 0, 1 << 20},
        {"energy", OptionSpec::Kind::number, "0",
         "kept part of the squared singular values; 0: given by another option", 0.0, 1.0},
        {"rate", OptionSpec::Kind::number, "-1",
         "the authors' option: rho = (10 - rate) * 0.1; -1: given by another option", -1.0, 10.0},
        {.name = "svd",
         .kind = OptionSpec::Kind::choice,
         .fallback = "exact",
         .help = "exact, or randomized as in the authors' program",
         .choices = {"exact", "randomized"},
         .former_choices = {{"randomised", "randomized"}}},
        {.name = "store",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "factors, their product, or whichever has fewer numbers",
         .choices = {"auto", "factors", "dense"}},
        seed_option("of the randomized decomposition"),
        type_option(),
    },
    apply,
};

}  // namespace refold::laser_method
