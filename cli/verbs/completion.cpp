#include <algorithm>
#include <functional>

#include "cli/command_tree.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/text.h"
#include "io/catalogue.h"

namespace refold::cli::completion_verb {
namespace {

// Of verbs and their subcommands; `path` are the words that lead to it: "eval ppl".
void each_command(
    const std::vector<CommandDescription>& commands, const std::string& before,
    const std::function<void(const CommandDescription& command, const std::string& path)>& visit) {
    for (const CommandDescription& command : commands) {
        const std::string path = before.empty() ? command.name : before + " " + command.name;
        visit(command, path);
        each_command(command.subcommands, path, visit);
    }
}

std::vector<std::string> names(const std::vector<CommandDescription>& commands) {
    std::vector<std::string> out;
    for (const CommandDescription& command : commands) out.push_back(command.name);
    return out;
}

std::vector<std::string> option_names(const CommandDescription& command) {
    std::vector<std::string> out{"--help"};
    for (const OptionDescription& option : command.options)
        if (!option.positional) out.insert(out.end(), option.names.begin(), option.names.end());
    return out;
}

std::string models() {
    std::vector<std::string> out;
    for (const CatalogueEntry& entry : catalogue()) out.emplace_back(entry.name);
    return join(out, " ");
}

// Options before a subcommand are not expected: the words after `refold` that begin the line are its path.
constexpr const char* kBashEnd = R"(
    case "$prev" in
        -*) [[ " $valued " == *" $prev "* ]] && { COMPREPLY=($(compgen -f -- "$cur")); return; } ;;
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    else
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        [[ -n $files ]] && COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
complete -o filenames -F _refold refold
)";

std::string bash(const std::vector<CommandDescription>& verbs) {
    std::string out =
        "# bash completion for refold: refold completion bash\n"
        "_refold() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options= valued= words= "
        "files=1\n";
    out += fmt::format(
        "    if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return; fi\n",
        join(names(verbs), " "));
    out += "    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n";
    const std::string known = models();
    std::vector<std::string> cases;
    each_command(verbs, "", [&](const CommandDescription& command, const std::string& path) {
        std::vector<std::string> valued;
        std::string choices;
        for (const OptionDescription& option : command.options) {
            if (!option.takes_value()) continue;
            valued.insert(valued.end(), option.names.begin(), option.names.end());
            if (!option.choices.empty())
                choices += fmt::format(
                    "            case \"$prev\" in {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;; "
                    "esac\n",
                    join(option.names, "|"), join(option.choices, " "));
        }
        const std::string words = command.subcommands.empty() ? known : join(names(command.subcommands), " ");
        const bool nested = path.find(' ') != std::string::npos;
        cases.push_back(
            fmt::format("        '{}'{})\n            options='{}'\n            valued='{}'\n"
                        "            words='{}'{}\n{}            ;;\n",
                        path, nested ? "" : "' '*", join(option_names(command), " "), join(valued, " "),
                        words, command.subcommands.empty() ? "" : " files=", choices));
    });
    // A verb's own case would hide those of its subcommands.
    std::stable_sort(cases.begin(), cases.end(), [](const std::string& a, const std::string& b) {
        return (a.find("' '*)") == std::string::npos) > (b.find("' '*)") == std::string::npos);
    });
    return out + join(cases, "") + "    esac" + kBashEnd;
}

// In single quotes of a shell.
std::string quoted(std::string text) {
    for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4)
        text.replace(at, 1, "'\\''");
    return "'" + text + "'";
}

// zsh takes bash's function.
std::string zsh(const std::vector<CommandDescription>& verbs) {
    return "#compdef refold\n# zsh completion for refold: refold completion zsh\n"
           "autoload -U +X bashcompinit && bashcompinit\n" +
           bash(verbs);
}

std::string fish(const std::vector<CommandDescription>& verbs) {
    std::string out = "# fish completion for refold: refold completion fish\n";
    for (const CommandDescription& verb : verbs)
        out += fmt::format("complete -c refold -n __fish_use_subcommand -f -a {} -d {}\n", verb.name,
                           quoted(verb.description));
    each_command(verbs, "", [&](const CommandDescription& command, const std::string& path) {
        std::string condition;
        size_t from = 0;
        for (size_t to; from != std::string::npos; from = to == std::string::npos ? to : to + 1) {
            to = path.find(' ', from);
            condition += (condition.empty() ? "" : "; and ") +
                         ("__fish_seen_subcommand_from " +
                          path.substr(from, to == std::string::npos ? to : to - from));
        }
        for (const CommandDescription& sub : command.subcommands)
            out += fmt::format("complete -c refold -n {} -a {} -d {}\n", quoted(condition), sub.name,
                               quoted(sub.description));
        for (const OptionDescription& option : command.options) {
            if (option.positional) continue;
            out += fmt::format("complete -c refold -n {}", quoted(condition));
            for (const std::string& name : option.names)
                out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
            if (option.takes_value()) out += " -r";
            if (!option.choices.empty()) out += " -f -a " + quoted(join(option.choices, " "));
            out += " -d " + quoted(option.description) + "\n";
        }
    });
    return out;
}

Action declare(CLI::App& app) {
    auto shell = std::make_shared<std::string>();
    app.add_option("SHELL", *shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    add_examples(app, {"refold completion bash > ~/.local/share/bash-completion/completions/refold",
                       "refold completion fish > ~/.config/fish/completions/refold.fish"});
    return [shell] {
        const auto verbs = command_tree();
        print(*shell == "bash" ? bash(verbs) : *shell == "zsh" ? zsh(verbs) : fish(verbs));
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"completion", VerbGroup::setup,
                   "Print what makes a shell complete refold's verbs and options", declare};

}  // namespace refold::cli::completion_verb
