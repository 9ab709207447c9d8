#include "vocab/trim.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "vocab/decoder.h"
#include "vocab/gguf_arrays.h"
#include "vocab/merge_bpe.h"
#include "vocab/token_ids_of.h"
#include "vocab/unicode.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

constexpr const char* kSpaceMark = "\u2581";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";

// A merge is "left right"; a part may start with a space, but neither is empty.
size_t split_of(const std::string& merge) { return merge.find(' ', 1); }

size_t character_size(std::string_view text) {
    size_t end = 1;
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    return end;
}

// One rule of merging: the order of pairs. Names the tokens that merging passes through on the way to a
// token.
class Deriver {
public:
    // `ids`: tokens that merges can produce. By score when there are no merges.
    Deriver(TokenIds ids, std::span<const std::string> merges, std::vector<float> scores)
        : ids_(std::move(ids)), scores_(std::move(scores)) {
        double rank = 0;
        ranks_.reserve(merges.size());
        for (const std::string& merge : merges) ranks_.insert_or_assign(merge, rank++);
    }

    template <typename Visit>
    void visit_parts(std::string_view token, Visit&& visit) const {
        std::vector<std::string_view> parts;
        for (std::string_view rest = token; !rest.empty(); rest.remove_prefix(parts.back().size()))
            parts.push_back(rest.substr(0, character_size(rest)));
        const auto see = [&](std::string_view part) {
            if (const auto it = ids_.find(part); it != ids_.end()) visit(it->second);
        };
        std::vector<std::optional<double>> costs;
        for (size_t i = 0; i < parts.size(); ++i) {
            see(parts[i]);
            if (i > 0) costs.push_back(cost(parts[i - 1], parts[i]));
        }
        while (parts.size() > 1) {
            size_t best = costs.size();
            for (size_t i = 0; i < costs.size(); ++i) {
                if (costs[i] && (best == costs.size() || *costs[i] < *costs[best])) best = i;
            }
            if (best == costs.size()) return;
            parts[best] = {parts[best].data(), parts[best].size() + parts[best + 1].size()};
            parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
            costs.erase(costs.begin() + static_cast<ptrdiff_t>(best));
            see(parts[best]);
            if (best > 0) costs[best - 1] = cost(parts[best - 1], parts[best]);
            if (best < costs.size()) costs[best] = cost(parts[best], parts[best + 1]);
        }
    }

private:
    std::optional<double> cost(std::string_view left, std::string_view right) const {
        if (!scores_.empty()) {
            // The parts are neighbors in one text.
            const auto it = ids_.find(std::string_view(left.data(), left.size() + right.size()));
            if (it == ids_.end()) return std::nullopt;
            return -static_cast<double>(scores_[static_cast<size_t>(it->second)]);
        }
        const auto it = ranks_.find(std::string(left) + " " + std::string(right));
        if (it == ranks_.end()) return std::nullopt;
        return it->second;
    }

    TokenIds ids_;
    std::vector<float> scores_;
    std::unordered_map<std::string, double> ranks_;
};

struct Tokens {
    explicit Tokens(const GgufMetadata& metadata)
        : model(metadata.string("tokenizer.ggml.model", "none")),
          raw(strings_of(metadata, "tokenizer.ggml.tokens")),
          types(ints_of(metadata, "tokenizer.ggml.token_type")),
          scores(floats_of(metadata, "tokenizer.ggml.scores")) {
        if (model != "gpt2" && model != "llama")
            fail(ErrorCode::unsupported, "tokenizer",
                 "tokens can be left out of byte-level BPE and SentencePiece's BPE (gpt2, llama), got "
                 "tokenizer.ggml.model '{}'",
                 model);
        names = hf_tokens(metadata);
        if (types.empty()) types.assign(raw.size(), kNormalToken);
        if (!scores.empty() && scores.size() != raw.size())
            fail(ErrorCode::input, "tokenizer", "got {} tokens and {} scores, expected as many", raw.size(),
                 scores.size());
    }
    bool plain(size_t id) const { return types[id] == kNormalToken || types[id] == kUnusedToken; }

    std::string model;
    const std::vector<std::string>& raw;  // as libllama spells them
    std::vector<std::string> names;       // as Hugging Face does
    std::vector<int32_t> types;
    std::vector<float> scores;
};

TokenIds ids_of(const std::vector<std::string>& tokens) {
    TokenIds ids;
    ids.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
    return ids;
}

// The kinds of merging that can run this vocabulary: refold's and libllama's differ in which pieces count.
std::vector<Deriver> derivers(const GgufMetadata& metadata, const Tokens& tokens) {
    std::vector<Deriver> all;
    if (metadata.has(kMergesKey))
        all.emplace_back(ids_of(tokens.names), strings_of(metadata, kMergesKey), std::vector<float>());
    if (tokens.model == "gpt2" && all.empty())
        fail(ErrorCode::input, "tokenizer", "'{}' is missing", kMergesKey);
    if (tokens.model != "llama" || tokens.scores.empty()) return all;
    TokenIds plain = ids_of(tokens.names);
    std::erase_if(plain, [&](const auto& entry) {
        return tokens.types[static_cast<size_t>(entry.second)] != kNormalToken;
    });
    all.emplace_back(std::move(plain), std::span<const std::string>(), tokens.scores);
    all.emplace_back(ids_of(tokens.raw), std::span<const std::string>(), tokens.scores);
    return all;
}

