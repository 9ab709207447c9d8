// Verbs with --device, on devices that every machine has, and modules that cannot be loaded.
#include "cli/serving.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

TEST(Devices, VerbsGiveTheSameThere) {
    TempFolder folder;
    const std::string text = folder / "text";
    write_all(text, std::string(300, 'a') + " The quick brown fox jumps over the lazy dog. Once upon a time");
    const auto on = [](std::vector<std::string> words, const std::string& device) {
        words.insert(words.end(), {"--threads", "1", "--f32", "--device", device});
        return refold_json(words);
    };
    const std::vector<std::string> eval = {"eval", "ppl", kModel, "--text", text, "--context", "64"},
                                   run = {"run", kModel, "-p", "Once upon", "-n", "12"};
    EXPECT_NEAR(on(eval, "cpu-plain")["perplexity"], on(eval, "cpu")["perplexity"].get<double>(), 1e-2);
    const json here = on(run, "cpu");
    EXPECT_EQ(on(run, "cpu-plain")["text"], here["text"]);

    Serving serving({"--f32", "--device", "cpu-plain"});
    const json body = {{"prompt", "Once upon"}, {"max_tokens", 12}, {"temperature", 0}};
    const HttpReply reply = serving.client().post("/v1/completions", body.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["text"], here["text"]);
    EXPECT_EQ(serving.stop().code, 0);
}

TEST(Devices, ModulesThatCannotBeLoaded) {
    TempFolder folder;
    std::filesystem::copy_file(REFOLD_OLD_MODULE, folder / "libggml-vulkan.so");
    write_all(folder / "libggml-cuda.so", "no library");
    const std::vector<std::string> modules = {"REFOLD_GGML_MODULES=" + folder / ""};
    const Outcome listed = refold({"devices"}, "", modules);
    EXPECT_EQ(listed.code, 0) << listed.err;
    EXPECT_THAT(listed.out, HasSubstr("incompatible API version (backend: 1, current: "));
    EXPECT_THAT(listed.out, HasSubstr("no device from " + (folder / "libggml-cuda.so")));
    expect_error(
        refold({"run", kModel, "-p", "a", "--device", "vulkan0"}, "", modules), 2,
        {"there is no 'vulkan0' here", "no device from ", "libggml-vulkan.so", "incompatible API version"});
    expect_error(refold({"run", kModel, "-p", "a", "--device", ""}), 2, {"--device", "got no name"});
}

}  // namespace
}  // namespace refold
