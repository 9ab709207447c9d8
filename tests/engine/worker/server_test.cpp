// A worker's server: honest clients get what the CPU computes; what others send ends their connection with an
// error, and nothing else.
#include "engine/worker/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "core/code_of.h"
#include "engine/worker/board.h"
#include "engine/worker/conversation.h"

namespace refold::rpc {
namespace {

const std::vector<Device>& devices() {
    static const std::vector<Device> found = find_devices("cpu");
    return found;
}

// The answers.
std::string serve(const std::string& conversation) {
    SmallShare share;
    std::string out;
    {
        Server server(devices(), 1, share);
        TextStream stream(conversation);
        server.serve(stream);
        out = stream.out();
    }
    EXPECT_EQ(share.held(), 0U);
    return out;
}

// Where it is not refused, it is answered; anything else ends the test.
bool is_refused(const std::string& conversation) {
    SmallShare share;
    try {
        Server server(devices(), 1, share);
        TextStream stream(conversation);
        server.serve(stream);
        return false;
    } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
        return true;
    }
}

TEST(WorkerServer, ComputesWhatTheCpuDoes) {
    const HonestClient client;
    const ggml_context_ptr context(ggml_init({size_t{64} << 20, nullptr, false}));
    const std::vector<ggml_tensor*> expected = every_operation(context.get());
    ggml_cgraph* graph = ggml_new_graph(context.get());
    for (ggml_tensor* result : expected) ggml_build_forward_expand(graph, result);
    size_t n = 0;
    for (ggml_tensor* t = ggml_get_first_tensor(context.get()); t != nullptr;
         t = ggml_get_next_tensor(context.get(), t))
        if (t->view_src == nullptr && t->op == GGML_OP_NONE && n < client.given().size()) {
            const std::string content = content_of(t, n++);
            std::memcpy(t->data, content.data(), content.size());
        }
    ASSERT_EQ(n, client.given().size());
    ASSERT_EQ(ggml_graph_compute_with_ctx(context.get(), graph, 1), GGML_STATUS_SUCCESS);

    for (const bool twice : {false, true}) {
        const std::string answers = serve(client.prepared() + client.graph().text() +
                                          (twice ? HonestClient::again() : "") + client.get_all());
        size_t at = sizeof(uint64_t) + sizeof(AllocBufferAnswer);
        for (const ggml_tensor* result : expected) {
            const size_t bytes = ggml_nbytes(result);
            uint64_t size = 0;
            std::memcpy(&size, answers.data() + at, sizeof size);
            ASSERT_EQ(size, bytes);
            at += sizeof size;
            std::string own = answers.substr(at, bytes);
            at += bytes;
            if (result->type != GGML_TYPE_F32) {
                EXPECT_EQ(own, std::string(static_cast<const char*>(result->data), bytes))
                    << ggml_op_desc(result);
                continue;
            }
            const auto* numbers = reinterpret_cast<const float*>(own.data());
            for (int64_t i = 0; i < ggml_nelements(result); ++i)
                ASSERT_NEAR(numbers[i], static_cast<const float*>(result->data)[i], 0.02)
                    << ggml_op_desc(result) << " of " << ggml_type_name(result->src[0]->type) << ", " << i;
        }
        EXPECT_EQ(at, answers.size());
    }
}

struct Hostile {
    std::string name, conversation;
};

std::vector<Hostile> hostile_messages() {
    const HonestClient client;
    const std::string prepared = client.prepared();
    const Tensor good = HonestClient::described(client.given()[0]);
    std::vector<Hostile> out;
    const auto add = [&](const std::string& name, const std::string& conversation) {
        out.push_back({name, conversation});
    };
    const uint64_t most = ~uint64_t{0}, sign = uint64_t{1} << 63;
    for (int command = 0; command < 256; ++command)
        for (const uint64_t size : {sign, most, uint64_t{1} << 32, uint64_t{3}})
            add(fmt::format("command {} with {} bytes", command, size),
                prepared + static_cast<char>(command) + text_of(size) + std::string(16, '\0'));
    for (const Command command : {Command::get_alignment, Command::get_max_size, Command::get_device_memory,
                                  Command::graph_recompute})
        for (const uint32_t device : {1U, 1U << 31, ~0U})
            add("a device that is not there", prepared + message(command, text_of(OfDevice{device})));
    add("no graph to compute again", prepared + HonestClient::again());
    add("memory of a device that is not there", message(Command::alloc_buffer, text_of(AllocBuffer{1, 1})));
    for (const uint64_t buffer : {uint64_t{0}, uint64_t{2}, sign, most}) {
        for (const Command command : {Command::free_buffer, Command::buffer_get_base})
            add("a buffer that is not there", prepared + message(command, text_of(OfBuffer{buffer})));
        add("a buffer that is not there",
            prepared + message(Command::buffer_clear, text_of(BufferClear{buffer, 1})));
    }
    add("memory that is given back twice", prepared + message(Command::free_buffer, text_of(OfBuffer{1})) +
                                               message(Command::free_buffer, text_of(OfBuffer{1})));

    // Tensors, in every message that has one.
    const std::vector<std::pair<const char*, std::function<void(Tensor&)>>> changes = {
        {"type", [](Tensor& t) { t.type = GGML_TYPE_COUNT; }},
        {"type, negative", [](Tensor& t) { t.type = ~0U; }},
        {"type, removed", [](Tensor& t) { t.type = 4; }},
        {"operation", [](Tensor& t) { t.op = GGML_OP_COUNT; }},
        {"length", [](Tensor& t) { t.ne[0] = 1U << 31; }},
        {"lengths whose product overflows",
         [](Tensor& t) {
             t.ne = {1U << 30, 1U << 30, 1U << 30, 1U << 30};
         }},
        {"strides that overflow",
         [](Tensor& t) {
             t.nb = {~3U, ~3U, ~3U, ~3U}, t.ne = {2, 2, 2, 2};
         }},
        {"part of a block", [](Tensor& t) { t.type = GGML_TYPE_Q4_0, t.ne[0] = 33; }},
        {"buffer", [](Tensor& t) { t.buffer = 7; }},
        {"address below", [](Tensor& t) { t.data = HonestClient::kAddress - 4; }},
        {"address beyond", [&](Tensor& t) { t.data += client.bytes(); }},
        {"address at the end", [](Tensor& t) { t.data = ~uint64_t{3}; }},
        {"address of this process", [&](Tensor& t) { t.data = reinterpret_cast<uint64_t>(&client); }},
        {"odd address", [](Tensor& t) { t.data += 1; }},
        {"odd stride", [](Tensor& t) { t.nb[1] = t.nb[1] + 1; }},
    };
    for (const auto& [name, change] : changes) {
        Tensor bad = good;
        change(bad);
        const auto with = [&](const char* what, Command command, const std::string& body) {
            add(fmt::format("{}: {}", what, name), prepared + message(command, body));
        };
        with("set", Command::set_tensor, text_of(SetTensor{bad, 0, 0}) + "1234");
        with("memset", Command::memset_tensor, text_of(MemsetTensor{bad, 0, 4, 1}));
        with("get", Command::get_tensor, text_of(GetTensor{bad, 0, 4}));
        with("copy to", Command::copy_tensor, text_of(CopyTensor{good, bad}));
        with("copy from", Command::copy_tensor, text_of(CopyTensor{bad, good}));
        with("init", Command::init_tensor, text_of(bad));
        GetAllocSize asked{0, bad, {}};
        with("size", Command::get_alloc_size, text_of(asked));
        GraphMessage graph = client.graph();
        change(graph.of(GGML_OP_ADD));
        add(std::string("graph: ") + name, prepared + graph.text());
    }
    const uint64_t size = ggml_nbytes(client.given()[0]);
    for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
             {size, 4}, {0, size + 1}, {most, 4}, {most - 3, 4}, {4, most - 3}, {0, sign}, {sign, sign}}) {
        add("get beyond", prepared + message(Command::get_tensor, text_of(GetTensor{good, offset, bytes})));
        add("memset beyond",
            prepared + message(Command::memset_tensor, text_of(MemsetTensor{good, offset, bytes, 0})));
        if (bytes < 100)
            add("set beyond", prepared + HonestClient::set(good, offset, std::string(bytes, 'a')));
    }
    add("set too much", prepared + HonestClient::set(good, 0, std::string(size + 1, 'a')));
    Tensor lost = good;
    lost.buffer = 0;
    add("set nowhere", prepared + HonestClient::set(lost, 0, "1234"));
    add("init nowhere", prepared + message(Command::init_tensor, text_of(lost)));
    add("copy onto itself", prepared + message(Command::copy_tensor, text_of(CopyTensor{good, good})));
    Tensor other = HonestClient::described(client.given()[2]);
    add("copy of another shape", prepared + message(Command::copy_tensor, text_of(CopyTensor{good, other})));

    // Graphs.
    const auto graph = [&](const std::string& name, const std::function<void(GraphMessage&)>& change) {
        GraphMessage bad = client.graph();
        change(bad);
        add("graph: " + name, prepared + bad.text());
        // What an earlier one has left must not be computed again.
        add("graph: " + name + ", again",
            prepared + client.graph().text() + bad.text() + HonestClient::again());
    };
    using Graph = GraphMessage;
    graph("device", [](Graph& g) { g.device = 1; });
    graph("no nodes", [](Graph& g) { g.nodes.clear(); });
    graph("no tensors", [](Graph& g) { g.tensors.clear(); });
    graph("node 0", [](Graph& g) { g.nodes[3] = 0; });
    graph("node that is not there", [](Graph& g) { g.nodes[3] = 12345; });
    graph("node twice", [](Graph& g) { g.nodes[3] = g.nodes[2]; });
    graph("nodes out of order", [](Graph& g) { std::ranges::reverse(g.nodes); });
    graph("two tensors of one name", [](Graph& g) { g.tensors[3].id = g.tensors[2].id; });
    graph("tensors out of order", [](Graph& g) { std::ranges::reverse(g.tensors); });
    graph("cycle", [](Graph& g) { g.of(GGML_OP_ADD).src[0] = g.of(GGML_OP_ADD).id; });
    graph("cycle of two", [](Graph& g) { g.of(GGML_OP_ADD).src[0] = g.of(GGML_OP_SUB).id; });
    graph("view of itself", [](Graph& g) { g.of(GGML_OP_VIEW).view_src = g.of(GGML_OP_VIEW).id; });
    graph("view elsewhere", [](Graph& g) { g.of(GGML_OP_PERMUTE).view_offs += 64; });
    graph("source that is not there", [](Graph& g) { g.of(GGML_OP_ADD).src[1] = 999; });
    graph("without a source", [](Graph& g) { g.of(GGML_OP_ADD).src[1] = 0; });
    graph("with one source more", [](Graph& g) { g.of(GGML_OP_ADD).src[2] = g.of(GGML_OP_ADD).src[0]; });
    graph("without memory", [](Graph& g) { g.of(GGML_OP_ADD).buffer = 0; });
    graph("a source without memory", [](Graph& g) { g.by_id(g.of(GGML_OP_ADD).src[0]).buffer = 0; });
    for (const ggml_op op : {GGML_OP_CUSTOM, GGML_OP_MAP_CUSTOM1, GGML_OP_MAP_CUSTOM2, GGML_OP_MAP_CUSTOM3,
                             GGML_OP_OPT_STEP_ADAMW, GGML_OP_CONV_2D, GGML_OP_SSM_SCAN, GGML_OP_WIN_PART})
        graph(ggml_op_name(op), [&](Graph& g) { g.of(GGML_OP_ADD).op = op; });
    // Every operation with sources, results and parameters of other shapes, types and values.
    const GraphMessage honest = client.graph();
    std::set<uint32_t> seen;
    for (size_t i = 0; i < honest.tensors.size(); ++i) {
        const Tensor& t = honest.tensors[i];
        if (t.src[0] == 0 || t.op == GGML_OP_VIEW || t.op == GGML_OP_RESHAPE || t.op == GGML_OP_PERMUTE ||
            t.op == GGML_OP_TRANSPOSE || !seen.insert(t.op).second)
            continue;
        const std::string name = ggml_op_name(static_cast<ggml_op>(t.op));
        graph(name + " without sources", [&](Graph& g) { g.tensors[i].src = {}; });
        if (t.op != GGML_OP_REPEAT)
            graph(name + ", more elements", [&](Graph& g) { g.tensors[i].ne[3] = 3; });
        graph(name + " to 64-bit numbers", [&](Graph& g) {
            g.tensors[i].type = GGML_TYPE_F64;
            for (auto& stride : g.tensors[i].nb) stride = stride * 2;
            g.tensors[i].data = HonestClient::kAddress;
            g.tensors[i].view_src = 0;
        });
        graph(name + " of an empty tensor", [&](Graph& g) { g.by_id(g.tensors[i].src[0]).ne[0] = 0; });
    }
    const auto parameter = [&](ggml_op op, size_t index, int32_t value) {
        graph(fmt::format("{} with parameter {}: {}", ggml_op_name(op), index, value),
              [=](Graph& g) { g.of(op).op_params[index] = value; });
    };
    for (const int32_t value : {-1, 1 << 30, INT32_MIN}) {
        parameter(GGML_OP_UNARY, 0, value);
        parameter(GGML_OP_GLU, 0, value);
        parameter(GGML_OP_CONCAT, 0, value);
        parameter(GGML_OP_ARGSORT, 0, value);
        parameter(GGML_OP_ROPE, 1, value);
        parameter(GGML_OP_ROPE, 2, value);
        parameter(GGML_OP_ROPE, 15, value);
    }
    for (const int32_t value : {static_cast<int32_t>(0xBF800000), 0x7FC00000})
        parameter(GGML_OP_NORM, 0, value);
    parameter(GGML_OP_MUL_MAT, 1, 1);
    parameter(GGML_OP_FLASH_ATTN_EXT, 3, 1);
    for (const ggml_op op : {GGML_OP_GET_ROWS, GGML_OP_SET_ROWS})
        for (const char* number :
             {"\xff\xff\xff\xff\xff\xff\xff\xff", "\x08\0\0\0\0\0\0\0", "\0\0\0\x80\0\0\0\x80"}) {
            const GraphMessage g = client.graph();
            GraphMessage found = g;
            const Tensor ids = found.by_id(found.of(op).src[1]);
            const std::string change =
                HonestClient::set(ids, 0, std::string(number, ids.type == GGML_TYPE_I64 ? 8 : 4));
            add("row that is not there", prepared + change + g.text());
            add("row that is not there, again", prepared + g.text() + change + HonestClient::again());
        }
    // In place of the numbers, another operation's result.
    for (const ggml_op op : {GGML_OP_GET_ROWS, GGML_OP_SET_ROWS}) {
        graph("numbers that are written meanwhile",
              [=](Graph& g) { g.of(GGML_OP_NORM).data = g.by_id(g.of(op).src[1]).data; });
        graph("numbers that their own operation writes",
              [=](Graph& g) { g.of(op).data = g.by_id(g.of(op).src[1]).data; });
    }
    const std::string text = client.graph().text();
    const size_t body = 1 + sizeof(uint64_t);
    for (const size_t left : {size_t{1}, size_t{4}, size_t{12}, size_t{100}, text.size() - body - 1})
        add("graph that ends early", prepared + message(Command::graph_compute, text.substr(body, left)));
    add("graph with more", prepared + message(Command::graph_compute, text.substr(body) + "1"));
    for (const size_t at : {size_t{4}, size_t{8} + client.graph().nodes.size() * 8}) {
        std::string changed = text.substr(body);
        changed.replace(at, 4, "\xff\xff\xff\xff");
        add("graph with as many as can be", prepared + message(Command::graph_compute, changed));
    }
    add("graph of memory that was given back", prepared + client.graph().text() +
                                                   message(Command::free_buffer, text_of(OfBuffer{1})) +
                                                   HonestClient::again());
    return out;
}

