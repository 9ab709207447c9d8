// Ctrl-C and SIGTERM as an exception at the next safe point, so that destructors remove partial output.
#pragma once

namespace refold {

// Installs the handlers; a second signal ends the process at once (temporary files are removed first).
void install_interrupt_handlers();
// Throws Error(interrupted) when a signal has arrived.
void check_interrupt();
bool interrupted() noexcept;

// Paths to be removed if the process is ended by a second signal. At most 8 at a time.
void register_temporary(const char* path);
void unregister_temporary(const char* path);

}  // namespace refold
