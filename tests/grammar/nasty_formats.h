// Formats that nobody writes: repetitions of repetitions, wide alternatives, grammars of thousands of rules.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "refold/output_format.h"

namespace refold {

class NastyFormats {
public:
    explicit NastyFormats(uint32_t seed) : random_(seed) {}

    std::string regex(int depth) {
        if (depth <= 0) return one_of({"a", "\\w", "[a-z]", ".", "\\s", "[^a]", "\\d", "ab", "(a|aa)", "a?"});
        const std::string inner = regex(depth - 1);
        switch (below(10)) {
            case 0: return fmt::format("({}){{1,{}}}", inner, bound());
            case 1: return fmt::format("({}){{{}}}", inner, bound());
            case 2: return "(" + inner + ")*";
            case 3: return "(" + inner + ")+";
            case 4: return "(" + inner + "|" + regex(depth - 1) + ")";
            case 5: return inner + regex(depth - 1);
            case 6: return "(" + alternatives(depth - 2) + ")";
            case 7: return fmt::format("({}){{0,{}}}{}", inner, bound(), regex(depth - 1));
            case 8: return ".*" + inner;
            default: return fmt::format("({}){{{},}}", inner, bound());
        }
    }

    std::string grammar() {
        const int rules = one_of({3, 20, 200, 2000});
        std::string out = "root ::= r0\n";
        for (int i = 0; i < rules; ++i) {
            out += fmt::format("r{} ::=", i);
            for (int n = one_of({1, 2, 2, 5}); n > 0; --n) {
                for (int items = one_of({1, 2, 3, 10}); items > 0; --items) {
                    const int other =
                        below(5) > 0 && i + 1 < rules ? i + 1 + below(rules - i - 1) : below(rules);
                    out += below(2) > 0
                               ? fmt::format(" r{}{}", other,
                                             one_of({"", "", "*", "+", "?", "{1,3}", "{1,50}", "{1,1000}"}))
                               : one_of({" \"a\"", " \"ab\"", " [a-z]", " [^a]*", " [a-z]{1,2000}", " ."});
                }
                out += n > 1 ? " |" : "";
            }
            out += below(3) == 0 ? " |\n" : "\n";
        }
        return out;
    }

    nlohmann::ordered_json schema(int depth) {
        const auto object = [&](int n) {
            nlohmann::ordered_json out{{"type", "object"}};
            for (int i = 0; i < n; ++i) out["properties"][fmt::format("p{}", i)] = schema(depth - 1);
            return out;
        };
        if (depth <= 0) return {{"type", "string"}, {"pattern", pattern()}};
        switch (below(7)) {
            case 0: return {{"type", "string"}, {"pattern", pattern()}};
            case 1: return {{"type", "string"}, {"minLength", bound()}, {"maxLength", 3000 + bound()}};
            case 2:
                return {
                    {"type", "array"}, {"items", schema(depth - 1)}, {"minItems", 1}, {"maxItems", bound()}};
            case 3: return object(one_of({1, 3, 30, 150}));
            case 4: {
                nlohmann::ordered_json parts = nlohmann::ordered_json::array();
                for (int n = one_of({2, 5, 20}); n > 0; --n) parts.push_back(schema(depth - 1));
                return {{"anyOf", parts}};
            }
            case 5: {
                nlohmann::ordered_json values = nlohmann::ordered_json::array();
                for (int n = one_of({10, 1000, 7000}); n > 0; --n)
                    values.push_back(fmt::format("value {}", n));
                return {{"enum", values}};
            }
            default:
                nlohmann::ordered_json out = object(one_of({3, 30}));
                out["minProperties"] = 1;
                out["maxProperties"] = one_of({3, 20});
                out["additionalProperties"] = true;
                return out;
        }
    }

    int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

private:
    template <typename T>
    T one_of(std::initializer_list<T> values) {
        return values.begin()[below(static_cast<int>(values.size()))];
    }
    int bound() { return one_of({1, 2, 3, 5, 10, 50, 100, 500, 1000, 3000}); }
    std::string pattern() { return regex(one_of({1, 2, 3})); }
    std::string alternatives(int depth) {
        std::string out = regex(depth);
        for (int n = one_of({5, 50, 300}); n > 0; --n) out += "|" + regex(depth);
        return out;
    }

    std::mt19937 random_;
};

inline OutputFormat nasty_format(uint32_t seed) {
    NastyFormats made(seed);
    using Kind = OutputFormat::Kind;
    switch (seed % 3) {
        case 0: return {.kind = Kind::regex, .text = made.regex(4)};
        case 1: return {.kind = Kind::grammar, .text = made.grammar()};
        default: return {.kind = Kind::json_schema, .text = made.schema(2).dump()};
    }
}

}  // namespace refold
