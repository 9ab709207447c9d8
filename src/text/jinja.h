// Jinja templates, for prompts of tasks and for chat templates, by llama.cpp's engine.
//
// Functions besides Jinja's own filters and methods:
// - index(list or text, item): the index of an item; an error if it is missing
// - between(text, begin, end): the text between the first `begin` and the last `end` after it
// - remove_between(text, begin, end): the text without the parts between two marks on one line, marks
// included
// - capitalize(text), strip(text): as in Python (the engine's own versions handle ASCII only)
// - literal(text): the value of a Python literal made of lists, mappings, texts and numbers
// - range(...): as Jinja's, of at most 100,000 numbers, like that of Jinja's sandbox
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace refold {

struct JinjaOptions {
    // true: Python's defaults, as in lm-evaluation-harness: trims nothing, keeps the last newline.
    // false: as transformers renders chat templates, with trim_blocks and lstrip_blocks.
    bool keep_whitespace = true;
};

class JinjaTemplate {
public:
    // Throws Error(input) with the location when `source` is no valid template, or when its brackets, blocks
    // or operators would be nested too deeply for the engine.
    explicit JinjaTemplate(const std::string& source, const JinjaOptions& options = {});
    ~JinjaTemplate();
    JinjaTemplate(JinjaTemplate&&) noexcept;
    JinjaTemplate& operator=(JinjaTemplate&&) noexcept;

    const std::string& source() const { return source_; }
    // `variables`: an object. Throws Error(input) for an undefined variable and when the template itself
    // raises an error.
    std::string render(const nlohmann::ordered_json& variables) const;
    // The value, with its type, of a template that is one expression, "{{ [a, b] }}"; else the rendered text.
    nlohmann::ordered_json evaluate(const nlohmann::ordered_json& variables) const;

private:
    struct Program;
    std::string source_;
    std::unique_ptr<Program> program_;
};

}  // namespace refold
