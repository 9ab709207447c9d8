#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/parallel.h"
#include "engine/rpc_worker.h"

namespace refold::cli::worker_verb {
namespace {

struct Arguments {
    std::string address, devices;
    bool anywhere = false;
    int threads = 0;
};

void lend(const Arguments& a) {
    // It looks for no signals, and has nothing to clean up.
    for (const int number : {SIGINT, SIGTERM})
        std::signal(number, [](int) { _exit(exit_code(ErrorCode::interrupted)); });
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what it says, at once in a file as well
    run_worker(a.address, a.anywhere, a.devices, a.threads > 0 ? a.threads : default_threads());
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option("address", a->address, "Where to wait for clients: HOST:PORT")
        ->type_name("HOST:PORT")
        ->default_val("127.0.0.1:50052");
    app.add_option("--device", a->devices,
                   "What it lends: names that refold devices lists, separated by commas")
        ->type_name("NAME")
        ->default_val("cpu");
    app.add_flag(
        "--rpc-anywhere", a->anywhere,
        "Also wait at addresses outside of the loopback and of private networks. Whoever reaches the "
        "worker controls it");
    add_threads(app, a->threads);
    add_examples(app, {"refold worker 192.168.1.7:50052",
                       "refold run llama-2-13b.gguf --device rpc:192.168.1.7:50052,192.168.1.8:50052"});
    return [a] { lend(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"worker", VerbGroup::running,
                   "Lend this machine's devices to refold on another one (--device rpc:HOST:PORT)", declare};

}  // namespace refold::cli::worker_verb
