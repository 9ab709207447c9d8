// TRAWL: one CP or Tucker decomposition of several matrices stacked to a tensor (arXiv 2406.17261; figure 2
// b, e of the TensorLLM paper).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/factorization/factoring.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "linalg/tucker.h"

namespace refold::trawl_method {
namespace {

using factoring::Layers;
using nlohmann::json;

// A matrix of a stack, and the layers that share it.
struct Member {
    Layers layers;
    Slot slot;
    std::string source;
};

// Matrices of one shape: dims are {n_embd, the other size of the matrices, number of matrices}. Matrices that
// write the residual stream (attn.o, ffn.down) are transposed.
struct Stack {
    std::vector<Member> members;
    std::array<int64_t, 3> dims{};

    int64_t dense() const { return dims[0] * dims[1] * dims[2]; }
};

bool transposed(Slot slot) { return properties(slot).units == UnitAxis::columns; }

std::vector<Stack> stacks_of(const Model& model, const std::vector<size_t>& layers,
                             const std::vector<Slot>& slots, int64_t window) {
    const std::vector<Layers> groups = factoring::groups_of(model, layers, slots);
    std::vector<Stack> stacks;
    for (size_t first = 0; first < groups.size(); first += static_cast<size_t>(window)) {
        std::map<int64_t, Stack> by_size;
        const size_t end = std::min(groups.size(), first + static_cast<size_t>(window));
        for (size_t g = first; g < end; ++g) {
            const size_t p = groups[g].front();
            for (const Slot slot : factoring::slots_at(model, p, slots)) {
                const SlotShape shape = slot_shape(slot, model.config, p);
                const int64_t other = transposed(slot) ? shape.in : shape.out;
                by_size[other].members.push_back(
                    {groups[g], slot, factoring::sources_of(model, p, {slot}).front()});
            }
        }
        for (auto& [other, stack] : by_size) {
            stack.dims = {model.config.n_embd, other, static_cast<int64_t>(stack.members.size())};
            stacks.push_back(std::move(stack));
        }
    }
    return stacks;
}

std::vector<float> tensor_of(const Model& model, const Stack& stack) {
    const auto [width, other, count] = stack.dims;
    std::vector<float> out;
    out.reserve(static_cast<size_t>(stack.dense()));
    for (const Member& member : stack.members) {
        const std::vector<float> weights = factoring::weights_of(model, member.layers.front(), member.slot);
        if (!transposed(member.slot)) {
            out.insert(out.end(), weights.begin(), weights.end());
            continue;
        }
        for (int64_t j = 0; j < other; ++j) {
            for (int64_t i = 0; i < width; ++i) out.push_back(weights[i * other + j]);
        }
    }
    return out;
}

// rows x columns to columns x rows.
std::vector<float> transpose(const std::vector<float>& values, int64_t rows, int64_t columns) {
    std::vector<float> out(values.size());
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = values[r * columns + c];
    }
    return out;
}

// Settings of both decompositions.
struct Settings {
    double tolerance;
    int sweeps;
    uint64_t seed;
    bool compare;
};

int64_t elements(const factoring::Job& job) {
    int64_t count = 0;
    for (const auto& [name, shape] : job.shapes) {
        int64_t product = 1;
        for (const int64_t n : shape) product *= n;
        count += product;
    }
    return count;
}

// The rank at which truncated SVDs of the single matrices hold as many numbers; 0: even rank 1 holds more.
int64_t equal_svd_rank(const Stack& stack, const factoring::Job& job) {
    const auto [width, other, count] = stack.dims;
    return elements(job) / (count * (width + other));
}

// Indices into the array "figures"; the SVD errors of the single matrices follow.
enum Figure { relative_error, sweeps, svd_error, n_figures };

// `svd_rank`: -1 for no comparison.
Array figures(double error, int sweep, const std::vector<float>& tensor, const std::array<int64_t, 3>& dims,
              int64_t svd_rank) {
    std::vector<float> out(n_figures);
    out[relative_error] = static_cast<float>(error);
    out[sweeps] = static_cast<float>(sweep);
    const auto size = static_cast<size_t>(dims[0] * dims[1]);
    factoring::Squares all;
    for (size_t m = 0; svd_rank >= 0 && m < static_cast<size_t>(dims[2]); ++m) {
        const auto matrix = std::span(tensor).subspan(m * size, size);
        const factoring::Squares one = factoring::squares_of_svd(matrix, dims[1], dims[0], svd_rank);
        all += one;
        out.push_back(static_cast<float>(one.relative()));
    }
    out[svd_error] = static_cast<float>(all.relative());
    const auto n_all = static_cast<int64_t>(out.size());
    return {{n_all}, std::move(out)};
}

constexpr Computation kCp{"trawl cp", 2};

// sum over r of w_r a_r (outer) b_r (outer) c_r. Matrix m is U diag(w c_m) V with columns b_r of U and rows
// a_r of V.
factoring::Job cp_job(const Stack& stack, int64_t rank, const Settings& settings) {
    factoring::Job job;
    const auto dims = stack.dims;
    job.key = {kCp,
               {{"dims", dims},
                {"rank", rank},
                {"tolerance", settings.tolerance},
                {"sweeps", settings.sweeps},
                {"seed", settings.seed},
                {"compare", settings.compare}}};
    job.shapes = {{"u", {rank, dims[1]}}, {"v", {dims[0], rank}}, {"s", {rank, dims[2]}}};
    const int64_t svd_rank = settings.compare ? equal_svd_rank(stack, job) : -1;
    job.compute = [=](const std::vector<float>& tensor) -> Arrays {
        CpResult cp = cp_decomposition(tensor, dims,
                                       {.rank = rank,
                                        .max_sweeps = settings.sweeps,
                                        .tolerance = settings.tolerance,
                                        .seed = settings.seed});
        std::vector<float> scale = transpose(cp.factors[2], rank, dims[2]);
        for (size_t i = 0; i < scale.size(); ++i)
            scale[i] = static_cast<float>(scale[i] * cp.weights[i % static_cast<size_t>(rank)]);
        return {{"u", {{rank, dims[1]}, transpose(cp.factors[1], rank, dims[1])}},
                {"v", {{dims[0], rank}, std::move(cp.factors[0])}},
                {"s", {{rank, dims[2]}, std::move(scale)}},
                {"figures", figures(cp.relative_error, cp.sweeps, tensor, dims, svd_rank)}};
    };
    return job;
}

using Ranks = std::array<int64_t, 3>;

constexpr Computation kTucker{"trawl tucker", 2};

factoring::Job tucker_job(const Stack& stack, const Ranks& ranks, const Settings& settings) {
    factoring::Job job;
    const auto dims = stack.dims;
    job.key = {kTucker,
               {{"dims", dims},
                {"ranks", ranks},
                {"tolerance", settings.tolerance},
                {"sweeps", settings.sweeps},
                {"compare", settings.compare}}};
    job.shapes = {{"core", {ranks[0], ranks[1], ranks[2], 1}},
                  {"u1", {dims[0], ranks[0]}},
                  {"u2", {dims[1], ranks[1]}},
                  {"u3", {dims[2], ranks[2]}}};
    const int64_t svd_rank = settings.compare ? equal_svd_rank(stack, job) : -1;
    job.compute = [=, shapes = job.shapes](const std::vector<float>& tensor) -> Arrays {
        TuckerResult tucker =
            partial_tucker(tensor, {dims[0], dims[1], dims[2], 1},
                           {.ranks = ranks, .max_sweeps = settings.sweeps, .tolerance = settings.tolerance});
        return {{"core", {shapes.at("core"), std::move(tucker.core)}},
                {"u1", {shapes.at("u1"), std::move(tucker.factors[0])}},
                {"u2", {shapes.at("u2"), std::move(tucker.factors[1])}},
                {"u3", {shapes.at("u3"), std::move(tucker.factors[2])}},
                {"figures", figures(tucker.relative_error, tucker.sweeps, tensor, dims, svd_rank)}};
    };
    return job;
}

std::string place_of(const Stack& stack) {
    Layers layers;
    std::vector<Slot> slots;
    for (const Member& member : stack.members) {
        layers.insert(layers.end(), member.layers.begin(), member.layers.end());
        slots.push_back(member.slot);
    }
    const auto make_set = [](auto& list) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
    };
    make_set(layers);
    make_set(slots);
    return factoring::place_text(layers) + " " + factoring::slots_text(slots);
}

