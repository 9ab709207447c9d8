// A conversation on the terminal. The model's own chat template writes the turns.
//
//     chat MODEL
#include <refold/refold.h>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: chat MODEL\n";
        return 2;
    }
    try {
        refold::LanguageModel model(argv[1]);
        const refold::Tokenizer& tokenizer = model.tokenizer();
        refold::GenerationOptions options;
        options.max_tokens = 256;
        options.sampling.temperature = 0.7;

        std::vector<refold::ChatMessage> messages = {{"system", "You are a helpful assistant."}};
        for (std::string line; std::getline(std::cin, line);) {
            messages.push_back({"user", line});
            // The template writes BOS where it belongs.
            const auto prompt = tokenizer.encode(tokenizer.apply_chat_template(messages), false, true);
            const auto reply = refold::generate(model, prompt, options, [](std::string_view text) {
                std::cout << text << std::flush;
                return true;
            });
            std::cout << '\n';
            messages.push_back({"assistant", reply.text});
        }
    } catch (const refold::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
