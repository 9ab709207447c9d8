// PEFT's folders.
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/json_text.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "io/safetensors.h"
#include "model/adapter/modules.h"
#include "vocab/regex.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;  // of several patterns, the first counts

class PeftFolder {
public:
    PeftFolder(const std::string& folder, const Model& model) : model_(model) {
        adapter_.label = folder;
        const std::string file = folder + "/adapter_config.json";
        config_ = parse_json<Json>(read_stored_text(file), "adapter", "'" + file + "'");
        if (!config_.is_object()) wrong("adapter_config.json is no JSON object");
        check();
        read_alphas();
    }

    Adapter read() {
        const std::string path = adapter_.label + "/adapter_model.safetensors";
        if (!std::filesystem::exists(path) && std::filesystem::exists(adapter_.label + "/adapter_model.bin"))
            refuse("adapter_model.bin - save it as safetensors");
        const SafetensorsFile file = read_safetensors(path);
        struct Pair {
            const SafetensorsView *a = nullptr, *b = nullptr;
        };
        std::map<std::string, Pair> modules;
        for (const auto& [name, view] : file.tensors) {
            const auto [module, is_b] = module_of(name);
            (is_b ? modules[module].b : modules[module].a) = &view;
        }
        const AdaptedModules known = hf_modules(model_);
        for (const auto& [name, pair] : modules) {
            if (pair.a == nullptr || pair.b == nullptr)
                wrong(fmt::format("'{}' has one of lora_A and lora_B only", name));
            const auto &a = pair.a->shape, &b = pair.b->shape;
            if (a.size() != 2 || b.size() != 2 || a[0] != b[1])
                wrong(fmt::format("'{}': lora_A and lora_B do not fit each other", name));
            AdapterFactors factors{name, a[1], b[0], {}};
            factors.term.rank = a[0];
            factors.term.type = type_of(*pair.a);
            factors.term.scale = known.contains(name) ? scale_of(name, a[0]) : 1;
            factors.term.a = floats(*pair.a);
            factors.term.b = floats(*pair.b);
            add_factors(adapter_, model_, known, factors);
        }
        return std::move(adapter_);
    }

private:
    [[noreturn]] void wrong(const std::string& what) const {
        fail(ErrorCode::input, "adapter", "{}: {}", adapter_.label, what);
    }
    [[noreturn]] void refuse(const std::string& what) const {
        fail(ErrorCode::unsupported, "adapter", "{}: {} is not supported", adapter_.label, what);
    }

    bool is_set(const char* field) const {
        const auto found = config_.find(field);
        if (found == config_.end() || found->is_null()) return false;
        if (found->is_boolean()) return found->get<bool>();
        return !(found->is_array() || found->is_object()) || !found->empty();
    }

    void check() const {
        const std::string type = config_.value("peft_type", "");
        if (type != "LORA") refuse(fmt::format("peft_type {}", type.empty() ? "(missing)" : type));
        if (is_set("use_dora")) refuse("DoRA (use_dora)");
        for (const char* field : {"modules_to_save", "trainable_token_indices", "target_parameters",
                                  "lora_bias", "use_qalora", "megatron_config"})
            if (is_set(field)) refuse(field);
        if (config_.contains("bias") && config_["bias"] != "none") refuse("a trained bias");
        // These change the weights that the adapter is added to.
        if (const auto init = config_.find("init_lora_weights"); init != config_.end() && init->is_string()) {
            for (const char* changed : {"pissa", "olora", "corda", "loftq"})
                if (init->get<std::string>().starts_with(changed))
                    refuse(fmt::format("init_lora_weights '{}' (PEFT can convert it to LoRA)",
                                       init->get<std::string>()));
        }
    }

    // The module that a tensor is a factor of, and whether that is B.
    std::pair<std::string, bool> module_of(const std::string& name) const {
        constexpr std::string_view kPrefix = "base_model.model.", kWeight = ".weight";
        std::string_view rest = name;
        if (rest.starts_with(kPrefix)) rest.remove_prefix(kPrefix.size());
        if (rest.ends_with(kWeight)) {
            rest.remove_suffix(kWeight.size());
            for (const std::string_view factor : {".lora_A", ".lora_B"}) {
                const size_t at = rest.rfind(factor);
                if (at == std::string_view::npos) continue;
                // Nothing, or the name that the adapter has within PEFT.
                const std::string_view more = rest.substr(at + factor.size());
                if (more.empty() || (more[0] == '.' && more.find('.', 1) == std::string_view::npos))
                    return {std::string(rest.substr(0, at)), factor.back() == 'B'};
            }
        }
        if (name.find("lora_magnitude_vector") != std::string::npos) refuse("DoRA (" + name + ")");
        refuse(fmt::format("the tensor '{}'", name));
    }

    // Of a module: its own alpha where a pattern of PEFT names it.
    float scale_of(const std::string& module, int64_t rank) const {
        double alpha = number(config_.contains("lora_alpha") ? config_["lora_alpha"] : Json(8));
        const std::u32string name = to_code_points(module);
        for (const auto& [pattern, value] : alphas_) {
            if (!Regex::Search(pattern, name).find(0)) continue;
            alpha = value;
            break;
        }
        const auto r = static_cast<double>(rank);
        return static_cast<float>(alpha / (is_set("use_rslora") ? std::sqrt(r) : r));
    }

    // Matches as PEFT does: the pattern is the end of the name, after a dot.
    void read_alphas() {
        if (!is_set("alpha_pattern")) return;
        const Json& given = config_["alpha_pattern"];
        if (!given.is_object()) wrong("alpha_pattern is no JSON object");
        for (const auto& [key, value] : given.items())
            alphas_.emplace_back(Regex("\\A(?:.*\\.)?(?:" + key + ")\\z"), number(value));
    }

    double number(const Json& value) const {
        if (!value.is_number()) wrong("lora_alpha is no number");
        return value.get<double>();
    }

    DType type_of(const SafetensorsView& view) const {
        for (const DType type : {DType::F32, DType::F16, DType::BF16})
            if (view.dtype == name(type)) return type;
        refuse("a LoRA of type " + view.dtype);
    }

    std::vector<float> floats(const SafetensorsView& view) const {
        const std::vector<std::byte> aligned(view.data.begin(), view.data.end());
        const DType type = type_of(view);
        std::vector<float> out(aligned.size() / block_bytes(type));
        dequantize(type, aligned, out);
        return out;
    }

    const Model& model_;
    Adapter adapter_;
    Json config_;
    std::vector<std::pair<Regex, double>> alphas_;  // of modules whose whole name matches
};

}  // namespace

Adapter load_peft(const std::string& folder, const Model& model) { return PeftFolder(folder, model).read(); }

}  // namespace refold
