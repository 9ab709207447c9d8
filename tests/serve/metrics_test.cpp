// The names of metrics are what dashboards, alerts and autoscalers depend on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

#include "serve/running_server.h"

namespace refold {
namespace {

using testing::HasSubstr;

// The names of all samples.
std::set<std::string> names_in(const std::string& metrics) {
    std::set<std::string> names;
    std::istringstream lines(metrics);
    for (std::string line; std::getline(lines, line);)
        if (!line.starts_with('#')) names.insert(line.substr(0, line.find_first_of("{ ")));
    return names;
}

std::string metrics_after_a_request() {
    RunningOptions setup;
    setup.server.api_keys = {{"a", "alice"}};
    RunningServer running(setup);
    const std::string key = "x-api-key: a\r\n";
    EXPECT_EQ(running.post("/v1/completions", completion(), key).status, 200);
    EXPECT_TRUE(running.soon([&] { return running.log().size() == 1; }));
    return running.get("/metrics", key).body;
}

void collect_queries(const json& value, std::vector<std::string>& out) {
    if (value.is_object() && value.contains("expr")) out.push_back(value["expr"]);
    if (value.is_structured())
        for (const json& child : value) collect_queries(child, out);
}

TEST(Metrics, TheDashboardShowsWhatThereIs) {
    std::ifstream file(REFOLD_FIXTURES "/../../packaging/grafana-refold.json");
    const json board = json::parse(file);
    std::vector<std::string> queries;
    collect_queries(board, queries);
    for (const json& variable : board["templating"]["list"]) queries.push_back(variable["query"]);
    ASSERT_GT(queries.size(), 30U);
    const std::set<std::string> names = names_in(metrics_after_a_request());
    const std::regex name("(vllm:|refold_)[a-z0-9_]+");
    size_t found = 0;
    for (const std::string& query : queries) {
        for (std::sregex_iterator it(query.begin(), query.end(), name), end; it != end; ++it, ++found)
            EXPECT_TRUE(names.contains(it->str())) << it->str() << " in " << query;
    }
    EXPECT_GE(found, queries.size() - 1);  // the variable of the data source names none
}

// What the dashboards in vLLM's repository (examples/observability, 2026) query, and what Kubernetes'
// inference gateway reads of servers.
TEST(Metrics, NamesOfVllmsDashboards) {
    const std::string metrics = metrics_after_a_request();
    const std::set<std::string> names = names_in(metrics);
    for (const char* histogram :
         {"e2e_request_latency_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
          "time_to_first_token_seconds", "request_prompt_tokens", "request_generation_tokens",
          "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
          "request_inference_time_seconds", "request_max_num_generation_tokens"})
        for (const char* suffix : {"_bucket", "_sum", "_count"})
            EXPECT_TRUE(names.contains(fmt::format("vllm:{}{}", histogram, suffix))) << histogram << suffix;
    for (const char* name : {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                             "prompt_tokens_total", "generation_tokens_total", "request_success_total",
                             "prefix_cache_queries_total", "prefix_cache_hits_total"})
        EXPECT_TRUE(names.contains(std::string("vllm:") + name)) << name;
    const std::string model = "{model_name=\"org/fake\",engine=\"0\"";
    for (const std::string& line :
         {"vllm:prompt_tokens_total" + model + "} 3", "vllm:generation_tokens_total" + model + "} 8",
          "vllm:request_success_total" + model + ",finished_reason=\"length\"} 1",
          "vllm:request_success_total" + model + ",finished_reason=\"abort\"} 0",
          "vllm:request_prompt_tokens_bucket" + model + ",le=\"2\"} 0",
          "vllm:request_prompt_tokens_bucket" + model + ",le=\"5\"} 1",
          "vllm:request_generation_tokens_sum" + model + "} 8",
          "vllm:request_max_num_generation_tokens_sum" + model + "} 8",
          "vllm:inter_token_latency_seconds_count" + model + "} 7",
          "vllm:e2e_request_latency_seconds_bucket" + model + ",le=\"+Inf\"} 1",
          "vllm:request_queue_time_seconds_count" + model + "} 1"})
        EXPECT_THAT(metrics, HasSubstr("\n" + line));
}

TEST(Metrics, HitsOfThePrefixCache) {
    RunningOptions setup;
    setup.scheduler.prefixes = true;
    RunningServer running(setup);
    for (size_t i = 1; i <= 2; ++i) {
        EXPECT_EQ(running.post("/v1/completions", completion({{"prompt", {5, 6, 7, 8, 9}}})).status, 200);
        ASSERT_TRUE(running.soon([&] { return running.log().size() == i; }));
    }
    EXPECT_EQ(running.log()[0].cached_tokens, 0);
    EXPECT_EQ(running.log()[1].cached_tokens, 4);
    EXPECT_THAT(running.get("/metrics").body,
                HasSubstr("\nvllm:prefix_cache_hits_total{model_name=\"org/fake\",engine=\"0\"} 4\n"));
}

}  // namespace
}  // namespace refold
