#include "cli/calibration_device.h"

#include <fmt/format.h>

#include "cli/options.h"

namespace refold::cli {

void add_calibration_device(CLI::App& app, CalibrationDevice& where) {
    add_engine_kind(app, where.engine)
        ->description(
            "What runs the model on calibration text: ggml, on the CPU; or torch, libtorch in float32, which "
            "also computes on --device what is large in linear algebra");
    app.add_option("--device", where.device,
                   "With --engine torch: auto (a CUDA device where there is one), cpu, cuda or cuda:N")
        ->type_name("NAME")
        ->default_str("auto");
}

void add_calibration_device(nlohmann::ordered_json& report) {
    report["engine"] = uses_torch() ? "torch" : "ggml";
    report["device"] = calibration_device();
}

std::string calibration_device_line() {
    return uses_torch() ? fmt::format("computed by the torch engine on {}\n", calibration_device()) : "";
}

}  // namespace refold::cli
