// refold doctor.
#include "cli/refold.h"

namespace refold {
namespace {

using testing::HasSubstr;

std::map<std::string, nlohmann::json> findings(const std::vector<std::string>& variables) {
    const auto shown = refold_json({"doctor"}, "", variables);
    std::map<std::string, nlohmann::json> out;
    for (const auto& finding : shown["findings"]) out[finding["name"]] = finding;
    return out;
}

TEST(Doctor, SaysWhatIsThereAndHowToGetTheRest) {
    const TempFolder folder;
    const std::vector<std::string> variables = {"REFOLD_CACHE=" + (folder / "cache")};
    const auto found = findings(variables);
    for (const char* name : {"CPU", "threads", "memory", "training", "cache", "hub cache"})
        EXPECT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at("cache")["state"], "ok");
    EXPECT_THAT(found.at("cache")["found"].get<std::string>(), HasSubstr("not there yet"));
    EXPECT_EQ(found.at("models")["state"], "note");
    EXPECT_THAT(found.at("models")["advice"].get<std::string>(), HasSubstr("refold pull"));
    const Outcome text = refold({"doctor"}, "", variables);
    EXPECT_EQ(text.code, 0);
    EXPECT_THAT(text.out, HasSubstr("refold pull"));
}

TEST(Doctor, SaysWhatEachWayToBuildLacks) {
    const TempFolder folder;
    const auto found = findings({"PATH=" + (folder / "")});
    for (const auto& [way, package] : {std::pair{"scripts/build", "ninja-build"},
                                       {"pip install", "python3-pip"},
                                       {"scripts/package-deb", "dpkg-dev"},
                                       {"docker build", "docker.io"}}) {
        EXPECT_EQ(found.at(way)["state"], "note") << way;
        EXPECT_THAT(found.at(way)["advice"].get<std::string>(), HasSubstr(package)) << way;
    }
    std::filesystem::create_symlink("/bin/true", folder / "docker");
    EXPECT_EQ(findings({"PATH=" + (folder / "")}).at("docker build")["state"], "ok");
}

TEST(Doctor, ALowerLevelIsNoted) {
    const auto levels = refold_json({"version"})["cpu"]["levels"];
    if (levels.size() < 2) GTEST_SKIP() << "this CPU has one level";
    const auto found = findings({"REFOLD_CPU=" + levels.back().get<std::string>()});
    EXPECT_EQ(found.at("CPU")["state"], "note");
    EXPECT_THAT(found.at("CPU")["advice"].get<std::string>(), HasSubstr(levels.front().get<std::string>()));
}

TEST(Doctor, ACacheThatCannotBeWrittenIsBroken) {
    const Outcome done = refold({"doctor"}, "", {"REFOLD_CACHE=/proc/none"});
    EXPECT_EQ(done.code, 1);
    EXPECT_THAT(done.out, HasSubstr("set REFOLD_CACHE"));
}

}  // namespace
}  // namespace refold
