#include <filesystem>
#include <fstream>

#include "cli/command_tree.h"
#include "cli/help.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"

namespace refold::cli::manual_verb {
namespace {

// In roff a backslash, a hyphen of an option and a dot or quote at the beginning of a line mean something
// else.
std::string roff(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\') {
            out += "\\e";
        } else if (c == '-') {
            out += "\\-";
        } else {
            if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
            out += c;
        }
    }
    return out;
}

std::string title(const std::string& name) {
    return fmt::format(".TH {} 1 \"\" \"refold {}\" \"refold\"\n", roff(name), REFOLD_VERSION);
}

void add_command(std::string& out, const CommandDescription& command, const std::string& words) {
    std::string synopsis;
    for (const OptionDescription& option : command.options) {
        if (option.positional)
            synopsis += option.required ? fmt::format(" \\fI{}\\fR", roff(option.names[0]))
                                        : fmt::format(" [\\fI{}\\fR]", roff(option.names[0]));
    }
    out += fmt::format("\\fB{}\\fR{}{} [\\fIOPTIONS\\fR]\n", roff(words),
                       command.subcommands.empty() ? "" : " \\fISUBCOMMAND\\fR", synopsis);
}

void add_options(std::string& out, const CommandDescription& command) {
    for (const OptionDescription& option : command.options) {
        out += ".TP\n";
        if (option.positional) {
            out += fmt::format("\\fI{}\\fR", roff(option.names[0]));
        } else {
            out += fmt::format("\\fB{}\\fR", roff(join(option.names, ", ")));
            if (option.takes_value()) out += fmt::format(" \\fI{}\\fR", roff(option.type));
        }
        out += "\n" + roff(option.description) + "\n";
    }
}

void add_examples_of(std::string& out, const CommandDescription& command) {
    if (command.examples.empty()) return;
    out += ".SH EXAMPLES\n.nf\n";
    for (const std::string& line : command.examples) out += roff(line) + "\n";
    out += ".fi\n";
}

std::string page(const CommandDescription& verb) {
    std::string out = title("refold-" + verb.name);
    out += fmt::format(".SH NAME\nrefold\\-{} \\- {}\n.SH SYNOPSIS\n", verb.name, roff(verb.description));
    add_command(out, verb, "refold " + verb.name);
    for (const CommandDescription& sub : verb.subcommands) {
        out += ".br\n";
        add_command(out, sub, "refold " + verb.name + " " + sub.name);
    }
    out += ".SH OPTIONS\n";
    add_options(out, verb);
    for (const CommandDescription& sub : verb.subcommands) {
        out += fmt::format(".SS {}\n{}\n", roff(sub.name), roff(sub.description));
        add_options(out, sub);
    }
    add_examples_of(out, verb);
    for (const CommandDescription& sub : verb.subcommands) add_examples_of(out, sub);
    return out + ".SH SEE ALSO\n\\fBrefold\\fR(1)\n";
}

std::string overview(const std::vector<CommandDescription>& verbs) {
    std::string out =
        title("refold") +
        ".SH NAME\nrefold \\- smaller and faster transformers by sharing weights\n"
        ".SH SYNOPSIS\n\\fBrefold\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR]\n"
        ".SH DESCRIPTION\nrefold makes pretrained transformers smaller and faster by sharing weights, "
        "and runs them. Results go to standard output; progress, statistics and errors go to standard "
        "error.\n.SH VERBS\n";
    for (const CommandDescription& verb : verbs)
        out += fmt::format(".TP\n\\fBrefold\\-{}\\fR(1)\n{}\n", verb.name, roff(verb.description));
    return out + ".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage, 130 interrupted.\n";
}

void write_page(const std::string& path, const std::string& text) {
    std::error_code none;
    std::string first;
    if (std::filesystem::is_regular_file(path, none) && std::getline(std::ifstream(path), first) &&
        first.find("\"refold ") == std::string::npos)
        fail(ErrorCode::usage, "manual", "'{}' would be replaced, and is no page of refold - move it away",
             path);
    write_file(path, text);
}

Action declare(CLI::App& app) {
    auto folder = std::make_shared<std::string>();
    app.add_option("-o,--output", *folder, "Folder for the pages; made if it is not there")
        ->type_name("DIR")
        ->required();
    add_examples(app, {"refold manual -o ~/.local/share/man/man1", "man refold-compress"});
    return [folder] {
        std::error_code error;
        std::filesystem::create_directories(*folder, error);
        if (error) fail(ErrorCode::io, "manual", "cannot make folder '{}': {}", *folder, error.message());
        const auto verbs = command_tree();
        write_page(*folder + "/refold.1", overview(verbs));
        for (const CommandDescription& verb : verbs)
            write_page(fmt::format("{}/refold-{}.1", *folder, verb.name), page(verb));
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"manual", VerbGroup::setup, "Write refold's manual pages for man", declare};

}  // namespace refold::cli::manual_verb
