#include "compress/attention_sharing/superblocks.h"

#include <algorithm>
#include <limits>

#include "compress/method/selection.h"
#include "core/error.h"

namespace refold {

Superblocks parse_superblocks(const std::string& text, size_t n_layer) {
    Superblocks blocks;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        const std::string part = text.substr(begin, end == std::string::npos ? end : end - begin);
        if (part.find('-') == std::string::npos)
            fail(ErrorCode::usage, "superblocks",
                 "'{}': expected first and last layer of each, such as 18-21,22-25 (from 0)", text);
        const auto layers = parse_layers(part, n_layer);
        if (layers.size() < 2)
            fail(ErrorCode::usage, "superblocks", "'{}': a superblock has at least two layers", part);
        blocks.push_back({layers.front(), layers.back() + 1});
    }
    std::sort(blocks.begin(), blocks.end(),
              [](const LayerRange& a, const LayerRange& b) { return a.first < b.first; });
    for (size_t b = 1; b < blocks.size(); ++b) {
        if (blocks[b].first < blocks[b - 1].last)
            fail(ErrorCode::usage, "superblocks", "'{}': {}-{} and {}-{} overlap", text, blocks[b - 1].first,
                 blocks[b - 1].last - 1, blocks[b].first, blocks[b].last - 1);
    }
    return blocks;
}

Superblocks superblocks_at_end(size_t size, size_t count, size_t n_layer) {
    const size_t fitting = (count == 0 ? n_layer - top_half(n_layer) : n_layer) / size;
    if (fitting == 0 || fitting < count)
        fail(ErrorCode::usage, "superblocks",
             "{} of {} layers do not fit into {} - name them, such as superblocks=0-1",
             count == 0 ? "superblocks" : fmt::format("{} superblocks", count), size,
             count == 0 ? fmt::format("the top half of {} layers", n_layer)
                        : fmt::format("{} layers", n_layer));
    Superblocks blocks;
    const size_t wanted = count == 0 ? fitting : count;
    for (size_t first = n_layer - wanted * size; first < n_layer; first += size)
        blocks.push_back({first, first + size});
    return blocks;
}

std::vector<OptionSpec> superblock_options() {
    return {
        {.name = "superblocks",
         .fallback = "",
         .help = "first and last layer of each, from 0: 18-21,22-25; empty: by size and count"},
        {"size", OptionSpec::Kind::integer, "4", "layers of a superblock, without 'superblocks'", 2},
        {"count", OptionSpec::Kind::integer, "0",
         "number of superblocks, the last one ending with the last layer; 0: as many as fit into the top "
         "half",
         0},
    };
}

Superblocks superblocks_of(const Options& options, size_t n_layer) {
    if (const std::string& text = options.text("superblocks"); !text.empty())
        return parse_superblocks(text, n_layer);
    return superblocks_at_end(static_cast<size_t>(options.integer("size")),
                              static_cast<size_t>(options.integer("count")), n_layer);
}

namespace {

// The best sum of similarities for a number of first layers and of reusing layers among them, and the length
// of the last superblock there (1: a single layer).
struct Choice {
    double sum = -std::numeric_limits<double>::infinity();
    size_t length = 0;
};

}  // namespace

