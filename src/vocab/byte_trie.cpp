#include "vocab/byte_trie.h"

#include <algorithm>
#include <numeric>

namespace refold {

ByteTrie::ByteTrie(std::span<const std::string> tokens) {
    std::vector<int32_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    const auto text = [&](size_t i) -> const std::string& { return tokens[static_cast<size_t>(order[i])]; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
    });
    // The tokens below a node begin alike, so they are adjacent in the order. Nodes are laid out level by
    // level.
    struct Range {
        size_t begin, end;
    };
    std::vector<Range> level{{0, order.size()}};
    nodes_.emplace_back();
    size_t first = 0;
    for (size_t depth = 0; !level.empty(); ++depth) {
        std::vector<Range> next;
        const size_t below = first + level.size();
        for (size_t i = 0; i < level.size(); ++i) {
            auto [begin, end] = level[i];
            for (; begin < end && text(begin).size() == depth; ++begin) {
                if (depth > 0) nodes_[first + i].token = order[begin];
            }
            nodes_[first + i].first = static_cast<uint32_t>(below + next.size());
            while (begin < end) {
                const char byte = text(begin)[depth];
                const size_t start = begin;
                while (begin < end && text(begin)[depth] == byte) ++begin;
                next.push_back({start, begin});
                nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
                ++nodes_[first + i].count;
            }
        }
        first = below;
        level = std::move(next);
    }
}

const ByteTrie::Node* ByteTrie::child(const Node& parent, uint8_t byte) const {
    const auto begin = nodes_.begin() + parent.first, end = begin + parent.count;
    const auto it =
        std::lower_bound(begin, end, byte, [](const Node& node, uint8_t value) { return node.byte < value; });
    return it == end || it->byte != byte ? nullptr : &*it;
}

}  // namespace refold
