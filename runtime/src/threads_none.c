/* threads_none.c - takes the place of threads.c where there is no operating system: pools of one thread. */
#include "threads.h"

struct mlc_pool {
  uint64_t reserved;
};

uint64_t mlc_pool_need(uint32_t thread_count) { return thread_count == 1 ? sizeof(mlc_pool) : 0; }

mlc_status mlc_pool_init(void *memory, uint64_t size_bytes, uint32_t thread_count, mlc_pool **out_pool) {
  if (!memory || !out_pool || (uintptr_t)memory % sizeof(uint64_t) != 0) return MLC_BAD_ARGUMENT;
  if (thread_count != 1) return MLC_SYSTEM;
  if (size_bytes < sizeof(mlc_pool)) return MLC_TOO_SMALL;
  *out_pool = (mlc_pool *)memory;
  return MLC_OK;
}

void mlc_pool_close(mlc_pool *pool) { (void)pool; }

int pool_claim(mlc_pool *pool) { return pool != 0; }

void pool_release(mlc_pool *pool) { (void)pool; }

void pool_run(mlc_pool *pool, mlc_kernel_v1 kernel, const void *args, int64_t tile_count) {
  (void)pool;
  kernel(args, 0, tile_count);
}
