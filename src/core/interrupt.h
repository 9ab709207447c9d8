// Turns Ctrl-C and SIGTERM into an exception at the next safe point, so that destructors remove partial
// output.
#pragma once

namespace refold {

// Installs the handlers. A second signal ends the process at once, after removing registered temporary files.
void install_interrupt_handlers();
// Throws Error(interrupted) when a signal has arrived.
void check_interrupt();
bool interrupted() noexcept;

// While there is one, check_interrupt() throws for no signal on this thread: for what is written because the
// signal has come. A second signal still ends the process.
class WithoutInterrupts {
public:
    WithoutInterrupts();
    ~WithoutInterrupts();
    WithoutInterrupts(const WithoutInterrupts&) = delete;
    WithoutInterrupts& operator=(const WithoutInterrupts&) = delete;
};

// Paths to remove when a second signal ends the process. At most 8 at a time.
void register_temporary(const char* path);
void unregister_temporary(const char* path);

}  // namespace refold
