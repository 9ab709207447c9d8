#include "compress/methods/tensorllm.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compress/factoring.h"
#include "compress/selection.h"
#include "core/error.h"
#include "core/text.h"
#include "linalg/tucker.h"

namespace refold {
namespace tensorllm {

using factoring::Positions;
using factoring::Squares;

int64_t Stack::heads_of(Slot slot, const ModelConfig& config) const {
    const bool queries = slot == Slot::attn_q || slot == Slot::attn_o;
    const size_t p = positions.front();
    return queries ? config.n_head_of(p) : config.n_head_kv_of(p);
}

int64_t Stack::parameters() const {
    int64_t count = ranks[0] * ranks[1] * ranks[2] * dims[3];
    for (size_t m = 0; m < 3; ++m) count += dims[m] * ranks[m];
    return count;
}

namespace {

using nlohmann::json;

Ranks parse(const std::string& text) {
    const std::vector<int64_t> ranks = parse_ranks(text, 3);
    return {ranks[0], ranks[1], ranks[2]};
}

// Rows of the slot's heads lie as pairs here, as halves in the family's checkpoints.
bool stored_as_pairs(const Family& family, Slot slot) {
    return std::any_of(family.position_slots.begin(), family.position_slots.end(),
                       [&](const auto& d) { return d.slot == slot && (d.layout & hf_rotary) != 0; });
}

int64_t own_parameters(const Stack& stack, const ModelConfig& config) {
    int64_t count = 0;
    for (const Slot slot : stack.roles) count += stack.heads_of(slot, config) * stack.dims[1] * stack.dims[0];
    return count;
}

}  // namespace

std::map<size_t, Ranks> ranks_by_layer(const std::string& text, const std::vector<size_t>& layers,
                                       size_t positions) {
    std::map<size_t, Ranks> out;
    if (text.find(':') == std::string::npos) {
        const Ranks ranks = parse(text);
        for (const size_t p : layers) out[p] = ranks;
        return out;
    }
    std::istringstream parts(text);
    std::map<size_t, Ranks> named;
    for (std::string part; std::getline(parts, part, ';');) {
        const size_t colon = part.find(':');
        if (colon == std::string::npos)
            fail(ErrorCode::usage, "ranks", "'{}': expected LAYERS:R1,R2,R3 in every part of '{}'", part,
                 text);
        const Ranks ranks = parse(part.substr(colon + 1));
        for (const size_t p : parse_layers(part.substr(0, colon), positions)) {
            if (!named.emplace(p, ranks).second)
                fail(ErrorCode::usage, "ranks", "'{}': layer {} is named twice", text, p);
        }
    }
    for (const size_t p : layers) {
        if (const auto found = named.find(p); found != named.end()) out.insert(*found);
    }
    if (out.empty())
        fail(ErrorCode::usage, "ranks", "'{}' names none of layers {}", text, layers_text(layers));
    return out;
}

std::vector<float> tensor_of(const Model& model, const Stack& stack) {
    const auto [width, head_dim, roles, heads] = stack.dims;
    std::vector<float> out(static_cast<size_t>(width * head_dim * roles * heads));
    for (int64_t t = 0; t < roles; ++t) {
        const Slot slot = stack.roles[static_cast<size_t>(t)];
        const bool pairs = stored_as_pairs(*model.family, slot);
        const std::vector<float> weights = factoring::weights_of(model, stack.positions.front(), slot);
        const int64_t copies = heads / stack.heads_of(slot, model.config);
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t j = 0; j < head_dim; ++j) {
                const int64_t row = h / copies * head_dim + j;
                const int64_t column = pairs ? rotary_row(j, head_dim) : j;
                float* to = out.data() + width * (column + head_dim * (t + roles * h));
                if (heads_are_columns(slot)) {
                    for (int64_t i = 0; i < width; ++i) to[i] = weights[i * heads * head_dim + row];
                } else {
                    std::copy_n(weights.begin() + row * width, width, to);
                }
            }
        }
    }
    return out;
}

