// The "normalizer" of a tokenizer.json, which rewrites a text before it is split into words.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "vocab/json_view.h"

namespace refold {

class Normalizer {
public:
    Normalizer() = default;
    // Throws Error(unsupported) quoting an unknown step.
    explicit Normalizer(const JsonView& json);

    std::string operator()(std::string text) const;
    // Whether its results contain no spaces.
    bool replaces_spaces() const { return replaces_spaces_; }
    bool prepends() const { return prepends_; }

private:
    void add(const JsonView& json, int depth);
    void add_replace(const JsonView& json);
    void add_char_map(const JsonView& json);
    void add_bert(const JsonView& json);

    // Makes of a text another one of at most so many bytes, or throws.
    using Step = std::function<std::string(const std::string& text, size_t longest)>;
    std::vector<Step> steps_;
    bool replaces_spaces_ = false;
    bool prepends_ = false;
};

}  // namespace refold
