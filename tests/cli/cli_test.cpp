// The program as a user meets it: every verb on a tiny model, and every kind of wrong input.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/refold.h"
#include "core/text.h"
#include "io/gguf.h"
#include "io/safetensors.h"

#ifndef REFOLD_FIXTURES
#define REFOLD_FIXTURES "tests/fixtures"
#endif

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

const std::string kFixtures = REFOLD_FIXTURES;
const std::string kModel = kFixtures + "/llama_gqa/model.gguf";

Outcome shell(const std::string& script) { return Process({"sh", "-c", script}).wait(); }

void expect_keys(const json& value, const std::vector<std::string>& keys) {
    for (const auto& key : keys) EXPECT_TRUE(value.contains(key)) << key;
}

std::vector<std::string> verbs() {
    const std::string text = refold({"help"}).out;
    std::vector<std::string> names;
    for (size_t at = text.find("Verbs:\n") + 7; text.compare(at, 2, "  ") == 0;
         at = text.find('\n', at) + 1) {
        names.push_back(text.substr(at + 2, text.find(' ', at + 2) - at - 2));
    }
    return names;
}

void share(const std::string& output, const std::string& ratio = "0.3") {
    const Outcome done =
        refold({"compress", kModel, "-o", output, "--method", "direct_share", "--set", "ratio=" + ratio});
    ASSERT_EQ(done.code, 0) << done.err;
}

// The file's bytes with the first `from` behind `after` replaced by `to`, which is as long.
std::string patched(std::string bytes, const std::string& after, const std::string& from,
                    const std::string& to) {
    const size_t at = bytes.find(from, bytes.find(after));
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, from.size(), to);
}

std::string without_replacements(std::string text) {
    for (size_t at; (at = find_invalid_utf8(text)) != std::string::npos;) text.erase(at, 1);
    for (size_t at; (at = text.find("\xEF\xBF\xBD")) != std::string::npos;) text.erase(at, 3);
    return text;
}

// ---- help ----

