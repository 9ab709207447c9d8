// Fuzzes formats of output: for any schema, grammar or regular expression, a format is compiled, and allows
// tokens that lead on in it, or is refused with refold::Error. XGrammar compiles. The first byte of an input
// says which: "s" a JSON Schema, "g" GBNF, "r" a regular expression, else choices, one a line.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "io/gguf.h"
#include "target.h"
#include "vocab/hf_vocab.h"

namespace {

using refold::OutputFormat;
using Kind = OutputFormat::Kind;

constexpr int64_t kVocab = 512;

const refold::Tokenizer& tokenizer() {
    static const refold::Tokenizer instance = [] {
        refold::GgufMetadata metadata;
        if (!refold::read_hf_vocabulary(REFOLD_FIXTURES "/tokenizers/bpe_gpt2", kVocab, metadata)) abort();
        return refold::Tokenizer(metadata, "bpe_gpt2");
    }();
    return instance;
}

OutputFormat format_of(std::string_view input) {
    const std::string text(input.substr(1));
    switch (input.front()) {
        case 's': return {Kind::json_schema, text};
        case 'g': return {Kind::grammar, text};
        case 'r': return {Kind::regex, text};
        default: {
            OutputFormat format{Kind::choice};
            std::istringstream lines(text);
            for (std::string line; std::getline(lines, line);) format.choices.push_back(line);
            return format;
        }
    }
}

// Takes the first token that may come next, a few times.
void walk(const std::shared_ptr<const refold::Grammar>& grammar) {
    refold::GrammarState state(grammar);
    for (int step = 0; step < 6 && !state.ended(); ++step) {
        int32_t token = 0;
        while (token < kVocab && !state.allows(token)) ++token;
        if (token == kVocab) return;
        state.accept(token);
    }
}

const std::string kSeeds[] = {
    R"(s{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 20}, "b": {"enum": ["x", 1]}},
        "required": ["a"], "additionalProperties": false})",
    R"(s{"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}]}},
        "$ref": "#/$defs/n"})",
    R"(s{"type": "string", "pattern": "^[a-z]{2,5}$"})",
    "groot ::= \"a\" [b-z]+ (\"x\" | rule)* \nrule ::= [^\\n]{1,3} \"\\u00e9\"?\n",
    "r(ab|[c-f]+)\\d{2,4}x?$",
    "cyes\nno\nmaybe"};

constexpr std::string_view kWords[] = {"\"type\"",    "\"$ref\"",    "\"anyOf\"",
                                       "\"allOf\"",   "\"pattern\"", "\"format\"",
                                       "\"const\"",   "\"items\"",   "\"#\"",
                                       "\"integer\"", "\"number\"",  "root ::= ",
                                       "|",           "(",           ")",
                                       "*",           "+",           "?",
                                       "{2,}",        "{1000}",      "[^",
                                       "]",           "\\d",         "\\w",
                                       "(?:",         "(?=",         "\\u",
                                       "\n",          "prefixItems", "minLength",
                                       "uniqueItems", "multipleOf",  "patternProperties"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    if (input.empty()) return false;
    static GrammarCompiler compiler(tokenizer(), kVocab, 1 << 20);
    return reads([&] { walk(compiler.compile(format_of(input))); });
}

std::vector<std::string> refold::fuzz_seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
