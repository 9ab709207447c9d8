#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/text.h"
#include "hub/hub.h"
#include "io/catalogue.h"

namespace refold::cli::pull_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string name;
    std::string revision;
    ReportOptions report;
};

Json files_json(const CatalogueEntry& entry) {
    Json files = Json::array();
    for (const auto& file : entry.files)
        files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
    return files;
}

void list(const Arguments& a) {
    Json models = Json::array();
    TextTable table({"name", "size", "download"});
    std::string descriptions;
    for (const CatalogueEntry& entry : catalogue()) {
        models.push_back({{"name", entry.name},
                          {"description", entry.description},
                          {"licence", entry.licence},
                          {"bytes", entry.bytes},
                          {"download_bytes", entry.download_bytes},
                          {"sha256", entry.files.front().sha256},
                          {"files", files_json(entry)}});
        table.add({entry.name, format_bytes(entry.bytes), format_bytes(entry.download_bytes)});
        descriptions +=
            fmt::format("\n{}\n  {}\n  licence: {}\n", entry.name, entry.description, entry.licence);
    }
    if (a.report.json) {
        print_json({{"models", models}});
    } else {
        print(table.str() + descriptions);
    }
}

void fetch_from_hub(const Arguments& a, HubSpec spec) {
    if (!a.revision.empty()) {
        const bool twice = a.name.substr(0, a.name.find(':')).find('@') != std::string::npos;
        const auto asked = parse_hub_spec(spec.repo + "@" + a.revision);
        if (twice || !asked) {
            fail(ErrorCode::usage, "pull", "--revision '{}': {}", a.revision,
                 twice ? "the name already holds one - leave one of them away"
                       : "expected a branch, a tag or a commit");
        }
        spec.revision = asked->revision;
    }
    const HubModel model = hub_pull(spec);
    if (a.report.json) {
        print_json({{"name", a.name},
                    {"path", model.path},
                    {"repo", spec.repo},
                    {"revision", spec.revision},
                    {"commit", model.commit},
                    {"files", model.files},
                    {"bytes", model.bytes}});
    } else {
        print(model.path + "\n");
    }
}

void fetch_from_catalogue(const Arguments& a) {
    if (!a.revision.empty()) {
        fail(ErrorCode::usage, "pull", "--revision is for models of the hub (org/name), not for '{}'",
             a.name);
    }
    if (a.name.find('/') != std::string::npos) {
        fail(ErrorCode::usage, "pull", "got '{}', expected org/name, org/name@revision or org/name:Q4_K_M",
             a.name);
    }
    const std::string path = refold::pull(a.name);
    const CatalogueEntry& entry = *find_catalogue_entry(a.name);
    if (a.report.json) {
        print_json({{"name", a.name}, {"path", path}, {"bytes", entry.bytes}, {"licence", entry.licence}});
    } else {
        if (!a.report.quiet) log("licence of {}: {}", a.name, entry.licence);
        print(path + "\n");
    }
}

void fetch(const Arguments& a) {
    const auto spec = parse_hub_spec(a.name);
    spec ? fetch_from_hub(a, *spec) : fetch_from_catalogue(a);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option(
        "NAME", a->name,
        "Model to fetch: a name of the catalogue, or org/name[@revision][:QUANT] of the Hugging Face "
        "hub; without it the catalogue is listed");
    app.add_option("--revision", a->revision, "Branch, tag or commit of a model of the hub")
        ->type_name("REV")
        ->default_str("main");
    add_report_options(app, a->report);
    add_examples(app, {"refold pull", "refold pull smollm2-135m-instruct", "refold pull minilm-l6",
                       "refold inspect $(refold pull smollm2-135m-instruct)",
                       "refold pull HuggingFaceTB/SmolLM2-135M-Instruct",
                       "refold pull bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M"});
    return [a] { a->name.empty() ? list(*a) : fetch(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"pull", VerbGroup::models, "Fetch a model into the cache, or list what can be fetched",
                   declare};

}  // namespace refold::cli::pull_verb
