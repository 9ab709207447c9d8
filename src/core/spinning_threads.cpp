#include "core/spinning_threads.h"

#include <atomic>
#include <mutex>

namespace refold {
namespace {

std::mutex g_mutex;
std::atomic<SpinningThreads*> g_awake{nullptr};

}  // namespace

SpinningThreads::~SpinningThreads() {
    const std::lock_guard lock(g_mutex);
    if (g_awake == this) g_awake = nullptr;
}

void SpinningThreads::wake() {
    if (g_awake == this) return;
    const std::lock_guard lock(g_mutex);
    if (SpinningThreads* other = g_awake; other != nullptr && other != this) other->sleep_();
    g_awake = this;
}

void SpinningThreads::all_sleep() {
    if (g_awake == nullptr) return;
    const std::lock_guard lock(g_mutex);
    if (SpinningThreads* awake = g_awake; awake != nullptr) awake->sleep_();
    g_awake = nullptr;
}

}  // namespace refold
