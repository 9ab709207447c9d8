#include "tasks/samples.h"

#include <fmt/format.h>

#include "core/json_number.h"
#include "core/sha256.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

std::string hash_of(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

// A single value itself, several values as a list.
template <typename T>
Json one_or_list(const std::vector<T>& values) {
    return values.size() == 1 ? Json(values.front()) : Json(values);
}

Json target_of(const TaskSpec& spec, const TaskItem& item) {
    if (spec.output == TaskOutput::loglikelihood) return item.choices.front();
    const Json target =
        spec.output == TaskOutput::generate_until ? one_or_list(item.references) : one_or_list(item.gold);
    return target.is_string() ? target : Json(target.dump());
}

Json responses_of(const TaskSpec& spec, const Answer& answer) {
    Json responses = Json::array();
    if (spec.output == TaskOutput::generate_until) responses.push_back(answer.text);
    for (const Likelihood& choice : answer.choices)
        responses.push_back(
            Json::array({fmt::format("{}", choice.log_likelihood), choice.greedy ? "True" : "False"}));
    return responses;
}

}  // namespace

std::string samples_jsonl(std::span<const TaskRun> runs) {
    std::string out;
    for (const TaskRun& run : runs) {
        const TaskSpec& spec = run.task.spec;
        size_t request = 0;
        for (size_t i = 0; i < run.task.items.size(); ++i) {
            const TaskItem& item = run.task.items[i];
            const Json target = target_of(spec, item);
            Json arguments = Json::object();
            const std::string& prompt = run.requests[request].context;
            for (size_t n = 0; request < run.requests.size() && run.requests[request].item == i;
                 ++request, ++n) {
                Json& one = arguments[fmt::format("gen_args_{}", n)];
                one["arg_0"] = run.requests[request].context;
                // The likelihood of a reference follows the text.
                const bool written = spec.output == TaskOutput::generate_until && n == 0;
                if (written) {
                    one["arg_1"] = {{"until", spec.generation.until},
                                    {"max_gen_toks", spec.generation.max_tokens}};
                } else {
                    one["arg_1"] = run.requests[request].continuation;
                }
            }
            const Json responses = responses_of(spec, run.answers[i]);
            Json nested = Json::array();
            for (const Json& response : responses) nested.push_back(Json::array({response}));
            Json line = {{"task", spec.name},
                         {"doc_id", item.doc_id},
                         {"doc", item.doc},
                         {"target", target},
                         {"arguments", arguments},
                         {"resps", nested},
                         {"filtered_resps", responses},
                         {"filter", "none"},
                         {"metrics", spec.metrics},
                         {"doc_hash", hash_of(exact_dump(item.doc, 2))},
                         {"prompt_hash", hash_of(prompt)},
                         {"target_hash", hash_of(target.get<std::string>())}};
            for (const MetricValues& values : run.values) {
                const auto first = values.values.begin() + static_cast<ptrdiff_t>(i * values.width);
                line[values.metric] =
                    one_or_list(std::vector<double>(first, first + static_cast<ptrdiff_t>(values.width)));
            }
            out += exact_dump(line) + "\n";
        }
    }
    return out;
}

}  // namespace refold
