#include <filesystem>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/text.h"
#include "io/catalogue.h"

namespace refold::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string name;
    ReportOptions report;
};

void list(const Arguments& a) {
    Json models = Json::array();
    TextTable table({"name", "size", "download"});
    std::string descriptions;
    for (const CatalogueEntry& entry : catalogue()) {
        models.push_back({{"name", entry.name},
                          {"description", entry.description},
                          {"bytes", entry.bytes},
                          {"download_bytes", entry.download_bytes},
                          {"sha256", entry.sha256}});
        table.add({entry.name, format_bytes(entry.bytes), format_bytes(entry.download_bytes)});
        descriptions += fmt::format("\n{}\n  {}\n", entry.name, entry.description);
    }
    if (a.report.json) {
        print_json({{"models", models}});
    } else {
        print(table.str() + descriptions);
    }
}

void fetch(const Arguments& a) {
    const std::string path = refold::pull(a.name);
    if (a.report.json) {
        print_json({{"name", a.name}, {"path", path}, {"bytes", std::filesystem::file_size(path)}});
    } else {
        print(path + "\n");
    }
}

}  // namespace

Action pull_verb(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option("NAME", a->name, "Model to fetch; without it the catalogue is listed");
    add_report_options(app, a->report);
    add_examples(app, {"refold pull", "refold pull smollm2-135m-instruct",
                       "refold inspect $(refold pull smollm2-135m-instruct)"});
    return [a] { a->name.empty() ? list(*a) : fetch(*a); };
}

}  // namespace refold::cli