// The expression of matrix `index` of the stack.
Expression expression_of(const std::string& name, int64_t index, Slot slot, bool cp) {
    if (cp) return LowRank{name + "_u", name + "_v", name + "_s", index, transposed(slot)};
    return Tucker{name + "_core", name + "_u1", name + "_u2", name + "_u3", index, transposed(slot)};
}

void store(Model& model, const Stack& stack, const factoring::Tensors& factors, DType type, bool cp) {
    const std::string name = stem(stack.members.front().source) + ".stack";
    for (const auto& [factor, tensor] : factors) {
        if (factor == "figures") continue;
        const bool small = factor == "s" || factor == "u2" || factor == "u3";
        model.tensors[name + "_" + factor] = small ? tensor : as_type(tensor, type);
    }
    for (size_t m = 0; m < stack.members.size(); ++m) {
        const Member& member = stack.members[m];
        for (const size_t p : member.layers)
            model.topology.layers[p][member.slot] =
                expression_of(name, static_cast<int64_t>(m), member.slot, cp);
    }
}

std::vector<factoring::Job> jobs_of(const Model& model, const std::vector<Stack>& stacks,
                                    const Options& options, bool cp) {
    const Settings settings{options.number("tol"), static_cast<int>(options.integer("sweeps")),
                            seed_of(options), options.boolean("compare")};
    std::vector<factoring::Job> jobs;
    for (const Stack& stack : stacks) {
        if (cp) {
            jobs.push_back(cp_job(stack, options.integer("rank"), settings));
        } else {
            const std::vector<int64_t> given = parse_ranks(options.text("ranks"), 3);
            Ranks ranks{};
            for (size_t m = 0; m < 3; ++m) ranks[m] = std::min(given[m], stack.dims[m]);
            jobs.push_back(tucker_job(stack, ranks, settings));
        }
        factoring::Job& job = jobs.back();
        job.place = place_of(stack);
        const int64_t side = std::max(stack.dims[0], stack.dims[1]);
        job.memory = 4 * 4 * stack.dense() + 8 * 3 * side * side;
        job.input = [&model, &stack] { return tensor_of(model, stack); };
    }
    return jobs;
}

