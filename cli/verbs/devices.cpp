#include "engine/devices.h"

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/text.h"

namespace refold::cli::devices_verb {
namespace {

void show(bool json) {
    const std::vector<Device> all = list_devices();
    if (json) {
        nlohmann::ordered_json list = nlohmann::ordered_json::array();
        for (const Device& device : all)
            list.push_back({{"name", device.name},
                            {"description", device.description},
                            {"module", device.module},
                            {"memory_bytes", device.memory},
                            {"free_bytes", device.free}});
        return print_json({{"devices", std::move(list)}, {"without_devices", module_problems()}});
    }
    TextTable table({"--device", "memory", "free", "module", "description"});
    for (const Device& device : all)
        table.add({device.name, format_bytes(device.memory), format_bytes(device.free),
                   device.module.empty() ? "-" : device.module, device.description});
    print(table.str());
    for (const std::string& problem : module_problems()) print("no device from " + problem + "\n");
}

Action declare(CLI::App& app) {
    auto report = std::make_shared<ReportOptions>();
    add_report_options(app, *report);
    add_examples(app, {"refold devices", "refold run smollm2-135m-instruct --device vulkan0"});
    return [report] { show(report->json); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"devices", VerbGroup::setup,
                   "List what models can run on: the CPU, and GPUs whose modules of ggml are there", declare};

}  // namespace refold::cli::devices_verb
