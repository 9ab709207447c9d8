// Continues prompts: one that streams, or several at a time.
//
//     generate MODEL "Once upon a time"
//     generate MODEL "The capital of France is" "The capital of Spain is"
#include <refold/refold.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    if (argc < 3) {
        std::cerr << "usage: generate MODEL PROMPT...\n";
        return 2;
    }
    const std::vector<std::string> prompts(argv + 2, argv + argc);
    try {
        refold::LanguageModelOptions loading;
        loading.sequences = std::min<int64_t>(static_cast<int64_t>(prompts.size()), 8);
        refold::LanguageModel model(argv[1], loading);

        refold::GenerationOptions options;
        options.max_tokens = 32;
        options.stop = {"\n\n"};
        options.sampling.temperature = 0.7;
        options.sampling.repetition_penalty = 1.1;
        options.sampling.seed = 1;

        if (prompts.size() > 1) {
            for (const refold::GenerationResult& result : refold::generate(model, prompts, options))
                std::cout << result.text << '\n';
            return 0;
        }
        const auto result = refold::generate(model, prompts.front(), options, [](std::string_view text) {
            std::cout << text << std::flush;
            return true;  // false would cancel
        });
        std::cout << '\n';
        std::cerr << result.tokens.size() << " tokens, " << result.decode_tokens_per_s() << " tokens/s\n";
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
