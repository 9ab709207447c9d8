// `refold serve` as a process, on a tiny model.
#pragma once

#include "cli/refold.h"
#include "serve/http_client.h"

namespace refold {

class Serving {
public:
    explicit Serving(std::vector<std::string> options = {}, std::vector<std::string> variables = {},
                     const std::string& model = REFOLD_FIXTURES "/llama_gqa/model.gguf")
        : process_(words(model, std::move(options)), "", std::move(variables)) {
        for (int i = 0; i < 2000 && process_.output().find('\n') == std::string::npos; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        started = nlohmann::json::parse(process_.output(), nullptr, false);
        if (started.is_discarded()) throw std::runtime_error("no start: " + process_.wait().err);
    }
    HttpClient client() const { return HttpClient(started["port"]); }
    Outcome stop() {
        process_.send(SIGTERM);
        return process_.wait();
    }
    nlohmann::json started;

private:
    static std::vector<std::string> words(const std::string& model, std::vector<std::string> options) {
        options.insert(options.begin(), {REFOLD_BINARY, "serve", model, "--port", "0", "--threads", "1",
                                         "--context", "128", "--json"});
        return options;
    }
    Process process_;
};

}  // namespace refold
