#include "train/torch/processes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/version.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/error.h"
#include "core/process_variables.h"
#include "engine/torch/device.h"

// gloo and NCCL need their own headers: Debian's libtorch comes with gloo's (libgloo-dev), the Python package
// with NCCL's.
#if defined(USE_C10D_GLOO) && defined(REFOLD_GLOO_HEADERS)
#define REFOLD_HAVE_GLOO 1
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#if defined(USE_C10D_NCCL) && __has_include(<nccl.h>)
#define REFOLD_HAVE_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kComponent = "processes";

// ---- the environment ----

const char* required(const char* name, const char* world) {
    const char* value = environment_variable(name);
    if (value == nullptr) {
        fail(ErrorCode::usage, kComponent,
             "WORLD_SIZE is {}, but {} is not set - start the processes with torchrun, or set RANK, "
             "WORLD_SIZE, "
             "MASTER_ADDR and MASTER_PORT for each (docs/training.md), or unset WORLD_SIZE for one process",
             world, name);
    }
    return value;
}

}  // namespace

Rendezvous Rendezvous::from_environment() {
    Rendezvous rendezvous;
    rendezvous.size = world_size();
    if (rendezvous.size == 1) return rendezvous;
    const char* world = environment_variable("WORLD_SIZE");
    rendezvous.rank = environment_number("RANK", required("RANK", world), 0, rendezvous.size - 1);
    rendezvous.address = required("MASTER_ADDR", world);
    int port = environment_number("MASTER_PORT", required("MASTER_PORT", world), 1, 65534);
    const char* agent = environment_variable("TORCHELASTIC_USE_AGENT_STORE");
    if (agent != nullptr && std::string_view(agent) == "True") ++port;
    rendezvous.port = static_cast<uint16_t>(port);
    if (const char* limit = environment_variable("REFOLD_PROCESS_TIMEOUT"))
        rendezvous.timeout =
            std::chrono::seconds(environment_number("REFOLD_PROCESS_TIMEOUT", limit, 1, 1 << 20));
    rendezvous.local_rank = refold::local_rank();
    return rendezvous;
}

// ---- processes ----

#if defined(REFOLD_HAVE_GLOO) || defined(REFOLD_HAVE_NCCL)

namespace {

std::string seconds(milliseconds time) {
    return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

#ifdef REFOLD_HAVE_GLOO
// This machine's address on the route to the process of rank 0, at which others can reach it too. The host
// name often resolves to the loopback device.
std::string own_address(const Rendezvous& rendezvous) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(rendezvous.address.c_str(), "9", &hints, &found) != 0) return "localhost";
    std::string result = "localhost";
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
        const int socket = ::socket(a->ai_family, a->ai_socktype, 0);
        if (socket < 0) continue;
        sockaddr_storage own = {};
        socklen_t length = sizeof own;
        char text[NI_MAXHOST];
        // connect() of a datagram socket sends nothing.
        const bool resolved = connect(socket, a->ai_addr, a->ai_addrlen) == 0 &&
                              getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                              getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text,
                                          nullptr, 0, NI_NUMERICHOST) == 0;
        close(socket);
        if (resolved) {
            result = text;
            break;
        }
    }
    freeaddrinfo(found);
    return result;
}
#endif

// The store through which the processes find each other. The first process serves it as long as it runs, so
// that successive Processes objects need not bind the port again.
c10::intrusive_ptr<c10d::Store> store_of(const Rendezvous& rendezvous, milliseconds timeout) {
    struct OpenStore {
        c10::intrusive_ptr<c10d::TCPStore> store;
        int uses = 0;
    };
    static std::mutex mutex;
    static auto* const open_stores = new std::map<std::tuple<std::string, uint16_t, int, int>, OpenStore>();
    const auto key = std::tuple(rendezvous.address, rendezvous.port, rendezvous.rank, rendezvous.size);
    int use = 0;
    c10::intrusive_ptr<c10d::TCPStore> store;
    {
        const std::lock_guard lock(mutex);
        store = (*open_stores)[key].store;
        use = (*open_stores)[key].uses++;
    }
    if (!store) {
        c10d::TCPStoreOptions options;
        options.port = rendezvous.port;
        options.isServer = rendezvous.rank == 0;
        options.waitWorkers = false;
        const auto end = Clock::now() + timeout;
        while (!store) try {
                // In whole seconds, of which there is at least one.
                options.timeout = std::max(std::chrono::ceil<std::chrono::seconds>(end - Clock::now()),
                                           std::chrono::seconds(1));
                store = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
            } catch (const std::exception& error) {
                // TCPStore gives up early when little time is left, so try again until the end.
                if (rendezvous.rank != 0 && Clock::now() < end) {
                    std::this_thread::sleep_for(milliseconds(200));
                    continue;
                }
                if (rendezvous.rank == 0) {
                    fail(ErrorCode::io, kComponent,
                         "cannot listen on port {} ({}) - is another run using it? Set another MASTER_PORT "
                         "for all processes",
                         rendezvous.port, error.what());
                }
                fail(ErrorCode::io, kComponent,
                     "process {} of {} cannot reach that of rank 0 at {}:{} within {} - is it running, and "
                     "are MASTER_ADDR and MASTER_PORT those of its machine?",
                     rendezvous.rank, rendezvous.size, rendezvous.address, rendezvous.port, seconds(timeout));
            }
        const std::lock_guard lock(mutex);
        (*open_stores)[key].store = store;
    }
    store->setTimeout(timeout);
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("refold/{}", use), store);
}

