#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/parallel.h"
#include "engine/cpu_level.h"
#include "engine/engine.h"
#include "io/ggml_cpu.h"

namespace refold::cli::version_verb {
namespace {

struct Arguments {
    ReportOptions report;
};

void show(const Arguments& a) {
    choose_cpu_level();
    const auto levels = cpu_levels();
    const Processors found = processors();
    if (a.report.json) {
        return print_json({{"version", REFOLD_VERSION},
                           {"torch", has_torch_engine()},
                           {"cpu",
                            {{"level", cpu_level()},
                             {"levels", levels},
                             {"ggml", ggml_cpu_variant()},
                             {"threads", default_threads()},
                             {"processors", found.allowed},
                             {"cores", found.cores},
                             {"quota", found.quota ? nlohmann::json(*found.quota) : nlohmann::json()}}}});
    }
    print(fmt::format(
        "refold {}\nCPU level: {} (of {}; ggml's products: {})\nthreads: {} ({} processors, {} "
        "cores{})\ntorch engine: {}\n",
        REFOLD_VERSION, cpu_level(), fmt::join(levels, ", "), ggml_cpu_variant(), default_threads(),
        found.allowed, found.cores, found.quota ? fmt::format(", a quota of {:.3g}", *found.quota) : "",
        has_torch_engine() ? "yes" : "no"));
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_report_options(app, a->report);
    add_examples(app, {"refold version", "REFOLD_CPU=avx2 refold version --json"});
    return [a] { show(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {
    "version", VerbGroup::setup,
    "Print the version, and what of this machine is used (REFOLD_CPU=LEVEL chooses a lower level)", declare};

}  // namespace refold::cli::version_verb