// Characters without which some text would not encode, or not decode to itself.
bool is_alphabet(const Tokens& tokens, size_t id, bool bytes,
                 const std::unordered_set<std::string>& byte_level) {
    const std::string& token = tokens.names[id];
    if (tokens.model == "gpt2") return byte_level.contains(token);
    // A space that falls back to bytes would be decoded to the mark, not to a space.
    if (token == kSpaceMark || token.size() == 1) return true;
    return !bytes && !token.empty() && character_size(token) == token.size();
}

}  // namespace

std::vector<int32_t> needed_tokens(const GgufMetadata& metadata, const std::vector<bool>& wanted) {
    const Tokens tokens(metadata);
    std::unordered_set<std::string> byte_level;
    for (unsigned byte = 0; byte < 256; ++byte) {
        std::string character;
        append_utf8(character, byte_level_character(static_cast<unsigned char>(byte)));
        byte_level.insert(character);
    }
    const bool bytes = std::count(tokens.types.begin(), tokens.types.end(), int32_t{kByteToken}) >= 256;
    std::vector<bool> kept(tokens.raw.size());
    std::vector<int32_t> work;
    const auto keep = [&](int32_t id) {
        if (kept[static_cast<size_t>(id)]) return;
        kept[static_cast<size_t>(id)] = true;
        work.push_back(id);
    };
    for (size_t id = 0; id < kept.size(); ++id) {
        const std::string& token = tokens.names[id];
        const bool symbol = token.size() > 2 && token.front() == '<' && token.back() == '>';
        if ((id < wanted.size() && wanted[id]) || !tokens.plain(id) || symbol ||
            is_alphabet(tokens, id, bytes, byte_level))
            keep(static_cast<int32_t>(id));
    }
    GgufMetadata named = metadata;
    const auto size = static_cast<int64_t>(kept.size());
    replace_token_ids(named, size, size, [&](int32_t id) {
        keep(id);
        return id;
    });
    const std::vector<Deriver> all = derivers(metadata, tokens);
    while (!work.empty()) {
        const auto id = static_cast<size_t>(work.back());
        work.pop_back();
        if (!tokens.plain(id)) continue;  // found in the text, not merged
        for (const Deriver& deriver : all) deriver.visit_parts(tokens.names[id], keep);
    }
    std::vector<int32_t> out;
    for (size_t id = 0; id < kept.size(); ++id) {
        if (kept[id]) out.push_back(static_cast<int32_t>(id));
    }
    return out;
}

static GgufValue cut(const GgufArray& array, const std::vector<int32_t>& kept) {
    auto out = std::make_shared<GgufArray>();
    out->element = array.element;
    out->count = kept.size();
    const size_t width = array.packed.size() / array.count;
    for (const int32_t id : kept) {
        const auto at = static_cast<size_t>(id);
        if (array.element == GgufType::String) {
            out->strings.push_back(array.strings[at]);
        } else {
            const auto from = array.packed.begin() + static_cast<ptrdiff_t>(at * width);
            out->packed.insert(out->packed.end(), from, from + static_cast<ptrdiff_t>(width));
        }
    }
    return {GgufType::Array, std::shared_ptr<const GgufArray>(std::move(out))};
}

static std::vector<std::string> kept_merges(const std::vector<std::string>& merges,
                                            const std::vector<std::string>& tokens,
                                            const std::vector<int32_t>& kept) {
    std::unordered_set<std::string_view> there;
    for (const int32_t id : kept) there.insert(tokens[static_cast<size_t>(id)]);
    std::vector<std::string> out;
    for (const std::string& merge : merges) {
        const size_t space = split_of(merge);
        if (space == std::string::npos) continue;
        const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
        if (there.contains(left) && there.contains(right) && there.contains(left + right))
            out.push_back(merge);
    }
    return out;
}

GgufMetadata keep_tokens(const GgufMetadata& metadata, const std::vector<int32_t>& kept) {
    const std::vector<std::string> names = hf_tokens(metadata);
    const uint64_t old_size = names.size();
    GgufMetadata out = metadata;
    std::vector<int32_t> to(names.size(), -1);
    for (size_t i = 0; i < kept.size(); ++i) to[static_cast<size_t>(kept[i])] = static_cast<int32_t>(i);
    replace_token_ids(out, static_cast<int64_t>(old_size), static_cast<int64_t>(kept.size()),
                      [&](int32_t id) { return to[static_cast<size_t>(id)]; });
    for (const auto& [key, value] : metadata.entries()) {
        const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
        const bool by_token = array != nullptr && (*array)->count == old_size && key != kMergesKey &&
                              (key.starts_with("tokenizer.") || key == kKeptTokensKey);
        if (by_token) out.set(key, cut(**array, kept));
        if (key.ends_with(".vocab_size")) out.set(key, GgufValue::u32(static_cast<uint32_t>(kept.size())));
    }
    if (metadata.has(kMergesKey))
        out.set(kMergesKey, string_array(kept_merges(strings_of(metadata, kMergesKey), names, kept)));
    // The whole tokenizer.json that some converters keep would name tokens that are gone.
    out.erase("tokenizer.huggingface.json");
    if (!metadata.has(kKeptTokensKey)) out.set(kKeptTokensKey, int_array(kept));
    return out;
}

}  // namespace refold
