// Tasks and items, the interface between two halves: definitions and data make items (task files, data sets,
// templates); scoring turns items into requests to a model, and answers into metrics.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace refold {

// Kind of requests for every item, in lm-evaluation-harness's terms.
enum class TaskOutput {
    multiple_choice,    // log likelihood of every choice after its context
    loglikelihood,      // log likelihood and greedy match of one target
    generate_until,     // greedy text up to a stop string
    masked_lm,          // encoders: choices fill the mask of the context (pseudo log likelihood)
    label_probability,  // probability of the first token of each choice, as in LASER for FEVER and Bios
};

struct GenerationSettings {
    std::vector<std::string> until;
    int64_t max_tokens = 256;
    // Encoders: masks behind the prompt that are filled at once, in place of generated text; 0: the task is
    // for decoders.
    int64_t masks = 0;
};

// A task without its data.
struct TaskSpec {
    std::string name;
    std::string version;   // of the definition, shown as in lm-eval
    std::string group;     // "mmlu" for its subjects; empty: none
    std::string subgroup;  // within the group, "mmlu_stem"; empty: none
    TaskOutput output = TaskOutput::multiple_choice;
    std::vector<std::string> metrics;    // acc, acc_norm, acc_bytes, perplexity, exact_match, f1, bleu, ...
    std::string target_delimiter = " ";  // between context and continuation
    std::string fewshot_delimiter = "\n\n";
    std::string description;  // text before the few-shot examples
    int64_t shots = 0;        // default number of few-shot examples
    GenerationSettings generation;
};

struct FewShot {
    std::string prompt, target;
};

// One item, templates filled in.
struct TaskItem {
    int64_t doc_id = 0;          // index in the split, as lm-eval counts
    nlohmann::ordered_json doc;  // as read from the data
    std::vector<FewShot> shots;  // examples before it, already drawn
    // One prompt, or one per choice if contexts differ and the continuation is the same (WinoGrande's partial
    // scoring).
    std::vector<std::string> prompts;
    std::vector<std::string> choices;     // continuations without delimiter; one for `loglikelihood`
    std::vector<int64_t> gold;            // indices of right choices (usually one)
    std::vector<std::string> references;  // generate_until: accepted answers
};

struct Task {
    TaskSpec spec;
    std::vector<TaskItem> items;
    int64_t original = 0;     // number of items in the data, before a limit; 0: all are in `items`
    std::string data_file;    // source of the items, for provenance
    std::string data_sha256;  // of that file
    std::vector<std::pair<std::string, std::string>> more_files;  // of further splits, with their hashes
    std::string fewshot_file, fewshot_sha256;  // of the examples; empty: none, or from `data_file` too
};

}  // namespace refold
