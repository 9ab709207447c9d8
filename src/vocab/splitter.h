// The "pre_tokenizer" of a tokenizer.json, which splits a normalized text into the parts that the model
// encodes one by one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "vocab/json_view.h"

namespace refold {

// The pattern of the step ByteLevel, GPT-2's.
inline constexpr const char* kByteLevelWords =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Splitter {
public:
    struct Part {
        std::string text;
        bool at_start = false;  // nothing of the whole text comes before it
    };

    // Leaves texts whole.
    Splitter() = default;
    // Throws Error(unsupported) quoting an unknown step.
    explicit Splitter(const JsonView& json);

    // The parts are not empty.
    std::vector<std::string> operator()(Part whole) const;

private:
    using Parts = std::vector<Part>;
    using Step = std::function<void(const Part&, Parts&)>;

    void add(const JsonView& json, int depth);
    void add_byte_level(const JsonView& json);
    void add_metaspace(const JsonView& json);
    void add_split(const JsonView& json);

    std::vector<Step> steps_;
};

}  // namespace refold
