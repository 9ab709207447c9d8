// The "post_processor" of a tokenizer.json, which puts special tokens around one text or a pair of texts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vocab/json_view.h"
#include "vocab/pair_encoding.h"

namespace refold {

class PostProcessor {
public:
    static constexpr int32_t kFirst = -1, kSecond = -2;  // stand for the first and the second text
    struct Item {
        int32_t id, type;
    };

    // Adds no special tokens.
    PostProcessor() = default;
    // Throws Error(unsupported) quoting an unknown kind.
    explicit PostProcessor(const JsonView& json);

    std::vector<int32_t> apply(std::span<const int32_t> text) const;
    PairEncoding apply(std::span<const int32_t> first, std::span<const int32_t> second) const;

    const std::vector<Item>& single() const { return single_; }
    const std::vector<Item>& pair() const { return pair_; }

private:
    void read(const JsonView& json, int depth);
    void read_template(const JsonView& json);
    void read_bert(const JsonView& json, bool roberta);

    std::vector<Item> single_{{kFirst, 0}};
    std::vector<Item> pair_{{kFirst, 0}, {kSecond, 1}};
};

}  // namespace refold
