// Renders Jinja templates for scripts/check-templates. Reads lines {"template": text, "mode": "chat" or
// "task", "context": object} and writes {"text": rendered} or {"error": message} for each.
#include <iostream>
#include <string>

#include "core/json_number.h"
#include "text/jinja.h"

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        nlohmann::ordered_json out;
        try {
            const nlohmann::ordered_json given = refold::parse_exact(line);
            const refold::JinjaTemplate jinja(given.at("template").get<std::string>(),
                                              {.keep_whitespace = given.at("mode") == "task"});
            out["text"] = jinja.render(given.at("context"));
        } catch (const std::exception& error) {
            out["error"] = error.what();
        }
        std::cout << refold::exact_dump(out) << std::endl;
    }
}
