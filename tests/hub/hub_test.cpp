// Which files are downloaded, and where they are stored.
#include "hub/hub.h"

#include <sys/stat.h>

#include "hub/hub_fixture.h"
#include "hub/resolve.h"
#include "io/catalogue.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

std::string spec_text(const std::string& text) {
    const auto spec = parse_hub_spec(text);
    return spec ? spec->repo + " " + spec->revision + " " + spec->file_or_quant : "none";
}

TEST(HubSpec, IsRepositoryRevisionAndFile) {
    EXPECT_EQ(spec_text("org/name"), "org/name main ");
    EXPECT_EQ(spec_text("org/na.me-1_b@v1.0"), "org/na.me-1_b v1.0 ");
    EXPECT_EQ(spec_text("org/name:Q4_K_M"), "org/name main Q4_K_M");
    EXPECT_EQ(spec_text("org/name@refs/pr/1:a/b@c.gguf"), "org/name refs/pr/1 a/b@c.gguf");
}

TEST(HubSpec, AnythingElseIsNone) {
    for (const char* text : {"",
                             "name",
                             "/name",
                             "org/",
                             "a/b/c",
                             "./name",
                             "../name",
                             "~/name",
                             "org/..",
                             "org/a..b",
                             "org/a--b",
                             "-org/name",
                             "org/name.",
                             "org/na me",
                             "org/name@",
                             "org/name:",
                             "org/name@../x",
                             "org/name@/x",
                             "org/name:../x.gguf",
                             "org/name:/x.gguf",
                             "org/name@a//b",
                             "org/name@a\nb",
                             "org\\name/x"}) {
        EXPECT_EQ(spec_text(text), "none") << text;
    }
}

TEST(HubCache, IsWhereThePythonLibraryHasIt) {
    const Environment own("HF_HUB_CACHE", "/1"), old("HUGGINGFACE_HUB_CACHE", "/2"), home("HF_HOME", "/3"),
        xdg("XDG_CACHE_HOME", "/4"), user("HOME", "/5");
    EXPECT_EQ(hub_cache(), "/1");
    const Environment no_own("HF_HUB_CACHE", "");
    EXPECT_EQ(hub_cache(), "/2");
    const Environment no_old("HUGGINGFACE_HUB_CACHE", "");
    EXPECT_EQ(hub_cache(), "/3/hub");
    const Environment in_home("HF_HOME", "~/x");
    EXPECT_EQ(hub_cache(), "/5/x/hub");
    const Environment no_home("HF_HOME", "");
    EXPECT_EQ(hub_cache(), "/4/huggingface/hub");
    const Environment no_xdg("XDG_CACHE_HOME", "");
    EXPECT_EQ(hub_cache(), "/5/.cache/huggingface/hub");
}

TEST_F(Hub, LayoutIsThatOfThePythonLibrary) {
    server_.files = {{"config.json", {"hello\n", false}}, {"model.safetensors", {"weights", true}}};
    server_.files["additional_chat_templates/x.jinja"] = {"x", false};
    const HubModel model = pull();
    EXPECT_EQ(model.path, snapshot());
    EXPECT_EQ(model.commit, HubServer::kCommit);
    EXPECT_EQ(model.files, 3U);
    EXPECT_EQ(model.bytes, 14U);
    std::vector<std::string> tree;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache")) {
        if (entry.is_directory() && !entry.is_symlink()) continue;
        std::string line = entry.path().lexically_relative(folder_ / "cache").string();
        if (entry.is_symlink()) line += " -> " + fs::read_symlink(entry.path()).string();
        tree.push_back(line);
    }
    std::ranges::sort(tree);
    // Blob names are the output of `git hash-object` and `sha256sum`.
    const std::string hello = "ce013625030ba8dba906f756967f9e9ca394464a";
    const std::string weights = hex_digest(EVP_sha256(), "weights");
    const std::string m = "models--org--name/", s = m + "snapshots/0123456789abcdef0123456789abcdef01234567/";
    EXPECT_THAT(tree,
                testing::UnorderedElementsAre(
                    ".locks/" + m + hello + ".lock", ".locks/" + m + git_sha1("x") + ".lock",
                    ".locks/" + m + weights + ".lock", m + "blobs/" + hello, m + "blobs/" + git_sha1("x"),
                    m + "blobs/" + weights, m + "refs/main", s + "config.json -> ../../blobs/" + hello,
                    s + "model.safetensors -> ../../blobs/" + weights,
                    s + "additional_chat_templates/x.jinja -> ../../../blobs/" + git_sha1("x")));
    EXPECT_EQ(read_all(cached("refs/main")), HubServer::kCommit);
    EXPECT_EQ(read_all(snapshot("model.safetensors")), "weights");
    EXPECT_EQ(fs::status(folder_ / ("cache/.locks/" + m + hello + ".lock")).permissions(), fs::perms(0664));
}

