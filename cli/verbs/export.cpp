#include <filesystem>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/text.h"
#include "io/catalogue.h"
#include "model/accounting.h"

namespace refold::cli {
namespace {

struct Arguments {
    std::string model, format = "gguf";
    OutputOptions output;
    ReportOptions report;
};

void write_dense(const Arguments& a) {
    const std::string path = resolve_model(a.model);
    const Model model = load_model(path);
    check_output(a.output, path);
    const Model dense = without_sharing(model);
    save_model(dense, a.output.path, a.output.overwrite);
    const uint64_t bytes = std::filesystem::file_size(a.output.path);
    const Accounting accounting = account(model);
    if (a.report.json) {
        print_json({{"output", a.output.path},
                    {"format", a.format},
                    {"file_bytes", bytes},
                    {"shared", model.has_sharing()},
                    {"parameters", accounting.dense.parameters},
                    {"parameters_before", accounting.model.parameters}});
        return;
    }
    print(fmt::format("{}: {}, {} parameters{}\n", a.output.path, format_bytes(bytes),
                      format_count(accounting.dense.parameters),
                      model.has_sharing()
                          ? fmt::format(" ({} with sharing)", format_count(accounting.model.parameters))
                          : ", the model shares nothing"));
}

}  // namespace

Action export_verb(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--to", a->format, "Format: gguf (plain GGUF, every position with its own weights)")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"gguf"}))
        ->capture_default_str();
    add_output(app, a->output, "File to write")->required();
    add_report_options(app, a->report);
    add_examples(app, {"refold export small.gguf --to gguf -o dense.gguf",
                       "refold export small.gguf -o dense.gguf --overwrite --json"});
    return [a] { write_dense(*a); };
}

}  // namespace refold::cli
