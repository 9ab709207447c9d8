// What one client of a worker may take of its memory and threads, beside the others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace refold::rpc {

class Share {
public:
    virtual ~Share() = default;
    // Bytes of a device's memory, before they are allocated. False: there are not so many.
    virtual bool take(size_t device, uint64_t bytes) = 0;
    virtual void give_back(size_t device, uint64_t bytes) = 0;
    // Those that could be taken now.
    virtual uint64_t free(size_t device) = 0;
    // The threads for a step that begins now.
    virtual int begin_step() = 0;
    virtual void end_step() = 0;
};

}  // namespace refold::rpc
