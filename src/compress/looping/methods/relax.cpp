// Relaxed Recursive Transformers: a looped block, and low-rank differences of its own for every layer.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", section 2.3.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compress/looping/conversion.h"
#include "compress/looping/rank_budget.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "compress/rewrite/lora.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/json_text.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "linalg/blas_threads.h"
#include "linalg/svd.h"

namespace refold::relax_method {

using namespace relax;

namespace {

using nlohmann::json;
using recursive::Conversion;

// A linear map of a layer, and its LoRA.
struct Map {
    size_t layer;
    Slot slot;
    int64_t in, out, rank = 0;
    DType type = DType::F32;
    bool zero = false;       // W = W': the LoRA starts with B = 0
    double residual = 0;     // |W - W'|
    double unexplained = 0;  // |W - W' - B A|

    int64_t full_rank() const { return std::min(in, out); }
    int64_t parameters() const { return rank * (in + out); }
};

// The maps of one stored matrix, which is read once for all of them.
using Group = std::vector<Map*>;

enum class Rule { rank, ranks, energy, budget };

Rule rule_of(const Options& options) {
    std::vector<Rule> given;
    if (!options.text("ranks").empty()) given.push_back(Rule::ranks);
    if (options.number("energy") > 0) given.push_back(Rule::energy);
    if (options.number("budget") > 0) given.push_back(Rule::budget);
    if (given.size() > 1)
        fail(ErrorCode::usage, "relax", "options 'ranks', 'energy' and 'budget' exclude each other");
    return given.empty() ? Rule::rank : given.front();
}

std::vector<Map> maps_of(const Conversion& conversion, const std::string& type) {
    const Model& original = conversion.original;
    std::vector<Map> maps;
    for (size_t p = 0; p < original.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : original.topology.layers[p]) {
            if (!is_matrix(slot)) continue;
            const SlotShape shape = slot_shape(slot, original.config, p);
            Map map{p, slot, shape.in, shape.out};
            map.type = computed_type(type, original, tensors_of(expression));
            maps.push_back(map);
        }
    }
    return maps;
}

const Tensor& tensor_at(const Model& model, const Map& map) {
    return model.tensor(std::get<Dense>(model.topology.at(map.layer, map.slot)).tensor);
}

class Residuals {
public:
    Residuals(const Conversion& conversion, std::vector<Map>& maps) : conversion_(conversion) {
        std::map<std::pair<size_t, Slot>, Group> groups;
        for (Map& map : maps) groups[{conversion.plan.stored[map.layer], map.slot}].push_back(&map);
        for (auto& [key, group] : groups) groups_.push_back(std::move(group));
        count_ = maps.size();
    }

    // Calls visit(map, W - W') for each map, in parallel for different stored matrices.
    template <typename Visit>
    void for_each(const char* label, Visit&& visit) {
        Progress progress(label, count_, "matrices");
        std::mutex mutex;
        const int at_once = threads();
        const blas::SingleThread single(at_once > 1);
        parallel_for(static_cast<int64_t>(groups_.size()), at_once, [&](int64_t g) {
            single.in_this_thread();
            const Group& group = groups_[static_cast<size_t>(g)];
            const std::vector<float> tied = floats(conversion_.tied, *group.front());
            for (Map* map : group) {
                check_interrupt();
                std::vector<float> residual = floats(conversion_.original, *map);
                for (size_t i = 0; i < residual.size(); ++i) residual[i] -= tied[i];
                double square = 0;
                for (const float x : residual) square += static_cast<double>(x) * x;
                if (!std::isfinite(square))
                    fail(ErrorCode::input, "relax", "layer {} {}: the weights are not finite", map->layer,
                         slot_name(map->slot));
                map->residual = std::sqrt(square);
                map->zero = square == 0;
                visit(*map, residual);
                const std::lock_guard lock(mutex);
                progress.advance(1, fmt::format("layer {} {}", map->layer, slot_name(map->slot)));
            }
        });
        progress.finish();
    }

private:
    std::vector<float> floats(const Model& model, const Map& map) const {
        return lazy::floats(tensor_at(model, map), conversion_.original.source);
    }