TEST_F(Hub, FetchesWhatTheModelNeedsOnce) {
    server_.files = sharded_repo();
    EXPECT_EQ(pull().files, 8U);
    for (const auto& [path, file] : server_.files) {
        const bool needed = path != "README.md" && path != "LICENSE" && path != "consolidated.safetensors" &&
                            path != "pytorch_model.bin" && path != "onnx/model.safetensors";
        EXPECT_EQ(fs::exists(snapshot(path)), needed) << path;
        EXPECT_EQ(needed ? read_all(snapshot(path)) : file.content, file.content) << path;
    }
    EXPECT_FALSE(has_incomplete());
    const size_t asked = server_.requests().size();
    EXPECT_EQ(asked, 9U);
    EXPECT_EQ(pull().path, snapshot());
    EXPECT_EQ(server_.requests().size(), asked + 1) << "only the listing is asked for again";
}

TEST_F(Hub, ModulesOfSentenceTransformersComeWithTheModel) {
    server_.files = {{"config.json", {"{}", false}},           {"pytorch_model.bin", {"weights", true}},
                     {"modules.json", {"[]", false}},          {"sentence_bert_config.json", {"{}", false}},
                     {"1_Pooling/config.json", {"{}", false}}, {"2_Dense/pytorch_model.bin", {"dense", true}},
                     {"2_Dense/README.md", {"no", false}},     {"onnx/config.json", {"no", false}}};
    EXPECT_EQ(pull().files, 6U);
    for (const auto& [path, file] : server_.files)
        EXPECT_EQ(fs::exists(snapshot(path)), file.content != "no") << path;
}

TEST_F(Hub, RevisionsAreKept) {
    server_.files = sharded_repo();
    server_.revisions["refs/pr/1"] = HubServer::kCommit;
    EXPECT_EQ(pull("org/name@refs/pr/1").path, snapshot());
    EXPECT_EQ(read_all(cached("refs/refs/pr/1")), HubServer::kCommit);
    EXPECT_FALSE(fs::exists(cached("refs/main")));
    EXPECT_EQ(pull(std::string("org/name@") + HubServer::kCommit).path, snapshot());
    EXPECT_TRUE(find_cached({.repo = "org/name", .revision = HubServer::kCommit}));
    EXPECT_FALSE(find_cached({.repo = "org/name", .revision = "main"}));
}

TEST_F(Hub, OneGgufFileIsTheModel) {
    server_.files = gguf_repo();
    EXPECT_EQ(pull("org/name:Q4_K_M").path, snapshot("name-Q4_K_M.gguf"));
    EXPECT_EQ(pull("org/name:q4_k_s").path, snapshot("name-Q4_K_S.gguf"));
    const HubModel parts = pull("org/name:Q8_0");
    EXPECT_EQ(parts.path, snapshot("Q8_0/name-Q8_0-00001-of-00002.gguf"));
    EXPECT_EQ(parts.files, 2U);
    EXPECT_EQ(read_all(snapshot("Q8_0/name-Q8_0-00002-of-00002.gguf")), "GGUF two");
    EXPECT_EQ(pull("org/name:mmproj-Q4_K_M.gguf").path, snapshot("mmproj-Q4_K_M.gguf"));
    EXPECT_FALSE(fs::exists(snapshot("config.json")));

    EXPECT_EQ(pull_error(), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("3 GGUF files match"));
    EXPECT_THAT(text_, HasSubstr("\n  name-Q4_K_S.gguf"));
    EXPECT_EQ(pull_error("org/name:Q4_K"), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("no GGUF file matches 'Q4_K'; it has\n"));
    EXPECT_THAT(text_, HasSubstr("Q8_0/name-Q8_0.gguf"));

    server_.files = {{"name.gguf", {"GGUF", true}}, {"README.md", {"", false}}};
    EXPECT_EQ(pull().path, snapshot("name.gguf"));
}

TEST_F(Hub, PytorchFilesWhereThereIsNothingBetter) {
    server_.files = {
        {"config.json", {"{}", false}}, {"pytorch_model.bin", {"x", true}}, {"README.md", {"", false}}};
    EXPECT_EQ(pull().path, snapshot());
    EXPECT_TRUE(fs::exists(snapshot("pytorch_model.bin")));
    EXPECT_FALSE(fs::exists(snapshot("README.md")));
}