namespace {

// Whether there are copies of heads, which are averaged again after the decomposition.
bool has_copies(const Stack& stack, const ModelConfig& config) {
    return std::any_of(stack.roles.begin(), stack.roles.end(),
                       [&](Slot slot) { return stack.heads_of(slot, config) != stack.dims[3]; });
}

// Of the means over the copies of every head against the head.
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

// Rank at which truncated SVDs of the single matrices hold as many numbers; 0: not even rank 1 does.
int64_t equal_svd_rank(const Stack& stack, const ModelConfig& config) {
    int64_t per_rank = 0;
    for (const Slot slot : stack.roles)
        per_rank += stack.dims[0] + stack.heads_of(slot, config) * stack.dims[1];
    return stack.parameters() / per_rank;
}

// Of the single matrices, in the order of the roles.
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

// Positions in the array "figures"; the SVD's errors of the single matrices come after them.
enum Figure { relative_error, sweeps, matrix_error, svd_error, n_figures };

struct Settings {
    double tolerance;
    int sweeps;
    bool compare;
};

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

Stack make_stack(const Model& model, const Positions& positions, std::vector<Slot> roles,
                 const Ranks& ranks) {
    Stack stack{positions, std::move(roles), {}, {}};
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
    for (const Positions& group : factoring::groups_of(model, layers, slots)) {
        const Ranks& own = ranks.at(group.front());
        for (const size_t p : group) {
            if (ranks.at(p) != own)
                fail(ErrorCode::usage, "tensorllm",
                     "layers {} and {} have the same weights: give them the same ranks", group.front(), p);
        }
        std::vector<Slot> queries, keys;
        for (const Slot slot : factoring::slots_at(model, group.front(), slots)) {
            const bool of_keys = slot == Slot::attn_k || slot == Slot::attn_v;
            (separate && of_keys ? keys : queries).push_back(slot);
        }
        for (const auto& roles : {queries, keys}) {
            if (!roles.empty()) stacks.push_back(make_stack(model, group, roles, own));
        }
    }
    return stacks;
}

// "blk.3.attn", with the letters of the slots where it is not all of them.
std::string name_of(const Stack& stack) {
    std::string letters;
    for (const Slot slot : stack.roles) letters += std::string(slot_name(slot)).back();
    return fmt::format("blk.{}.attn{}", stack.positions.front(), letters == "qkvo" ? "" : "_" + letters);
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
        for (const size_t p : stack.positions) model.topology.positions[p][slot] = tucker;
    }
}