Superblocks most_similar_superblocks(const LayerSimilarity& similarity, const std::vector<size_t>& layers,
                                     size_t reusing, const std::function<bool(size_t, size_t)>& can_share) {
    const size_t n = similarity.layers;
    std::vector<std::vector<Choice>> best(n + 1, std::vector<Choice>(reusing + 1));
    best[0][0] = {0, 0};
    const auto improve = [&](size_t end, size_t used, size_t length, double sum) {
        if (sum > best[end][used].sum) best[end][used] = {sum, length};
    };
    for (size_t first = 0; first < n; ++first) {
        for (size_t used = 0; used <= reusing; ++used) {
            const double so_far = best[first][used].sum;
            if (best[first][used].length == 0 && first > 0) continue;
            if (first == 0 && used > 0) continue;
            improve(first + 1, used, 1, so_far);
            if (!std::binary_search(layers.begin(), layers.end(), first)) continue;
            double sum = so_far;
            for (size_t p = first + 1; p < n && used + (p - first) <= reusing; ++p) {
                if (!std::binary_search(layers.begin(), layers.end(), p) || !can_share(p, first)) break;
                sum += similarity(p, first);
                improve(p + 1, used + (p - first), p + 1 - first, sum);
            }
        }
    }
    if (best[n][reusing].length == 0)
        fail(ErrorCode::usage, "superblocks",
             "reusing={}: so many layers cannot reuse another one's attention, of {} to choose from", reusing,
             layers.size());
    Superblocks blocks;
    for (size_t end = n, used = reusing; end > 0;) {
        const size_t length = best[end][used].length;
        if (length > 1) blocks.push_back({end - length, end});
        used -= length - 1;
        end -= length;
    }
    std::reverse(blocks.begin(), blocks.end());
    return blocks;
}

std::vector<size_t> reusing_layers(const Superblocks& superblocks) {
    std::vector<size_t> layers;
    for (const LayerRange& block : superblocks) {
        for (size_t p = block.first + 1; p < block.last; ++p) layers.push_back(p);
    }
    return layers;
}

void check_can_share(const Model& model, const Superblocks& superblocks, const char* method) {
    const ModelConfig& c = model.config;
    const Topology& topology = model.topology;
    if (!c.causal)
        fail(ErrorCode::unsupported, method, "'{}' is an encoder: attention is shared in decoders only",
             c.family);
    if (c.n_prefix > 0)
        fail(ErrorCode::unsupported, method,
             "the model has prefix keys and values, which belong to each layer's own attention");
    for (const LayerRange& block : superblocks) {
        for (size_t p = block.first; p < block.last; ++p) {
            if (!topology.has(p, Slot::attn_o))
                fail(ErrorCode::unsupported, method,
                     "layer {} has no attention (an earlier step left it out)", p);
            if (!topology.source(p).own())
                fail(ErrorCode::unsupported, method,
                     "layer {} takes its attention from another one already (an earlier step)", p);
            if (p > block.first && (topology.lends_probabilities(p) || topology.lends_kv(p)))
                fail(ErrorCode::unsupported, method,
                     "other layers take their attention from layer {} already (an earlier step): it can only "
                     "be the first of a superblock",
                     p);
            if (c.n_head_kv_of(p) != c.n_head_kv_of(block.first))
                fail(ErrorCode::unsupported, method,
                     "layers {} and {} have {} and {} key/value heads: share attention before heads are left "
                     "out, or name other superblocks",
                     block.first, p, c.n_head_kv_of(block.first), c.n_head_kv_of(p));
        }
    }
}

Model share_attention(const Model& model, const Superblocks& superblocks, SharedAttention what,
                      const char* method) {
    check_can_share(model, superblocks, method);
    Model out = model;
    Topology& topology = out.topology;
    for (const LayerRange& block : superblocks) {
        for (size_t p = block.first + 1; p < block.last; ++p) {
            AttentionSource& source = topology.sources[p];
            (what == SharedAttention::kv ? source.kv : source.probabilities) = block.first;
            std::erase_if(topology.layers[p],
                          [&](const auto& entry) { return topology.is_replaced(p, entry.first); });
        }
    }
    out.drop_unreferenced();
    return out;
}

std::string superblocks_text(const Superblocks& superblocks) {
    std::vector<std::string> parts;
    for (const LayerRange& block : superblocks)
        parts.push_back(fmt::format("{}-{} (layer {}'s)", block.first, block.last - 1, block.first));
    return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::vector<size_t>> superblocks_list(const Superblocks& superblocks) {
    std::vector<std::vector<size_t>> list;
    for (const LayerRange& block : superblocks) list.push_back({block.first, block.last - 1});
    return list;
}

}  // namespace refold
