// Times partial_tucker on a tensor of raw float32 (first index contiguous), as JSON. bench/hooi compares it
// with TensorLy.
//
//   hooi_bench --tensor FILE --dims N1 N2 N3 N4 --ranks R1 R2 R3 [--sweeps 3] [--repeat 1]
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "linalg/tucker.h"

namespace refold {
namespace {

double peak_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024;
}

int run(int argc, char** argv) {
    CLI::App app("Time of partial_tucker");
    std::string path;
    std::array<int64_t, 4> dims{};
    TuckerOptions options;
    options.max_sweeps = 3;
    options.tolerance = 0;
    int repeat = 1;
    app.add_option("--tensor", path)->required();
    app.add_option("--dims", dims)->required();
    app.add_option("--ranks", options.ranks)->required();
    app.add_option("--sweeps", options.max_sweeps);
    app.add_option("--repeat", repeat)->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);

    std::vector<float> tensor;
    {
        // Read, not mapped, because mapped pages would count as memory.
        std::ifstream file(path, std::ios::binary);
        tensor.resize(std::filesystem::file_size(path) / sizeof(float));
        file.read(reinterpret_cast<char*>(tensor.data()),
                  static_cast<std::streamsize>(tensor.size() * sizeof(float)));
    }
    const double before = peak_bytes();
    nlohmann::json seconds = nlohmann::json::array();
    TuckerResult result;
    for (int i = 0; i < repeat; ++i) {
        const auto start = std::chrono::steady_clock::now();
        result = partial_tucker(tensor, dims, options);
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::vector<double> sorted = seconds;
    std::ranges::sort(sorted);
    const char* threads = std::getenv("OPENBLAS_NUM_THREADS");
    fmt::print("{}\n", nlohmann::json{{"shape", dims},
                                      {"ranks", result.ranks},
                                      {"sweeps", result.sweeps},
                                      {"threads", threads == nullptr ? "default" : threads},
                                      {"all_seconds", seconds},
                                      {"seconds", sorted[sorted.size() / 2]},
                                      {"peak_bytes_beyond_input", peak_bytes() - before},
                                      {"relative_error", result.relative_error}}
                           .dump());
    return 0;
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) {
    try {
        return refold::run(argc, argv);
    } catch (const refold::Error& error) {
        fmt::print(stderr, "error: {}\n", error.what());
        return refold::exit_code(error.code());
    }
}
