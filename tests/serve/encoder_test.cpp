// Embeddings and reranking, with tiny encoders.
#include <cmath>
#include <cstring>
#include <fstream>

#include "serve/running_encoder.h"
#include "serve/running_server.h"
#include "vocab/base64.h"

namespace refold {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using Vector = std::vector<float>;

json fixture(const std::string& name) {
    std::ifstream in(REFOLD_FIXTURES "/" + name);
    return json::parse(in);
}

TEST(Embeddings, AreThoseOfTheLibrary) {
    RunningEncoder running;
    const std::vector<std::string> texts = {"A text", "", "Another, longer text"};
    const json reply = running.post("/v1/embeddings", {{"input", texts}}).json();
    EXPECT_EQ(reply["object"], "list");
    EXPECT_EQ(reply["model"], "org/encoder");
    const EmbeddingRule rule = running.encoder.rule();
    ASSERT_EQ(reply["data"].size(), 3U);
    size_t tokens = 0;
    for (size_t i = 0; i < 3; ++i) {
        const auto ids = running.encoder.tokens_of(texts[i]);
        tokens += ids.size();
        EXPECT_EQ(reply["data"][i]["index"], i);
        EXPECT_EQ(reply["data"][i]["object"], "embedding");
        EXPECT_EQ(reply["data"][i]["embedding"].get<Vector>(), running.encoder.embed(ids, rule));
        const json by_ids = running.post("/v1/embeddings", {{"input", ids}}).json();
        EXPECT_EQ(by_ids["data"][0]["embedding"], reply["data"][i]["embedding"]);
    }
    EXPECT_EQ(reply["usage"], (json{{"prompt_tokens", tokens}, {"total_tokens", tokens}}));
    EXPECT_EQ(running.queue.status().tokens, 2 * tokens);
    EXPECT_EQ(running.queue.status().texts, 6U);
}

TEST(Embeddings, Base64HoldsTheSameNumbers) {
    RunningEncoder running;
    const json plain = running.post("/v1/embeddings", {{"input", "A text"}, {"dimensions", 64}}).json();
    const json coded =
        running.post("/v1/embeddings", {{"input", "A text"}, {"encoding_format", "base64"}}).json();
    const std::string bytes = *from_base64(coded["data"][0]["embedding"].get<std::string>());
    Vector values(bytes.size() / sizeof(float));
    memcpy(values.data(), bytes.data(), bytes.size());
    EXPECT_EQ(plain["data"][0]["embedding"].get<Vector>(), values);
}

TEST(Embeddings, WhatIsRefusedIsNamed) {
    RunningEncoder running;
    const auto expect = [&](json body, const std::string& field, const std::string& message) {
        const HttpReply reply = running.post("/v1/embeddings", std::move(body));
        EXPECT_EQ(reply.status, 400) << reply.body;
        EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
        EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr(message));
    };
    expect({{"input", "A"}, {"dimensions", 32}}, "dimensions", "have 64 and cannot be cut");
    expect({{"input", "A"}, {"encoding_format", "int8"}}, "encoding_format", "float or base64");
    expect({{"input", json::array()}}, "input", "empty array");
    expect({{"input", {{512}}}}, "input", "vocabulary has 512");
    expect({{"input", json::array({json::array()})}}, "input", "text 0 is empty");
    expect({{"input", {"A", 5}}}, "input", "got 5 in the array");
    expect({{"input", std::vector<int>(257, 5)}}, "input", "257 tokens, the context holds 256");
    expect({{"input", std::vector<std::string>(2049, "A")}}, "input", "at most 2048");
    expect({{"input", "A"}, {"truncate", true}}, "truncate", "unknown field");
    expect(json::object(), "input", "missing");
    expect({{"query", "A"}}, "input", "missing");
}

TEST(Embeddings, ADecoderHasNone) {
    RunningServer running;
    expect_error(running.post("/v1/embeddings", {{"input", "A"}}), 400, "no_encoder", "is a decoder");
    expect_error(running.post("/v1/rerank", {{"query", "A"}, {"documents", {"B"}}}), 400, "no_encoder",
                 "need an encoder");
}

