// Documents of random tokens that follow JSON Schemas, and what bounding a token costs: for bench/structured.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "core/error.h"
#include "grammar/grammar.h"

namespace refold {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Walk {
    std::string text;
    bool complete = false;
    int tokens = 0;
    double seconds = 0;  // in the grammar
};

// Tokens that are drawn evenly among those that may come next. It ends where it may with a probability that
// grows with its length.
Walk walk(const Tokenizer& tokenizer, const std::shared_ptr<const Grammar>& grammar, std::mt19937& random,
          int most) {
    GrammarState state(grammar);
    const std::vector<float> zeros(static_cast<size_t>(tokenizer.size()));
    Walk out;
    std::vector<int32_t> next;
    for (; out.tokens < most; ++out.tokens) {
        auto start = Clock::now();
        const auto masked = state.masked(zeros);
        out.seconds += seconds_since(start);
        next.clear();
        std::vector<int32_t> ends;
        for (size_t token = 0; token < masked.size(); ++token) {
            if (!std::isfinite(masked[token])) continue;
            const auto id = static_cast<int32_t>(token);
            (tokenizer.is_end_of_generation(id) ? ends : next).push_back(id);
        }
        if (next.empty() && ends.empty())
            fail(ErrorCode::internal, "structured", "nothing may follow {}", out.text);
        const bool end = next.empty() || (!ends.empty() && random() % 8 == 0);
        const int32_t token = end ? ends.front() : next[random() % next.size()];
        start = Clock::now();
        state.accept(token);
        out.seconds += seconds_since(start);
        out.complete = state.ended();
        if (out.complete) return out;
        out.text += tokenizer.piece(token, false);
    }
    return out;
}

json documents_of(GrammarCompiler& compiler, const Tokenizer& tokenizer, const std::string& schema, int count,
                  int most, std::mt19937& random) {
    json out;
    const auto start = Clock::now();
    std::shared_ptr<const Grammar> grammar;
    try {
        grammar = compiler.compile({.kind = OutputFormat::Kind::json_schema, .text = schema});
    } catch (const Error& error) {
        return {{"refused", error.what()}};
    }
    out["compile_seconds"] = seconds_since(start);
    out["documents"] = json::array();
    double seconds = 0;
    int tokens = 0;
    for (int i = 0; i < count; ++i) {
        const Walk walked = walk(tokenizer, grammar, random, most);
        seconds += walked.seconds;
        tokens += walked.tokens;
        if (walked.complete) out["documents"].push_back(walked.text);
    }
    out["seconds_per_token"] = seconds / std::max(tokens, 1);
    return out;
}

void run(const std::string& model, const std::string& schemas, int count, int most) {
    const Tokenizer tokenizer(model);
    GrammarCompiler compiler(tokenizer, tokenizer.size());
    std::mt19937 random(1);
    std::ifstream in(schemas);
    for (std::string line; std::getline(in, line);)
        std::cout << documents_of(compiler, tokenizer, line, count, most, random).dump(-1, ' ', true) << "\n";
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) {
    CLI::App app{"Documents of random tokens that follow JSON Schemas"};
    std::string model, schemas;
    int count = 4, most = 400;
    app.add_option("MODEL", model, "A GGUF file or a directory with a tokenizer")->required();
    app.add_option("SCHEMAS", schemas, "A file with one JSON Schema per line")->required();
    app.add_option("--documents", count, "For each schema");
    app.add_option("--tokens", most, "Longer documents are given up");
    CLI11_PARSE(app, argc, argv);
    try {
        refold::run(model, schemas, count, most);
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}
