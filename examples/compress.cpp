// Shares attention heads across layers, then solves the linear maps that are left on a calibration text.
//
//     compress MODEL OUTPUT.gguf CALIBRATION.txt
#include <refold/refold.h>

#include <iostream>

int main(int argc, char** argv) {
    if (argc != 4) {
        std::cerr << "usage: compress MODEL OUTPUT CALIBRATION\n";
        return 2;
    }
    const char* recipe =
        "steps:\n"
        "  - method: direct_share\n"
        "    ratio: 0.25\n"
        "  - method: refit\n";
    try {
        refold::CompressionOptions options;
        options.calibration_texts = {argv[3]};
        options.calibration_tokens = 4096;
        options.on_progress = [](const refold::CompressionProgress& p) {
            std::cerr << '\r' << p.part << ' ' << p.done << '/' << p.total << ' ' << p.unit << std::flush;
        };
        const refold::CompressionResult result = refold::compress(argv[1], recipe, argv[2], options);
        std::cerr << '\n';
        std::cout << "parameters " << result.before.parameters << " -> " << result.after.parameters << '\n'
                  << "bytes      " << result.before.bytes << " -> " << result.after.bytes << '\n';
        for (const refold::CompressionStep& step : result.steps)
            std::cout << step.method << ": " << step.cost.bytes << " bytes\n";
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
