/* port_posix.c - Linux, Android and Apple systems. */
#define _GNU_SOURCE /* NOLINT: MAP_ANONYMOUS and getauxval */
#define _DARWIN_C_SOURCE

#include "port.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#ifndef PR_SVE_GET_VL
#define PR_SVE_GET_VL 51
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

typedef struct thread_state {
  pthread_t handle;
  void (*body)(void *);
  void *context;
} thread_state;

typedef struct bell_state {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
} bell_state;

_Static_assert(sizeof(thread_state) <= sizeof(port_thread), "port_thread is too small");
_Static_assert(sizeof(bell_state) <= sizeof(port_bell), "port_bell is too small");

int port_code_map(const void *image, uint64_t size_bytes, void **out_code) {
  if (size_bytes > SIZE_MAX) return -1;
  void *code = mmap(NULL, (size_t)size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED) return -1;
  memcpy(code, image, (size_t)size_bytes);
  __builtin___clear_cache((char *)code, (char *)code + size_bytes);
  if (mprotect(code, (size_t)size_bytes, PROT_READ | PROT_EXEC) != 0) {
    munmap(code, (size_t)size_bytes);
    return -1;
  }
  *out_code = code;
  return 0;
}

void port_code_unmap(void *code, uint64_t size_bytes) { munmap(code, (size_t)size_bytes); }

void port_large_pages(void *memory, uint64_t size_bytes) {
#ifdef MADV_HUGEPAGE
  /* Of whole pages only: the ends may be shared with other data, whose owner was not asked. */
  const uintptr_t page = 4096, begin = ((uintptr_t)memory + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)memory + (uintptr_t)size_bytes) / page * page;
  if (begin < end) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)size_bytes;
#endif
}

uint64_t port_time_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#if defined(__APPLE__) && defined(__aarch64__)
static uint64_t sysctl_bit(const char *name, int bit) {
  int value = 0;
  size_t size_bytes = sizeof value;
  return sysctlbyname(name, &value, &size_bytes, NULL, 0) == 0 && value ? UINT64_C(1) << bit : 0;
}
#endif

void port_arm_hwcaps(uint64_t *out_hwcap, uint64_t *out_hwcap2, uint32_t *out_sve_bits) {
  *out_hwcap = 0;
  *out_hwcap2 = 0;
  *out_sve_bits = 0;
#if defined(__linux__) && defined(__aarch64__)
  *out_hwcap = getauxval(AT_HWCAP);
  *out_hwcap2 = getauxval(AT_HWCAP2);
  if (*out_hwcap >> 22 & 1) {
    const int answer = prctl(PR_SVE_GET_VL, 0, 0, 0, 0);
    if (answer > 0) *out_sve_bits = (uint32_t)(answer & 0xffff) * 8;
  }
#elif defined(__APPLE__) && defined(__aarch64__)
  *out_hwcap = UINT64_C(3) | sysctl_bit("hw.optional.arm.FEAT_LSE", 8) | sysctl_bit("hw.optional.arm.FEAT_FP16", 9) |
               sysctl_bit("hw.optional.arm.FEAT_FP16", 10) | sysctl_bit("hw.optional.arm.FEAT_RDM", 12) |
               sysctl_bit("hw.optional.arm.FEAT_FCMA", 14) | sysctl_bit("hw.optional.arm.FEAT_DotProd", 20) |
               sysctl_bit("hw.optional.arm.FEAT_FHM", 23) | sysctl_bit("hw.optional.armv8_crc32", 7);
  *out_hwcap2 = sysctl_bit("hw.optional.arm.FEAT_I8MM", 13) | sysctl_bit("hw.optional.arm.FEAT_BF16", 14);
#endif
}

static void *thread_entry(void *opaque) {
  thread_state *state = (thread_state *)opaque;
  state->body(state->context);
  return NULL;
}

int port_thread_start(port_thread *thread, void (*body)(void *context), void *context) {
  thread_state *state = (thread_state *)(void *)thread;
  state->body = body;
  state->context = context;
  return pthread_create(&state->handle, NULL, thread_entry, state);
}

void port_thread_join(port_thread *thread) { pthread_join(((thread_state *)(void *)thread)->handle, NULL); }

void port_yield(void) { sched_yield(); }

static bell_state *bell_of(port_bell *bell) { return (bell_state *)(void *)bell; }

int port_bell_init(port_bell *bell) {
  if (pthread_mutex_init(&bell_of(bell)->mutex, NULL) != 0) return -1;
  if (pthread_cond_init(&bell_of(bell)->condition, NULL) == 0) return 0;
  pthread_mutex_destroy(&bell_of(bell)->mutex);
  return -1;
}

void port_bell_close(port_bell *bell) {
  pthread_cond_destroy(&bell_of(bell)->condition);
  pthread_mutex_destroy(&bell_of(bell)->mutex);
}

void port_bell_lock(port_bell *bell) { pthread_mutex_lock(&bell_of(bell)->mutex); }

void port_bell_unlock(port_bell *bell) { pthread_mutex_unlock(&bell_of(bell)->mutex); }

void port_bell_wait(port_bell *bell) { pthread_cond_wait(&bell_of(bell)->condition, &bell_of(bell)->mutex); }

void port_bell_ring(port_bell *bell) { pthread_cond_broadcast(&bell_of(bell)->condition); }