std::string rank_key(int rank) { return fmt::format("rank/{}", rank); }

// Waits for all processes. The error names the missing ranks.
void meet(c10d::Store& store, const Rendezvous& rendezvous, milliseconds timeout) {
    const auto end = Clock::now() + timeout;
    int64_t arrived = 0;
    try {
        if (store.add(rank_key(rendezvous.rank), 1) != 1) {
            fail(ErrorCode::usage, kComponent,
                 "RANK {} is given to two processes - every one of the {} needs its own", rendezvous.rank,
                 rendezvous.size);
        }
        arrived = store.add("arrived", 1);
        for (milliseconds pause(1); arrived < rendezvous.size && Clock::now() < end;
             pause = std::min(2 * pause, milliseconds(100))) {
            std::this_thread::sleep_for(pause);
            arrived = store.add("arrived", 0);
        }
        if (arrived >= rendezvous.size) return;
        std::string missing;
        for (int rank = 0, named = 0; rank < rendezvous.size && named < 8; ++rank) {
            if (store.check({rank_key(rank)})) continue;
            missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
            ++named;
        }
        fail(
            ErrorCode::io, kComponent,
            "{} of {} processes arrived at {}:{} within {}, missing: RANK {} - start them too, with the same "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            arrived, rendezvous.size, rendezvous.address, rendezvous.port, seconds(timeout), missing);
    } catch (const Error&) {
        throw;
    } catch (const std::exception&) {
        fail(ErrorCode::io, kComponent,
             "the process of rank 0 ended when {} of {} processes had arrived at {}:{} - see what it says",
             arrived, rendezvous.size, rendezvous.address, rendezvous.port);
    }
}

}  // namespace

#if TORCH_VERSION_MAJOR >= 2
using CollectiveBackend = c10d::Backend;
#else
using CollectiveBackend = c10d::ProcessGroup;
#endif

struct Processes::Group {
    // All exceptions of libtorch and gloo here mean a lost connection or a timeout.
    template <typename Body>
    auto guarded(const char* what, Body&& body) const {
        try {
            return body();
        } catch (const Error&) {
            throw;
        } catch (const c10::Error& error) {
            lost(what, error.what_without_backtrace());
        } catch (const std::exception& error) {
            lost(what, error.what());
        }
    }

    [[noreturn]] void lost(const char* what, const char* reason) const {
        fail(ErrorCode::io, kComponent,
             "process {} of {}: another process was lost, or was not there within {} ({}: {}) - see what the "
             "others say, then start all of them again",
             rendezvous.rank, rendezvous.size, seconds(timeout), what, reason);
    }

    explicit Group(const Rendezvous& where) : rendezvous(where), timeout(where.timeout) {
        store = store_of(rendezvous, timeout);
        meet(*store, rendezvous, timeout);
#ifdef REFOLD_HAVE_GLOO
        guarded("connecting", [&] {
            auto options = c10d::ProcessGroupGloo::Options::create(timeout);
            const char* interface = environment_variable("GLOO_SOCKET_IFNAME");
            options->devices.push_back(
                interface != nullptr
                    ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                    : c10d::ProcessGroupGloo::createDeviceForHostname(own_address(rendezvous)));
            gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
                c10::make_intrusive<c10d::PrefixStore>("gloo", store), rendezvous.rank, rendezvous.size,
                options);
        });
#endif
    }

    // x, contiguous, on a device that the processes can exchange from: without gloo, CPU tensors go over
    // NCCL.
    at::Tensor reachable(const at::Tensor& x) const {
#ifdef REFOLD_HAVE_GLOO
        return x.contiguous();
#else
        return x.to(x.is_cpu() ? device_of("cuda", rendezvous.local_rank) : x.device()).contiguous();
#endif
    }

    CollectiveBackend& of(const at::Tensor& x) {
        if (x.is_cpu()) {
#ifdef REFOLD_HAVE_GLOO
            return *gloo;
#else
            fail(ErrorCode::unsupported, kComponent,
                 "this build has no gloo: several processes must train with device=cuda (docs/training.md)");
#endif
        }
#ifdef REFOLD_HAVE_NCCL
        if (!nccl) {
            auto options = c10d::ProcessGroupNCCL::Options::create();
            options->timeout = timeout;
            nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
                c10::make_intrusive<c10d::PrefixStore>("nccl", store), rendezvous.rank, rendezvous.size,
                options);
        }
        return *nccl;
