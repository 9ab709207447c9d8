// A verb of the command line: one line in the table of main.cpp and one file in verbs/.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace refold::cli {

// What to do once the command line has been parsed.
using Action = std::function<void()>;

struct Verb {
    const char* name;
    const char* description;  // one line
    // Declares the verb's options and examples on `app`. Errors are thrown, results go to standard output.
    Action (*declare)(CLI::App& app);
};

Action analyze_verb(CLI::App& app);
Action bench_verb(CLI::App& app);
Action chat_verb(CLI::App& app);
Action compare_verb(CLI::App& app);
Action compress_verb(CLI::App& app);
Action eval_verb(CLI::App& app);
Action export_verb(CLI::App& app);
Action inspect_verb(CLI::App& app);
Action logits_verb(CLI::App& app);
Action methods_verb(CLI::App& app);
Action pull_verb(CLI::App& app);
Action quantize_verb(CLI::App& app);
Action report_verb(CLI::App& app);
Action run_verb(CLI::App& app);
Action serve_verb(CLI::App& app);
Action tokenize_verb(CLI::App& app);
Action train_verb(CLI::App& app);

}  // namespace refold::cli
