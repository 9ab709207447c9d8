#include "exit/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(ExitTrajectory, IsReadBack) {
    const ExitTrajectory trajectory{3, {{"rule", "oracle"}}, {{1, 3, 2}, {}, {3}}};
    const std::string text = to_json_lines(trajectory);
    EXPECT_EQ(text,
              "{\"format\":\"refold exits\",\"version\":1,\"loops\":3,\"rule\":\"oracle\"}\n"
              "{\"exits\":[1,3,2]}\n{\"exits\":[]}\n{\"exits\":[3]}\n");
    const ExitTrajectory back = parse_exit_trajectory(text, "x");
    EXPECT_EQ(back.loops, 3);
    EXPECT_EQ(back.about, trajectory.about);
    EXPECT_EQ(back.sequences, trajectory.sequences);
}

TEST(ExitTrajectory, OtherFilesAreRefused) {
    const auto refused = [](const std::string& text, const char* part) {
        EXPECT_THAT(error_of([&] { parse_exit_trajectory(text, "x.jsonl"); }),
                    testing::AllOf(HasSubstr("'x.jsonl'"), HasSubstr(part)));
    };
    const std::string header = R"({"format":"refold exits","version":1,"loops":3})";
    refused("", "is empty");
    refused("\n\n", "is empty");
    refused("exits\n", "line 1: no valid JSON");
    refused("[1]\n", "line 1: got array");
    refused("{\"exits\":[1]}\n", "expected \"format\": \"refold exits\"");
    refused(R"({"format":"refold exits","version":2,"loops":3})", "version 2");
    refused(R"({"format":"refold exits","version":1,"loops":0})", "\"loops\" is 0");
    refused(R"({"format":"refold exits","version":1,"loops":-1})", "\"loops\" is -1");
    refused(R"({"format":"refold exits","version":1,"loops":99999999999999})", "expected 1 to 1000");
    refused(R"({"format":"refold exits","version":1})", "\"loops\" is null");
    refused(header + "\n{\"exit\":[1]}\n", "line 2: no list \"exits\"");
    refused(header + "\n{\"exits\":[1,4]}\n", "line 2: an exit after loop 4, expected 1 to 3");
    refused(header + "\n\n{\"exits\":[0]}\n", "line 3: an exit after loop 0");
    refused(header + "\n{\"exits\":[1.5]}\n", "loop 1.5");
    refused(header + "\n{\"exits\":[[1]]}\n", "loop [1]");
}

}  // namespace
}  // namespace refold