TEST(WorkerServer, RefusesWhatItMayNotBeSent) {
    for (const Hostile& hostile : hostile_messages())
        EXPECT_TRUE(is_refused(hostile.conversation)) << hostile.name;
    const HonestClient client;
    EXPECT_FALSE(serve(client.whole()).empty());
}

TEST(WorkerServer, AllocatesWithinItsShare) {
    const auto allocated = [](uint64_t bytes) {
        const std::string answer = serve(message(Command::alloc_buffer, text_of(AllocBuffer{0, bytes})));
        AllocBufferAnswer out{};
        std::memcpy(&out, answer.data() + sizeof(uint64_t), sizeof out);
        return out.buffer != 0;
    };
    EXPECT_TRUE(allocated(1));
    EXPECT_TRUE(allocated(SmallShare::kLimit));
    for (const uint64_t bytes :
         {uint64_t{0}, SmallShare::kLimit + 1, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}})
        EXPECT_FALSE(allocated(bytes)) << bytes;
    // Many small ones cost memory as well.
    std::string many;
    for (int i = 0; i < 5000; ++i) many += message(Command::alloc_buffer, text_of(AllocBuffer{0, 1}));
    const std::string answers = serve(many);
    int given = 0;
    for (size_t at = sizeof(uint64_t); at < answers.size();
         at += sizeof(uint64_t) + sizeof(AllocBufferAnswer))
        given += answers[at] != 0 || answers[at + 1] != 0;
    EXPECT_EQ(given, SmallShare::kLimit / 4096);
}

