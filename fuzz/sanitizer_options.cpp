// Options of the sanitizers in every fuzz program. Inputs are small: code that needs more memory than
// REFOLD_FUZZ_MEMORY_MB has trusted a number in a file.
extern "C" {

// NOLINTBEGIN(readability-identifier-naming): the sanitizers' names
const char* __asan_default_options();
const char* __asan_default_options() {
    return "max_allocation_size_mb=" REFOLD_FUZZ_MEMORY_MB ":allocator_may_return_null=0:detect_leaks=1";
}
const char* __ubsan_default_options();
const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }
// NOLINTEND(readability-identifier-naming)

}  // extern "C"
