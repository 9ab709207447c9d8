#include "model/hf/known_tensors.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "model/hf/layout.h"

namespace refold {
namespace {

// Patterns: "*" stands for anything, "@" as in SlotDescription::hf.
constexpr const char* kTensorsOfAll[] = {"*.rotary_emb.inv_freq", "*.rotary_emb.cos_cached",
                                         "*.rotary_emb.sin_cached"};
constexpr const char* kTensorsOfOtherParts[] = {
    "vision_tower.*", "model.vision_tower.*", "multi_modal_projector.*", "model.multi_modal_projector.*",
    "audio_tower.*",  "model.audio_tower.*",  "embed_vision.*",          "model.embed_vision.*",
    "embed_audio.*",  "model.embed_audio.*"};

struct OfFamily {
    const char* family;
    std::span<const char* const> patterns;
};
constexpr const char* kGptMasks[] = {"@h.*.attn.bias", "@h.*.attn.masked_bias"};
constexpr const char* kNeoxMasks[] = {"@layers.*.attention.bias", "@layers.*.attention.masked_bias"};
constexpr const char* kOfEncoders[] = {"@embeddings.position_ids",
                                       "@embeddings.token_type_ids",
                                       "cls.seq_relationship.*",
                                       "sop_classifier.*",
                                       "classifier.*",
                                       "qa_outputs.*",
                                       "@pooler.*"};
constexpr OfFamily kOfFamilies[] = {{"gpt2", kGptMasks},     {"gptj", kGptMasks},   {"gptneox", kNeoxMasks},
                                    {"albert", kOfEncoders}, {"bert", kOfEncoders}, {"roberta", kOfEncoders}};

bool matches(std::string_view name, std::string_view pattern) {
    const size_t star = pattern.find('*');
    if (star == pattern.npos) return name == pattern;
    if (!name.starts_with(pattern.substr(0, star))) return false;
    for (size_t at = star; at <= name.size(); ++at)
        if (matches(name.substr(at), pattern.substr(star + 1))) return true;
    return false;
}

}  // namespace

bool changes_nothing(const std::string& tensor, const Family& family, bool is_part) {
    const auto is_one_of = [&](std::span<const char* const> patterns) {
        return std::ranges::any_of(patterns, [&](const char* pattern) {
            return std::ranges::any_of(hf_names(pattern, family.hf_prefix, 0),
                                       [&](const std::string& name) { return matches(tensor, name); });
        });
    };
    const auto own = std::ranges::find_if(
        kOfFamilies, [&](const OfFamily& f) { return std::string_view(f.family) == family.name; });
    return is_one_of(kTensorsOfAll) || (own != std::end(kOfFamilies) && is_one_of(own->patterns)) ||
           (is_part && is_one_of(kTensorsOfOtherParts));
}

}  // namespace refold
