// The extension module refold._native: the C++ interface as the package refold (python/refold) uses it.
#include "native/bindings.h"

NB_MODULE(_native, module) {
    using namespace refold::python;
    bind_errors();
    bind_generation(module);
    bind_model(module);
    bind_encoder(module);
    bind_compression(module);
    bind_stored_model(module);
    module.def("version", &refold::version);
}
