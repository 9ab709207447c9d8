#include <algorithm>
#include <map>

#include "cli/factor_table.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/topology_table.h"
#include "cli/verb.h"
#include "core/json_text.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/activation.h"
#include "model/load.h"
#include "model/metadata_keys.h"
#include "model/sizes.h"
#include "report/topology_picture.h"

namespace refold::cli::inspect_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model;
    bool tensors = false;
    int64_t context = 0;  // 0: the model's own
    double kv_budget = 1;
    ReportOptions report;
};

struct TypeCount {
    uint64_t tensors = 0, parameters = 0, bytes = 0;
};

std::map<std::string, TypeCount> count_types(const Model& model) {
    std::map<std::string, TypeCount> types;
    for (const auto& [label, tensor] : model.tensors) {
        TypeCount& count = types[name(tensor.type)];
        ++count.tensors;
        count.parameters += static_cast<uint64_t>(tensor.elements());
        count.bytes += tensor.bytes();
    }
    return types;
}

// Number of layers and model-wide slots that read each tensor.
std::map<std::string, uint64_t> count_uses(const Topology& topology) {
    std::map<std::string, uint64_t> uses;
    const auto visit = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            for (const auto& tensor : tensors_of(expression)) ++uses[tensor];
        }
    };
    for (const auto& slots : topology.layers) visit(slots);
    visit(topology.globals);
    return uses;
}

Json hyper_parameters(const Model& model) {
    const ModelConfig& c = model.config;
    return {{"n_layer", model.topology.layers.size()},
            {"n_stored_layer", model.topology.stored_layers()},
            {"n_embd", c.n_embd},
            {"n_head", c.n_head},
            {"n_head_kv", c.n_head_kv},
            {"head_dim", c.head_dim},
            {"n_ff", c.n_ff},
            {"n_expert", c.n_expert},
            {"n_expert_used", c.n_expert_used},
            {"n_ff_expert", c.n_ff_expert},
            {"n_vocab", c.n_vocab},
            {"context_length", c.context_length},
            {"norm", c.norm == NormKind::rms ? "rms" : "layer"},
            {"norm_eps", c.norm_eps},
            {"activation", activation_name(c.activation)},
            {"causal", c.causal},
            {"parallel_residual", c.parallel_residual},
            {"attention_scale", c.attention_scale},
            {"attention_softcap", c.attention_softcap},
            {"logit_softcap", c.logit_softcap},
            {"max_alibi_bias", c.max_alibi_bias},
            {"windows", c.windows},
            {"learned_positions", c.n_learned_positions},
            {"rope_dims", c.rope.dims},
            {"rope_base", c.rope.base},
            {"rope_frequency_scale", c.rope.frequency_scale}};
}

Json cost_json(const Cost& cost) {
    return {{"parameters", cost.parameters},
            {"active_parameters", cost.active_parameters},
            {"bytes", cost.bytes},
            {"kv_bytes_per_token", cost.kv_bytes_per_token},
            {"flops_per_token", cost.flops_per_token},
            {"attention_flops_per_context_token", cost.attention_flops_per_context_token}};
}

// Sizes per layer as stored in the file; null if all layers have the same.
Json sizes(const ModelConfig& config) {
    const std::string text = sizes_to_json(config);
    return text.empty() ? Json() : parse_json<Json>(text, "inspect", "refold.sizes");
}

Json provenance(const Model& model) {
    const std::string text = model.metadata.string(kProvenanceKey, "");
    if (text.empty()) return nullptr;
    Json parsed = try_parse_json<Json>(text);
    return parsed.is_discarded() ? Json(text) : parsed;
}

// The KV cache of one full context in F16.
struct KvSize {
    int64_t context, rows;
    uint64_t bytes;
};

KvSize kv_size(const Model& model, const Arguments& a) {
    const int64_t context = a.context > 0 ? a.context : model.config.context_length;
    const int64_t rows = EvictionOptions{.budget = a.kv_budget}.rows(context);
    return {context, rows, kv_bytes(model, context, rows)};
}