    // As many as fit into 3 GiB: each has the stored matrix, the layer's, and the decomposition's squares in
    // float64.
    int threads() const {
        constexpr int64_t kMemory = int64_t{3} << 30;
        int64_t largest = 1;
        for (const Group& group : groups_) {
            const Map& map = *group.front();
            const int64_t floats = 4 * map.in * map.out * 5,
                          squares = 8 * map.full_rank() * map.full_rank() * 3;
            largest = std::max(largest, floats + squares);
        }
        return static_cast<int>(std::clamp<int64_t>(kMemory / largest, 1, default_threads()));
    }

    const Conversion& conversion_;
    std::vector<Group> groups_;
    size_t count_ = 0;
};

constexpr Computation kSpectrum{"relax spectrum", 1};

std::vector<double> spectrum(const Map& map, std::span<const float> residual, Work& work) {
    const auto stored = work.results({kSpectrum, {{"rows", map.out}}}, residual, [&] {
        const std::vector<double> s = singular_values(residual, map.out, map.in);
        return Arrays{{"s", {{static_cast<int64_t>(s.size())}, {s.begin(), s.end()}}}};
    });
    return lazy::numbers(stored.at("s"));
}

constexpr Computation kDecomposition{"relax", 1};

// B = U S as rows of `rank`, A = V^T, and the relative error.
Arrays factors(const Map& map, std::span<const float> residual) {
    Svd svd = truncated_svd(residual, map.out, map.in, map.rank);
    for (int64_t row = 0; row < map.out; ++row) {
        for (int64_t k = 0; k < svd.rank; ++k) {
            float& u = svd.u[static_cast<size_t>(row * svd.rank + k)];
            u = static_cast<float>(u * svd.s[static_cast<size_t>(k)]);
        }
    }
    return {{"b", {{svd.rank, map.out}, std::move(svd.u)}},
            {"a", {{map.in, svd.rank}, std::move(svd.v)}},
            {"error", {{1}, {static_cast<float>(svd.relative_error)}}}};
}

// Adds the LoRA to the layers of the tied model.
class Relaxer {
public:
    explicit Relaxer(Conversion& conversion) : model_(conversion.tied) {}

    void set(const Map& map, Lora lora) {
        const std::lock_guard lock(mutex_);
        add_lora(model_, map.layer, map.slot, std::move(lora));
    }

    // Shapes only, for a dry run.
    void plan(const Map& map) {
        if (map.rank == 0) return;
        set(map,
            {Tensor{map.type, {map.rank, map.out}, {}, {}}, Tensor{map.type, {map.in, map.rank}, {}, {}}});
    }

