#include "cli/command_tree.h"

#include "cli/help.h"
#include "cli/verb.h"
#include "core/text.h"

namespace refold::cli {
namespace {

OptionDescription described(const CLI::Option& option) {
    OptionDescription out;
    out.positional = option.get_positional();
    out.required = option.get_required();
    if (out.positional) {
        out.names.push_back(option.get_name(true));
    } else {
        for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
        for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
    }
    // "TYPE:{a,b}" where values are checked against a list.
    const std::string type = option.get_type_size() == 0 ? "" : option.get_type_name();
    out.type = type.substr(0, type.find(':'));
    if (const size_t open = type.find('{'), close = type.find('}', open); close != std::string::npos) {
        std::string choice;
        for (const char c : type.substr(open + 1, close - open - 1) + ",") {
            if (c != ',') {
                choice += c;
                continue;
            }
            out.choices.push_back(choice.substr(0, choice.find("->")));  // a name and what it stands for
            choice.clear();
        }
    }
    out.description = option.get_description();
    if (!option.get_default_str().empty())
        out.description += fmt::format(" [default: {}]", option.get_default_str());
    return out;
}

CommandDescription described(const CLI::App& app) {
    CommandDescription out;
    out.name = app.get_name();
    out.description = app.get_description();
    for (const CLI::Option* option : app.get_options())
        if (option != app.get_help_ptr()) out.options.push_back(described(*option));
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
        CommandDescription command = described(*sub);
        if (command.name.empty())  // a group of options
            out.options.insert(out.options.end(), command.options.begin(), command.options.end());
        else
            out.subcommands.push_back(std::move(command));
    }
    const std::string footer = app.get_footer();  // as add_examples() makes it
    for (size_t at = footer.find("\n  "); at != std::string::npos;) {
        const size_t next = footer.find("\n  ", at + 1);
        out.examples.push_back(footer.substr(at + 3, next == std::string::npos ? next : next - at - 3));
        at = next;
    }
    return out;
}

}  // namespace

std::vector<CommandDescription> command_tree() {
    std::vector<CommandDescription> out;
    for (const Verb* verb : verbs()) {
        CLI::App app(verb->description, verb->name);
        verb->declare(app);
        out.push_back(described(app));
    }
    return out;
}

}  // namespace refold::cli
