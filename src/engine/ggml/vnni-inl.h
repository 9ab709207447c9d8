// Defines REFOLD_HAS_VNNI for Highway's current target: whether integer dot products (vpdpbusd, vpdpwssd) may
// be compiled. Included once per target; where it is 1, "#pragma GCC target("avx512vnni")" must follow
// HWY_BEFORE_NAMESPACE, because Highway's target has the extension by a name that GCC does not take for it.
#undef REFOLD_HAS_VNNI
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#define REFOLD_HAS_VNNI 1
#else
#define REFOLD_HAS_VNNI 0
#endif
