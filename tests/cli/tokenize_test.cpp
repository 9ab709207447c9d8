// refold tokenize.
#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;

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

}  // namespace
}  // namespace refold