TEST(Help, ListsAllVerbs) {
    EXPECT_THAT(verbs(), UnorderedElementsAre("pull", "inspect", "run", "chat", "serve", "logits", "tokenize",
                                              "methods", "compress", "train", "compare", "eval", "analyze",
                                              "bench", "report", "quantize", "export"));
    EXPECT_EQ(refold({"--help"}).out, refold({"help"}).out);
    EXPECT_THAT(refold({"--version"}).out, testing::MatchesRegex("refold [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Help, EveryVerbDescribesItself) {
    for (const auto& verb : verbs()) {
        const Outcome help = refold({verb, "--help"});
        EXPECT_EQ(help.code, 0) << verb;
        EXPECT_THAT(help.out, HasSubstr("Usage: refold " + verb));
        EXPECT_THAT(help.out, HasSubstr("Examples:\n  "));
        EXPECT_THAT(help.out, HasSubstr("refold " + verb + " "));
        EXPECT_EQ(refold({"help", verb}).out, help.out);
    }
    EXPECT_THAT(refold({"eval", "ppl", "--help"}).out, HasSubstr("Examples:"));
}

TEST(Help, DocumentationIsFresh) {
    const TempFolder folder;
    const Outcome made = Process({"scripts/make-cli-docs", REFOLD_BINARY, folder / "cli.md"}).wait();
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_EQ(read_all(folder / "cli.md"), read_all("docs/cli.md")) << "run scripts/make-cli-docs";
}

// ---- wrong usage ----

TEST(Usage, NearestNamesAreGiven) {
    EXPECT_EQ(refold({}).code, 2);
    expect_error(refold({"compres"}), 2, {"unknown verb 'compres'", "did you mean 'compress'?"});
    expect_error(refold({"help", "rum"}), 2, {"did you mean 'run'?"});
    expect_error(refold({"run", kModel, "-p", "x", "--contxt", "8"}), 2,
                 {"--contxt", "did you mean '--context'?"});
    expect_error(refold({"inspect"}), 2, {"MODEL", "refold inspect --help"});
    expect_error(refold({"eval", "tasks", "--limit", "4"}), 2, {"refold eval tasks --help"});
    expect_error(refold({"eval"}), 2, {"subcommand"});
    expect_error(refold({"eval", "pppl"}), 2, {"did you mean 'ppl'?"});
    expect_error(refold({"pull", "smollm2-135m-instrukt"}), 2, {"did you mean 'smollm2-135m-instruct'?"});
    expect_error(refold({"methods", "direct_shar"}), 2, {"did you mean 'direct_share'?"});
}

TEST(Usage, ValuesOutOfRangeNameTheOption) {
    for (const auto& words : std::vector<std::vector<std::string>>{{"--threads", "0"},
                                                                   {"--threads", "100000"},
                                                                   {"--context", "-5"},
                                                                   {"--context", "many"},
                                                                   {"--max-tokens", "0"},
                                                                   {"--top-k", "-1"},
                                                                   {"--top-p", "1.5"},
                                                                   {"--temperature", "-1"},
                                                                   {"--seed", "-1"},
                                                                   {"--kv", "q8"}}) {
        std::vector<std::string> all = {"run", kModel, "-p", "x"};
        all.insert(all.end(), words.begin(), words.end());
        expect_error(refold(all), 2, {words[0].substr(2)});
    }
    expect_error(refold({"run", kModel}), 2, {"--prompt"});
    expect_error(refold({"logits", kModel, "-o", "x"}), 2, {"--tokens"});
    for (const char* ids : {"", "1,x", "1,,2", "1,", "1 2", "99999999999"}) {
        expect_error(refold({"logits", kModel, "--tokens", ids, "-o", "x"}), 2, {"--tokens"});
        expect_error(refold({"tokenize", kModel, "--decode", ids}), 2, {"--decode"});
    }
    expect_error(refold({"tokenize", kModel}), 2, {"TEXT"});
    expect_error(refold({"export", kModel, "--to", "onnx", "-o", "x"}), 2, {"--to"});
    expect_error(refold({"bench", kModel, "--context", "8", "--prefill", "8", "--decode", "1"}), 2,
                 {"--context 8"});
    expect_error(refold({"eval", "ppl", kModel, "--text", kModel, "--stride", "0"}), 2, {"--stride"});
}

// ---- the verbs ----

TEST(Pull, ListsTheCatalogue) {
    EXPECT_THAT(refold({"pull"}).out, HasSubstr("smollm2-135m-instruct"));
    expect_keys(refold_json({"pull"})["models"][0],
                {"name", "description", "bytes", "download_bytes", "sha256"});
}

TEST(Inspect, ShowsADenseModel) {
    const Outcome text = refold({"inspect", kModel, "--tensors"});
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("0-3  own"));
    EXPECT_THAT(text.out, HasSubstr("176,712"));
    EXPECT_THAT(text.out, HasSubstr("blk.3.ffn_down.weight"));
    const json j = refold_json({"inspect", kModel});
    expect_keys(j, {"path", "architecture", "file_bytes", "hyper_parameters", "shared", "accounting",
                    "topology", "tensor_types", "tensors", "provenance"});
    EXPECT_EQ(j["architecture"], "llama");
    EXPECT_EQ(j["shared"], false);
    EXPECT_EQ(j["provenance"], nullptr);
    EXPECT_EQ(j["accounting"]["model"], j["accounting"]["dense"]);
}

TEST(Inspect, ShowsSharing) {
    const TempFolder folder;
    share(folder / "small.gguf");
    EXPECT_THAT(refold({"inspect", folder / "small.gguf"}).out,
                HasSubstr("       3  attn.q,o 0-1<-0.2-3, 2-3<-0.0-1; attn.k,v 0<-0.1, 1<-0.0\n"));
    const json j = refold_json({"inspect", folder / "small.gguf"});
    EXPECT_EQ(j["shared"], true);
    EXPECT_EQ(j["accounting"]["model"]["parameters"], 164424);
    EXPECT_EQ(j["accounting"]["dense"]["parameters"], 176712);
    EXPECT_EQ(j["provenance"]["source"]["file"], "model.gguf");
    EXPECT_EQ(j["topology"]["version"], 1);
}

TEST(Run, ContinuesAPrompt) {
    const json j = refold_json({"run", kModel, "-p", "Hello world", "-n", "12", "--ignore-eos"});
    expect_keys(j, {"load_seconds", "prefill_tokens_per_s", "decode_tokens_per_s", "first_token_seconds",
                    "prompt_tokens", "seed"});
    EXPECT_EQ(j["prompt"], "Hello world");
    EXPECT_EQ(j["tokens"].size(), 12U);
    EXPECT_EQ(j["stop_reason"], "limit");
    const Outcome text = refold({"run", kModel, "-p", "Hello world", "-n", "12", "--ignore-eos"});
    EXPECT_EQ(text.out, j["text"].get<std::string>() + "\n");
    EXPECT_THAT(text.err, HasSubstr("tokens/s"));
    EXPECT_THAT(refold({"run", kModel, "-p", "Hello world", "-n", "2", "--quiet"}).err, IsEmpty());
    const TempFolder folder;
    write_all(folder / "prompt.txt", "Hello world");
    EXPECT_EQ(refold({"run", kModel, "-f", folder / "prompt.txt", "-n", "12", "--ignore-eos"}).out, text.out);
}

TEST(Run, PrintsWholeCharacters) {
    bool multibyte = false;
    for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
        const std::vector<std::string> words = {"run",           kModel, "-p",      "a", "-n",     "100",
                                                "--temperature", "1.5",  "--top-k", "0", "--seed", seed,
                                                "--ignore-eos"};
        const json j = refold_json(words);
        const std::string text = j["text"];
        EXPECT_EQ(refold(words).out, text + "\n");
        EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
        std::string ids;
        for (const int id : j["tokens"]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
        std::string decoded = refold({"tokenize", kModel, "--decode", ids}).out;
        decoded.pop_back();
        EXPECT_EQ(without_replacements(text), without_replacements(decoded));
        for (const char c : without_replacements(text)) multibyte |= static_cast<signed char>(c) < 0;
    }
    EXPECT_TRUE(multibyte) << "no character of more than one byte was generated: choose other seeds";
}

TEST(Run, EndsWithAFullContext) {
    const json j =
        refold_json({"run", kModel, "-p", "Hello", "-n", "100", "--context", "16", "--ignore-eos"});
    EXPECT_EQ(j["stop_reason"], "context");
    EXPECT_EQ(j["tokens"].size() + j["prompt_tokens"].get<size_t>(), 17U);
}

TEST(Chat, EvaluatesOnlyWhatIsNew) {
    const std::vector<std::string> words = {"chat", kModel, "-n", "8", "--json", "--quiet"};
    const Outcome outcome = refold(words,
                                   "Tell me a rather long story about the sea\nGo on\n/reset\nTell me a "
                                   "rather long story about the sea\n/exit\nnever\n");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::vector<json> replies;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) replies.push_back(json::parse(line));
    ASSERT_EQ(replies.size(), 3U);
    expect_keys(replies[0], {"role", "content", "tokens", "evaluated_tokens", "stop_reason"});
    const auto count = [](const std::string& text) {
        return refold_json({"tokenize", kModel, text})["ids"].size();
    };
    const std::string opening =
        "<|im_start|>user\nTell me a rather long story about the sea<|im_end|>\n<|im_start|>assistant\n";
    EXPECT_EQ(replies[0]["evaluated_tokens"],
              refold_json({"tokenize", kModel, opening, "--special"})["ids"].size());
    // The last token of a reply that reached its limit is new to the engine, too.
    const size_t pending = replies[0]["stop_reason"] == "limit" ? 1 : 0;
    EXPECT_EQ(replies[1]["evaluated_tokens"],
              count("<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n") + pending);
    EXPECT_EQ(replies[2]["content"], replies[0]["content"]);
    EXPECT_EQ(replies[2]["evaluated_tokens"], replies[0]["evaluated_tokens"]);
    // The model's template on the same text.
    EXPECT_EQ(refold_json({"run", kModel, "-p", opening, "-n", "8"})["tokens"], replies[0]["tokens"]);
}