// Adds the SVD errors to the details, and returns the end of the line about them.
std::string report_svd(const Stack& stack, int64_t rank, const std::vector<double>& f, json& details) {
    details["svd_error"] = f[svd_error];
    details["svd_rank"] = rank;
    for (size_t m = 0; m < stack.members.size(); ++m)
        details["svd"].push_back(
            factoring::svd_details(stack.members[m].layers, stack.members[m].slot, f[n_figures + m]));
    return fmt::format("; SVD of each matrix with as many numbers (rank {}): {:.5f}", rank, f[svd_error]);
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const bool cp = options.text("decomposition") == "cp";
    const std::vector<size_t> layers = parse_layers(options.text("layers"), model.topology.layers.size());
    const std::vector<Slot> slots =
        parse_slots(options.text("stack") == "mha" ? "attn" : "ffn", *model.family);
    const std::vector<Stack> stacks = stacks_of(model, layers, slots, options.integer("window"));
    if (stacks.empty())
        fail(ErrorCode::usage, "trawl", "layers {} have no {}", layers_text(layers),
             factoring::slots_text(slots));
    const std::vector<factoring::Job> jobs = jobs_of(model, stacks, options, cp);
    const auto results = factoring::run(jobs, step.work, "tensor decompositions");

    Model out = model;
    json details = json::array();
    for (size_t i = 0; i < stacks.size(); ++i) {
        const Stack& stack = stacks[i];
        std::vector<std::string> sources;
        for (const Member& member : stack.members) sources.push_back(member.source);
        store(out, stack, results[i], computed_type(options.text("type"), model, sources), cp);
        const int64_t after = elements(jobs[i]);
        details.push_back({{"matrices", sources},
                           {"dims", stack.dims},
                           {"parameters_before", stack.dense()},
                           {"parameters_after", after}});
        std::string line = fmt::format("{} as {}: {}", jobs[i].place, fmt::join(stack.dims, " x "),
                                       factoring::sizes_text(stack.dense(), after));
        if (after > stack.dense()) line += " - more than the matrices hold: choose smaller ranks";
        if (!step.dry_run()) {
            const std::vector<double> f = lazy::numbers(results[i].at("figures"));
            details.back()["relative_error"] = f[relative_error];
            details.back()["sweeps"] = f[sweeps];
            line += fmt::format("; relative error {:.5f} after {:.0f} sweeps", f[relative_error], f[sweeps]);
            if (options.boolean("compare"))
                line += report_svd(stack, equal_svd_rank(stack, jobs[i]), f, details.back());
        }
        step.report.lines.push_back(std::move(line));
    }
    step.report.details = json{{"stacks", details}}.dump();
    out.drop_unreferenced();
    return out;
}

