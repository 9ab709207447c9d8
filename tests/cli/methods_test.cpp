// refold methods.
#include "cli/refold.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

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

}  // namespace
}  // namespace refold
