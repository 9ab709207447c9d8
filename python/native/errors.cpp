#include "native/bindings.h"

namespace refold::python {
namespace {

const char* class_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::usage: return "UsageError";
        case ErrorCode::input: return "InputError";
        case ErrorCode::io: return "FileError";
        case ErrorCode::unsupported: return "UnsupportedError";
        case ErrorCode::interrupted: return "CancelledError";
        case ErrorCode::internal: return "InternalError";
    }
    return "Error";
}

void translate(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        const nb::object type = nb::module_::import_("refold._errors").attr(class_of(error.code()));
        PyErr_SetString(type.ptr(), error.what());
    }
}

}  // namespace

void bind_errors() { nb::register_exception_translator(translate); }

}  // namespace refold::python