// Per layer, the parts of its heads and of its FFN that belong to another one; null without any.
Json borrowed_json(const Model& model) {
    const TopologyMap map = topology_map(model);
    return {{"attention", borrowed_parts(map, consists_of_heads)},
            {"ffn", borrowed_parts(map, belongs_to_ffn)}};
}

void show_json(const Model& model, uint64_t file_bytes, const KvSize& kv) {
    const Accounting accounting = account(model);
    Json types = Json::object(), tensors = Json::array();
    for (const auto& [type, count] : count_types(model)) {
        types[type] = {{"tensors", count.tensors}, {"parameters", count.parameters}, {"bytes", count.bytes}};
    }
    const auto uses = count_uses(model.topology);
    for (const auto& [label, tensor] : model.tensors) {
        const auto found = uses.find(label);
        tensors.push_back({{"name", label},
                           {"type", name(tensor.type)},
                           {"shape", tensor.shape},
                           {"bytes", tensor.bytes()},
                           {"uses", found == uses.end() ? 0 : found->second}});
    }
    print_json(
        {{"path", model.label},
         {"architecture", model.family->name},
         {"name", model.metadata.string("general.name", "")},
         {"file_bytes", file_bytes},
         {"hyper_parameters", hyper_parameters(model)},
         {"shared", model.has_sharing()},
         {"accounting", {{"model", cost_json(accounting.model)}, {"dense", cost_json(accounting.dense)}}},
         {"kv_cache", {{"context", kv.context}, {"rows", kv.rows}, {"bytes", kv.bytes}}},
         {"shapes_only", model.shapes_only},
         {"loops", model.topology.loops},
         {"sizes", sizes(model.config)},
         {"factors", factor_json(model)},
         {"borrowed", borrowed_json(model)},
         {"topology", parse_json<Json>(topology_to_json(model.topology, model.implied()), "inspect",
                                       "the topology", kLargeJson)},
         {"tensor_types", types},
         {"tensors", tensors},
         {"provenance", provenance(model)}});
}

