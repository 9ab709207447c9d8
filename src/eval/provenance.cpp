#include "eval/provenance.h"

#include <ggml.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "core/error.h"
#include "core/file_hash.h"
#include "core/json_lines.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "core/text.h"
#include "engine/cpu_level.h"
#include "model/metadata_keys.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The text itself where it cannot be parsed.
Json parsed_compression(const Model& model) {
    if (!model.metadata.has(kProvenanceKey)) return {};
    const auto* text = std::get_if<std::string>(&model.metadata.find(kProvenanceKey)->value);
    Json found = text == nullptr ? Json() : try_parse_json<nlohmann::ordered_json>(*text);
    return found.is_discarded() ? Json(*text) : found;
}

// The command line, quoted for a shell.
std::string command_line() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string out, word;
    while (std::getline(file, word, '\0')) {
        constexpr const char* kPlain =
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
        const bool plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
        if (!out.empty()) out += ' ';
        if (plain) {
            out += word;
            continue;
        }
        out += '\'';
        for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
        out += '\'';
    }
    return out;
}

Json model_json(const Provenance& p) {
    std::set<std::string> paths;
    if (p.model->source != nullptr)
        for (const auto& file : p.model->source->files()) paths.insert(file->path());
    if (const fs::path config = fs::path(p.model_path) / "config.json"; fs::exists(config))
        paths.insert(config.string());
    Json files = Json::array();
    std::string all;
    for (const auto& path : paths) {
        const std::string digest = remembered_sha256(path), file = fs::path(path).filename().string();
        files.push_back({{"file", file}, {"bytes", fs::file_size(path)}, {"sha256", digest}});
        all += digest + "  " + file + "\n";
    }
    std::map<std::string, uint64_t> types;
    for (const auto& [tensor_name, tensor] : p.model->tensors) types[name(tensor.type)] += tensor.bytes();
    const bool one = files.size() == 1;
    return {{"name", p.model_name},
            {"path", p.model_path},
            // For several files, the hash of their listing as sha256sum writes it.
            {"sha256", one ? files[0]["sha256"] : Json(sha256_hex(std::as_bytes(std::span(all))))},
            {"files", files},
            {"architecture", p.model->family->name},
            {"bytes_by_type", types},
            {"compression", parsed_compression(*p.model)}};
}

Json engine_json(const EngineOptions& o) {
    const bool f32 = o.f32 || o.kind == EngineKind::torch;
    Json out = {{"kind", o.kind == EngineKind::torch ? "torch" : "ggml"},
                {"f32", f32},
                {"precision", !f32 && o.precision == Precision::bf16 ? "bf16" : "stored"},
                {"kv", f32 ? "f32" : kv_type_name(o.kv)},
                {"context", o.context},
                {"kv_policy", kv_policy_name(o.eviction.policy)},
                {"kv_budget", o.eviction.budget}};
    if (o.rope.active()) out["rope"] = to_text(o.rope);
    return out;
}

}  // namespace

DataFile data_file(const std::string& path, std::string_view content) {
    return {path, sha256_hex(std::as_bytes(std::span(content))), content.size()};
}

Json to_json(const Provenance& p) {
    Json data = Json::array();
    for (const DataFile& file : p.data)
        data.push_back({{"path", file.path}, {"sha256", file.sha256}, {"bytes", file.bytes}});
    return {{"refold", REFOLD_VERSION},
            {"llama_cpp", REFOLD_LLAMA_VERSION},
            {"ggml", ggml_version()},
            {"date", utc_now("%Y-%m-%dT%H:%M:%SZ")},
            {"command", command_line()},
            {"cpu", cpu_name()},
            {"cpu_level", cpu_level()},
            {"threads", p.threads},
            {"engine", engine_json(p.options)},
            {"model", model_json(p)},
            {"data", data.empty()       ? Json()
                     : data.size() == 1 ? data[0]
                                        : data}};
}

std::optional<std::string> calibrated_on(const Model& model, const std::string& sha256) {
    const Json root = parsed_compression(model);
    const auto member = [](const Json* object, const char* key) -> const Json* {
        if (object == nullptr || !object->is_object()) return nullptr;
        const auto found = object->find(key);
        return found == object->end() ? nullptr : &*found;
    };
    // The provenance of a model made from a compressed model contains that model's provenance.
    for (const Json* p = &root; p != nullptr; p = member(member(p, "source"), "provenance")) {
        const Json* texts = member(member(p, "calibration"), "texts");
        if (texts == nullptr || !texts->is_array()) continue;
        for (const Json& text : *texts) {
            const Json* hash = member(&text, "sha256");
            if (hash == nullptr || *hash != sha256) continue;
            const Json* name = member(&text, "text");
            return name != nullptr && name->is_string() ? name->get<std::string>() : "a text without a name";
        }
    }
    return std::nullopt;
}

std::optional<std::string> calibration_warning(const Model& model, const DataFile& data) {
    const auto text = calibrated_on(model, data.sha256);
    if (!text) return std::nullopt;
    return fmt::format(
        "the model was calibrated on this very text ('{}'): the result says how well that was "
        "learnt, not how good the model is - evaluate on another text",
        *text);
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (const size_t colon = line.find(": ");
            line.starts_with("model name") && colon != std::string::npos)
            return line.substr(colon + 2);
    }
    return "unknown";
}

}  // namespace refold
