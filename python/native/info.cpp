#include "native/bindings.h"

namespace refold::python {

Facts to_dict(const ModelCost& cost) {
    Facts out;
    out["parameters"] = cost.parameters;
    out["bytes"] = cost.bytes;
    out["kv_bytes_per_token"] = cost.kv_bytes_per_token;
    out["flops_per_token"] = cost.flops_per_token;
    return out;
}

Facts to_dict(const ModelInfo& info) {
    Facts out;
    out["architecture"] = info.architecture;
    out["causal"] = info.causal;
    out["layers"] = info.layers;
    out["stored_layers"] = info.stored_layers;
    out["loops"] = info.loops;
    out["n_embd"] = info.n_embd;
    out["n_head"] = info.n_head;
    out["n_head_kv"] = info.n_head_kv;
    out["n_vocab"] = info.n_vocab;
    out["context_length"] = info.context_length;
    out["tensors"] = info.tensors;
    out["shares"] = info.shares;
    out["stored"] = to_dict(info.stored);
    out["without_sharing"] = to_dict(info.without_sharing);
    return out;
}

}  // namespace refold::python
