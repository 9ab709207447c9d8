// One of ggml's modules, of another version of its interface.
struct ggml_backend_reg {
    int api_version = 1;
    void* functions[5] = {};
};

extern "C" ggml_backend_reg* ggml_backend_init() {
    static ggml_backend_reg module;
    return &module;
}
