// Writes a model out for stock llama.cpp (a .gguf file) or for transformers (a directory).
//
//     export MODEL OUTPUT.gguf|DIRECTORY
#include <refold/refold.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "usage: export MODEL OUTPUT\n";
        return 2;
    }
    const std::string output = argv[2];
    try {
        const refold::ModelFile model(argv[1]);
        if (output.ends_with(".gguf")) {
            model.export_gguf(output);
        } else {
            model.export_hf(output);
        }
        std::cout << "wrote " << output << '\n';
    } catch (const refold::Error& error) {
        // Typed errors: what the caller asked for wrongly is told apart from what went wrong.
        std::cerr << error.what() << '\n';
        return error.code() == refold::ErrorCode::usage ? 2 : 1;
    }
}
