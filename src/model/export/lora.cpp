#include "model/export/lora.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/output_folder.h"
#include "io/finite.h"
#include "io/safetensors.h"
#include "model/adapter/adapter.h"
#include "model/fused_maps.h"
#include "model/hf/layout.h"
#include "model/materialize.h"
#include "model/stock.h"

namespace refold {
namespace {

using nlohmann::json;
using Floats = std::vector<float>;

// One layer's W += B A.
struct Term {
    size_t layer;
    Slot slot;
    LowRank expression;
    int64_t in, out, rank;
    DType type;

    uint64_t parameters() const { return static_cast<uint64_t>(rank * (in + out)); }
};

std::vector<Term> terms_of(const Model& model) {
    std::vector<Term> terms;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const auto& [slot, expression] : model.topology.layers[l]) {
            const auto* plus = std::get_if<Plus>(&expression);
            if (plus == nullptr) continue;
            const SlotShape shape = slot_shape(slot, model.config, l);
            const Tensor& u = model.tensor(plus->term.u);
            terms.push_back({l, slot, plus->term, shape.in, shape.out, u.row_elements(),
                             is_float(u.type) ? u.type : DType::F32});
        }
    }
    if (terms.empty())
        fail(ErrorCode::usage, "export", "{}: the model has no low-rank terms to make an adapter of",
             model.label);
    return terms;
}

// B: [out][rank], with the scale; of a transposed term (V^T diag(s) U^T) that is V's part.
Floats factor_b(const Model& model, const Term& term) {
    const LowRank& e = term.expression;
    Floats b = e.transposed ? transposed(floats_of(model, e.v), term.rank, term.out) : floats_of(model, e.u);
    if (e.scale.empty()) return b;
    const Floats scale = floats_of(model, e.scale);
    for (size_t i = 0; i < b.size(); ++i)
        b[i] *= scale[static_cast<size_t>(e.row * term.rank) + i % static_cast<size_t>(term.rank)];
    return b;
}

// A: [rank][in]
Floats factor_a(const Model& model, const Term& term) {
    const LowRank& e = term.expression;
    return e.transposed ? transposed(floats_of(model, e.u), term.in, term.rank) : floats_of(model, e.v);
}

AdapterExport summary(const std::vector<Term>& terms) {
    AdapterExport out{0, 0, terms.size()};
    for (const Term& term : terms) {
        out.parameters += term.parameters();
        out.bytes += term.parameters() * block_bytes(term.type);
    }
    return out;
}

bool one_rank(const std::vector<Term>& terms) {
    return std::all_of(terms.begin(), terms.end(),
                       [&](const Term& term) { return term.rank == terms.front().rank; });
}

// Where stock llama.cpp has the matrix.
std::string stock_name(const Model& model, const StockModel& stock,
                       const std::map<std::string, Tensor>& tensors, const Term& term) {
    const auto& slots = stock.model.topology.layers[term.layer];
    const auto found = slots.find(term.slot);
    const auto* dense = found == slots.end() ? nullptr : std::get_if<Dense>(&found->second);
    const bool rescaled = stock.model.config.attention_scale != model.config.attention_scale;
    const auto own = dense == nullptr ? tensors.end() : tensors.find(dense->tensor);
    const bool joined =
        own == tensors.end() || own->second.row_elements() != term.in || own->second.rows() != term.out;
    if (joined || (rescaled && term.slot == Slot::attn_q))
        fail(ErrorCode::unsupported, "export",
             "layer {} {}: stock llama.cpp has this matrix of family '{}' in another form ({}), which no "
             "adapter fits; export the merged model",
             term.layer, slot_name(term.slot), model.family->name, joined ? "joined with others" : "scaled");
    return dense->tensor;
}

// The module's name in transformers.
std::string module_name(const Model& model, const Term& term) {
    const auto& slots = model.family->layer_slots;
    const SlotDescription& slot =
        *std::find_if(slots.begin(), slots.end(), [&](const auto& d) { return d.slot == term.slot; });
    if ((slot.layout & (hf_transposed | hf_stacked | hf_qkv_per_head)) != 0)
        fail(ErrorCode::unsupported, "export",
             "layer {} {}: the checkpoints of family '{}' have this matrix {}, which no PEFT adapter here "
             "fits; "
             "export the merged model, or --to lora-gguf",
             term.layer, slot_name(term.slot), model.family->name,
             (slot.layout & hf_transposed) != 0 ? "transposed" : "joined with others");
    std::string name = hf_names(slot.hf, model.family->hf_prefix, term.layer).front();
    if (name.ends_with(".weight")) name.resize(name.size() - strlen(".weight"));
    return name;
}