TEST(Chat, SaysWhenTheContextIsFull) {
    const Outcome outcome = refold({"chat", kModel, "--context", "20", "-n", "2", "--quiet"},
                                   "A message that is longer than twenty tokens, surely\n");
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("the context holds 20"));
    expect_error(refold({"chat", kFixtures + "/llama_bf16_sharded/model.gguf"}, "x\n"), 1,
                 {"tokenizer", "llama_bf16_sharded"});
}

TEST(Logits, EqualTheReference) {
    const TempFolder folder;
    const json golden = json::parse(read_all(kFixtures + "/llama_gqa/golden.json"));
    const SafetensorsFile reference = read_safetensors(kFixtures + "/llama_gqa/golden.safetensors");
    std::string ids;
    for (const int id : golden["rows"][0]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    const json j = refold_json({"logits", kModel, "--tokens", ids, "--f32", "-o", folder / "l.safetensors"});
    EXPECT_EQ(j["tokens"], golden["rows"][0].size());
    const SafetensorsFile file = read_safetensors(folder / "l.safetensors");
    const SafetensorsView& ours = file.tensors.at("logits");
    const SafetensorsView& theirs = reference.tensors.at("logits.0");
    ASSERT_EQ(ours.shape, theirs.shape);
    ASSERT_EQ(ours.dtype, "F32");
    for (size_t at = 0; at < ours.data.size(); at += 4) {
        float a = 0, b = 0;
        memcpy(&a, ours.data.data() + at, 4);
        memcpy(&b, theirs.data.data() + at, 4);
        ASSERT_NEAR(a, b, 1e-3) << at / 4;
    }
    expect_error(refold({"logits", kModel, "--tokens", "1", "-o", folder / "l.safetensors"}), 2,
                 {"exists", "--overwrite"});
    expect_error(refold({"logits", kModel, "--tokens", "1,448", "-o", folder / "t"}), 1, {"448"});
    EXPECT_THAT(folder.files(), UnorderedElementsAre("l.safetensors"));
}

#ifdef REFOLD_HAVE_TORCH
TEST(Engines, GiveTheSame) {
    const TempFolder folder;
    std::vector<float> logits[2];
    double perplexity[2] = {};
    write_all(folder / "text", "The two engines read the same text and agree on what is likely to follow.\n");
    for (const int torch : {0, 1}) {
        const char* engine = torch == 1 ? "torch" : "ggml";
        const std::string out = folder / engine;
        refold_json({"logits", kModel, "--tokens", "1,5,6,7", "--f32", "--engine", engine, "-o", out});
        const SafetensorsFile file = read_safetensors(out);
        const auto data = file.tensors.at("logits").data;
        logits[torch].resize(data.size() / sizeof(float));
        memcpy(logits[torch].data(), data.data(), data.size());
        const json j =
            refold_json({"eval", "ppl", kModel, "--text", folder / "text", "--f32", "--engine", engine});
        EXPECT_EQ(j["engine"], engine);
        perplexity[torch] = j["perplexity"];
    }
    EXPECT_THAT(logits[1], testing::Pointwise(testing::FloatNear(1e-4F), logits[0]));
    EXPECT_NEAR(perplexity[1], perplexity[0], 1e-3 * perplexity[0]);
}
#else
TEST(Engines, TorchIsNotInThisBuild) {
    const TempFolder folder;
    expect_error(refold({"logits", kModel, "--tokens", "1", "--engine", "torch", "-o", folder / "t"}), 1,
                 {"no torch engine", "libtorch-dev", "REFOLD_TRAIN"});
    EXPECT_TRUE(folder.files().empty());
}
#endif

TEST(Tokenize, EncodesAndDecodes) {
    const json golden = json::parse(read_all(kFixtures + "/llama_gqa/tokenizer_golden.json"))["encodings"];
    for (size_t i = 0; i < 5; ++i) {
        const std::string text = golden[i]["text"];
        if (text.find('\0') != std::string::npos || text.empty()) continue;
        const json j = refold_json({"tokenize", kModel, "-"}, text);
        EXPECT_EQ(j["ids"], golden[i]["ids"]) << text;
        EXPECT_EQ(j["pieces"].size(), j["ids"].size());
        EXPECT_EQ(refold_json({"tokenize", kModel, "--special", "-"}, text)["ids"],
                  golden[i]["ids_with_special"]);
    }
    const TempFolder folder;
    write_all(folder / "t.txt", "Hello");
    const json hello = refold_json({"tokenize", kModel, "Hello"});
    EXPECT_EQ(refold_json({"tokenize", kModel, "--file", folder / "t.txt"}), hello);
    std::string ids;
    for (const int id : hello["ids"]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    EXPECT_EQ(refold({"tokenize", kModel, "--decode", ids}).out, "Hello\n");
    expect_error(refold({"tokenize", kModel, "--decode", "9999"}), 1, {"9999"});
}

TEST(Methods, AreDescribed) {
    const json all = refold_json({"methods"});
    ASSERT_FALSE(all["methods"].empty());
    expect_keys(all["methods"][0], {"name", "summary", "paper", "documentation", "options"});
    const json one = refold_json({"methods", "direct_share"});
    EXPECT_EQ(one["name"], "direct_share");
    expect_keys(one["options"][0], {"name", "type", "default", "allowed", "help"});
    EXPECT_THAT(refold({"methods", "direct_share"}).out, HasSubstr("ratio = "));
    EXPECT_THAT(refold({"methods"}).out, HasSubstr("direct_share"));
}

TEST(Compress, WritesModelAndRecipe) {
    const TempFolder folder;
    const json j = refold_json({"compress", kModel, "-o", folder / "a.gguf", "--method", "direct_share",
                                "--set", "ratio=0.3", "--set", "chain=root"});
    expect_keys(j, {"before", "after", "steps", "output", "recipe_file", "dry_run", "file_bytes"});
    EXPECT_EQ(j["before"]["parameters"], 176712);
    EXPECT_EQ(j["after"]["parameters"], 164424);
    EXPECT_EQ(j["steps"][0]["method"], "direct_share");
    EXPECT_THAT(folder.files(), UnorderedElementsAre("a.gguf", "a.recipe.yaml"));

    // The echo gives the same file again, the model included.
    const Outcome again = refold({"compress", "--recipe", folder / "a.recipe.yaml", "-o", folder / "b.gguf"});
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(read_all(folder / "a.gguf") == read_all(folder / "b.gguf"));
    EXPECT_THAT(again.err, HasSubstr("step 1: direct_share  ratio=0.3"));
    const std::string echo = read_all(folder / "a.recipe.yaml");
    EXPECT_EQ(
        refold({"compress", "--recipe", folder / "a.recipe.yaml", "-o", folder / "a.gguf", "--overwrite"})
            .code,
        0);
    EXPECT_EQ(read_all(folder / "a.recipe.yaml"), echo);
}

TEST(Compress, DryRunWritesNothing) {
    const TempFolder folder;
    const std::vector<std::string> words = {"compress", kModel,         "-o",       folder / "a.gguf",
                                            "--method", "direct_share", "--dry-run"};
    const Outcome text = refold(words);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("parameters stored"));
    const json j = refold_json(words);
    EXPECT_EQ(j["dry_run"], true);
    EXPECT_EQ(j["output"], nullptr);
    EXPECT_THAT(folder.files(), IsEmpty());
}

TEST(EvalPpl, ReportsTheProtocol) {
    const std::string text = kFixtures + "/README.md";
    const json j = refold_json({"eval", "ppl", kModel, "--text", text, "--context", "64", "--stride", "32",
                                "--max-windows", "3", "--f32"});
    expect_keys(j, {"perplexity", "standard_error", "mean_nll", "tokens_scored", "windows", "tokens_per_s"});
    EXPECT_EQ(j["context"], 64);
    EXPECT_EQ(j["stride"], 32);
    EXPECT_EQ(j["windows"], 3);
    EXPECT_EQ(j["tokens_scored"], 63 + 32 + 32);
    EXPECT_EQ(j["protocol"], "windows");
    EXPECT_NEAR(j["perplexity"].get<double>(), std::exp(j["mean_nll"].get<double>()), 1e-9);
    EXPECT_THAT(refold({"eval", "ppl", kModel, "--text", text, "--context", "64", "--max-windows", "1"}).out,
                HasSubstr("perplexity "));
}

TEST(Export, ComputesTheSameWithoutSharing) {
    const TempFolder folder;
    share(folder / "small.gguf");
    const json j =
        refold_json({"export", folder / "small.gguf", "--to", "gguf", "-o", folder / "dense.gguf"});
    EXPECT_EQ(j["parameters"], 176712);
    EXPECT_EQ(j["parameters_before"], 164424);
    EXPECT_FALSE(GgufFile::open(folder / "dense.gguf")->metadata().has("refold.topology"));
    std::vector<SafetensorsFile> files;
    for (const std::string name : {"small", "dense"}) {
        const Outcome outcome = refold({"logits", folder / (name + ".gguf"), "--tokens", "5,6,7", "--f32",
                                        "-o", folder / (name + ".st")});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        files.push_back(read_safetensors(folder / (name + ".st")));
    }
    const auto a = files[0].tensors.at("logits").data, b = files[1].tensors.at("logits").data;
    ASSERT_EQ(a.size(), b.size());
    for (size_t at = 0; at < a.size(); at += 4) {
        float x = 0, y = 0;
        memcpy(&x, a.data() + at, 4);
        memcpy(&y, b.data() + at, 4);
        ASSERT_NEAR(x, y, 1e-4);
    }
}

TEST(Bench, ComparesWithStock) {
    const TempFolder folder;
    share(folder / "small.gguf");
    ASSERT_EQ(mkdir((folder / "tmp").c_str(), 0700), 0);
    const std::vector<std::string> variables = {"TMPDIR=" + folder / "tmp"};
    for (const std::string& model : {kModel, folder / "small.gguf"}) {
        const json j = refold_json({"bench", model, "--prefill", "16", "--decode", "4", "--rounds", "2",
                                    "--threads", "1", "--quiet"},
                                   "", variables);
        expect_keys(j, {"prefill", "decode", "weight_bytes_resident", "weight_bytes_accounted", "kv_bytes",
                        "compute_bytes", "rss_bytes", "peak_rss_bytes", "load_seconds", "first_token_seconds",
                        "cpu", "threads"});
        for (const char* phase : {"prefill", "decode"}) {
            EXPECT_GT(j[phase]["tokens_per_s"].get<double>(), 0);
            EXPECT_GT(j[phase]["baseline_tokens_per_s"].get<double>(), 0);
            EXPECT_GT(j[phase]["ratio"].get<double>(), 0);
            EXPECT_EQ(j[phase]["rounds"].size(), 2U);
            EXPECT_EQ(j[phase]["baseline_rounds"].size(), 2U);
        }
        EXPECT_EQ(j["baseline"]["engine"], "llama.cpp");
        EXPECT_EQ(j["baseline"]["materialised"], model != kModel);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder / "tmp"));
}

