// TensorLLM: Tucker decompositions of attention weights with factors that all heads of a layer share
// (arXiv 2501.15674, section III).
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/factorization/factoring.h"
#include "compress/factorization/head_stack.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "linalg/tucker.h"

namespace refold::tensorllm_method {

using namespace tensorllm;

using factoring::Layers;
using factoring::Squares;

namespace {

using nlohmann::json;

int64_t own_parameters(const Stack& stack, const ModelConfig& config) {
    int64_t count = 0;
    for (const Slot slot : stack.roles) count += stack.heads_of(slot, config) * stack.dims[1] * stack.dims[0];
    return count;
}

// True when heads are repeated in the tensor. The copies are averaged after the decomposition.
bool has_copies(const Stack& stack, const ModelConfig& config) {
    return std::any_of(stack.roles.begin(), stack.roles.end(),
                       [&](Slot slot) { return stack.heads_of(slot, config) != stack.dims[3]; });
}

// The error of each head's mean over its copies.
Squares squares_of_means(const Stack& stack, const ModelConfig& config, const std::vector<float>& tensor,
                         const TuckerResult& result) {
    const std::vector<float> approximation = reconstruct(result, stack.dims);
    const auto [width, head_dim, roles, heads] = stack.dims;
    const int64_t slice = width * head_dim;
    Squares squares;
    for (int64_t t = 0; t < roles; ++t) {
        const int64_t own = stack.heads_of(stack.roles[static_cast<size_t>(t)], config), copies = heads / own;
        for (int64_t h = 0; h < own; ++h) {
            for (int64_t i = 0; i < slice; ++i) {
                double mean = 0;
                for (int64_t c = 0; c < copies; ++c)
                    mean += approximation[i + slice * (t + roles * (h * copies + c))];
                const double given = tensor[i + slice * (t + roles * h * copies)],
                             difference = mean / static_cast<double>(copies) - given;
                squares.left += difference * difference;
                squares.all += given * given;
            }
        }
    }
    return squares;
}

// The rank at which truncated SVDs of the single matrices hold as many numbers; 0: even rank 1 holds more.
int64_t equal_svd_rank(const Stack& stack, const ModelConfig& config) {
    int64_t per_rank = 0;
    for (const Slot slot : stack.roles)
        per_rank += stack.dims[0] + stack.heads_of(slot, config) * stack.dims[1];
    return stack.parameters() / per_rank;
}

// The errors of truncated SVDs of the single matrices, in the order of the roles.
std::vector<Squares> squares_of_svds(const Stack& stack, const ModelConfig& config,
                                     const std::vector<float>& tensor) {
    const auto [width, head_dim, roles, heads] = stack.dims;
    std::vector<Squares> out;
    for (int64_t t = 0; t < roles; ++t) {
        const int64_t own = stack.heads_of(stack.roles[static_cast<size_t>(t)], config);
        std::vector<float> matrix;
        for (int64_t h = 0; h < own; ++h) {
            const auto from = tensor.begin() + width * head_dim * (t + roles * h * (heads / own));
            matrix.insert(matrix.end(), from, from + width * head_dim);
        }
        out.push_back(
            factoring::squares_of_svd(matrix, own * head_dim, width, equal_svd_rank(stack, config)));
    }
    return out;
}

// Indices into the array "figures"; the SVD errors of the single matrices follow.
enum Figure { relative_error, sweeps, matrix_error, svd_error, n_figures };

struct Settings {
    double tolerance;
    int sweeps;
    bool compare;
};

constexpr Computation kDecomposition{"tensorllm", 3};

Arrays decompose(const Stack& stack, const ModelConfig& config, const Settings& settings,
                 const std::vector<float>& tensor) {
    TuckerResult result = partial_tucker(
        tensor, stack.dims,
        {.ranks = stack.ranks, .max_sweeps = settings.sweeps, .tolerance = settings.tolerance});
    std::vector<float> figures(n_figures);
    figures[relative_error] = static_cast<float>(result.relative_error);
    figures[sweeps] = static_cast<float>(result.sweeps);
    const double means = has_copies(stack, config)
                             ? squares_of_means(stack, config, tensor, result).relative()
                             : result.relative_error;
    figures[matrix_error] = static_cast<float>(means);
    if (settings.compare) {
        Squares all;
        for (const Squares& one : squares_of_svds(stack, config, tensor)) {
            all += one;
            figures.push_back(static_cast<float>(one.relative()));
        }
        figures[svd_error] = static_cast<float>(all.relative());
    }
    const auto n_all = static_cast<int64_t>(figures.size());
    const auto [r1, r2, r3] = stack.ranks;
    return {{"core", {{r1, r2, r3, stack.dims[3]}, std::move(result.core)}},
            {"model", {{stack.dims[0], r1}, std::move(result.factors[0])}},
            {"head", {{stack.dims[1], r2}, std::move(result.factors[1])}},
            {"roles", {{stack.dims[2], r3}, std::move(result.factors[2])}},
            {"figures", {{n_all}, std::move(figures)}}};
}

Stack make_stack(const Model& model, const Layers& layers, std::vector<Slot> roles, const Ranks& ranks) {
    Stack stack{layers, std::move(roles), {}, {}};
    int64_t heads = 0;
    for (const Slot slot : stack.roles) heads = std::max(heads, stack.heads_of(slot, model.config));
    stack.dims = {model.config.n_embd, model.config.head_dim, static_cast<int64_t>(stack.roles.size()),
                  heads};
    for (size_t m = 0; m < 3; ++m) stack.ranks[m] = std::min(ranks[m], stack.dims[m]);
    return stack;
}

std::vector<Stack> stacks_of(const Model& model, const std::map<size_t, Ranks>& ranks,
                             const std::vector<Slot>& slots, bool separate) {
    std::vector<size_t> layers;
    for (const auto& [p, unused] : ranks) layers.push_back(p);
    std::vector<Stack> stacks;
    for (const Layers& group : factoring::groups_of(model, layers, slots)) {
        const Ranks& own = ranks.at(group.front());
        for (const size_t p : group) {
            if (ranks.at(p) != own)
                fail(ErrorCode::usage, "tensorllm",
                     "layers {} and {} have the same weights: give them the same ranks", group.front(), p);
        }
        std::vector<Slot> queries, keys;
        for (const Slot slot : factoring::slots_at(model, group.front(), slots)) {
            (separate && !has_query_heads(slot) ? keys : queries).push_back(slot);
        }
        for (const auto& roles : {queries, keys}) {
            if (!roles.empty()) stacks.push_back(make_stack(model, group, roles, own));
        }
    }
    return stacks;
}

// "blk.3.attn", or with the letters of the slots when not all four: "blk.3.attn_qk".
std::string name_of(const Stack& stack) {
    std::string letters;
    for (const Slot slot : stack.roles) letters += std::string(slot_name(slot)).back();
    return fmt::format("blk.{}.attn{}", stack.layers.front(), letters == "qkvo" ? "" : "_" + letters);
}

void store(Model& model, const Stack& stack, const factoring::Tensors& factors, DType type) {
    const std::string name = name_of(stack);
    Tucker tucker{name + ".core", name + ".u1", name + ".u2", name + ".u3"};
    model.tensors[tucker.core] = as_type(factors.at("core"), type);
    model.tensors[tucker.model] = as_type(factors.at("model"), type);
    model.tensors[tucker.head] = factors.at("head");
    model.tensors[tucker.roles] = factors.at("roles");
    for (size_t t = 0; t < stack.roles.size(); ++t) {
        const Slot slot = stack.roles[t];
        tucker.role = static_cast<int64_t>(t);
        tucker.transposed = heads_are_columns(slot);
        tucker.halves = stored_as_pairs(*model.family, slot);
        for (const size_t p : stack.layers) model.topology.layers[p][slot] = tucker;
    }
}

factoring::Job job_of(const Model& model, const Stack& stack, const Settings& settings) {
    const auto [width, head_dim, roles, heads] = stack.dims;
    const auto [r1, r2, r3] = stack.ranks;
    factoring::Job job;
    job.place = factoring::place_text(stack.layers);
    job.key = {kDecomposition,
               {{"dims", stack.dims},
                {"ranks", stack.ranks},
                {"tolerance", settings.tolerance},
                {"sweeps", settings.sweeps},
                {"compare", settings.compare}}};
    for (const Slot slot : stack.roles) job.key.inputs["heads"].push_back(stack.heads_of(slot, model.config));
    // The tensor, its contractions and reconstruction; Gram matrices and their eigenvectors.
    job.memory = 4 * 5 * width * head_dim * roles * heads + 8 * 3 * width * width;
    job.shapes = {{"core", {r1, r2, r3, heads}},
                  {"model", {width, r1}},
                  {"head", {head_dim, r2}},
                  {"roles", {roles, r3}}};
    job.input = [&model, &stack] { return tensor_of(model, stack); };
    job.compute = [&model, &stack, settings](const std::vector<float>& tensor) {
        return decompose(stack, model.config, settings, tensor);
    };
    return job;
}

// Reports sizes, once for all stacks that are alike.
void report_sizes(const std::vector<Stack>& stacks, const ModelConfig& config, StepReport& report) {
    std::vector<bool> said(stacks.size(), false);
    for (size_t i = 0; i < stacks.size(); ++i) {
        if (said[i]) continue;
        const Stack& s = stacks[i];
        Layers layers;
        for (size_t k = i; k < stacks.size(); ++k) {
            const Stack& other = stacks[k];
            if (other.roles != s.roles || other.dims != s.dims || other.ranks != s.ranks) continue;
            said[k] = true;
            layers.insert(layers.end(), other.layers.begin(), other.layers.end());
        }
        std::sort(layers.begin(), layers.end());
        const int64_t before = own_parameters(s, config), after = s.parameters();
        report.lines.push_back(fmt::format("{}: {} as {} at ranks {}: each {}", factoring::place_text(layers),
                                           factoring::slots_text(s.roles), fmt::join(s.dims, " x "),
                                           fmt::join(s.ranks, ", "), factoring::sizes_text(before, after)));
        if (after <= before) continue;
        report.lines.push_back(fmt::format(
            "  the factors hold more numbers than the matrices{}",
            has_copies(s, config)
                ? ": keys and values are repeated for every query head of their group (kv=separate does not)"
                : ": choose smaller ranks"));
    }
}

json details_of(const Stack& stack, const ModelConfig& config) {
    json roles = json::array();
    for (const Slot slot : stack.roles) roles.push_back(slot_name(slot));
    const int64_t before = own_parameters(stack, config);
    return {{"layers", stack.layers},
            {"slots", roles},
            {"dims", stack.dims},
            {"ranks", stack.ranks},
            {"parameters_before", before},
            {"parameters_after", stack.parameters()},
            {"compression", static_cast<double>(before) / static_cast<double>(stack.parameters())}};
}

// Adds the errors of a stack to its details, and returns a line about them.
std::string report_errors(const Stack& stack, const ModelConfig& config, const Tensor& figures, bool compare,
                          json& details) {
    const std::vector<double> f = lazy::numbers(figures);
    details["relative_error"] = f[relative_error];
    details["sweeps"] = f[sweeps];
    details["matrix_error"] = f[matrix_error];
    std::string line =
        fmt::format("{} {}: relative error {:.5f} after {:.0f} sweeps", factoring::place_text(stack.layers),
                    factoring::slots_text(stack.roles), f[relative_error], f[sweeps]);
    if (has_copies(stack, config))
        line += fmt::format(", {:.5f} of the matrices themselves", f[matrix_error]);
    if (compare) {
        const int64_t rank = equal_svd_rank(stack, config);
        details["svd_error"] = f[svd_error];
        details["svd_rank"] = rank;
        for (size_t t = 0; t < stack.roles.size(); ++t)
            details["svd"].push_back(factoring::svd_details(stack.layers, stack.roles[t], f[n_figures + t]));
        line +=
            fmt::format("; SVD of each matrix with as many numbers (rank {}): {:.5f}", rank, f[svd_error]);
    }
    return line;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const std::vector<Slot> slots = parse_slots(options.text("slots"), *model.family);
    for (const Slot slot : slots) {
        if (!consists_of_heads(slot))
            fail(ErrorCode::usage, "tensorllm",
                 "slots: {} has no heads; attn.q, attn.k, attn.v and attn.o do", slot_name(slot));
    }
    const size_t n_layer = model.topology.layers.size();
    const std::map<size_t, Ranks> ranks =
        ranks_by_layer(options.text("ranks"), parse_layers(options.text("layers"), n_layer), n_layer);
    const Settings settings{options.number("tol"), static_cast<int>(options.integer("sweeps")),
                            options.boolean("compare")};
    const std::vector<Stack> stacks = stacks_of(model, ranks, slots, options.text("kv") == "separate");
    if (stacks.empty()) fail(ErrorCode::usage, "tensorllm", "none of these layers has attention");

    std::vector<factoring::Job> jobs;
    for (const Stack& stack : stacks) jobs.push_back(job_of(model, stack, settings));
    const auto results = factoring::run(jobs, step.work, "Tucker decompositions");

    Model out = model;
    json details = json::array();
    report_sizes(stacks, model.config, step.report);
    for (size_t i = 0; i < stacks.size(); ++i) {
        const Stack& stack = stacks[i];
        const auto sources = factoring::sources_of(model, stack.layers.front(), stack.roles);
        store(out, stack, results[i], computed_type(options.text("type"), model, sources));
        details.push_back(details_of(stack, model.config));
        if (step.dry_run()) continue;
        step.report.lines.push_back(
            report_errors(stack, model.config, results[i].at("figures"), settings.compare, details.back()));
    }
    step.report.details = json{{"stacks", details}}.dump();
    out.drop_unreferenced();
    return out;
}

constexpr const char* kDocumentation = R"(
The attention weights of a layer become one core per head, and factors that all heads share; no data, no training.

**Tensor (equations 7 and 8).** Wq, Wk, Wv and the transpose of Wo are divided into heads and stacked to a tensor of
d_model x head_dim x 4 x heads. The rows of a head are in the order of the family's Hugging Face checkpoints. (GGUF files of
some families store the rows of queries and keys in another order; the stored factors account for that.)

**Decomposition (equations 9 to 14).** Tucker with factors common to all heads: U1 (d_model x R1), U2 (head_dim x R2),
U3 (4 x R3), and a core of R1 x R2 x R3 per head. Higher-order orthogonal iteration starts from the HOSVD and stops when a
sweep changes the relative error by less than `tol` (the rule of TensorLy, which the authors use; at least three sweeps). A
layer stores R1 R2 R3 heads + d_model R1 + head_dim R2 + 4 R3 numbers. A rank above its dimension means the dimension; at full
ranks the weights are reproduced exactly.

**Ranks.** `ranks=288,32,4` for all of `layers`, or by layer: `ranks=20-24:288,32,4;25-29:432,48,4`; then only the layers named
there change. R2 is the sensitive rank in small models, and R3 is best left at 4.

**Grouped-query attention** (not in the paper). `kv=repeat`: keys and values are repeated for each query head of their group
and averaged after the decomposition. In factors that is the mean of the core's slices, so nothing is stored twice. But the
core has a slice for each query head, and the factors can hold more numbers than the matrices; the plan says so.
`kv=separate`: two tensors with separate factors, queries and outputs over all heads, keys and values over their own. Both
have the same ranks, as far as their dimensions allow (R3 at most 2).

**Single matrices (Table IV).** `slots=attn.q` and so on decomposes one of the four by itself (R3 is 1 then); any selection
works. Biases do not change.

**Report.** For each layer: the relative error of the (repeated) tensor; that of the matrices themselves, where heads were
averaged; the compression of the layer's attention weights (the paper's CR); and, unless `compare=false`, the error of
truncated SVDs of the same matrices with as many numbers, which the decomposition should beat.

**Stacking.** Layers that share all their attention weights (looped models) are decomposed once. Shared heads, factors and
LoRAs of earlier steps are refused. Cores and U1 can be quantized by a later step; U2 and U3 stay float32.
)";

}  // namespace

extern const Method method;
const Method method = {
    "tensorllm",
    "Tucker decomposition of a layer's attention weights with factors common to all heads",
    "TensorLLM: Tensorising Multi-Head Attention for Enhanced Reasoning and Compression in LLMs, section III",
    kDocumentation + 1,
    {
        {.name = "ranks",
         .fallback = "288,32,4",
         .help = "R1,R2,R3 of d_model, head_dim and q/k/v/o; or by layer: 20-24:288,32,4;25-29:432,48,4"},
        layers_option(),
        slots_option("attn", "attn.q, attn.k, attn.v, attn.o: together one tensor"),
        {.name = "kv",
         .kind = OptionSpec::Kind::choice,
         .fallback = "repeat",
         .help = "under GQA: keys and values repeated per query head, or a tensor of their own",
         .choices = {"repeat", "separate"}},
        factoring::tolerance_option(),
        factoring::sweeps_option(),
        factoring::compare_option(),
        type_option(),
    },
    apply,
};

}  // namespace refold::tensorllm_method
