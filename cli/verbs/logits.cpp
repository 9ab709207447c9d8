#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "io/safetensors.h"
#include "text/tokenizer.h"

namespace refold::cli::logits_verb {
namespace {

struct Arguments {
    std::string model, text_file;
    std::vector<int32_t> tokens, token_types, mask;
    OutputOptions output;
    EngineOptions engine;
    ReportOptions report;
};

std::vector<int32_t> read_tokens(const Arguments& a, const std::string& path) {
    if (a.text_file.empty()) return a.tokens;
    const std::string text = read_text_file(a.text_file);
    const Tokenizer tokenizer(path);
    return tokenizer.encode(text, true, false);
}

// Tensors to write.
struct Results {
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::vector<float>> data;  // `tensors` are views of these

    void add(const char* name, std::vector<int64_t> shape, std::vector<float> values) {
        if (values.empty()) return;
        data.push_back(std::move(values));
        tensors.push_back({name, std::move(shape), data.back()});
    }
};

std::vector<float> decoder_logits(SingleSequence& sequence, const std::vector<int32_t>& tokens) {
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    std::vector<float> logits;
    logits.reserve(tokens.size() * n_vocab);
    Progress progress("logits", tokens.size(), "tokens");
    sequence.evaluate_all(tokens, [&](size_t, std::span<const float> rows) {
        logits.insert(logits.end(), rows.begin(), rows.end());
        progress.advance(rows.size() / n_vocab);
    });
    return logits;
}

void write_logits(const Arguments& a) {
    const std::string path = resolve_model(a.model);
    check_output(a.output, path);
    const std::vector<int32_t> tokens = read_tokens(a, path);
    EngineOptions options = a.engine;
    if (options.context == 0) options.context = static_cast<int64_t>(tokens.size());
    const auto sequence = make_single_sequence(path, options);
    const auto count = static_cast<int64_t>(tokens.size());
    Results results;
    results.data.reserve(4);
    if (sequence->capabilities().causal && a.token_types.empty() && a.mask.empty()) {
        results.add("logits", {count, sequence->capabilities().n_vocab}, decoder_logits(*sequence, tokens));
    } else {
        Encoding encoding = sequence->encode({tokens, a.token_types, a.mask});
        results.add("logits", {count, sequence->capabilities().n_vocab}, std::move(encoding.logits));
        results.add("last_hidden_state", {count, sequence->capabilities().n_embd},
                    std::move(encoding.last_hidden_state));
        results.add("pooler_output", {sequence->capabilities().n_embd}, std::move(encoding.pooled));
        if (encoding.score) results.add("score", {1}, {*encoding.score});
    }
    write_safetensors(a.output.path, a.output.overwrite, results.tensors);
    std::vector<std::string> names;
    for (const auto& tensor : results.tensors) names.push_back(tensor.name);
    if (a.report.json) {
        print_json({{"output", a.output.path},
                    {"tokens", tokens.size()},
                    {"n_vocab", sequence->capabilities().n_vocab},
                    {"tensors", names},
                    {"ids", tokens}});
    } else {
        print(fmt::format("{}: {} of {} tokens, vocabulary of {}\n", a.output.path, fmt::join(names, ", "),
                          tokens.size(), sequence->capabilities().n_vocab));
    }
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    auto* ids = add_token_ids(app, "--tokens", a->tokens, "Token ids");
    auto* file = app.add_option("--text-file", a->text_file,
                                "Text, tokenized with the special tokens that the model asks for")
                     ->type_name("FILE")
                     ->excludes(ids);
    add_token_ids(app, "--token-types", a->token_types, "Encoders: segment of each token [all 0]");
    add_token_ids(app, "--mask", a->mask, "Encoders: 1 for tokens, 0 for padding [all 1]");
    add_output(
        app, a->output,
        "safetensors file to write, float32: logits [tokens, vocabulary]; encoders also last_hidden_state "
        "[tokens, n_embd], pooler_output [n_embd] and score [1], as far as the model has them")
        ->required();
    add_engine_kind(app, a->engine.kind);
    add_engine_options(app, a->engine, "as many as there are tokens");
    add_report_options(app, a->report);
    add_examples(
        app, {"refold logits smollm2-135m-instruct --tokens 1,2,3 --f32 -o logits.safetensors",
              "refold logits small.gguf --text-file text.txt -o logits.safetensors --overwrite",
              "refold logits ./bert-base-uncased --tokens 101,7592,102,0 --mask 1,1,1,0 -o out.safetensors"});
    return [a, ids, file] {
        if (ids->count() + file->count() == 0)
            fail(ErrorCode::usage, "logits", "give tokens by --tokens or --text-file");
        write_logits(*a);
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"logits", VerbGroup::running, "Write the logits of every token of a text to a file",
                   declare};

}  // namespace refold::cli::logits_verb
