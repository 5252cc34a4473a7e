/* port_windows.c - Windows 7 and later. */
#include "port.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <string.h>

typedef struct thread_state {
  HANDLE handle;
  void (*body)(void *);
  void *context;
} thread_state;

typedef struct bell_state {
  SRWLOCK lock;
  CONDITION_VARIABLE condition;
} bell_state;

_Static_assert(sizeof(thread_state) <= sizeof(port_thread), "port_thread is too small");
_Static_assert(sizeof(bell_state) <= sizeof(port_bell), "port_bell is too small");

int port_code_map(const void *image, uint64_t size_bytes, void **out_code) {
  DWORD before;
  if (size_bytes > SIZE_MAX) return -1;
  void *code = VirtualAlloc(NULL, (SIZE_T)size_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!code) return -1;
  memcpy(code, image, (size_t)size_bytes);
  if (!VirtualProtect(code, (SIZE_T)size_bytes, PAGE_EXECUTE_READ, &before) ||
      !FlushInstructionCache(GetCurrentProcess(), code, (SIZE_T)size_bytes)) {
    VirtualFree(code, 0, MEM_RELEASE);
    return -1;
  }
  *out_code = code;
  return 0;
}

void port_code_unmap(void *code, uint64_t size_bytes) {
  (void)size_bytes;
  VirtualFree(code, 0, MEM_RELEASE);
}

void port_large_pages(void *memory, uint64_t size_bytes) { (void)memory, (void)size_bytes; }

uint64_t port_time_ns(void) {
  LARGE_INTEGER ticks, rate;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&rate);
  const uint64_t count = (uint64_t)ticks.QuadPart, per_second = (uint64_t)rate.QuadPart;
  return count / per_second * UINT64_C(1000000000) + count % per_second * UINT64_C(1000000000) / per_second;
}

void port_arm_hwcaps(uint64_t *out_hwcap, uint64_t *out_hwcap2, uint32_t *out_sve_bits) {
  *out_hwcap = 0;
  *out_hwcap2 = 0;
  *out_sve_bits = 0;
#if defined(__aarch64__)
  *out_hwcap = 3; /* every Windows on Arm has FP and Advanced SIMD */
  if (IsProcessorFeaturePresent(34)) *out_hwcap |= UINT64_C(1) << 8;  /* PF_ARM_V81_ATOMIC: LSE */
  if (IsProcessorFeaturePresent(43)) *out_hwcap |= UINT64_C(1) << 20; /* PF_ARM_V82_DP: dot product */
#endif
}

static DWORD WINAPI thread_entry(LPVOID opaque) {
  thread_state *state = (thread_state *)opaque;
  state->body(state->context);
  return 0;
}

int port_thread_start(port_thread *thread, void (*body)(void *context), void *context) {
  thread_state *state = (thread_state *)(void *)thread;
  state->body = body;
  state->context = context;
  state->handle = CreateThread(NULL, 0, thread_entry, state, 0, NULL);
  return state->handle ? 0 : -1;
}

void port_thread_join(port_thread *thread) {
  thread_state *state = (thread_state *)(void *)thread;
  WaitForSingleObject(state->handle, INFINITE);
  CloseHandle(state->handle);
}

void port_yield(void) { SwitchToThread(); }

static bell_state *bell_of(port_bell *bell) { return (bell_state *)(void *)bell; }

int port_bell_init(port_bell *bell) {
  InitializeSRWLock(&bell_of(bell)->lock);
  InitializeConditionVariable(&bell_of(bell)->condition);
  return 0;
}

void port_bell_close(port_bell *bell) { (void)bell; }

void port_bell_lock(port_bell *bell) { AcquireSRWLockExclusive(&bell_of(bell)->lock); }

void port_bell_unlock(port_bell *bell) { ReleaseSRWLockExclusive(&bell_of(bell)->lock); }

void port_bell_wait(port_bell *bell) {
  SleepConditionVariableSRW(&bell_of(bell)->condition, &bell_of(bell)->lock, INFINITE, 0);
}

void port_bell_ring(port_bell *bell) { WakeAllConditionVariable(&bell_of(bell)->condition); }