TEST(Bench, OtherBaselines) {
    const std::vector<std::string> words = {"bench",    kModel, "--prefill", "8", "--decode",  "2",
                                            "--rounds", "1",    "--threads", "1", "--baseline"};
    std::vector<std::string> none = words, other = words, unknown = words;
    none.emplace_back("none");
    other.push_back(kModel);
    unknown.emplace_back("/no/such.gguf");
    const json without = refold_json(none);
    EXPECT_EQ(without["baseline"], nullptr);
    EXPECT_EQ(without["decode"]["ratio"], nullptr);
    EXPECT_EQ(refold_json(other)["baseline"]["engine"], "refold");
    EXPECT_THAT(refold(none).out, HasSubstr("baseline: none"));
    EXPECT_THAT(refold(other).out, HasSubstr("baseline: refold on"));
    std::vector<std::string> stock_text = words;
    stock_text.emplace_back("stock");
    EXPECT_THAT(refold(stock_text).out, HasSubstr("baseline: llama.cpp on"));
    expect_error(refold(unknown), 1, {"/no/such.gguf"});
    // libllama refuses a file without a tokenizer, this engine does not need one.
    const json stock = refold_json({"bench", kFixtures + "/llama_bf16_sharded/model.gguf", "--prefill", "8",
                                    "--decode", "2", "--rounds", "1", "--threads", "1"});
    EXPECT_TRUE(stock["baseline"].is_object() || stock["baseline_reason"].is_string());
}

