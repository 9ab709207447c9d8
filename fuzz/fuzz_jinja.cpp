// Fuzzes Jinja templates, which models bring along: for any text, a template is rendered or refused with
// refold::Error - no crash, no other exception, and within the bounds of text/jinja/budget.h. The first byte
// of an input says how it runs: "c" as a chat template, else as a field of a task.
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "target.h"
#include "text/jinja.h"

namespace {

const std::string kSeeds[] = {
    "t{{ strip(capitalize(q)) }}{{ remove_between(q, '[', ']').replace('  ', ' ').split(' ')[:-1] | join(' "
    "') }}",
    "t{% for x in a %}{{ x }}{% endfor %}{{ {'a': [1, 2.5]} }}",
    "t{{ index(a, 'x') if a | length > 0 else literal('[1]') }}{{ between(q, 'I', '?') }}",
    "t{{ [a, q] }}",
    "c{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ "
    "'<|im_start|>system\nYou are a helper<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + "
    "'\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}",
    "c{%- set ns = namespace(found=false, i=0) -%}{%- macro turn(role, text='') -%}[{{ role | upper }}] {{ "
    "text | trim "
    "}}{%- endmacro -%}{%- for m in messages if m.role is not none -%}{%- set ns.i = ns.i + 1 -%}{{- "
    "turn(m.role, "
    "m.content) -}}{%- endfor -%}{{- messages | selectattr('role', 'equalto', 'user') | list | length -}}{{- "
    "messages "
    "| tojson(indent=2) -}}{%- if ns.i > 9 -%}{{ raise_exception('too many') }}{%- endif -%}"};

constexpr std::string_view kWords[] = {
    "{{",        "}}",       "{%",        "%}",     "-%}",      "{%-",     "{#",      "#}",       "for",
    " in ",      "range(9)", "endfor",    "if",     "elif",     "else",    "endif",   "set",      "macro",
    "call",      "filter",   "namespace", "loop",   "|",        "join",    "tojson",  "map",      "select",
    "not",       " is ",     "defined",   "**",     "//",       "~",       "[::-1]",  "literal(", "index(",
    "recursive", "99999999", "center",    "indent", "format",   "replace", "groupby", "sort",     "dictsort",
    "items()",   "'",        "9999",      "break",  "continue", "slice"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    if (input.empty()) return false;
    using Json = nlohmann::ordered_json;
    static const Json item = {{"q", "Is it [a] thing?"}, {"a", {"x"}}};
    static const Json dialogue = {
        {"messages",
         {{{"role", "system"}, {"content", "S"}}, {{"role", "user"}, {"content", "caf\xC3\xA9"}}}},
        {"add_generation_prompt", true},
        {"bos_token", "<s>"}};
    const std::string source(input.substr(1));
    return reads([&] {
        if (input.front() == 'c') {
            JinjaTemplate(source, {.keep_whitespace = false}).render(dialogue);
        } else {
            JinjaTemplate(source).evaluate(item);
        }
    });
}

std::vector<std::string> refold::fuzz_seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
