// The program refold. Errors become messages and exit codes here and nowhere else.
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/help.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/group.h"
#include "core/interrupt.h"
#include "core/process_variables.h"
#include "core/text.h"

namespace refold::cli {
namespace {

constexpr int kUsage = 2;

constexpr std::pair<VerbGroup, const char*> kGroups[] = {
    {VerbGroup::models, "Get and examine models"},    {VerbGroup::running, "Run a model"},
    {VerbGroup::compression, "Make a model smaller"}, {VerbGroup::measurement, "Measure and compare"},
    {VerbGroup::conversion, "Convert a model"},       {VerbGroup::setup, "Set up"}};

std::string overview() {
    std::string text =
        "refold makes pretrained transformers smaller and faster by sharing weights, and runs them.\n\n"
        "Usage: refold VERB [OPTIONS] ...\n";
    for (const auto& [group, heading] : kGroups) {
        text += fmt::format("\n{}:\n", heading);
        for (const Verb* verb : verbs()) {
            if (verb->group == group) text += fmt::format("  {:<10} {}\n", verb->name, verb->description);
        }
    }
    return text +
           "\nrefold VERB --help describes a verb, refold --version prints the version.\n\n"
           "Examples:\n"
           "  refold pull smollm2-135m-instruct\n"
           "  refold run smollm2-135m-instruct -p \"The capital of France is\" -n 32\n"
           "  refold compress smollm2-135m-instruct -o small.gguf --method direct_share --set ratio=0.3\n";
}

const Verb& find_verb(const std::string& name) {
    std::vector<std::string> names;
    for (const Verb* verb : verbs()) {
        if (name == verb->name) return *verb;
        names.emplace_back(verb->name);
    }
    fail(ErrorCode::usage, "refold", "unknown verb '{}' - {}", name, suggestion(name, names));
}

// The innermost subcommand on the command line, or the verb itself.
const CLI::App& innermost(const CLI::App& app) {
    const CLI::App* last = &app;
    while (!last->get_subcommands().empty()) last = last->get_subcommands().back();
    return *last;
}

// " (did you mean ...?)" for the first unknown option or subcommand that has a similar name; else empty.
std::string hint(const CLI::App& app) {
    const CLI::App& last = innermost(app);
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
        std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
        app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
        print(app.help());
        return 0;
    } catch (const CLI::ParseError& error) {
        if (!first_process()) return kUsage;  // all processes got the same words
        const CLI::App& last = innermost(app);
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
    // If the caller closed a standard stream, the next file opened would get its descriptor and our output.
    // Opening /dev/null in the wrong direction takes the descriptor and makes any use of the stream an error.
    for (int stream = 0; stream < 3; ++stream) {
        if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
    }
    // A process leaves its group first: outside it any rank may print, and the others notice its absence.
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