// ---- wrong input ----

std::vector<std::vector<std::string>> reading(const std::string& model, const TempFolder& folder) {
    const std::string out = folder / "out";
    return {{"inspect", model},
            {"run", model, "-p", "x"},
            {"chat", model},
            {"logits", model, "--tokens", "1", "-o", out},
            {"tokenize", model, "x"},
            {"compress", model, "--method", "direct_share", "-o", out},
            {"eval", "ppl", model, "--text", kFixtures + "/README.md"},
            {"bench", model},
            {"export", model, "-o", out}};
}

TEST(BadInput, MissingFile) {
    const TempFolder folder;
    for (const auto& words : reading(folder / "missing.gguf", folder))
        expect_error(refold(words), 1, {"missing.gguf"});
    for (const auto& words : reading("nonsense", folder))
        expect_error(refold(words), 2, {"'nonsense'", "smollm2-135m-instruct"});
    EXPECT_THAT(folder.files(), IsEmpty());
}

TEST(BadInput, NotGguf) {
    const TempFolder folder;
    for (const auto& words : reading(kFixtures + "/README.md", folder))
        expect_error(refold(words), 1, {"README.md"});
    for (const auto& words : reading(kFixtures, folder)) expect_error(refold(words), 1, {kFixtures});
    EXPECT_THAT(folder.files(), IsEmpty());
}