TEST_F(Hub, PytorchShardsComeWithTheirIndex) {
    server_.files = {{"config.json", {"{}", false}},
                     {"pytorch_model.bin.index.json",
                      {R"({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}})", false}},
                     {"pytorch_model-00001-of-00001.bin", {"x", true}}};
    EXPECT_EQ(pull().files, 3U);
    EXPECT_TRUE(fs::exists(snapshot("pytorch_model-00001-of-00001.bin")));
}

TEST_F(Hub, RepositoryWithoutAModelIsAnError) {
    server_.files = {{"config.json", {"{}", false}}, {"flax_model.msgpack", {"x", true}}};
    EXPECT_EQ(pull_error(), ErrorCode::unsupported);
    EXPECT_THAT(text_, HasSubstr("neither safetensors, pytorch_model.bin nor GGUF"));
    server_.files = sharded_repo();
    server_.files.erase("parts/model-00002-of-00002.safetensors");
    EXPECT_EQ(pull_error(), ErrorCode::unsupported);
    EXPECT_THAT(text_, HasSubstr("'parts/model-00002-of-00002.safetensors' is missing"));
    EXPECT_FALSE(fs::exists(snapshot()));
}

TEST_F(Hub, HostileAnswersAreRefused) {
    for (const char* path :
         {"../x.gguf", "/x.gguf", "a/../x.gguf", "a//x.gguf", "./x.gguf", "a\nb.gguf", ""}) {
        server_.files = {{path, {"x", true}}};
        EXPECT_EQ(pull_error(), ErrorCode::input) << path;
        EXPECT_THAT(text_, HasSubstr("not a path inside"));
    }
    const std::string deep(1'000'000, '[');
    for (const char* body : {"", "[]", "null", "{", deep.c_str(), "<html>",
                             R"({"sha": "main", "siblings": []})", R"({"sha": 1, "siblings": []})",
                             R"({"sha": "../../../../../../../../../../../../x01", "siblings": []})",
                             R"({"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": {}})"}) {
        misbehave("/main", 1, {.body = body});
        EXPECT_EQ(pull_error(), ErrorCode::input) << body;
        EXPECT_THAT(text_, HasSubstr("not a hub's listing"));
    }
    server_.hook = {};
    for (const char* index : {R"({"weight_map": {"a": "../../../x"}})", R"({"weight_map": {"a": 1}})",
                              R"({"weight_map": []})", "[1]", "not json"}) {
        server_.files = sharded_repo();
        server_.files["model.safetensors.index.json"].content = index;
        EXPECT_EQ(pull_error(), ErrorCode::input) << index;
    }
    server_.files = sharded_repo();
    server_.describes = false;
    misbehave("/config.json", 99, {.headers = {{"ETag", "\"../../../x\""}}, .body = "{}"});
    EXPECT_EQ(pull_error(), ErrorCode::input);
    EXPECT_THAT(text_, HasSubstr("expected an etag"));
    EXPECT_FALSE(fs::exists(cached("snapshots")));
}

TEST_F(Hub, OfflineUsesTheCacheAlone) {
    server_.files = sharded_repo();
    const Environment offline("HF_HUB_OFFLINE", "1");
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("HF_HUB_OFFLINE"));
    EXPECT_THAT(server_.requests(), IsEmpty());
    {
        const Environment online("HF_HUB_OFFLINE", "0");
        pull();
    }
    const size_t asked = server_.requests().size();
    const HubModel model = pull();
    EXPECT_EQ(model.path, snapshot());
    EXPECT_EQ(model.files, 8U);
    EXPECT_EQ(server_.requests().size(), asked);
}

TEST_F(Hub, IncompleteSnapshotIsNotFound) {
    server_.files = sharded_repo();
    pull();
    const HubSpec spec{.repo = "org/name"};
    EXPECT_EQ(find_cached(spec)->path, snapshot());
    for (const char* path : {"config.json", "model.safetensors.index.json", kShard}) {
        fs::rename(blob(path), folder_ / "aside");
        EXPECT_FALSE(find_cached(spec)) << path;
        fs::rename(folder_ / "aside", blob(path));
    }
    EXPECT_TRUE(find_cached(spec));
    write_all(cached("refs/main"), std::string("../snapshots/") + HubServer::kCommit);
    EXPECT_FALSE(find_cached(spec));
}