// B with its rows where the checkpoint has them.
Floats hf_factor_b(const Model& model, const Term& term) {
    const auto& slots = model.family->layer_slots;
    const SlotDescription& slot =
        *std::find_if(slots.begin(), slots.end(), [&](const auto& d) { return d.slot == term.slot; });
    const Floats b = factor_b(model, term);
    Floats out(b.size());
    for (int64_t row = 0; row < term.out; ++row) {
        const int64_t to = hf_row(slot, model.config, row);
        std::copy_n(b.begin() + row * term.rank, term.rank, out.begin() + to * term.rank);
    }
    return out;
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Names that select the modules: their last parts where all layers have these, else each one in full.
json target_modules(const Model& model, const std::vector<Term>& terms) {
    std::map<std::string, size_t> parts;
    json full = json::array();
    for (const Term& term : terms) {
        const std::string name = module_name(model, term);
        ++parts[last_part(name)];
        full.push_back(name);
    }
    json names = json::array();
    for (const auto& [part, count] : parts) {
        if (count != model.topology.layers.size()) return full;
        names.push_back(part);
    }
    return names;
}

// The factors as rows in the term's type.
std::vector<std::byte> packed(const Term& term, const std::string& name, const Floats& factor, int64_t row) {
    return naming_tensor("export", name, [&] { return quantize(term.type, factor, row); });
}

// A reader must find the same terms before the folder gets its name.
void check_reads_back(const std::string& folder, const Model& model, const std::vector<Term>& terms) {
    const Adapter back = load_adapter(folder, without_lora(model));
    for (const Term& term : terms) {
        const auto found = std::ranges::find_if(back.terms, [&](const Adapter::Term& t) {
            return t.layer == term.layer && t.slot == term.slot && t.rank == term.rank && t.scale == 1;
        });
        if (found == back.terms.end() || back.terms.size() != terms.size())
            fail(ErrorCode::unsupported, "export",
                 "layer {} {}: an adapter would not hold its low-rank term, or hold it for all loops; --to "
                 "hf and "
                 "--to gguf merge the terms",
                 term.layer, slot_name(term.slot));
    }
}

json peft_config(const Model& model, const std::vector<Term>& terms) {
    int64_t rank = 0;
    for (const Term& term : terms) rank = std::max(rank, term.rank);
    json patterns = json::object();
    for (const Term& term : terms) {
        // Older versions of PEFT match a pattern after a dot: without the name's first part.
        const std::string name = module_name(model, term);
        if (term.rank != rank) patterns[name.substr(name.find('.') + 1)] = term.rank;
    }
    return {{"peft_type", "LORA"},
            {"task_type", model.config.causal ? json("CAUSAL_LM") : json()},
            {"base_model_name_or_path", nullptr},
            {"r", rank},
            {"lora_alpha", rank},
            {"rank_pattern", patterns},
            {"alpha_pattern", patterns},
            {"target_modules", target_modules(model, terms)},
            {"lora_dropout", 0.0},
            {"bias", "none"},
            {"fan_in_fan_out", false},
            {"use_rslora", false},
            {"modules_to_save", nullptr},
            {"inference_mode", true}};
}

}  // namespace

bool has_lora(const Model& model) {
    for (const auto& slots : model.topology.layers) {
        for (const auto& [slot, expression] : slots) {
            if (std::holds_alternative<Plus>(expression)) return true;
        }
    }
    return false;
}

Model without_lora(const Model& model) {
    Model base = model;
    for (auto& slots : base.topology.layers) {
        for (auto& [slot, expression] : slots) expression = base_of(expression);
    }
    base.drop_unreferenced();
    return base;
}

AdapterExport save_lora_gguf(const Model& model, const std::string& path, bool overwrite) {
    const std::vector<Term> terms = terms_of(model);
    const StockModel stock = for_stock(without_lora(model));
    const auto base_tensors = with_fused_maps(stock.model);
    GgufMetadata metadata;
    metadata.set("general.type", GgufValue::string("adapter"));
    metadata.set("general.architecture",
                 GgufValue::string(stock.model.metadata.string("general.architecture")));
    metadata.set("adapter.type", GgufValue::string("lora"));
    // llama.cpp multiplies by alpha / rank, or by nothing when alpha is 0.
    metadata.set("adapter.lora.alpha",
                 GgufValue::f32(one_rank(terms) ? static_cast<float>(terms.front().rank) : 0.0F));
    std::vector<GgufOutputTensor> tensors;
    for (const Term& term : terms) {
        const std::string name = stock_name(model, stock, base_tensors, term);
        tensors.push_back(
            {name + ".lora_a", term.type, {term.in, term.rank}, [&model, term](const auto& sink) {
                 sink(packed(term, term.expression.v, factor_a(model, term), term.in));
             }});
        tensors.push_back(
            {name + ".lora_b", term.type, {term.rank, term.out}, [&model, term](const auto& sink) {
                 sink(packed(term, term.expression.u, factor_b(model, term), term.rank));
             }});
    }
    write_gguf(path, overwrite, metadata, tensors);
    return summary(terms);
}

AdapterExport save_peft(const Model& model, const std::string& folder, bool overwrite) {
    const std::vector<Term> terms = terms_of(model);
    const json config = peft_config(model, terms);
    std::vector<SafetensorsOutput> tensors;
    for (const Term& term : terms) {
        const std::string module = "base_model.model." + module_name(model, term), dtype = name(term.type);
        tensors.push_back(
            {module + ".lora_A.weight", dtype, {term.rank, term.in}, [&model, term](const auto& sink) {
                 sink(packed(term, term.expression.v, factor_a(model, term), term.in));
             }});
        tensors.push_back(
            {module + ".lora_B.weight", dtype, {term.out, term.rank}, [&model, term](const auto& sink) {
                 sink(packed(term, term.expression.u, hf_factor_b(model, term), term.rank));
             }});
    }
    // PEFT reads these, whoever wrote them.
    const auto others = [](const std::string& name) {
        return name == "adapter_config.json" || name.starts_with("adapter_model.") ? OthersFile::refused
                                                                                   : OthersFile::stays;
    };
    OutputFolder out(folder, {overwrite, others});
    write_file(out.path() + "/adapter_config.json", config.dump(2) + "\n");
    write_safetensors(out.path() + "/adapter_model.safetensors", false, tensors, {{"format", "pt"}}, {});
    check_reads_back(out.path(), model, terms);
    out.commit();
    return summary(terms);
}

}  // namespace refold