TEST(BadInput, TruncatedGguf) {
    const TempFolder folder;
    const std::string whole = read_all(kModel);
    for (size_t part = 0; part < 20; ++part) {
        write_all(folder / "cut.gguf", whole.substr(0, whole.size() * part / 20));
        expect_error(refold({"inspect", folder / "cut.gguf"}), 1, {"cut.gguf"});
        expect_error(refold({"compress", folder / "cut.gguf", "--method", "direct_share", "-o",
                             folder / "out.gguf", "--quiet"}),
                     1, {"cut.gguf"});
        expect_error(refold({"run", folder / "cut.gguf", "-p", "x"}), 1, {"cut.gguf"});
    }
    EXPECT_THAT(folder.files(), UnorderedElementsAre("cut.gguf"));
}

TEST(BadInput, UnsupportedArchitecture) {
    const TempFolder folder;
    write_all(folder / "other.gguf", patched(read_all(kModel), "general.architecture", "llama", "lamas"));
    expect_error(refold({"inspect", folder / "other.gguf"}), 1, {"'lamas'", "other.gguf", "llama"});
    expect_error(refold({"run", folder / "other.gguf", "-p", "x"}), 1, {"'lamas'"});
}

TEST(BadInput, WrongTopology) {
    const TempFolder folder;
    share(folder / "good.gguf");
    const std::string good = read_all(folder / "good.gguf");
    write_all(folder / "dangling.gguf", patched(good, "refold.topology", "blk.0.attn_q", "blk.9.attn_q"));
    expect_error(refold({"inspect", folder / "dangling.gguf"}), 1,
                 {"position 3 attn.q", "blk.9.attn_q.weight", "dangling.gguf"});
    write_all(folder / "version.gguf", patched(good, "refold.topology", "\"version\":1", "\"version\":7"));
    expect_error(refold({"inspect", folder / "version.gguf"}), 1, {"version", "7", "version.gguf"});
    write_all(folder / "field.gguf", patched(good, "refold.topology", "\"attn.q\"", "\"attn.x\""));
    expect_error(refold({"inspect", folder / "field.gguf"}), 1, {"attn.x", "field.gguf"});
}

