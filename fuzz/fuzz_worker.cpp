// Fuzzes what a worker reads of its client: for any bytes, each message is answered or the connection ends
// with refold::Error - no crash, no assert of ggml's kernels, no access outside of the client's memory.
#include "engine/worker/conversation.h"
#include "target.h"

namespace {

using namespace refold::rpc;

const std::vector<refold::Device>& devices() {
    static const std::vector<refold::Device> found = refold::find_devices("cpu");
    return found;
}

constexpr std::string_view kWords[] = {
    std::string_view("\0\0\0\0\0\x10\0\0", 8),  // the address of the first buffer
    std::string_view("\x01\0\0\0\0\0\0\0", 8), std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff", 8),
    std::string_view("\0\0\0\0\0\0\0\x80", 8)};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    return reads([&] {
        SmallShare share;
        Server server(devices(), 1, share);
        TextStream stream{std::string(input)};
        server.serve(stream);
    });
}

std::vector<std::string> refold::fuzz_seeds() {
    const HonestClient client;
    return {client.whole(), client.prepared() + client.graph().text() + HonestClient::again(),
            client.prepared()};
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
