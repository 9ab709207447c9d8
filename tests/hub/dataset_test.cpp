// Data sets of the hub: files of a repository, and rows from the data set server.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/hub_fixture.h"

namespace refold {
namespace {

using testing::HasSubstr;

class DataHub : public Hub {
protected:
    DataHub() {
        server_.files = {{"data/test.jsonl", {"{\"q\": 1}\n", false}}, {"README.md", {"read me", false}}};
        server_.hook = [this](const HubServer::Request& request) { return answer(request); };
    }

    std::string rows(const std::string& split = "test") {
        return hub_dataset_rows("org/name", "default", split, {.retry_delay = 0.001});
    }

    int count_ = 250;     // rows on the server
    int failures_ = 0;    // number of initial error replies
    std::string extra_;   // added to each row's entry
    std::string number_;  // in each row; empty: its own
    int status_ = 503;
    Environment rows_at_{"HF_DATASETS_SERVER", server_.url() + "/"};
    Environment own_cache_{"REFOLD_CACHE", folder_ / "own"};

private:
    std::optional<HubServer::Reply> answer(const HubServer::Request& request) {
        if (request.path == "/rows") return page(request.query);
        if (request.path == "/api/datasets/org/name/revision/main")
            return HubServer::Reply{.body = server_.listing().dump()};
        const std::string at = std::string("/datasets/org/name/resolve/") + HubServer::kCommit + "/";
        if (!request.path.starts_with(at)) return {};
        return server_.file_reply(request, server_.files.at(request.path.substr(at.size())));
    }

    HubServer::Reply page(const std::string& query) {
        if (failures_-- > 0) return {.status = status_, .body = "no such split"};
        EXPECT_THAT(query, HasSubstr("dataset=org%2Fname&config=default&split=test"));
        const int offset = std::stoi(query.substr(query.find("offset=") + 7));
        std::string out;
        for (int i = offset; i < std::min(offset + 100, count_); ++i)
            out += fmt::format("{}{{\"row_idx\": {}, \"row\": {{\"n\": {}}}{}}}", out.empty() ? "" : ", ", i,
                               number_.empty() ? std::to_string(i) : number_, extra_);
        return {.body =
                    fmt::format("{{\"features\": [], \"rows\": [{}], \"num_rows_total\": {}}}", out, count_)};
    }
};

TEST_F(DataHub, OneFileIsFetchedOnce) {
    const std::string path = hub_dataset_file("org/name", "data/test.jsonl");
    EXPECT_EQ(read_all(path), "{\"q\": 1}\n");
    EXPECT_THAT(path, HasSubstr("/cache/datasets--org--name/snapshots/"));
    const size_t requests = server_.requests().size();
    EXPECT_EQ(hub_dataset_file("org/name", "data/test.jsonl"), path);
    EXPECT_EQ(server_.requests().size(), requests);
    EXPECT_EQ(error([] { hub_dataset_file("org/name", "data/tests.jsonl"); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("did you mean 'data/test.jsonl'?"));
    EXPECT_EQ(error([] { hub_dataset_file("org/none", "x"); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("no data set 'org/none'"));
}

TEST_F(DataHub, RowsComePageByPageAndAreKept) {
    failures_ = 2;
    const std::string path = rows();
    const std::string text = read_all(path);
    EXPECT_EQ(std::ranges::count(text, '\n'), 250);
    EXPECT_TRUE(text.starts_with("{\"n\":0}\n"));
    EXPECT_TRUE(text.ends_with("{\"n\":249}\n"));
    EXPECT_EQ(server_.requests("/rows").size(), 5u);
    EXPECT_EQ(rows(), path);
    EXPECT_EQ(server_.requests("/rows").size(), 5u);
}

TEST_F(DataHub, IntegersOfRowsAreKept) {
    number_ = "123456789012345678901234567890";
    count_ = 1;
    EXPECT_EQ(read_all(rows()), "{\"n\":123456789012345678901234567890}\n");
}

TEST_F(DataHub, RowsThatAreNotThere) {
    failures_ = 1;
    status_ = 404;
    EXPECT_EQ(error([&] { rows(); }), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("no such split"));
    failures_ = 1;
    status_ = 401;
    EXPECT_EQ(error([&] { rows(); }), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("HF_TOKEN"));
    EXPECT_EQ(error([&] { rows("../x"); }), ErrorCode::usage);
    const Environment offline{"HF_HUB_OFFLINE", "1"};
    EXPECT_EQ(error([&] { rows(); }), ErrorCode::io);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "own/datasets/org--name/default/test.jsonl"));
}

TEST_F(DataHub, RowsThatAreNonsense) {
    extra_ = ", \"truncated_cells\": [\"n\"]";
    EXPECT_EQ(error([&] { rows(); }), ErrorCode::unsupported);
    EXPECT_THAT(text_, HasSubstr("shortens row 0"));
    extra_ = "";
    count_ = 0;
    EXPECT_EQ(error([&] { rows(); }), ErrorCode::input);
    failures_ = 1;
    status_ = 200;
    EXPECT_EQ(error([&] { rows(); }), ErrorCode::input);
    EXPECT_THAT(text_, HasSubstr("no page of rows"));
}

}  // namespace
}  // namespace refold
