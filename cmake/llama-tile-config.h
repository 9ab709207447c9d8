// Included before every source of llama.cpp. GCC (12, for one) tells its optimizer that _tile_loadconfig reads 8 bytes of the 64
// of a tile configuration, so the stores to the others may be dropped, and AMX faults on what lay there before. This makes all of
// them happen first.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
static inline void refold_written(const void *config) { __asm__ volatile("" : : "r"(config) : "memory"); }
#define _tile_loadconfig(config) (refold_written(config), _tile_loadconfig(config))
#endif
