// How alike are two texts? By the embeddings of an encoder.
//
//     embed MODEL "A cat sat on the mat." "A kitten rested on the rug."
#include <refold/refold.h>

#include <iostream>

int main(int argc, char** argv) {
    if (argc != 4) {
        std::cerr << "usage: embed ENCODER TEXT TEXT\n";
        return 2;
    }
    try {
        refold::Encoder encoder(argv[1]);
        const auto a = encoder.embed(argv[2]), b = encoder.embed(argv[3]);
        std::cout << a.size() << " dimensions, cosine " << refold::cosine_similarity(a, b) << '\n';
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
