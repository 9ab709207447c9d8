#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "compress/registry.h"
#include "core/text.h"

namespace refold::cli::methods_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string name;
    ReportOptions report;
};

const char* kind_name(OptionSpec::Kind kind) {
    switch (kind) {
        case OptionSpec::Kind::number: return "number";
        case OptionSpec::Kind::integer: return "integer";
        case OptionSpec::Kind::boolean: return "boolean";
        case OptionSpec::Kind::choice: return "choice";
        default: return "text";
    }
}

Json describe(const Method& method) {
    Json options = Json::array();
    for (const OptionSpec& spec : method.options) {
        options.push_back({{"name", spec.name},
                           {"type", kind_name(spec.kind)},
                           {"default", spec.fallback},
                           {"allowed", allowed_values(spec)},
                           {"help", spec.help}});
    }
    return {{"name", method.name},
            {"summary", method.summary},
            {"paper", method.paper},
            {"documentation", method.documentation},
            {"options", options}};
}

std::string page(const Method& method) {
    std::string text = fmt::format("{}: {}\nPaper: {}\n\n{}\n\nOptions:\n", method.name, method.summary,
                                   method.paper, method.documentation);
    for (const OptionSpec& spec : method.options) {
        text +=
            fmt::format("  {} = {}   ({})\n      {}\n", spec.name,
                        spec.fallback.empty() ? "(none)" : spec.fallback, allowed_values(spec), spec.help);
    }
    return text;
}

void show_all(bool json) {
    Json all = Json::array();
    std::string text;
    for (const Method* method : methods()) {
        all.push_back(describe(*method));
        text += fmt::format("{:<16} {}\n{:<16} {}\n", method->name, method->summary, "", method->paper);
    }
    json ? print_json({{"methods", all}}) : print(text);
}

void show(const Arguments& a) {
    if (a.name.empty()) return show_all(a.report.json);
    const Method& method = find_method(a.name);
    a.report.json ? print_json(describe(method)) : print(page(method));
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option("NAME", a->name, "Method to describe; without it all are listed");
    add_report_options(app, a->report);
    add_examples(app,
                 {"refold methods", "refold methods direct_share", "refold methods direct_share --json"});
    return [a] { show(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"methods", VerbGroup::compression, "List the compression methods, or describe one",
                   declare};

}  // namespace refold::cli::methods_verb