#else
        fail(ErrorCode::unsupported, kComponent,
             "this build has no NCCL for tensors on {} - it needs a libtorch with NCCL, and its headers "
             "(docs/training.md)",
             x.device().str());
#endif
    }

    Rendezvous rendezvous;
    milliseconds timeout;
    c10::intrusive_ptr<c10d::Store> store;
#ifdef REFOLD_HAVE_GLOO
    c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
#endif
#ifdef REFOLD_HAVE_NCCL
    c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl;
#endif
};

class Processes::Pending {
public:
    c10::intrusive_ptr<c10d::Work> work;
};

Processes::Processes(const Rendezvous& rendezvous) : rendezvous_(rendezvous) {
    if (rendezvous.size > 1) group_ = std::make_unique<Group>(rendezvous);
}

std::shared_ptr<Processes::Pending> Processes::begin_sum(at::Tensor x) {
    auto pending = std::make_shared<Pending>();
    if (group_) {
        pending->work = group_->guarded("sum", [&] {
            std::vector<at::Tensor> tensors = {x};
            return group_->of(x).allreduce(tensors, c10d::AllreduceOptions());
        });
    }
    return pending;
}

std::shared_ptr<Processes::Pending> Processes::begin_sum_to(at::Tensor x, int rank) {
    auto pending = std::make_shared<Pending>();
    if (group_) {
        pending->work = group_->guarded("sum", [&] {
            std::vector<at::Tensor> tensors = {x};
            c10d::ReduceOptions options;
            options.rootRank = rank;
            return group_->of(x).reduce(tensors, options);
        });
    }
    return pending;
}

void Processes::wait(Pending& pending) {
    if (pending.work) group_->guarded("sum", [&] { pending.work->wait(); });
}

void Processes::sum(at::Tensor& x) {
    if (!group_) return;
    const at::Tensor all = group_->reachable(x);
    wait(*begin_sum(all));
    if (!all.is_same(x)) x.copy_(all);
}

void Processes::broadcast(at::Tensor& x, int from) {
    if (!group_) return;
    group_->guarded("broadcast", [&] {
        std::vector<at::Tensor> tensors = {group_->reachable(x)};
        c10d::BroadcastOptions options;
        options.rootRank = from;
        group_->of(tensors[0]).broadcast(tensors, options)->wait();
        if (!tensors[0].is_same(x)) x.copy_(tensors[0]);
    });
}

void Processes::gather(at::Tensor& x) {
    if (!group_) return;
    group_->guarded("gather", [&] {
        const at::Tensor all = group_->reachable(x);
        std::vector<at::Tensor> own = {all[rank()].clone()};
        std::vector<std::vector<at::Tensor>> rows(1);
        for (int rank = 0; rank < size(); ++rank) rows[0].push_back(all[rank]);
        group_->of(all).allgather(rows, own, c10d::AllgatherOptions())->wait();
        if (!all.is_same(x)) x.copy_(all);
    });
}

void Processes::barrier() {
    at::Tensor nothing = at::zeros({1});
    sum(nothing);
}

#else  // neither

struct Processes::Group {};
class Processes::Pending {};

Processes::Processes(const Rendezvous& rendezvous) : rendezvous_(rendezvous) {
    if (rendezvous.size > 1) {
        fail(
            ErrorCode::unsupported, kComponent,
            "WORLD_SIZE is {}, but this build runs one process only - it needs a libtorch with gloo or NCCL, "
            "and their headers (Debian: libgloo-dev)",
            rendezvous.size);
    }
}

std::shared_ptr<Processes::Pending> Processes::begin_sum(at::Tensor) { return std::make_shared<Pending>(); }
std::shared_ptr<Processes::Pending> Processes::begin_sum_to(at::Tensor, int) {
    return std::make_shared<Pending>();
}
void Processes::wait(Pending&) {}
void Processes::sum(at::Tensor&) {}
void Processes::broadcast(at::Tensor&, int) {}
void Processes::gather(at::Tensor&) {}
void Processes::barrier() {}

#endif

Processes::~Processes() = default;

}  // namespace refold