std::string accounting_table(const Accounting& accounting, bool shared) {
    TextTable table(shared ? std::vector<std::string>{"", "this model", "dense original", "of dense"}
                           : std::vector<std::string>{"", "this model"});
    const auto add = [&](const char* label, uint64_t Cost::*field, std::string (*format)(uint64_t)) {
        const uint64_t own = accounting.model.*field, dense = accounting.dense.*field;
        if (!shared) return table.add({label, format(own)});
        const double percent =
            dense == 0 ? 100.0 : 100.0 * static_cast<double>(own) / static_cast<double>(dense);
        table.add({label, format(own), format(dense), fmt::format("{:.2f} %", percent)});
    };
    add("parameters stored", &Cost::parameters, format_count);
    if (accounting.model.active_parameters < accounting.model.parameters)
        add("parameters active, of one token", &Cost::active_parameters, format_count);
    add("weights on disk and resident", &Cost::bytes, format_bytes);
    add("KV cache per token (F16)", &Cost::kv_bytes_per_token, format_bytes);
    add("FLOPs per token", &Cost::flops_per_token, format_count);
    add("FLOPs per token of context", &Cost::attention_flops_per_context_token, format_count);
    return table.str();
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text;
    for (const int64_t extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
    return text;
}

std::string tensor_table(const Model& model) {
    TextTable table({"tensor", "type", "shape", "bytes", "uses"});
    const auto uses = count_uses(model.topology);
    for (const auto& [label, tensor] : model.tensors) {
        const auto found = uses.find(label);
        table.add({label, name(tensor.type), shape_text(tensor.shape), format_count(tensor.bytes()),
                   std::to_string(found == uses.end() ? 0 : found->second)});
    }
    return table.str();
}

// The position encoding, and the windows of layers with local attention.
std::string position_text(const ModelConfig& c) {
    std::string text = c.max_alibi_bias > 0 ? "ALiBi"
                       : c.n_learned_positions > 0
                           ? fmt::format("{} learned positions", c.n_learned_positions)
                           : fmt::format("RoPE base {:g} over {} dimensions, frequencies x {:g}", c.rope.base,
                                         c.rope.dims, c.rope.frequency_scale);
    const auto windowed = std::count_if(c.windows.begin(), c.windows.end(), [](int64_t w) { return w > 0; });
    if (windowed > 0)
        text +=
            fmt::format("; window of {} in {} of {} layers",
                        *std::max_element(c.windows.begin(), c.windows.end()), windowed, c.windows.size());
    return text;
}

void show_text(const Model& model, uint64_t file_bytes, const KvSize& kv, bool tensors) {
    const ModelConfig& c = model.config;
    std::string text = fmt::format(
        "{}\n{}{}, {}\n\n", model.label, model.family->name,
        model.metadata.has("general.name") ? ", " + model.metadata.string("general.name", "") : "",
        model.shapes_only ? "shapes from config.json, no weights" : "file of " + format_bytes(file_bytes));
    const size_t layers = model.topology.layers.size(), stored = model.topology.stored_layers();
    text += fmt::format("layers {}{}, width {}, heads {} (KV {}) of {}, FFN {}, vocabulary {}, context {}\n",
                        layers, stored < layers ? fmt::format(" ({} stored)", stored) : "", c.n_embd,
                        c.n_head, c.n_head_kv, c.head_dim, c.n_ff, c.n_vocab, c.context_length);
    if (c.n_expert > 0)
        text += fmt::format("{} experts of {} channels, {} for each token{}\n", c.n_expert, c.n_ff_expert,
                            c.n_expert_used, c.experts.empty() ? "" : ", not in every layer");
    text += fmt::format("{}, {} norm with epsilon {:g}, {}; {}\n\n", c.causal ? "decoder" : "encoder",
                        c.norm == NormKind::rms ? "RMS" : "layer", c.norm_eps, activation_name(c.activation),
                        position_text(c));
    text += topology_table(model) + "\n" + accounting_table(account(model), model.has_sharing());
    text += fmt::format("KV cache of {} tokens in {} rows (F16): {}\n\n", kv.context, kv.rows,
                        format_bytes(kv.bytes));
    if (const std::string factors = factor_table(model); !factors.empty()) text += factors + "\n";
    TextTable types({"type", "tensors", "parameters", "bytes"});
    for (const auto& [type, count] : count_types(model)) {
        types.add(
            {type, std::to_string(count.tensors), format_count(count.parameters), format_bytes(count.bytes)});
    }
    text += types.str();
    if (const Json origin = provenance(model); !origin.is_null()) {
        text += "\nprovenance\n" + origin.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    if (tensors) text += "\n" + tensor_table(model);
    print(text);
}

void inspect(const Arguments& a) {
    const Model model = load_model(resolve_model(a.model));
    uint64_t file_bytes = 0;
    if (model.source != nullptr) {
        for (const auto& file : model.source->files()) file_bytes += file->bytes().size();
    }
    const KvSize kv = kv_size(model, a);
    a.report.json ? show_json(model, file_bytes, kv) : show_text(model, file_bytes, kv, a.tensors);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)
        ->required()
        ->description(
            "A .gguf file, a Hugging Face directory, a config.json alone, or a name that `refold pull` has "
            "fetched");
    app.add_flag("--tensors", a->tensors, "List every stored tensor, too (--json always does)");
    app.add_option("-c,--context", a->context, "Tokens that the KV cache is shown for")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->default_str("the model's");
    add_kv_budget(app, a->kv_budget);
    add_report_options(app, a->report);
    add_examples(app, {"refold inspect smollm2-135m-instruct", "refold inspect small.gguf --tensors",
                       "refold inspect small.gguf --context 8192 --kv-budget 0.2",
                       "refold inspect small.gguf --json"});
    return [a] { inspect(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"inspect", VerbGroup::models,
                   "Show a model's architecture, what it shares and what it costs", declare};

}  // namespace refold::cli::inspect_verb
