#include <cstdio>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "text/tokenizer.h"

namespace refold::cli::tokenize_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model, text, file;
    std::vector<int32_t> ids;
    bool special = false, plain = false;
    ReportOptions report;
};

std::string read_standard_input() {
    std::string text;
    char buffer[1 << 14];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, stdin)) > 0;) text.append(buffer, n);
    if (text.empty()) fail(ErrorCode::input, "tokenize", "standard input is empty");
    return text;
}

void encode(const Arguments& a) {
    const bool piped = a.file.empty() && a.text == "-";
    const std::string text = piped ? read_standard_input() : a.file.empty() ? a.text : read_text_file(a.file);
    require_utf8(text, piped ? "standard input" : "TEXT");
    const Tokenizer tokenizer(resolve_model(a.model));
    const std::vector<int32_t> ids = tokenizer.encode(text, a.special, !a.plain);
    Json pieces = Json::array();
    std::string lines;
    for (const int32_t id : ids) {
        pieces.push_back(tokenizer.piece(id, true));
        lines += fmt::format("{:>8}  {}\n", id,
                             pieces.back().dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    if (a.report.json) {
        print_json({{"ids", ids}, {"pieces", pieces}});
    } else {
        print(lines);
        if (!a.report.quiet) log("{} tokens", ids.size());
    }
}

void decode(const Arguments& a) {
    const Tokenizer tokenizer(resolve_model(a.model));
    const std::string text = tokenizer.decode(a.ids, a.special);
    a.report.json ? print_json({{"ids", a.ids}, {"text", text}}) : print(text + "\n");
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    auto* text = app.add_option("TEXT", a->text, "Text to tokenize; - reads standard input");
    auto* file =
        app.add_option("-f,--file", a->file, "Read the text from a file")->type_name("FILE")->excludes(text);
    auto* ids = add_token_ids(app, "-d,--decode", a->ids, "Print the text of these tokens instead")
                    ->excludes(text)
                    ->excludes(file);
    app.add_flag(
        "--special", a->special,
        "Add the special tokens that the model asks for (BOS, EOS); with --decode: show special tokens");
    app.add_flag("--no-parse-special", a->plain,
                 "Take special tokens that are spelled in the text as plain text");
    add_report_options(app, a->report);
    add_examples(app, {"refold tokenize smollm2-135m-instruct \"Hello, world\"",
                       "refold tokenize smollm2-135m-instruct --file text.txt --json",
                       "refold tokenize smollm2-135m-instruct --decode 1,2,3 --special"});
    return [a, text, file, ids] {
        if (text->count() + file->count() + ids->count() == 0) {
            fail(ErrorCode::usage, "tokenize", "give TEXT, --file or --decode");
        }
        ids->count() > 0 ? decode(*a) : encode(*a);
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"tokenize", VerbGroup::running, "Show the tokens of a text, or the text of tokens",
                   declare};

}  // namespace refold::cli::tokenize_verb
