// The "normalizer" of a tokenizer.json: what happens to a text before it is cut into words.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "vocab/json_view.h"

namespace refold {

class Normalizer {
public:
    Normalizer() = default;
    // Throws Error(unsupported), quoting it, for a step that is not known.
    explicit Normalizer(const JsonView& json);

    std::string operator()(std::string text) const;
    // Whether no space is left in what it returns.
    bool replaces_spaces() const { return replaces_spaces_; }
    bool prepends() const { return prepends_; }

private:
    void add(const JsonView& json, int depth);
    void add_replace(const JsonView& json);
    void add_bert(const JsonView& json);

    std::vector<std::function<std::string(std::string)>> steps_;
    bool replaces_spaces_ = false;
    bool prepends_ = false;
};

}  // namespace refold
