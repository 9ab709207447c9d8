// The adapters of an engine: their factors as sets of RowTerms or of DeviceTerms, and which sequence has
// which.
#pragma once

#include <map>
#include <vector>

#include "engine/ggml/device_terms.h"
#include "engine/ggml/row_terms.h"
#include "model/adapter/adapter.h"

namespace refold {

class Adapters {
public:
    // Takes the terms of all adapters: RowTerms or, where steps run on a device, DeviceTerms.
    struct Terms {
        RowTerms* on_cpu;
        DeviceTerms* on_device;  // null: the CPU
    };
    // `config` and `topology` of the network that steps run, with steps by loop of the block. They and the
    // terms outlive it.
    Adapters(const ModelConfig& config, const Topology& topology, int32_t loops, bool f32, Terms terms)
        : config_(config), topology_(topology), loops_(loops), f32_(f32), terms_(terms) {}

    // As Engine's.
    int32_t add(const Adapter& adapter);
    void remove(int32_t adapter);
    void use(int32_t sequence, int32_t adapter);
    void close(int32_t sequence) { of_.erase(sequence); }

    // A sequence's adapter; -1: none.
    int32_t of(int32_t sequence) const {
        const auto found = of_.find(sequence);
        return found == of_.end() ? -1 : found->second;
    }
    // The set of terms for a row of the sequence; below 0: none.
    int32_t set_of(int32_t sequence, int32_t loop) const {
        const int32_t adapter = of(sequence);
        return adapter < 0 ? -1 : adapter * loops_ + loop;
    }

private:
    void check(const Adapter& adapter, const Adapter::Term& term) const;
    // In `count` sets from `first` on.
    void put(size_t layer, const Adapter::Term& term, size_t first, int32_t count);

    const ModelConfig& config_;
    const Topology& topology_;
    const int32_t loops_;
    const bool f32_;
    Terms terms_;
    std::vector<bool> used_;         // by adapter
    std::map<int32_t, int32_t> of_;  // by sequence
};

}  // namespace refold
