#include "model/rope_override.h"

#include <charconv>
#include <map>

#include "core/error.h"

namespace refold {

static const std::map<std::string, RopeScaling> kScalings = {{"none", RopeScaling::none},
                                                             {"linear", RopeScaling::linear},
                                                             {"dynamic", RopeScaling::dynamic},
                                                             {"yarn", RopeScaling::yarn}};

void parse_rope_scaling(const std::string& text, RopeOverride& to) {
    const size_t colon = text.find(':');
    const auto found = kScalings.find(text.substr(0, colon));
    const bool none = found != kScalings.end() && found->second == RopeScaling::none;
    double factor = 0;
    if (colon != std::string::npos) {
        const char *const begin = text.data() + colon + 1, *const end = text.data() + text.size();
        const auto [at, error] = std::from_chars(begin, end, factor);
        if (error != std::errc() || at != end) factor = 0;
    }
    if (found == kScalings.end() || none != (colon == std::string::npos) ||
        (!none && !(factor >= 1 && factor <= 1e6)))
        fail(ErrorCode::usage, "rope",
             "scaling '{}': expected none, linear:FACTOR, dynamic:FACTOR or yarn:FACTOR, with a factor of at "
             "least 1",
             text);
    to.scaling = found->second;
    to.factor = factor;
}

std::string to_text(const RopeOverride& rope) {
    std::string out;
    if (rope.base > 0) out = fmt::format("base {:g}", rope.base);
    for (const auto& [name, scaling] : kScalings) {
        if (scaling != rope.scaling) continue;
        out += (out.empty() ? "" : ", ") + name;
        if (scaling != RopeScaling::none) out += fmt::format(":{:g}", rope.factor);
    }
    return out;
}

Model with_rope(Model model, const RopeOverride& rope) {
    Rope& own = model.config.rope;
    if (!rope.active()) return model;
    if (own.dims == 0)
        fail(ErrorCode::usage, "rope", "'{}' has no rotary position embeddings that could be changed",
             model.label);
    if (rope.base > 0) own.base = static_cast<float>(rope.base);
    if (rope.scaling == RopeScaling::own) return model;
    Rope plain;
    plain.kind = own.kind;
    plain.dims = own.dims;
    plain.base = own.base;
    plain.original_context =
        own.original_context > 0 ? own.original_context : static_cast<int>(model.config.context_length);
    own = plain;
    switch (rope.scaling) {
        case RopeScaling::linear: own.frequency_scale = static_cast<float>(1 / rope.factor); break;
        case RopeScaling::dynamic: own.dynamic_factor = static_cast<float>(rope.factor); break;
        case RopeScaling::yarn:
            own.frequency_scale = static_cast<float>(1 / rope.factor);
            own.ext_factor = 1;
            break;
        default: break;
    }
    for (const Slot factors : {Slot::rope_freqs, Slot::rope_freqs_long})
        model.topology.globals.erase(factors);
    model.drop_unreferenced();
    return model;
}

}  // namespace refold
