// Which continuation is the likeliest?
//
//     score MODEL "The capital of France is" " Paris" " London"
#include <refold/refold.h>

#include <iostream>

int main(int argc, char** argv) {
    if (argc < 4) {
        std::cerr << "usage: score MODEL CONTEXT CONTINUATION...\n";
        return 2;
    }
    try {
        refold::LanguageModel model(argv[1]);
        for (int i = 3; i < argc; ++i)
            std::cout << refold::score_continuation(model, argv[2], argv[i]) << '\t' << argv[i] << '\n';

        // Token by token, each with the likeliest token in its place.
        for (const refold::TokenLogprob& token : refold::score(model, argv[2], 1)) {
            std::cout << model.tokenizer().piece(token.token, true) << '\t' << token.logprob
                      << "\tlikeliest: " << model.tokenizer().piece(token.top.front().first, true) << '\n';
        }
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