TEST(BadInput, WrongRecipe) {
    const TempFolder folder;
    const auto with = [&](const std::string& recipe) {
        write_all(folder / "r.yaml", recipe);
        return refold({"compress", kModel, "-o", folder / "out.gguf", "--recipe", folder / "r.yaml"});
    };
    expect_error(with("steps:\n  - method: direct_shar\n"), 2,
                 {"r.yaml line 2", "did you mean 'direct_share'?"});
    expect_error(with("steps:\n  - method: direct_share\n    ration: 0.1\n"), 2,
                 {"r.yaml line 3", "'ratio'"});
    expect_error(with("steps:\n  - method: direct_share\n    ratio: 1.5\n"), 2, {"ratio", "1.5"});
    expect_error(with("stepps:\n  - method: direct_share\n"), 2, {"stepps", "'steps'"});
    expect_error(with("steps: []\n"), 1, {"r.yaml"});
    expect_error(with(""), 1, {"r.yaml"});
    const std::vector<std::string> words = {"compress", kModel, "-o", folder / "out.gguf"};
    const auto method = [&](std::vector<std::string> more) {
        more.insert(more.begin(), words.begin(), words.end());
        return refold(more);
    };
    expect_error(method({}), 2, {"--recipe", "--method"});
    expect_error(method({"--method", "direct"}), 2, {"direct_share"});
    expect_error(method({"--method", "direct_share", "--set", "ratio"}), 2, {"--set", "option=value"});
    expect_error(method({"--method", "direct_share", "--set", "ratio=lots"}), 2, {"ratio", "lots"});
    expect_error(method({"--method", "direct_share", "--set", "shares=qkv"}), 2, {"did you mean 'share'?"});
    expect_error(method({"--set", "ratio=0.1"}), 2, {"--set", "--method"});
    expect_error(refold({"compress", "-o", folder / "out.gguf", "--method", "direct_share"}), 2, {"MODEL"});
    expect_error(refold({"compress", kModel, "--method", "direct_share"}), 2, {"--output"});
    EXPECT_THAT(folder.files(), UnorderedElementsAre("r.yaml"));
}

TEST(BadInput, OutputCannotBeWritten) {
    const TempFolder folder;
    const auto to = [&](const std::string& output) {
        return refold({"compress", kModel, "--method", "direct_share", "-o", output});
    };
    // Refused before the work begins.
    for (const std::string& output : {folder / "no/such/out.gguf", std::string("/proc/out.gguf")}) {
        const Outcome outcome = to(output);
        expect_error(outcome, 1, {output});
        EXPECT_THAT(outcome.err, Not(HasSubstr("step 1")));
    }
    expect_error(refold({"compress", kModel, "--method", "direct_share", "-o", folder / ".", "--overwrite"}),
                 1, {"directory"});
    write_all(folder / "old.gguf", "old");
    expect_error(to(folder / "old.gguf"), 2, {"old.gguf", "--overwrite"});
    EXPECT_EQ(read_all(folder / "old.gguf"), "old");
    write_all(folder / "in.gguf", read_all(kModel));
    for (const char* verb : {"compress", "export"}) {
        std::vector<std::string> words = {verb, folder / "in.gguf", "-o", folder / "./in.gguf",
                                          "--overwrite"};
        if (std::string(verb) == "compress") words.insert(words.end(), {"--method", "direct_share"});
        expect_error(refold(words), 2, {"is the input file"});
    }
    EXPECT_TRUE(read_all(folder / "in.gguf") == read_all(kModel));
    EXPECT_THAT(folder.files(), UnorderedElementsAre("old.gguf", "in.gguf"));
}

