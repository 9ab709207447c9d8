// Perplexity of a text file, with its standard error.
//
//     perplexity MODEL TEXT.txt [CONTEXT [WINDOWS]]
#include <refold/refold.h>

#include <fstream>
#include <iostream>
#include <sstream>

int main(int argc, char** argv) {
    if (argc < 3) {
        std::cerr << "usage: perplexity MODEL TEXT [CONTEXT [WINDOWS]]\n";
        return 2;
    }
    std::stringstream text;
    text << std::ifstream(argv[2]).rdbuf();
    try {
        refold::TextPerplexityOptions options;
        if (argc > 3) options.context = std::stoll(argv[3]);
        if (argc > 4) options.max_windows = std::stoll(argv[4]);
        refold::LanguageModelOptions loading;
        loading.context = options.context;
        refold::LanguageModel model(argv[1], loading);
        const refold::TextPerplexity result = refold::perplexity(model, text.str(), options);
        std::cout << result.perplexity << " +- " << result.standard_error << " (" << result.tokens
                  << " tokens, " << result.windows << " windows)\n";
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