// Of a sound conversation: bytes, numbers and whole messages changed at random.
TEST(WorkerServer, SurvivesChangedConversations) {
    const char* more = std::getenv("REFOLD_WORKER_CASES");  // for longer runs
    const int cases = more == nullptr ? 3000 : std::atoi(more);
    const HonestClient client;
    const std::string sound = client.whole(), graph = client.graph().text();
    const size_t first = client.prepared().size();
    std::mt19937 random(1);
    const auto below = [&](size_t end) { return random() % end; };
    int refused = 0;
    for (int i = 0; i < cases; ++i) {
        std::string changed = sound;
        const auto changes = 1 + below(3);
        for (size_t c = 0; c < changes; ++c) {
            // Mostly in the graph, whose bytes are few.
            const size_t at = below(4) == 0 ? below(changed.size() - 8) : first + below(graph.size() - 8);
            constexpr std::array<uint64_t, 8> kNumbers = {0,          1,          2,          0x7FFFFFFF,
                                                          0x80000000, 0xFFFFFFFF, 1ULL << 63, ~0ULL};
            const uint64_t number = kNumbers[below(kNumbers.size())];
            switch (below(4)) {
                case 0: changed[at] = static_cast<char>(random()); break;
                case 1: changed[at] = static_cast<char>(changed[at] ^ (1 << below(8))); break;
                case 2: std::memcpy(changed.data() + at / 4 * 4, &number, 4); break;
                default: std::memcpy(changed.data() + at, &number, 8); break;
            }
        }
        refused += is_refused(changed);
    }
    EXPECT_GT(refused, cases / 2);
    EXPECT_LT(refused, cases);
}

