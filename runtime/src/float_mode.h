/* float_mode.h - the floating point mode that compiled code runs under: round to nearest, no flushing, no traps.
 *
 * A host may have set flush-to-zero on its own thread and not on the pool's; results would then depend on the split. */
#ifndef MLC_FLOAT_MODE_H
#define MLC_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
static inline uint64_t float_mode_get(void) { return __builtin_ia32_stmxcsr(); }
static inline void float_mode_set(uint64_t mode) { __builtin_ia32_ldmxcsr((unsigned int)mode); }
#define FLOAT_MODE_PLAIN UINT64_C(0x1f80) /* the value at reset: all exceptions masked */
#elif defined(__aarch64__)
static inline uint64_t float_mode_get(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
static inline void float_mode_set(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#define FLOAT_MODE_PLAIN UINT64_C(0)
#else
static inline uint64_t float_mode_get(void) { return 0; }
static inline void float_mode_set(uint64_t mode) { (void)mode; }
#define FLOAT_MODE_PLAIN UINT64_C(0)
#endif

#endif