TEST(BadInput, DiskFull) {
    const TempFolder folder;
    const std::string out = folder / "out.gguf", binary = REFOLD_BINARY;
    for (const std::string& command :
         {" compress " + kModel + " --method direct_share -o " + out, " export " + kModel + " -o " + out}) {
        const Outcome outcome = shell("ulimit -f 200; exec " + binary + command);
        EXPECT_EQ(outcome.code, 1) << outcome.signal;
        EXPECT_THAT(outcome.err, HasSubstr(out));
        EXPECT_THAT(outcome.err, HasSubstr("File too large"));
        EXPECT_THAT(folder.files(), IsEmpty());
    }
    // Neither output can be written: an error, not a crash.
    EXPECT_EQ(shell("exec " + binary + " run " + kModel + " -p x >&- 2>&-").code, 1);
    const Outcome full = shell("exec " + binary + " run " + kModel + " -p x > /dev/full");
    EXPECT_EQ(full.code, 1);
    EXPECT_THAT(full.err, HasSubstr("standard output"));
}

TEST(BadInput, PromptLongerThanTheContext) {
    const size_t count = refold_json({"tokenize", kModel, "--special", "one two three four"})["ids"].size();
    ASSERT_GT(count, 4U);
    expect_error(refold({"run", kModel, "-p", "one two three four", "--context", "4"}), 1,
                 {std::to_string(count) + " tokens", "holds 4", "--context"});
}

TEST(BadInput, EmptyOrForeignText) {
    const TempFolder folder;
    write_all(folder / "empty.txt", "");
    write_all(folder / "latin1.txt", "caf\xE9");
    for (const auto& [name, reason] : {std::pair{"empty.txt", "empty"}, std::pair{"latin1.txt", "offset 3"},
                                       std::pair{"missing.txt", "missing.txt"}}) {
        const std::string file = folder / name;
        for (const auto& words : std::vector<std::vector<std::string>>{
                 {"eval", "ppl", kModel, "--text", file},
                 {"run", kModel, "-f", file},
                 {"tokenize", kModel, "--file", file},
                 {"logits", kModel, "--text-file", file, "-o", folder / "o"}}) {
            expect_error(refold(words), 1, {file, reason});
        }
    }
    expect_error(refold({"run", kModel, "-p", "caf\xE9"}), 1, {"--prompt", "offset 3"});
    expect_error(refold({"tokenize", kModel, "caf\xE9"}), 1, {"TEXT", "offset 3"});
    expect_error(refold({"tokenize", kModel, "-"}, ""), 1, {"standard input is empty"});
    expect_error(refold({"chat", kModel, "--quiet"}, "caf\xE9\n"), 1, {"the message", "offset 3"});
}

// ---- Ctrl-C ----

std::vector<std::string> compress_words(const std::string& output) {
    return {REFOLD_BINARY, "compress",  kModel, "--method", "direct_share",
            "--set",       "ratio=0.3", "-o",   output};
}

TEST(Interrupt, LeavesAllOrNothing) {
    for (int milliseconds = 0; milliseconds < 30; ++milliseconds) {
        const TempFolder folder;
        Process process(compress_words(folder / "out.gguf"));
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        process.send(SIGINT);
        const Outcome outcome = process.wait();
        if (outcome.code == 0) {
            EXPECT_THAT(folder.files(), UnorderedElementsAre("out.gguf", "out.recipe.yaml"));
        } else {
            // A signal that comes before the program has begun ends it as it ends any other.
            EXPECT_TRUE(outcome.code == 130 || outcome.signal == SIGINT) << outcome.err;
            EXPECT_THAT(folder.files(), IsEmpty());
        }
    }
}

// The recipe comes from a pipe, so that the signal certainly arrives while the program works.
TEST(Interrupt, StopsWithItsOwnExitCode) {
    const TempFolder folder;
    const std::string pipe = folder / "recipe";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    Process process({REFOLD_BINARY, "compress", kModel, "--recipe", pipe, "-o", folder / "out.gguf"});
    {
        std::ofstream recipe(pipe);  // waits for the reader
        process.send(SIGINT);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        recipe << "steps:\n  - method: direct_share\n";
    }
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.code, 130);
    EXPECT_THAT(outcome.err, HasSubstr("stopped by Ctrl-C"));
    EXPECT_THAT(folder.files(), UnorderedElementsAre("recipe"));
}

}  // namespace
}  // namespace refold