factoring::Job job_of(const Model& model, const Stack& stack, const Settings& settings) {
    const auto [width, head_dim, roles, heads] = stack.dims;
    const auto [r1, r2, r3] = stack.ranks;
    factoring::Job job;
    job.place = factoring::place_text(stack.positions);
    job.what = fmt::format(
        "tensorllm v3 dims={} ranks={} tol={} sweeps={} svd={} heads=", fmt::join(stack.dims, ","),
        fmt::join(stack.ranks, ","), settings.tolerance, settings.sweeps, settings.compare);
    for (const Slot slot : stack.roles) job.what += fmt::format("{},", stack.heads_of(slot, model.config));
    // The tensor, its contractions and reconstruction; Gram matrices with their eigenvectors.
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

// What the ranks mean, once for all stacks that are alike.
void report_sizes(const std::vector<Stack>& stacks, const ModelConfig& config, StepReport& report) {
    std::vector<bool> said(stacks.size(), false);
    for (size_t i = 0; i < stacks.size(); ++i) {
        if (said[i]) continue;
        const Stack& s = stacks[i];
        Positions layers;
        for (size_t k = i; k < stacks.size(); ++k) {
            const Stack& other = stacks[k];
            if (other.roles != s.roles || other.dims != s.dims || other.ranks != s.ranks) continue;
            said[k] = true;
            layers.insert(layers.end(), other.positions.begin(), other.positions.end());
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
    return {{"layers", stack.positions},
            {"slots", roles},
            {"dims", stack.dims},
            {"ranks", stack.ranks},
            {"parameters_before", before},
            {"parameters_after", stack.parameters()},
            {"compression", static_cast<double>(before) / static_cast<double>(stack.parameters())}};
}

// Errors of one stack, into its details and as a line.
std::string report_errors(const Stack& stack, const ModelConfig& config, const Tensor& figures, bool compare,
                          json& details) {
    const std::vector<double> f = factoring::numbers(figures);
    details["relative_error"] = f[relative_error];
    details["sweeps"] = f[sweeps];
    details["matrix_error"] = f[matrix_error];
    std::string line = fmt::format("{} {}: relative error {:.5f} after {:.0f} sweeps",
                                   factoring::place_text(stack.positions), factoring::slots_text(stack.roles),
                                   f[relative_error], f[sweeps]);
    if (has_copies(stack, config))
        line += fmt::format(", {:.5f} of the matrices themselves", f[matrix_error]);
    if (compare) {
        const int64_t rank = equal_svd_rank(stack, config);
        details["svd_error"] = f[svd_error];
        details["svd_rank"] = rank;
        for (size_t t = 0; t < stack.roles.size(); ++t)
            details["svd"].push_back(
                factoring::svd_details(stack.positions, stack.roles[t], f[n_figures + t]));
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
    const size_t positions = model.topology.positions.size();
    const std::map<size_t, Ranks> ranks =
        ranks_by_layer(options.text("ranks"), parse_layers(options.text("layers"), positions), positions);
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
        const auto sources = factoring::sources_of(model, stack.positions.front(), stack.roles);
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
The attention weights of a layer become one core per head and factors that all heads share; no data, no training.

**Tensor (equations 7 and 8).** Wq, Wk, Wv and the transpose of Wo are cut into heads and stacked to a tensor of
d_model x head_dim x 4 x heads, the rows of a head in the order of the family's Hugging Face checkpoints (in GGUF files
of some families queries and keys have them in another order, which the stored factors account for).

**Decomposition (equations 9 to 14).** Tucker with common factors for all heads: U1 (d_model x R1), U2 (head_dim x R2),
U3 (4 x R3), and a core of R1 x R2 x R3 per head; higher-order orthogonal iteration from the HOSVD until a sweep changes
the relative error by less than `tol` (the rule of TensorLy, which the authors use; at least three sweeps). Stored numbers
per layer: R1 R2 R3 heads + d_model R1 + head_dim R2 + 4 R3. Ranks above a dimension mean the dimension; with all ranks
full the weights come back exactly.

**Ranks.** `ranks=288,32,4` for all of `layers`, or by layer: `ranks=20-24:288,32,4;25-29:432,48,4`; then only layers that
are named there are changed. R2 is the sensitive one in small models, and R3 best stays 4.

**Grouped-query attention** (not in the paper). `kv=repeat`: keys and values are repeated for every query head of their
group; after the decomposition the copies are averaged, which in factors is the mean of the core's slices, so nothing is
stored twice - but the core has a slice for every query head, and the factors can hold more numbers than the matrices: the
plan says so. `kv=separate`: two tensors, queries and outputs over all heads, keys and values over their own, with factors
of their own; both take the same ranks, as far as their dimensions allow (R3 at most 2).

**Single matrices (Table IV).** `slots=attn.q` and so on decomposes one of the four alone (R3 is 1 then); any selection
works. Biases are not changed.

**What the report says.** Per layer: the relative error against the (repeated) tensor, that against the matrices
themselves where heads were averaged, the compression of the layer's attention weights (the paper's CR), and - unless
`compare=false` - the error of truncated SVDs of the same matrices that hold as many numbers: the decomposition should beat
those.

**Stacking.** Layers that share all their attention weights (looped models) are decomposed once. Shared heads, factors or
LoRAs of earlier steps are refused. Cores and U1 can be quantised by a later step; U2 and U3 stay float32.
)";

}  // namespace
}  // namespace tensorllm

const Method kTensorLlm = {
    "tensorllm",
    "Tucker decomposition of a layer's attention weights with factors common to all heads",
    "TensorLLM: Tensorising Multi-Head Attention for Enhanced Reasoning and Compression in LLMs, section III",
    tensorllm::kDocumentation + 1,
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
    tensorllm::apply,
};

}  // namespace refold