    void compute(Map& map, std::span<const float> residual, Work& work, uint64_t seed) {
        if (map.rank == 0) {
            map.unexplained = map.residual;
            return;
        }
        if (map.zero) {
            set(map, zero_lora(map.type, {map.in, map.out}, map.rank, seed, map.layer, map.slot));
            return;
        }
        const ResultKey key{kDecomposition, {{"rows", map.out}, {"rank", map.rank}}};
        const auto stored = work.results(key, residual, [&] { return factors(map, residual); });
        map.unexplained = lazy::numbers(stored.at("error")).front() * map.residual;
        set(map, {as_type(stored.at("b"), map.type), as_type(stored.at("a"), map.type)});
    }

private:
    Model& model_;
    std::mutex mutex_;
};

int64_t budget_of(const std::vector<Map>& maps, double part) {
    double dense = 0;
    for (const Map& map : maps) dense += static_cast<double>(map.in) * static_cast<double>(map.out);
    return static_cast<int64_t>(std::floor(part * dense + 1e-9));
}

// Ranks that the options name.
void set_ranks(std::vector<Map>& maps, const Options& options) {
    const auto ranks = lora_ranks(options);
    for (Map& map : maps) map.rank = std::min(ranks[lora_module(map.slot)], map.full_rank());
}

// Ranks by energy or budget, from the singular values.
void find_ranks(std::vector<Map>& maps, Residuals& residuals, Rule rule, const Step& step) {
    std::map<const Map*, std::vector<double>> values;
    for (const Map& map : maps) values[&map];
    residuals.for_each("singular values", [&](const Map& map, const std::vector<float>& residual) {
        std::vector<double>& own = values.at(&map);
        own = map.zero ? std::vector<double>(static_cast<size_t>(map.full_rank()))
                       : spectrum(map, residual, *step.work);
    });
    std::vector<Spectrum> spectra;
    for (const Map& map : maps) spectra.push_back({map.in, map.out, values.at(&map)});
    if (rule == Rule::budget) {
        const auto ranks = ranks_for_budget(spectra, budget_of(maps, step.options.number("budget")));
        for (size_t i = 0; i < maps.size(); ++i) maps[i].rank = ranks[i];
        return;
    }
    for (size_t i = 0; i < maps.size(); ++i)
        maps[i].rank = rank_for_energy(spectra[i].values, step.options.number("energy"));
}

// Ranks for a dry run: an upper bound by energy, an even division of a budget.
void guess_ranks(std::vector<Map>& maps, Rule rule, const Step& step) {
    const double part = step.options.number("budget");
    for (Map& map : maps) {
        const auto share = static_cast<int64_t>(part * static_cast<double>(map.in * map.out) /
                                                static_cast<double>(map.in + map.out));
        map.rank = rule == Rule::energy ? map.full_rank() : std::min(share, map.full_rank());
    }
    step.report.lines.emplace_back(
        rule == Rule::energy
            ? "ranks by energy are known when the weights are read: the plan counts full ranks, an upper "
              "bound"
            : "the division of the budget is known when the weights are read: the plan divides it evenly");
}

void report(const std::vector<Map>& maps, bool computed, StepReport& report) {
    json modules = json::object();
    int64_t parameters = 0;
    for (size_t m = 0; m < kLoraModules.size(); ++m) {
        int64_t least = INT64_MAX, most = 0, held = 0, dense = 0;
        double residual = 0, unexplained = 0;
        for (const Map& map : maps) {
            if (lora_module(map.slot) != m) continue;
            least = std::min(least, map.rank);
            most = std::max(most, map.rank);
            held += map.parameters();
            dense += map.in * map.out;
            residual += map.residual * map.residual;
            unexplained += map.unexplained * map.unexplained;
        }
        if (dense == 0) continue;
        parameters += held;
        const double part = residual > 0 ? 1 - unexplained / residual : 1;
        modules[kLoraModules[m]] = {{"rank_min", least}, {"rank_max", most}, {"parameters", held}};
        if (computed) modules[kLoraModules[m]]["energy"] = part;
        report.lines.push_back(
            fmt::format("{:>3}: rank {}, {} parameters ({:.1f} % of dense){}", kLoraModules[m],
                        least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most), held,
                        100.0 * static_cast<double>(held) / static_cast<double>(dense),
                        computed ? fmt::format(", {:.2f} % of the residual's energy", 100 * part) : ""));
    }
    const auto zero = std::count_if(maps.begin(), maps.end(), [](const Map& map) { return map.zero; });
    if (zero > 0)
        report.lines.push_back(fmt::format(
            "{} matrices are the stored ones: their LoRA starts with B = 0 and changes nothing", zero));
    json details = parse_json(report.details, "relax", "the report");
    details["modules"] = std::move(modules);
    details["lora_parameters"] = parameters;
    details["zero_residuals"] = zero;
    report.details = details.dump();
}

