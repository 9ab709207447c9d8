#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <mutex>

#include "cli/process.h"
#include "core/error.h"
#include "train/several.h"

namespace refold {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Variables = std::vector<std::pair<const char*, std::string>>;

constexpr const char* kNames[] = {"RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "REFOLD_PROCESS_TIMEOUT"};

// The environment that torchrun would set, with `changes`; an empty value unsets a variable.
Rendezvous rendezvous_of(const Variables& changes) {
    for (const char* name : kNames) unsetenv(name);
    const Variables usual = {
        {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
    for (const auto& variables : {usual, changes})
        for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
    struct Reset {
        ~Reset() {
            for (const char* name : kNames) unsetenv(name);
        }
    } reset;
    return Rendezvous::from_environment();
}

TEST(Rendezvous, FromTheEnvironment) {
    const Rendezvous rendezvous = rendezvous_of({});
    EXPECT_EQ(rendezvous.rank, 2);
    EXPECT_EQ(rendezvous.size, 4);
    EXPECT_EQ(rendezvous.local_rank, 2);
    EXPECT_EQ(rendezvous.address, "node1");
    EXPECT_EQ(rendezvous.port, 29500);
    EXPECT_EQ(rendezvous_of({{"LOCAL_RANK", "0"}}).local_rank, 0);
    EXPECT_EQ(rendezvous_of({{"REFOLD_PROCESS_TIMEOUT", "5"}}).timeout, 5s);
    EXPECT_EQ(rendezvous_of({{"TORCHELASTIC_USE_AGENT_STORE", "True"}}).port, 29501);
    for (const char* world : {"", "1"}) {
        const Rendezvous alone = rendezvous_of({{"WORLD_SIZE", world}, {"MASTER_ADDR", ""}});
        EXPECT_EQ(alone.rank, 0);
        EXPECT_EQ(alone.size, 1);
    }
}

TEST(Rendezvous, WrongVariables) {
    const auto message = [](const Variables& changes) -> std::string {
        try {
            rendezvous_of(changes);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::usage);
            return error.what();
        }
        return "taken";
    };
    for (const char* missing : {"RANK", "MASTER_ADDR", "MASTER_PORT"})
        EXPECT_THAT(message({{missing, ""}}), AllOf(HasSubstr(missing), HasSubstr("WORLD_SIZE is 4")))
            << missing;
    const Variables wrong = {{"RANK", "4"},         {"RANK", "-1"},
                             {"RANK", "1x"},        {"WORLD_SIZE", "0"},
                             {"WORLD_SIZE", "two"}, {"WORLD_SIZE", "99999999999"},
                             {"MASTER_PORT", "0"},  {"MASTER_PORT", "70000"},
                             {"LOCAL_RANK", "4"},   {"REFOLD_PROCESS_TIMEOUT", "0"}};
    for (const auto& [name, value] : wrong)
        EXPECT_THAT(message({{name, value}}), AllOf(HasSubstr(name), HasSubstr("'" + value + "'")));
}

TEST(Processes, Alone) {
    Processes alone{Rendezvous{}};
    at::Tensor x = at::ones({2, 2});
    alone.sum(x);
    alone.broadcast(x, 0);
    alone.barrier();
    alone.wait(*alone.begin_sum(x));
    EXPECT_EQ(x.sum().item<float>(), 4);
    EXPECT_TRUE(alone.first());
}

TEST(Processes, Operations) {
    in_processes(3, [](Processes& processes) {
        const auto rank = static_cast<float>(processes.rank());
        EXPECT_EQ(processes.first(), rank == 0);
        at::Tensor x = at::full({2, 3}, rank + 1).t();  // not contiguous
        processes.sum(x);
        EXPECT_TRUE(at::equal(x, at::full({3, 2}, 6.0F)));
        at::Tensor whole = at::full({5}, processes.rank(), at::kLong);
        processes.broadcast(whole, 2);
        EXPECT_EQ(whole.sum().item<int64_t>(), 10);
        at::Tensor rows = at::zeros({3, 4}, at::kDouble);
        rows[processes.rank()].fill_(rank);
        processes.gather(rows);
        EXPECT_TRUE(at::equal(rows, at::arange(3, at::kDouble).unsqueeze(1).expand({3, 4})));
        const at::Tensor a = at::full({1000}, rank), b = at::full({10}, 1.0);
        const auto first = processes.begin_sum(a), second = processes.begin_sum(b);
        processes.wait(*second);
        processes.wait(*first);
        EXPECT_EQ(a[999].item<float>(), 3);
        EXPECT_EQ(b[9].item<float>(), 3);
        for (int to = 0; to < 3; ++to) {
            const at::Tensor sum = at::full({7}, rank + 1);
            processes.wait(*processes.begin_sum_to(sum, to));
            EXPECT_TRUE(to != processes.rank() || at::equal(sum, at::full({7}, 6.0F)));
        }
        processes.barrier();
    });
}

// Like the steps of a recipe, one after another; different processes are the first to continue.
TEST(Processes, MeetAgainAtTheSamePlace) {
    const auto errors = errors_in(rendezvous_of_all(2), [](const Rendezvous& rendezvous) {
        for (int round = 0; round < 3; ++round) {
            Processes processes(rendezvous);
            at::Tensor x = at::full({1}, round);
            processes.sum(x);
            EXPECT_EQ(x.item<float>(), 2 * round);
            if (rendezvous.rank == round % 2) std::this_thread::sleep_for(50ms);
        }
    });
    for (const auto& error : errors) EXPECT_FALSE(error);
}

// Starts some of the processes of a run and returns their error messages.
std::vector<std::string> messages_of(std::vector<Rendezvous> all) {
    for (Rendezvous& rendezvous : all) rendezvous.timeout = 500ms;
    std::vector<std::string> messages;
    const auto start = std::chrono::steady_clock::now();
    for (const auto& error : errors_in(all, [](const Rendezvous& rendezvous) { Processes{rendezvous}; })) {
        try {
            if (error) std::rethrow_exception(error);
            messages.emplace_back("arrived");
        } catch (const Error& e) {
            messages.emplace_back(e.what());
        }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 60s) << "far beyond the timeout";
    return messages;
}

TEST(Processes, OneDoesNotArrive) {
    const auto all = rendezvous_of_all(4);
    for (const std::string& message : messages_of({all[0], all[1], all[3]})) {
        EXPECT_THAT(message, HasSubstr("[processes] "));
        EXPECT_THAT(message, HasSubstr("3 of 4 processes"));
        EXPECT_THAT(message, testing::AnyOf(AllOf(HasSubstr("missing: RANK 2 "), HasSubstr("MASTER_ADDR")),
                                            HasSubstr("rank 0 ended")));
    }
}

TEST(Processes, TheFirstDoesNotArrive) {
    const auto all = rendezvous_of_all(2);
    EXPECT_THAT(messages_of({all[1]}),
                testing::ElementsAre(AllOf(HasSubstr("cannot reach that of rank 0"), HasSubstr("0.5 s"),
                                           HasSubstr("MASTER_PORT"))));
}

// Uses another name of the same machine, because a process reuses its store for an address that it knows.
TEST(Processes, TheSamePlaceTwice) {
    auto all = rendezvous_of_all(3);
    all[2] = all[1];
    all[2].address = "localhost";
    EXPECT_THAT(messages_of(all), testing::Contains(HasSubstr("RANK 1 is given to two processes")));
    all = rendezvous_of_all(2);
    all[1] = all[0];
    all[1].address = "localhost";
    EXPECT_THAT(messages_of(all),
                testing::Contains(AllOf(HasSubstr("cannot listen"), HasSubstr("MASTER_PORT"))));
}

// ---- lost processes ----

// One process of a run, started by the test below. It sums until it or another process ends.
TEST(ProcessRole, DISABLED_SumForever) {
    const char* doomed = std::getenv("REFOLD_TEST_DOOMED");
    Processes processes;
    at::Tensor x = at::ones({1000});
    try {
        for (int i = 0;; ++i) {
            processes.sum(x);
            processes.wait(*processes.begin_sum_to(at::ones({1000}), i % 3));
            if (i == 20 && doomed == std::to_string(processes.rank()))
                raise(std::getenv("REFOLD_TEST_SIGNAL") == std::string("STOP") ? SIGSTOP : SIGKILL);
        }
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        std::printf("%s\n", error.what());
        std::fflush(stdout);
    }
    std::_Exit(7);
}

class LostProcess : public testing::TestWithParam<const char*> {};

TEST_P(LostProcess, EndsTheOthers) {
    std::vector<std::unique_ptr<Process>> children;
    for (const Rendezvous& rendezvous : rendezvous_of_all(3)) {
        children.push_back(std::make_unique<Process>(
            std::vector<std::string>{"/proc/self/exe", "--gtest_filter=ProcessRole.*",
                                     "--gtest_also_run_disabled_tests"},
            "",
            std::vector<std::string>{
                fmt::format("RANK={}", rendezvous.rank), fmt::format("WORLD_SIZE={}", rendezvous.size),
                "MASTER_ADDR=" + rendezvous.address, fmt::format("MASTER_PORT={}", rendezvous.port),
                "REFOLD_PROCESS_TIMEOUT=2", "REFOLD_TEST_DOOMED=1",
                std::string("REFOLD_TEST_SIGNAL=") + GetParam()}));
    }
    for (const size_t i : {0, 2}) {
        const Outcome outcome = children[i]->wait();
        EXPECT_EQ(outcome.code, 7) << outcome.out << outcome.err;
        EXPECT_THAT(outcome.out, AllOf(HasSubstr(fmt::format("process {} of 3: another process was lost", i)),
                                       HasSubstr("within 2 s")));
    }
    children[1]->send(SIGKILL);
    EXPECT_EQ(children[1]->wait().signal, SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(Signals, LostProcess, testing::Values("KILL", "STOP"));

}  // namespace
}  // namespace refold
