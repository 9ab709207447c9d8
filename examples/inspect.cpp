// What a model stores and what it costs to run.
//
//     inspect MODEL
#include <refold/refold.h>

#include <iostream>

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: inspect MODEL\n";
        return 2;
    }
    try {
        const refold::ModelInfo info = refold::inspect(argv[1]);
        std::cout << info.architecture << ", " << info.layers << " layers (" << info.stored_layers
                  << " stored, " << info.loops << " loops)\n"
                  << "parameters stored   " << info.stored.parameters << '\n'
                  << "  without sharing   " << info.without_sharing.parameters << '\n'
                  << "bytes               " << info.stored.bytes << '\n'
                  << "KV bytes per token  " << info.stored.kv_bytes_per_token << '\n'
                  << "FLOPs per token     " << info.stored.flops_per_token << '\n';
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