TEST_F(Hub, ResolvesModelArguments) {
    EXPECT_EQ(error([] { resolve_model("org/name:Q4_K_M"); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("`refold pull org/name:Q4_K_M`"));
    server_.files = gguf_repo();
    pull("org/name:Q4_K_M");
    EXPECT_EQ(resolve_model("org/name:Q4_K_M"), snapshot("name-Q4_K_M.gguf"));
    EXPECT_EQ(resolve_model("org/name:name-Q4_K_M.gguf"), snapshot("name-Q4_K_M.gguf"));
    EXPECT_EQ(resolve_model("org/name"), snapshot("name-Q4_K_M.gguf")) << "the only one that is there";
    pull("org/name:Q4_K_S");
    EXPECT_EQ(error([] { resolve_model("org/name"); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("2 GGUF files match"));
}

TEST_F(Hub, ResolvesPathsAndCatalogueNames) {
    const Environment cache("REFOLD_CACHE", folder_ / "refold");
    const auto& entry = catalogue().front();
    const std::string name = entry.name;
    write_all(folder_ / "model.gguf", "x");
    EXPECT_EQ(resolve_model(folder_ / "model.gguf"), folder_ / "model.gguf");
    fs::create_directory(folder_ / "directory");
    EXPECT_EQ(resolve_model(folder_ / "directory"), folder_ / "directory");

    EXPECT_EQ(error([&] { resolve_model(name); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("refold pull " + name));
    EXPECT_EQ(error([&] { resolve_model(name + "x"); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("did you mean '" + name));
    EXPECT_EQ(error([] { resolve_model(""); }), ErrorCode::usage);
    for (const char* path :
         {"./missing", "/missing/model", "missing.gguf", "models/missing.gguf", "a/b/c", "a/", "~/model"}) {
        EXPECT_EQ(error([&] { resolve_model(path); }), ErrorCode::io) << path;
        EXPECT_THAT(text_, HasSubstr("does not exist"));
    }
    fs::create_directories(fs::path(pulled_path(entry)).parent_path());
    write_all(pulled_path(entry), "");
    fs::resize_file(pulled_path(entry), entry.bytes);
    EXPECT_EQ(resolve_model(name), pulled_path(entry));
}

TEST_F(Hub, FullDiskIsSaid) {
    server_.files = sharded_repo();
    auto listing = server_.listing();
    for (auto& entry : listing["siblings"]) {
        if (entry["rfilename"] == kShard) entry["lfs"]["size"] = uint64_t{1} << 60;
    }
    misbehave("/main", 1, {.body = listing.dump()});
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("are needed"));
    EXPECT_FALSE(fs::exists(blob(kShard) + ".incomplete"));
}

// The names of a download follow from the model's files, so anybody who may write to the cache can put
// something there.
TEST_F(Hub, WhatHasTheNameOfADownloadIsNotWrittenTo) {
    server_.files = sharded_repo();
    const std::string name = blob(kShard) + ".incomplete";
    fs::create_directories(cached("blobs"));
    write_all(folder_ / "precious", "mine");
    fs::create_symlink(folder_ / "precious", name);
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("'" + name + "' is no file of its own"));
    fs::remove(name);
    fs::create_hard_link(folder_ / "precious", name);
    EXPECT_EQ(pull_error(), ErrorCode::io);
    fs::remove(name);
    ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
    EXPECT_EQ(pull_error(), ErrorCode::io);
    fs::remove(name);
    EXPECT_EQ(read_all(folder_ / "precious"), "mine");
    EXPECT_EQ(pull().files, 8U);
}

TEST_F(Hub, FilesOfOthersStayInTheCache) {
    server_.files = sharded_repo();
    fs::create_directories(snapshot());
    write_all(snapshot("thesis.txt"), "mine");
    write_all(snapshot("config.json"), "mine");
    fs::create_symlink("nowhere", snapshot("tokenizer.json"));
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("config.json' is not a link into the cache"));
    EXPECT_EQ(read_all(snapshot("config.json")), "mine");
    // As tools for file systems without links leave it.
    write_all(snapshot("config.json"), server_.files["config.json"].content);
    EXPECT_EQ(pull().files, 8U);
    EXPECT_FALSE(fs::is_symlink(snapshot("config.json")));
    EXPECT_EQ(read_all(snapshot("tokenizer.json")), server_.files["tokenizer.json"].content);
    EXPECT_EQ(read_all(snapshot("thesis.txt")), "mine");
}

TEST_F(Hub, CacheThatCannotBeWrittenIsAnError) {
    server_.files = sharded_repo();
    write_all(folder_ / "file", "x");
    const Environment cache("HF_HUB_CACHE", folder_ / "file");
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("HF_HUB_CACHE"));
}

}  // namespace
}  // namespace refold
