#include "core/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "core/error.h"
#include "core/mapped_files.h"

namespace refold {
namespace {

std::atomic<int> g_signal{0};
thread_local int t_without_interrupts = 0;
constexpr size_t kMaxPath = 4096;
struct Slot {
    std::atomic<bool> used{false};
    char path[kMaxPath] = {};
};
std::array<Slot, 8> g_temporaries;

void on_signal(int number) {
    if (g_signal.exchange(number) != 0) {
        for (auto& slot : g_temporaries) {
            if (slot.used) unlink(slot.path);
        }
        _exit(128 + number);
    }
}

}  // namespace

void install_interrupt_handlers() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    guard_mapped_files();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  // write() then returns an error at a file size limit, which we handle
}

void check_interrupt() {
    if (const int number = g_signal.load(); number != 0 && t_without_interrupts == 0) {
        fail(ErrorCode::interrupted, "interrupt", "stopped by {}", number == SIGTERM ? "SIGTERM" : "Ctrl-C");
    }
    check_mapped_files();
}

bool interrupted() noexcept { return g_signal.load() != 0; }

WithoutInterrupts::WithoutInterrupts() { ++t_without_interrupts; }
WithoutInterrupts::~WithoutInterrupts() { --t_without_interrupts; }

void register_temporary(const char* path) {
    for (auto& slot : g_temporaries) {
        if (slot.used || strlen(path) >= kMaxPath) continue;
        strcpy(slot.path, path);
        slot.used = true;
        return;
    }
}

void unregister_temporary(const char* path) {
    for (auto& slot : g_temporaries) {
        if (slot.used && strcmp(slot.path, path) == 0) slot.used = false;
    }
}

}  // namespace refold
