#include "io/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"

namespace refold {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
    return error_of([&] { parse_yaml(text, "part", "x.yaml"); });
}

TEST(Yaml, AliasesStandForValues) {
    const YAML::Node node = parse_yaml("a: &x [1, 2]\nb: *x\nc: [*x, *x]\n", "part", "x.yaml");
    EXPECT_EQ(node["c"][1][0].as<int>(), 1);
}

TEST(Yaml, Bounds) {
    EXPECT_NO_THROW(parse_yaml(std::string(64, '[') + std::string(64, ']'), "part", "x.yaml"));
    EXPECT_THAT(refusal(std::string(65, '[') + std::string(65, ']')), HasSubstr("nested too deep"));
    EXPECT_THAT(refusal(std::string(1'000'000, '[')), HasSubstr("nested too deep"));
    std::string maps;
    for (int i = 0; i < 100; ++i) maps += std::string(static_cast<size_t>(i), ' ') + "a:\n";
    EXPECT_THAT(refusal(maps), HasSubstr("nested too deep"));
    std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 12; ++i) {
        laughs += fmt::format("a{0}: &a{0} [", i);
        for (int k = 0; k < 10; ++k) laughs += fmt::format("*a{},", i - 1);
        laughs.back() = ']';
        laughs += "\n";
    }
    EXPECT_THAT(refusal(laughs), HasSubstr("aliases written out"));
    EXPECT_THAT(refusal("a: &a [1, *a]\n"), HasSubstr("within what it stands for"));
    EXPECT_THAT(refusal(std::string((16 << 20) + 1, ' ')), HasSubstr("expected at most 16.0 MiB"));
}

}  // namespace
}  // namespace refold
