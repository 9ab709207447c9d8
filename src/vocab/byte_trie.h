// A trie over bytes that finds all tokens with which a text begins.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

class ByteTrie {
public:
    // Finds the token at `tokens[i]` as i. Of equal tokens the last one counts; empty ones are not found.
    explicit ByteTrie(std::span<const std::string> tokens);

    // Calls visit(index, size) for every token that `text` begins with, the shortest first.
    template <typename Visit>
    void prefixes(std::string_view text, Visit&& visit) const {
        const Node* node = &nodes_.front();
        for (size_t size = 0; size < text.size();) {
            node = child(*node, static_cast<unsigned char>(text[size]));
            if (node == nullptr) return;
            ++size;
            if (node->token >= 0) visit(node->token, size);
        }
    }

private:
    struct Node {
        uint32_t first = 0;  // of its children, which are adjacent and ascend by byte
        uint16_t count = 0;
        uint8_t byte = 0;
        int32_t token = -1;
    };
    const Node* child(const Node& parent, uint8_t byte) const;

    std::vector<Node> nodes_;
};

}  // namespace refold