TEST(Embeddings, AnEncoderGeneratesNothing) {
    RunningEncoder running;
    const json chat = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
    for (const json& stream : {json(false), json(true)}) {
        json body = chat;
        body["stream"] = stream;
        expect_error(running.post("/v1/chat/completions", body), 400, "no_generation", "generates no text");
        expect_error(running.post("/v1/completions", {{"prompt", "A"}, {"stream", stream}}), 400,
                     "no_generation", "generates no text");
    }
    EXPECT_EQ(running.post("/tokenize", {{"prompt", "A text"}}).json()["tokens"],
              running.tokenizer.encode("A text", true, true));
    EXPECT_EQ(running.get("/v1/models").json()["data"][0]["id"], "org/encoder");
    EXPECT_EQ(running.get("/status").status, 200);
    EXPECT_EQ(running.get("/ready").status, 200);
    const std::string metrics = running.get("/metrics").body;
    EXPECT_THAT(metrics, HasSubstr("refold_encoded_texts_total{model_name=\"org/encoder\"} 0\n"));
}

class Rerank : public testing::TestWithParam<std::pair<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Families, Rerank,
                         testing::Values(std::pair("bert_score", "wordpiece_bert_cased"),
                                         std::pair("roberta_score", "bpe_roberta"),
                                         std::pair("xlm_roberta_score", "unigram_xlm_roberta")),
                         [](const auto& test) { return std::string(test.param.first); });

TEST_P(Rerank, ScoresAreThoseOfTransformers) {
    const auto [checkpoint, its_tokenizer] = GetParam();
    RunningEncoder running(checkpoint, its_tokenizer);
    const json golden = fixture(std::string("hf/") + checkpoint + "/pairs.json");
    const std::vector<double> scores = golden["scores"];
    json body = {{"query", golden["query"]}, {"documents", golden["documents"]}, {"raw_scores", true}};
    const json raw = running.post("/v1/rerank", body).json();
    ASSERT_EQ(raw["results"].size(), scores.size()) << raw;
    double before = INFINITY;
    for (const json& result : raw["results"]) {
        const double score = result["relevance_score"];
        EXPECT_NEAR(score, scores.at(result["index"]), 1e-5);
        EXPECT_LE(score, before);
        before = score;
    }
    body["raw_scores"] = false;
    body["top_n"] = 2;
    body["return_documents"] = true;
    body["documents"][0] = {{"text", body["documents"][0]}};
    const json best = running.post("/v2/rerank", body).json();
    EXPECT_EQ(running.post("/rerank", body).json()["results"], best["results"]);
    ASSERT_EQ(best["results"].size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
        const size_t index = raw["results"][i]["index"];
        EXPECT_EQ(best["results"][i]["index"], index);
        EXPECT_EQ(best["results"][i]["document"]["text"], golden["documents"][index]);
        EXPECT_NEAR(best["results"][i]["relevance_score"], 1 / (1 + std::exp(-scores[index])), 1e-6);
    }
    EXPECT_GT(best["usage"]["total_tokens"], 20);
}

TEST(Reranking, WhatIsRefusedIsNamed) {
    RunningEncoder without;
    expect_error(without.post("/v1/rerank", {{"query", "A"}, {"documents", {"B"}}}), 400, "no_reranker",
                 "no head that scores");
    RunningEncoder running("bert_score");
    const auto expect = [&](const json& body, const std::string& field, const std::string& message) {
        const HttpReply reply = running.post("/v1/rerank", body);
        EXPECT_EQ(reply.status, 400) << reply.body;
        EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
        EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr(message));
    };
    expect({{"documents", {"B"}}}, "query", "missing");
    expect({{"query", "A"}}, "documents", "at least one text");
    expect({{"query", "A"}, {"documents", {"B", 3}}}, "documents", "got 3 where a text is expected");
    expect({{"query", "A"}, {"documents", {"B"}}, {"top_n", 0}}, "top_n", "from 1 to");
    std::string longer;
    for (int i = 0; i < 200; ++i) longer += "text ";
    expect({{"query", longer}, {"documents", {"B"}}}, "query", "leaves no room");
}

// The document is cut, the query is not.
TEST(Reranking, ALongDocumentIsCut) {
    RunningEncoder running("bert_score");
    std::string document;
    for (int i = 0; i < 200; ++i) document += i < 100 ? "text " : "software ";
    const PairEncoding pair = running.encoder.pair("A text", document);
    EXPECT_EQ(pair.ids.size(), 128U);
    EXPECT_EQ(pair.token_types.size(), 128U);
    const PairEncoding whole = running.tokenizer.encode_pair("A text", document);
    EXPECT_EQ(pair.ids.back(), whole.ids.back());
    EXPECT_TRUE(std::equal(pair.ids.begin(), pair.ids.end() - 1, whole.ids.begin()));
    EXPECT_EQ(running.post("/v1/rerank", {{"query", "A text"}, {"documents", {document}}}).status, 200);
}