Model apply(const Model& model, Step& step) {
    const recursive::Settings settings = recursive::settings_of(step.options);
    const Rule rule = rule_of(step.options);
    if (settings.loops == 1) {
        step.report.lines.emplace_back("one loop: nothing is tied, the model is unchanged");
        return model;
    }
    if (model.topology.loops > 1)
        fail(ErrorCode::unsupported, "relax",
             "the model is looped already, and the residuals need the original weights: leave out the step "
             "that looped it, and give its options to relax");
    Conversion conversion = recursive::convert(model, settings);
    recursive::report(conversion, settings, step.report);
    std::vector<Map> maps = maps_of(conversion, settings.type);
    Residuals residuals(conversion, maps);
    if (rule == Rule::rank || rule == Rule::ranks) {
        set_ranks(maps, step.options);
    } else if (step.dry_run()) {
        guess_ranks(maps, rule, step);
    } else {
        find_ranks(maps, residuals, rule, step);
    }
    // A copy gets the LoRA: the residuals are computed from the tied matrices of `conversion`.
    Conversion relaxed = conversion;
    Relaxer relaxer(relaxed);
    if (step.dry_run()) {
        for (const Map& map : maps) relaxer.plan(map);
    } else {
        residuals.for_each("decomposing residuals", [&](Map& map, const std::vector<float>& residual) {
            relaxer.compute(map, residual, *step.work, settings.seed);
        });
    }
    report(maps, !step.dry_run(), step.report);
    return std::move(relaxed.tied);
}

constexpr const char* kDocumentation = R"(
The conversion of `recursive` (same options) with a relaxation: each layer p adds its own low-rank term to the tied matrix
W': W'x + B A x (equation 3). B and A start as the truncated singular value decomposition of the residual (equations 4 and 5):
U S V^T = W_p - W', B = U_r S_r, A = V_r^T, without a factor alpha / r. All matrices of attention and FFN get such a LoRA;
embeddings and head do not.

The residuals need the original weights, so this is one step on the original model, not a second one after `recursive`.

**Ranks**: one of
- `rank`: the same for all (default 64);
- `ranks`: q, kv, out, ffn, as in Table 6: `ranks=128,256,128,256`;
- `energy`: the smallest rank that holds this part (0 to 1) of the residual's squared singular values;
- `budget`: LoRA parameters as a part of the dense parameters of the linear maps, spent on the directions with the largest
  squared singular value per parameter; a matrix that gets none has no LoRA.

A rank above min(rows, columns) of a matrix is clipped to that. Each matrix stores r (rows + columns) numbers, even where that
is more than the matrix itself has.

**Zero residuals.** Where a layer's matrix is the stored one (copied layers) there is nothing to decompose: A is Gaussian
(deviation 0.02, by `seed`) and B = 0, as in ordinary LoRA (Appendix E). Such a LoRA counts like the others and matters in
training.

**Norms.** LoRA does not apply to norms and biases. When these are tied (`norms=init`, the paper's choice), full rank is not the
original model: on SmolLM2-135M averaged norms alone raise the perplexity from 21.2 to 17543. With `keep` or `fold` it is.

Decompositions run in parallel. Finished ones are kept in the work folder, so an interrupted run resumes. `init=average` is the
paper's best here (section 3.5). For prefixes instead of LoRA (Appendix K) see the method `prefix`.
)";

std::vector<OptionSpec> option_specs() {
    using Kind = OptionSpec::Kind;
    std::vector<OptionSpec> specs = recursive::option_specs("average");
    std::vector<OptionSpec> own = lora_rank_options();
    own.push_back(
        {"energy", Kind::number, "0", "part of a residual's energy to keep, instead of rank; 0: off", 0, 1});
    own.push_back(
        {"budget", Kind::number, "0", "LoRA parameters over dense ones, instead of rank; 0: off", 0, 2});
    specs.insert(specs.begin() + 4, own.begin(), own.end());
    return specs;
}

}  // namespace

extern const Method method;
const Method method = {
    "relax",
    "loop one block of layers, with a LoRA of its own for every layer",
    "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA, section 2.3",
    kDocumentation + 1,
    option_specs(),
    apply,
};

}  // namespace refold::relax_method
