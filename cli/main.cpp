// refold: one command table. Errors become messages and exit codes here and nowhere else.
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/help.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/group.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace refold::cli {
namespace {

constexpr Verb kVerbs[] = {
    {"pull", "Fetch a model into the cache, or list what can be fetched", pull_verb},
    {"inspect", "Show a model's architecture, what it shares and what it costs", inspect_verb},
    {"run", "Continue a text", run_verb},
    {"chat", "Talk with a model", chat_verb},
    {"serve", "Answer requests over HTTP: OpenAI's interface, metrics, a page", serve_verb},
    {"logits", "Write the logits of every token of a text to a file", logits_verb},
    {"tokenize", "Show the tokens of a text, or the text of tokens", tokenize_verb},
    {"methods", "List the compression methods, or describe one", methods_verb},
    {"compress", "Apply a recipe, or one method, to a model", compress_verb},
    {"train", "Train a model on text, or apply a recipe that does", train_verb},
    {"eval", "Measure a model's quality", eval_verb},
    {"compare", "Show whether two models, or two results, differ by more than chance", compare_verb},
    {"analyze", "Show what in a model resembles what: weights, attention maps, modules", analyze_verb},
    {"bench", "Measure speed and memory, beside stock llama.cpp", bench_verb},
    {"report", "Put models and results together as one page with figures", report_verb},
    {"quantize", "Write a model in another element type, sharing kept", quantize_verb},
    {"export", "Write a model for transformers or llama.cpp, or as one native file", export_verb},
};

constexpr int kUsage = 2;

std::string overview() {
    std::string text =
        "refold makes pretrained transformers smaller and faster by sharing weights, and runs them.\n\n"
        "Usage: refold VERB [OPTIONS] ...\n\nVerbs:\n";
    for (const Verb& verb : kVerbs) text += fmt::format("  {:<10} {}\n", verb.name, verb.description);
    return text +
           "\nrefold VERB --help describes a verb, refold --version prints the version.\n\n"
           "Examples:\n"
           "  refold pull smollm2-135m-instruct\n"
           "  refold run smollm2-135m-instruct -p \"The capital of France is\" -n 32\n"
           "  refold compress smollm2-135m-instruct -o small.gguf --method direct_share --set ratio=0.3\n";
}

const Verb& find_verb(const std::string& name) {
    std::vector<std::string> names;
    for (const Verb& verb : kVerbs) {
        if (name == verb.name) return verb;
        names.emplace_back(verb.name);
    }
    fail(ErrorCode::usage, "refold", "unknown verb '{}' - {}", name, suggestion(name, names));
}

// The subcommand, of a subcommand, that was asked for; else the verb itself.
const CLI::App& asked_for(const CLI::App& app) {
    const CLI::App* last = &app;
    while (!last->get_subcommands().empty()) last = last->get_subcommands().back();
    return *last;
}

// The option or subcommand that an unknown one was perhaps meant to be.
std::string hint(const CLI::App& app) {
    const CLI::App& last = asked_for(app);
    std::vector<std::string> names, subcommands;
    for (const CLI::Option* option : last.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    for (const CLI::App* sub : last.get_subcommands([](const CLI::App*) { return true; })) {
        subcommands.push_back(sub->get_name());
    }
    for (const std::string& word : app.remaining(true)) {
        const bool option = word.starts_with("--");
        const std::string near = nearest(word.substr(0, word.find('=')), option ? names : subcommands);
        if (!near.empty()) return fmt::format(" (did you mean '{}'?)", near);
    }
    return "";
}

int run_verb_with(const Verb& verb, std::vector<std::string> arguments) {
    CLI::App app(verb.description, fmt::format("refold {}", verb.name));
    app.formatter(help_formatter());
    const Action action = verb.declare(app);
    try {
        std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
        app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
        print(app.help());
        return 0;
    } catch (const CLI::ParseError& error) {
        const CLI::App& last = asked_for(app);
        log("refold: error: [{}] {}{} - see `refold {}{} --help`", verb.name, error.what(), hint(app),
            verb.name, &last == &app ? "" : " " + last.get_name());
        return kUsage;
    }
    action();
    return 0;
}

int dispatch(std::vector<std::string> arguments) {
    if (arguments.empty()) {
        note(overview());
        return kUsage;
    }
    const std::string first = arguments.front();
    arguments.erase(arguments.begin());
    if (first == "--version" || first == "-V") {
        print("refold " REFOLD_VERSION "\n");
        return 0;
    }
    if (first == "help" || first == "--help" || first == "-h") {
        if (arguments.empty()) {
            print(overview());
            return 0;
        }
        arguments.emplace_back("--help");
        return dispatch(std::move(arguments));
    }
    return run_verb_with(find_verb(first), std::move(arguments));
}

}  // namespace
}  // namespace refold::cli

int main(int argc, char** argv) {
    refold::install_interrupt_handlers();
    // A stream that the caller has closed must not become the first file we open: using it is an error.
    for (int stream = 0; stream < 3; ++stream) {
        if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
    }
    // Whatever happens to a process, it says so, and the others of its group notice.
    const auto failed = [](refold::ErrorCode code, const char* what) {
        refold::set_group(nullptr);
        refold::cli::log("refold: error: {}", what);
        return refold::exit_code(code);
    };
    try {
        const int code = refold::cli::dispatch({argv + 1, argv + argc});
        refold::set_group(nullptr);
        return code;
    } catch (const refold::Error& error) {
        return failed(error.code(), error.what());
    } catch (const std::exception& error) {
        return failed(refold::ErrorCode::internal, error.what());
    }
}