// ---- the queue ----

const auto kNoCheck = [] {};

TEST(EncoderQueue, RequestsTakeTurns) {
    RunningEncoder running;
    EncoderQueue& queue = running.queue;
    std::mutex mutex;
    std::vector<char> order;
    std::atomic<bool> both = false;
    const auto work = [&](char name) {
        return [&, name](TextEncoder&, size_t) {
            while (!both) std::this_thread::sleep_for(milliseconds(1));
            const std::lock_guard lock(mutex);
            order.push_back(name);
        };
    };
    std::thread first([&] { queue.run(4, work('a'), kNoCheck); });
    while (queue.status().requests < 1) std::this_thread::yield();
    std::thread second([&] { queue.run(2, work('b'), kNoCheck); });
    while (queue.status().requests < 2) std::this_thread::yield();
    both = true;
    first.join();
    second.join();
    EXPECT_EQ(std::string(order.begin(), order.end()), "ababaa");
    EXPECT_EQ(queue.status().requests, 0);
}

TEST(EncoderQueue, WhatWorkThrowsEndsItsRequestOnly) {
    RunningEncoder running;
    std::atomic<int> done = 0;
    const auto failing = [&](TextEncoder&, size_t text) {
        if (text == 1) throw std::runtime_error("broken");
        ++done;
    };
    EXPECT_THROW(running.queue.run(5, failing, kNoCheck), std::runtime_error);
    EXPECT_EQ(done, 1);
    running.queue.run(
        2, [&](TextEncoder&, size_t) { ++done; }, kNoCheck);
    EXPECT_EQ(done, 3);
}

TEST(EncoderQueue, ACheckThatThrowsEndsTheRequest) {
    RunningEncoder running;
    std::atomic<int> done = 0;
    const auto slow = [&](TextEncoder&, size_t) {
        ++done;
        std::this_thread::sleep_for(milliseconds(5));
    };
    EXPECT_THROW(running.queue.run(100'000, slow, [] { throw timeout_error(); }), ApiError);
    const int before = done;
    EXPECT_LT(before, 100'000);
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(done, before);
}

TEST(EncoderQueue, TooManyRequestsAreRefused) {
    RunningEncoder running("bert_encoder", "wordpiece_bert_cased", {}, 1);
    std::atomic<bool> go = false;
    std::thread first([&] {
        running.queue.run(
            1,
            [&](TextEncoder&, size_t) {
                while (!go) std::this_thread::sleep_for(milliseconds(1));
            },
            kNoCheck);
    });
    while (running.queue.status().requests < 1) std::this_thread::yield();
    const HttpReply reply = running.post("/v1/embeddings", {{"input", "A"}});
    expect_error(reply, 429, "queue_full", "queue is full");
    EXPECT_EQ(reply.headers.at("retry-after"), "1");
    EXPECT_EQ(running.queue.status().refused, 1U);
    go = true;
    first.join();
    EXPECT_EQ(running.post("/v1/embeddings", {{"input", "A"}}).status, 200);
}

TEST(EncoderQueue, ShutdownWaitsForTheGrace) {
    RunningEncoder running;
    std::atomic<int> done = 0;
    std::atomic<bool> refused = false;
    const auto slow = [&](TextEncoder&, size_t) {
        ++done;
        std::this_thread::sleep_for(milliseconds(2));
    };
    std::thread within([&] { running.queue.run(10, slow, kNoCheck); });
    while (done == 0) std::this_thread::yield();
    std::thread beyond([&] {
        try {
            running.queue.run(100'000, slow, kNoCheck);
        } catch (const ApiError& error) {
            refused = error.status == 503;
        }
    });
    while (running.queue.status().requests < 2 && done < 10) std::this_thread::yield();
    running.queue.shutdown(milliseconds(300));
    within.join();
    beyond.join();
    EXPECT_TRUE(refused);
    EXPECT_THROW(running.queue.run(1, slow, kNoCheck), ApiError);
}

TEST(Embeddings, AClientThatLeavesEndsItsRequest) {
    RunningEncoder running;
    {
        HttpClient client = running.client();
        const std::vector<std::string> texts(2048, "The program is free software: you can redistribute it");
        client.send(post_text("/v1/embeddings", json{{"input", texts}}.dump()));
        while (running.queue.status().texts == 0) std::this_thread::sleep_for(milliseconds(1));
    }
    while (running.queue.status().requests > 0) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_LT(running.queue.status().texts, 2048U);
}

}  // namespace
}  // namespace refold