TEST(WorkerServer, Greets) {
    const std::string hello = message(Command::hello, std::string(sizeof(Hello), '\0'));
    TextStream stream(hello);
    greet(stream);
    EXPECT_EQ(stream.out(), text_of(uint64_t{28}) + std::string("\x07\0", 2) +
                                std::string(1, static_cast<char>(RPC_PROTO_PATCH_VERSION)) +
                                std::string(25, '\0'));
    for (const std::string& other :
         {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), hello.substr(0, 20),
          message(Command::hello, ""), message(Command::alloc_buffer, std::string(sizeof(Hello), '\0'))}) {
        TextStream strange(other);
        EXPECT_THROW(greet(strange), Error) << other;
    }
}

// Both ends of a connection.
struct Pair {
    Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0); }
    std::array<int, 2> ends{};
};

TEST(WorkerStream, HasATimeForEveryMessage) {
    using std::chrono::milliseconds;
    const MessageTime time{milliseconds(200), 1 << 20};
    EXPECT_EQ(time.of(0), milliseconds(200));
    EXPECT_EQ(time.of(5 << 20), milliseconds(5200));
    EXPECT_GT(MessageTime().of(~uint64_t{0}).count(), 0);
    std::array<std::byte, 64> bytes{};
    // A client that sends a byte now and then; one that sends nothing more; one that reads nothing.
    for (const bool drips : {false, true}) {
        Pair pair;
        SocketStream stream(pair.ends[0], time);
        std::jthread client([&](const std::stop_token& stop) {
            do {
                EXPECT_EQ(write(pair.ends[1], "a", 1), 1);
                std::this_thread::sleep_for(milliseconds(20));
            } while (drips && !stop.stop_requested());
        });
        ASSERT_TRUE(stream.next());
        EXPECT_EQ(code_of([&] { stream.read(bytes); }, "takes too long"), ErrorCode::io);
        client.request_stop();
        client.join();
        close(pair.ends[1]);
    }
    Pair pair;
    SocketStream stream(pair.ends[0], time);
    const std::vector<std::byte> much(16 << 20);
    stream.begin(0);
    EXPECT_EQ(code_of([&] { stream.write(much); }, "takes too long"), ErrorCode::io);
    EXPECT_FALSE(stream.has_left());
    close(pair.ends[1]);
    EXPECT_TRUE(stream.has_left());
    EXPECT_FALSE(stream.next());
}

TEST(WorkerBoard, SharesMemoryAndThreads) {
    Board board;
    board.limit[0] = 100;
    const auto free_now = [](size_t) { return uint64_t{90}; };
    BoardShare one(board, 0, 8, free_now), two(board, 1, 8, free_now);
    EXPECT_EQ(one.free(0), 90U);
    EXPECT_FALSE(one.take(0, 91));
    EXPECT_TRUE(one.take(0, 60));
    EXPECT_FALSE(two.take(0, 60));
    EXPECT_EQ(two.free(0), 40U);
    EXPECT_TRUE(two.take(0, 40));
    EXPECT_FALSE(two.take(0, ~uint64_t{0}));
    board.clear(0);
    EXPECT_TRUE(two.take(0, 60));
    EXPECT_FALSE(two.take(1, 1));

    EXPECT_EQ(one.begin_step(), 8);
    EXPECT_EQ(two.begin_step(), 4);
    one.end_step();
    EXPECT_EQ(one.begin_step(), 4);
    board.clear(1);
    EXPECT_EQ(one.begin_step(), 8);
}

}  // namespace
}  // namespace refold::rpc
