#include "report/model_card.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "core/error.h"
#include "core/text.h"
#include "io/yaml.h"
#include "model/accounting.h"
#include "report/json_access.h"
#include "report/markup.h"
#include "report/measures.h"
#include "report/provenance.h"

namespace refold {
namespace {

// "org/name" from an id or its URL, else "".
std::string hub_id(std::string text) {
    for (const char* host : {"https://huggingface.co/", "https://hf.co/"}) {
        if (text.starts_with(host)) text = text.substr(std::string(host).size());
    }
    static const std::regex kId(R"([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})");
    return std::regex_match(text, kId) ? text : "";
}

std::string base_model(const Model& model) {
    // A directory in the hub's cache: models--org--name/snapshots/...
    for (const auto& part : std::filesystem::path(model.label)) {
        std::string name = part.string();
        if (!name.starts_with("models--")) continue;
        name = name.substr(8);
        if (const size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
        if (std::string id = hub_id(name); !id.empty()) return id;
    }
    for (const char* key : {"general.source.huggingface.repository", "general.source.repo_url",
                            "general.repo_url", "general.base_model.0.repo_url"}) {
        if (std::string id = hub_id(model.metadata.string(key, "")); !id.empty()) return id;
    }
    return "";
}

// The license in the YAML front matter, between lines of "---".
std::string license_of(const std::string& readme) {
    if (!readme.starts_with("---\n")) return "";
    const size_t end = readme.find("\n---", 3);
    if (end > 65536) return "";
    try {
        const YAML::Node root = parse_yaml(readme.substr(4, end - 3), "report", "README.md");
        if (!root.IsMap() || !root["license"] || !root["license"].IsScalar()) return "";
        return root["license"].Scalar();
    } catch (const Error&) {
        return "";
    }
}

// Names of the methods in the recipes, as tags.
std::vector<std::string> methods_in(const std::string& recipe) {
    std::vector<std::string> out;
    static const std::regex kMethod(R"(method: ([a-z0-9_]{1,64}))");
    for (std::sregex_iterator at(recipe.begin(), recipe.end(), kMethod), end; at != end; ++at) {
        if (std::find(out.begin(), out.end(), (*at)[1]) == out.end()) out.push_back((*at)[1]);
    }
    return out;
}

std::string front_matter(const Model& model, const ModelCardOptions& options, const std::string& recipe) {
    YAML::Emitter out;
    out.SetStringFormat(YAML::DoubleQuoted);
    out << YAML::BeginMap;
    const auto entry = [&](const char* key, const std::string& value) {
        if (!value.empty())
            out << YAML::Key << YAML::Auto << key << YAML::Value << YAML::DoubleQuoted << value;
    };
    const std::string licence = license_of(options.source_readme);
    entry("base_model", base_model(model));
    entry("library_name", "transformers");
    entry("license", licence.empty() ? model.metadata.string("general.license", "") : licence);
    entry("pipeline_tag", model.config.causal ? "text-generation" : "fill-mask");
    out << YAML::Key << YAML::Auto << "tags" << YAML::Value << YAML::BeginSeq << "refold";
    for (const auto& method : methods_in(recipe)) out << method;
    out << YAML::EndSeq << YAML::EndMap;
    return std::string("---\n") + out.c_str() + "\n---\n\n";
}

std::string sizes(const Model& model) {
    const Accounting costs = account(model);
    std::string out = "## Size\n\n| | this directory | in refold's own format |\n|---|---:|---:|\n";
    const auto row = [&](const char* name, uint64_t dense, uint64_t own, std::string (*format)(uint64_t)) {
        out += fmt::format("| {} | {} | {} |\n", name, format(dense), format(own));
    };
    row("parameters stored", costs.dense.parameters, costs.model.parameters, format_count);
    row("KV cache per token (F16)", costs.dense.kv_bytes_per_token, costs.model.kv_bytes_per_token,
        format_bytes);
    if (model.has_sharing())
        out +=
            "\ntransformers does not support shared weights, so this directory repeats them for every layer. "
            "In refold's own format they are stored and kept in memory once.\n";
    return out + "\n";
}

std::string how_to_load(const Model& model) {
    const std::string type = model.config.causal ? "AutoModelForCausalLM" : "AutoModelForMaskedLM";
    return fmt::format(
        "## Use\n\n```python\nfrom transformers import AutoTokenizer, {0}\n\n"
        "tokenizer = AutoTokenizer.from_pretrained(\"PATH\")\nmodel = {0}.from_pretrained(\"PATH\")\n```\n\n"
        "or `refold run PATH -p \"...\"`.\n\n",
        type);
}

}  // namespace

std::string model_card(const Model& model, const ModelCardOptions& options) {
    const nlohmann::json provenance = provenance_of(model);
    const std::string recipe = recipes_of(provenance);
    std::string out = front_matter(model, options, recipe);
    out += fmt::format("# {}\n\n", escape_markdown(options.name));
    const std::string architecture = escape_markdown(model.family->name);
    if (recipe.empty()) {
        out += fmt::format("A model of architecture {}, written by refold {}; nothing was compressed.\n\n",
                           architecture, escape_markdown(options.version));
    } else {
        out += fmt::format("A model of architecture {}, compressed by refold {}.\n\n## What was done\n\n",
                           architecture, escape_markdown(text_of(member(provenance, "refold"))));
        out += markdown_code(recipe, "yaml");
        for (const auto& origin : origins_of(provenance)) {
            for (const auto& [name, hash] : origin)
                out += fmt::format("- made of {}, SHA-256 {}\n", escape_markdown(name), markdown_hash(hash));
        }
        for (const auto& text : member(member(provenance, "calibration"), "texts"))
            out += fmt::format("- calibrated on {}, SHA-256 {}\n",
                               escape_markdown(text_of(member(text, "text"))),
                               markdown_hash(text_of(member(text, "sha256"))));
        out += "\n" + escape_markdown(topology_summary(topology_map(model))) + "\n\n";
    }
    out += sizes(model);
    if (options.comparison != nullptr && !options.comparison->variants.empty()) {
        out += "## Figures\n\n" + markdown_table(*options.comparison) + "\n";
        for (const auto& note : options.comparison->notes) out += escape_markdown(note) + "\n\n";
        if (const auto cpu = processor_text(options.comparison->machine); !cpu.empty())
            out += "Measured on " + escape_markdown(cpu) + ".\n\n";
    }
    out += how_to_load(model);
    if (!options.source_readme.empty())
        out +=
            "## The source's model card\n\nIt is kept as it was in [README.source.md](README.source.md).\n";
    return out;
}

}  // namespace refold
