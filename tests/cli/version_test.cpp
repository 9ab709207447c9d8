// refold version.
#include "cli/refold.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(Version, NamesTheLevelsOfThisCpu) {
    const auto shown = refold_json({"version"});
    expect_keys(shown, {"version", "torch", "cpu"});
    const auto levels = shown["cpu"]["levels"].get<std::vector<std::string>>();
    ASSERT_FALSE(levels.empty());
    EXPECT_EQ(shown["cpu"]["level"], levels.front());
    EXPECT_THAT(refold({"version"}).out, HasSubstr(levels.front()));
}

}  // namespace
}  // namespace refold
