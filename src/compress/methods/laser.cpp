#include "compress/methods/laser.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/factoring.h"
#include "compress/lazy.h"
#include "compress/selection.h"
#include "core/error.h"
#include "linalg/blas.h"
#include "linalg/svd.h"

namespace refold {
namespace laser {

int64_t rank_of(double part, int64_t full) { return static_cast<int64_t>(static_cast<double>(full) * part); }

namespace {

using factoring::Positions;
using nlohmann::json;

constexpr int kPowerIterations = 2;  // torch.svd_lowrank's niter in the authors' program

// A stored matrix, out x in.
struct Target {
    Positions positions;
    Slot slot;
    std::string source;
    SlotShape shape;
    int64_t rank = 0;  // 0: by energy, not known yet

    int64_t full() const { return std::min(shape.in, shape.out); }
    int64_t dense() const { return shape.in * shape.out; }
    int64_t factors() const { return rank * (shape.in + shape.out); }
    std::string place() const { return factoring::place_text(positions) + " " + slot_name(slot); }
};

// Exactly one of the options says how much is kept.
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
    const int64_t rank = rank_of(part, target.full());
    if (rank < 1)
        fail(ErrorCode::usage, "laser", "{}: {:g} of {} leaves rank 0", target.place(), part, target.full());
    return rank;
}

std::vector<Target> targets_of(const Model& model, const Options& options) {
    const std::vector<size_t> layers = parse_layers(options.text("layers"), model.topology.positions.size());
    const Rule rule = rule_of(options);
    const std::vector<Slot> slots = parse_slots(options.text("slots"), *model.family);
    std::vector<Target> targets;
    for (const Slot slot : slots) {
        for (const Positions& group : factoring::groups_of(model, layers, {slot})) {
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
        return factoring::weights_of(model, target.positions.front(), target.slot);
    };
    return job;
}

void find_ranks(const Model& model, std::vector<Target>& targets, double energy, Work* work) {
    std::vector<factoring::Job> jobs;
    for (const Target& target : targets) {
        factoring::Job job = job_of(model, target);
        job.what = fmt::format("laser rank v1 rows={} energy={}", target.shape.out, energy);
        job.compute = [&target, energy](const std::vector<float>& matrix) -> Arrays {
            const auto values = singular_values(matrix, target.shape.out, target.shape.in);
            return {{"rank", {{1}, {static_cast<float>(rank_for_energy(values, energy))}}}};
        };
        jobs.push_back(std::move(job));
    }
    const auto results = factoring::run(jobs, work, "singular values");
    for (size_t i = 0; i < targets.size(); ++i)
        targets[i].rank = static_cast<int64_t>(factoring::numbers(results[i].at("rank")).front());
}

struct Settings {
    bool randomised;
    uint64_t seed;
};

// U S, V^T and the error.
Arrays decompose(const Target& target, const Settings& settings, const std::vector<float>& matrix) {
    const auto [in, out] = target.shape;
    Svd svd = settings.randomised
                  ? randomised_svd(matrix, out, in, target.rank, kPowerIterations, settings.seed)
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
        job.what = fmt::format("laser v1 rows={} rank={}", target.shape.out, target.rank);
        if (settings.randomised) job.what += fmt::format(" seed={}", settings.seed);
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
        const std::string name = factoring::stem(target.source);
        expression = LowRank{name + ".u", name + ".v"};
        model.tensors[name + ".u"] = as_type(factors.at("u"), type);
        model.tensors[name + ".v"] = as_type(factors.at("v"), type);
    } else {
        model.tensors[target.source] = product(factors.at("u"), factors.at("v"), type);
    }
    for (const size_t p : target.positions) model.topology.positions[p][target.slot] = expression;
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
    const Settings settings{options.text("svd") == "randomised",
                            static_cast<uint64_t>(options.integer("seed"))};
    const auto results = decompose_all(model, changed, settings, step.work);

    Model out = model;
    for (size_t i = 0; i < changed.size(); ++i) {
        const Target& target = changed[i];
        const bool as_factors = stored_as_factors(options.text("store"), target);
        store(out, target, results[i], computed_type(options.text("type"), model, {target.source}),
              as_factors);
        const int64_t after = as_factors ? target.factors() : target.dense();
        details.push_back({{"layers", target.positions},
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
            const double error = factoring::numbers(results[i].at("error")).front();
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

**How much is kept** - one of:
- `rho`: kept part of the largest possible rank: int(min(rows, columns) * rho), 57 of 576 at 0.1;
- `rate`: the authors' program's option, from 0 (all) to 10 (nothing): rho = (10 - rate) * 0.1;
- `rank`: the rank itself; more than the largest possible one means that;
- `energy`: the smallest rank whose singular values hold this part of the sum of all their squares (a dry run cannot know
  it and counts the matrices as they are).

A matrix at full rank stays as it is, bit for bit.

**What is stored.** `store=auto`: W = U V with the singular values in U where that has fewer numbers than W (rank below
rows * columns / (rows + columns)), else the product as one matrix, as the authors' program always does: the same function
then, and nothing saved. `factors` and `dense` choose one of them.

**Decomposition.** `svd=exact` from the Gram matrix in float64. `svd=randomised` is the authors' torch.svd_lowrank with two
power iterations and no oversampling, whose error is a few percent larger; `seed` chooses its random numbers.

**Which matrices.** The authors found single late layers of the FFN best, chosen per task: fc_in is ffn.up (in Llama
models their program calls ffn.gate fc_in, and ffn.up fc_up), fc_out is ffn.down.

**Stacking.** Layers that share the matrix (looped models) are decomposed once. Shared heads, factors and LoRAs of earlier
steps are refused.
)";

}  // namespace
}  // namespace laser

const Method kLaser = {
    "laser",
    "truncated singular value decomposition of chosen matrices",
    "The Truth is in There: Improving Reasoning in Language Models with Layer-Selective Rank Reduction, "
    "section 3",
    laser::kDocumentation + 1,
    {
        slots_option("ffn", "matrices to decompose, each on its own: ffn.down, attn.q, ffn, attn, all"),
        layers_option(),
        {"rho", OptionSpec::Kind::number, "0", "kept part of the largest rank; 0: another option says", 0.0,
         1.0},
        {"rank", OptionSpec::Kind::integer, "0", "kept rank; 0: another option says", 0, 1 << 20},
        {"energy", OptionSpec::Kind::number, "0",
         "kept part of the squared singular values; 0: another option says", 0.0, 1.0},
        {"rate", OptionSpec::Kind::number, "-1",
         "the authors' measure of what goes: rho = (10 - rate) * 0.1; -1: another option says", -1.0, 10.0},
        {.name = "svd",
         .kind = OptionSpec::Kind::choice,
         .fallback = "exact",
         .help = "exact, or randomised as in the authors' program",
         .choices = {"exact", "randomised"}},
        {.name = "store",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "factors, their product, or whichever has fewer numbers",
         .choices = {"auto", "factors", "dense"}},
        {"seed", OptionSpec::Kind::integer, "0", "of the randomised decomposition", 0,
         std::numeric_limits<int32_t>::max()},
        type_option(),
    },
    laser::apply,
};

}  // namespace refold
