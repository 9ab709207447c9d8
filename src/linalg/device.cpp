#include "linalg/device.h"

namespace refold::blas {
namespace {

std::unique_ptr<Device> g_device;
Worth g_worth;

}  // namespace

void set_device(std::unique_ptr<Device> device, const Worth& worth) {
    g_device = std::move(device);
    g_worth = worth;
}

Device* device() { return g_device.get(); }

Device* device_for(double operations, double bytes) {
    return operations >= g_worth.least && operations >= g_worth.per_byte * bytes ? device() : nullptr;
}

Kept::Kept(const void* data, size_t bytes) {
    if (device() == nullptr || bytes == 0) return;
    data_ = data;
    device()->keep(data, bytes);
}

Kept::~Kept() {
    if (data_ != nullptr && device() != nullptr) device()->release(data_);
}

void Kept::changed(const void* data, size_t bytes) const {
    if (data_ != nullptr) device()->changed(data, bytes);
}

}  // namespace refold::blas
