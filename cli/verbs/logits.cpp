#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"
#include "io/catalogue.h"
#include "io/safetensors.h"
#include "text/tokenizer.h"

namespace refold::cli {
namespace {

struct Arguments {
    std::string model, text_file, backend = "ggml";
    std::vector<int32_t> tokens;
    OutputOptions output;
    EngineOptions engine;
    ReportOptions report;
};

std::vector<int32_t> read_tokens(const Arguments& a, const std::string& path) {
    if (a.text_file.empty()) return a.tokens;
    const std::string text = read_text_file(a.text_file);
    const Tokenizer tokenizer(path);
    return tokenizer.encode(text, tokenizer.adds_bos(), false);
}

void write_logits(const Arguments& a) {
    if (a.backend == "torch")
        fail(ErrorCode::unsupported, "logits", "--engine torch: this build has no torch engine");
    const std::string path = resolve_model(a.model);
    check_output(a.output, path);
    const std::vector<int32_t> tokens = read_tokens(a, path);
    EngineOptions options = a.engine;
    if (options.context == 0) options.context = static_cast<int64_t>(tokens.size());
    const auto engine = make_engine(path, options);
    const auto n_vocab = static_cast<size_t>(engine->n_vocab());
    std::vector<float> logits;
    logits.reserve(tokens.size() * n_vocab);
    Progress progress("logits", tokens.size(), "tokens");
    engine->evaluate_all(tokens, [&](size_t, std::span<const float> rows) {
        logits.insert(logits.end(), rows.begin(), rows.end());
        progress.advance(rows.size() / n_vocab);
    });
    const std::vector<int64_t> shape = {static_cast<int64_t>(tokens.size()), engine->n_vocab()};
    write_safetensors(a.output.path, a.output.overwrite, {{"logits", shape, logits}});
    if (a.report.json) {
        print_json(
            {{"output", a.output.path}, {"tokens", tokens.size()}, {"n_vocab", n_vocab}, {"ids", tokens}});
    } else {
        print(fmt::format("{}: logits of {} tokens x {} entries of the vocabulary\n", a.output.path,
                          tokens.size(), n_vocab));
    }
}

}  // namespace

Action logits_verb(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    auto* ids = add_token_ids(app, "--tokens", a->tokens, "Token ids");
    auto* file =
        app.add_option("--text-file", a->text_file, "Text, tokenised with BOS only if the model asks for it")
            ->type_name("FILE")
            ->excludes(ids);
    app.add_option("--engine", a->backend, "Engine: ggml or torch")
        ->type_name("NAME")
        ->check(CLI::IsMember({"ggml", "torch"}))
        ->capture_default_str();
    add_output(app, a->output, "safetensors file to write: tensor logits [tokens, vocabulary], float32")
        ->required();
    add_engine_options(app, a->engine, "as many as there are tokens");
    add_report_options(app, a->report);
    add_examples(app, {"refold logits smollm2-135m-instruct --tokens 1,2,3 --f32 -o logits.safetensors",
                       "refold logits small.gguf --text-file text.txt -o logits.safetensors --overwrite"});
    return [a, ids, file] {
        if (ids->count() + file->count() == 0)
            fail(ErrorCode::usage, "logits", "give tokens by --tokens or --text-file");
        write_logits(*a);
    };
}

}  // namespace refold::cli