constexpr const char* kDocumentation = R"(
The matrices of a module, of one layer or of several neighboring layers, are stacked to one tensor and decomposed together;
no data, no training. The factors are stored once for all of them.

**Tensor.** d_model x (the other size of the matrices) x (number of matrices). `stack=mha`: Wq, Wk, Wv and the transpose of
Wo. `stack=ffn`: gate (where there is one), up and the transpose of down. Only matrices of one shape can be stacked: with
grouped-query attention Wq and Wo make one tensor, and Wk and Wv another. `window=3` stacks three of the chosen layers at a
time, in order. Rows are in the model's order.

**Decomposition.** `cp`: CANDECOMP/PARAFAC by alternating least squares, started from singular vectors; the authors found it
best. It stores `rank` x (d_model + other size + number of matrices) numbers. `tucker`: higher-order orthogonal iteration with
`ranks` = R1,R2,R3 of d_model, the other size and the matrices. A rank above its dimension means the dimension; full ranks
reproduce the matrices exactly. Both stop when a sweep changes the relative error by less than `tol`. Unless `compare=false`,
the report has the error of truncated SVDs of the same matrices with as many numbers.

The authors use it on the FFNs of the last layers and found no gain on attention.

**What is stored.** cp: W_m = U diag(s_m) V. tucker: one core and U1, and U2 and U3 in float32. Layers that share all matrices
of the module (looped models) are decomposed once. Shared heads, factors and LoRAs of earlier steps are refused.
)";

}  // namespace

extern const Method method;
const Method method = {
    "trawl",
    "CP or Tucker decomposition of the stacked matrices of a module",
    "TRAWL: Tensor Reduced and Approximated Weights for Large Language Models, section 3",
    kDocumentation + 1,
    {
        {.name = "stack",
         .kind = OptionSpec::Kind::choice,
         .fallback = "ffn",
         .help = "matrices that are stacked: the attention's or the FFN's",
         .choices = {"mha", "ffn"}},
        layers_option(),
        {"window", OptionSpec::Kind::integer, "1", "layers in one stack", 1, 1 << 16},
        {.name = "decomposition",
         .kind = OptionSpec::Kind::choice,
         .fallback = "cp",
         .help = "CANDECOMP/PARAFAC or Tucker",
         .choices = {"cp", "tucker"}},
        {"rank", OptionSpec::Kind::integer, "64", "of cp", 1, 1 << 20},
        {.name = "ranks", .fallback = "288,288,3", .help = "of tucker: R1,R2,R3"},
        factoring::tolerance_option(),
        factoring::sweeps_option(),
        factoring::compare_option(),
        seed_option("of random vectors, where the rank exceeds a dimension"),
        type_option(),
    },
    apply,
};

}  // namespace refold::trawl_method
