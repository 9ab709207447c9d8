#include "fit/settings.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "model/topology.h"

namespace refold {
namespace {

using Varied = std::vector<std::vector<std::string>>;

// "name=value" for values from `first` down or up to `last`.
Varied stepped(const char* option, double first, double last, double step) {
    Varied out;
    const auto count = static_cast<int>((last - first) / step + 1.5);
    for (int i = 0; i < count; ++i) out.push_back({fmt::format("{}={:.4g}", option, first + i * step)});
    return out;
}

Varied counted(const char* option, size_t last) {
    Varied out;
    for (size_t count = 1; count <= last; ++count) out.push_back({fmt::format("{}={}", option, count)});
    return out;
}

// The last layers, from one on.
std::vector<std::string> last_layers(size_t layers, size_t count) {
    return {fmt::format("layers={}-{}", layers - count, layers - 1)};
}

// KV groups left out wherever that costs least; at most three quarters of a layer.
Settings narrow_attention(const Model& model) {
    int64_t groups = 0, most = 0;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        const int64_t of_layer = model.topology.has(p, Slot::attn_k) ? model.config.n_head_kv_of(p) : 0;
        groups += of_layer;
        most += of_layer * 3 / 4;
    }
    Settings out{"narrow", {"ratio=0", "allocation=global"}, {}, false, {{{"attention=1"}, {}}}};
    for (int64_t gone = 1; gone <= most; ++gone) {
        // A little below the part that goes: narrow keeps at most what is left, whole groups.
        const double part = (static_cast<double>(gone) - 0.01) / static_cast<double>(groups);
        out.varied.push_back({fmt::format("attention={:.6f}", part)});
        out.proportional->parts.push_back(static_cast<double>(gone) / static_cast<double>(groups));
    }
    return out;
}

std::vector<Settings> narrow(const Model& model) {
    constexpr double kFirst = 0.995, kLast = 0.3, kStep = -0.005, kWhole = 0.9;
    const Varied parameters = stepped("parameters", kFirst, kLast, kStep);
    Settings global{
        "narrow", {"allocation=global"}, parameters, false, {{{"parameters=0.9", "multiple=1"}, {}}}};
    for (size_t i = 0; i < parameters.size(); ++i)
        global.proportional->parts.push_back((1 - kFirst - static_cast<double>(i) * kStep) / (1 - kWhole));
    return {{"narrow", {"allocation=uniform"}, parameters, false}, global, narrow_attention(model)};
}

// Superblocks of the same size, from those that take their attention from another layer least often.
Varied superblocks(size_t layers) {
    std::vector<std::pair<size_t, std::vector<std::string>>> all;
    for (const size_t size : {2, 3, 4, 6, 8}) {
        for (size_t count = 1; count <= layers / size; ++count)
            all.push_back(
                {count * (size - 1), {fmt::format("size={}", size), fmt::format("count={}", count)}});
    }
    std::ranges::stable_sort(all, {}, &std::pair<size_t, std::vector<std::string>>::first);
    Varied out;
    for (auto& [replaced, settings] : all) out.push_back(std::move(settings));
    return out;
}

std::vector<Settings> direct_share() {
    const Varied ratios = stepped("ratio", 0.01, 1, 0.01);
    std::vector<Settings> out;
    for (const char* match : {"qk", "qkv", "v", "separate"})
        out.push_back({"direct_share", {fmt::format("match={}", match)}, ratios});
    out.push_back({"direct_share", {"match=qk", "chain=one-hop"}, ratios});
    out.push_back({"direct_share", {"match=qk", "share=qkv"}, ratios});
    out.push_back(
        {"direct_share", {"share=qkv", "metric=output", "align=symmetries", "select=sensitivity"}, ratios});
    return out;
}

// A quarter, a half and three quarters of the width, and of a head; the last layers.
std::vector<Settings> tensorllm(const Model& model) {
    const int64_t width = model.config.n_embd, head = model.config.head_dim;
    Varied layers;
    for (size_t count = 1; count <= model.topology.layers.size(); ++count)
        layers.push_back(last_layers(model.topology.layers.size(), count));
    std::vector<Settings> out;
    for (const auto& [of_width, of_head] : {std::pair{2, 2}, {3, 2}, {2, 3}, {1, 2}}) {
        const std::string ranks = fmt::format("ranks={},{},4", std::max<int64_t>(1, width * of_width / 4),
                                              std::max<int64_t>(1, head * of_head / 4));
        out.push_back({"tensorllm", {ranks}, layers});
    }
    return out;
}

std::vector<Settings> laser(const Model& model) {
    const Varied parts = stepped("rho", 0.7, 0.02, -0.02);
    const size_t layers = model.topology.layers.size();
    std::vector<Settings> out;
    for (const char* slots : {"ffn", "attn", "all"})
        out.push_back({"laser", {fmt::format("slots={}", slots)}, parts});
    out.push_back(
        {"laser", {"slots=ffn", last_layers(layers, std::max<size_t>(1, layers / 2)).front()}, parts});
    return out;
}

}  // namespace

std::string Settings::text(size_t severity) const {
    std::vector<std::string> words = {method};
    words.insert(words.end(), fixed.begin(), fixed.end());
    words.insert(words.end(), varied[severity].begin(), varied[severity].end());
    return join(words, " ") + (repair ? ", refit" : "");
}

std::vector<RecipeStep> Settings::steps_with(std::vector<std::string> settings) const {
    settings.insert(settings.end(), fixed.begin(), fixed.end());
    std::vector<RecipeStep> out = recipe_from_method(method, settings).steps;
    if (repair) out.push_back(recipe_from_method("refit", {}).steps.front());
    return out;
}

std::vector<Settings> settings_of(const Model& model, const std::string& method) {
    const size_t layers = model.topology.layers.size();
    std::vector<Settings> out;
    if (method == "narrow") {
        out = narrow(model);
    } else if (method == "llmdrop") {
        for (const char* modules : {"attention", "ffn", "block"})
            out.push_back({method, {fmt::format("modules={}", modules)}, counted("count", layers - 1)});
    } else if (method == "cla" || method == "uniattn") {
        out = {{method, {}, superblocks(layers)}};
    } else if (method == "direct_share") {
        out = direct_share();
    } else if (method == "ffn_share") {
        out = {{method, {}, stepped("ratio", 0.05, 1, 0.05)}};
    } else if (method == "tensorllm") {
        out = tensorllm(model);
    } else if (method == "laser") {
        out = laser(model);
    } else {
        fail(ErrorCode::internal, "fit", "no settings of {}", method);
    }
    std::erase_if(out, [](const Settings& settings) { return settings.varied.empty(); });
    return out;
}

}  // namespace refold
