/* threads.c - a pool of threads in the caller's memory that share out the tiles of one kernel at a time.
 *
 * One word, the gate, holds a job's generation, whether it is open, and how many workers are inside. Workers enter an
 * open gate by compare-and-swap, so a worker that wakes late finds it closed and touches nothing: the caller waits only
 * for workers that came in, never for one that the system has not scheduled. */
#include "threads.h"

#include <stdatomic.h>

#include "float_mode.h"
#include "memory.h"
#include "port.h"

#define CACHE_LINE_BYTES 64
/* Between kernels of one run a worker finds work in 1 to 20 us; a wake-up costs 5 to 50. */
#define SPIN_NS UINT64_C(50000)
#define SPINS_A_CLOCK_READ 64
#define SPINS_BEFORE_YIELD 2048
#define RANGES_A_THREAD 4 /* enough to even out a slow core, few enough that entering a range costs nothing */

#define GATE_OPEN UINT64_C(0x80000000)
#define GATE_INSIDE UINT64_C(0x7fffffff)
#define GATE_GENERATION_SHIFT 32

typedef struct worker {
  port_thread thread;
  mlc_pool *pool;
} worker;

struct mlc_pool {
  _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t gate;
  _Atomic uint32_t sleeper_count;
  _Atomic uint32_t is_ending;
  _Atomic uint32_t is_claimed;
  uint32_t thread_count;
  /* The job: written while the gate is closed and nobody is inside. */
  mlc_kernel_v1 kernel;
  const void *args;
  int64_t tile_count;
  int64_t range_tiles;
  _Alignas(CACHE_LINE_BYTES) _Atomic int64_t next_tile;
  _Alignas(CACHE_LINE_BYTES) port_bell bell;
  worker workers[];
};

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("isb"); /* `yield` is a no-op on most cores; isb waits about as long as x86's pause */
#endif
}

static void run_ranges(mlc_pool *pool) {
  const int64_t tile_count = pool->tile_count, range_tiles = pool->range_tiles;
  for (;;) {
    const int64_t begin = atomic_fetch_add_explicit(&pool->next_tile, range_tiles, memory_order_relaxed);
    if (begin >= tile_count) return;
    pool->kernel(pool->args, begin, range_tiles < tile_count - begin ? begin + range_tiles : tile_count);
  }
}

/* Whether there is a job that `seen` was not: its generation then. */
static int has_job(const mlc_pool *pool, uint32_t seen) {
  const uint64_t gate = atomic_load(&pool->gate);
  return (gate & GATE_OPEN) != 0 && (uint32_t)(gate >> GATE_GENERATION_SHIFT) != seen;
}

static int enter(mlc_pool *pool, uint32_t *seen) {
  uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_relaxed);
  while ((gate & GATE_OPEN) != 0 && (uint32_t)(gate >> GATE_GENERATION_SHIFT) != *seen) {
    if (!atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1, memory_order_acquire,
                                               memory_order_relaxed))
      continue;
    *seen = (uint32_t)(gate >> GATE_GENERATION_SHIFT);
    return 1;
  }
  return 0;
}

static void sleep_until_job(mlc_pool *pool, uint32_t seen) {
  port_bell_lock(&pool->bell);
  /* Sequentially consistent against pool_run: either it sees the sleeper, or the sleeper sees the job. */
  atomic_fetch_add(&pool->sleeper_count, 1);
  while (!has_job(pool, seen) && !atomic_load(&pool->is_ending)) port_bell_wait(&pool->bell);
  atomic_fetch_sub(&pool->sleeper_count, 1);
  port_bell_unlock(&pool->bell);
}

static void work(void *context) {
  mlc_pool *pool = ((worker *)context)->pool;
  uint32_t seen = 0;
  uint64_t idle_since_ns = port_time_ns();
  float_mode_set(FLOAT_MODE_PLAIN);
  for (uint32_t spin_count = 0; !atomic_load_explicit(&pool->is_ending, memory_order_relaxed); ++spin_count) {
    if (enter(pool, &seen)) {
      run_ranges(pool);
      atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
    } else if (spin_count % SPINS_A_CLOCK_READ != 0 || port_time_ns() - idle_since_ns < SPIN_NS) {
      pause_core();
      continue;
    } else {
      sleep_until_job(pool, seen);
    }
    idle_since_ns = port_time_ns();
  }
}

void pool_run(mlc_pool *pool, mlc_kernel_v1 kernel, const void *args, int64_t tile_count) {
  const int64_t ranges = (int64_t)pool->thread_count * RANGES_A_THREAD;
  if (pool->thread_count == 1 || tile_count == 1) {
    kernel(args, 0, tile_count);
    return;
  }
  pool->kernel = kernel;
  pool->args = args;
  pool->tile_count = tile_count;
  pool->range_tiles = tile_count / ranges + (tile_count % ranges != 0);
  atomic_store_explicit(&pool->next_tile, 0, memory_order_relaxed);
  const uint64_t generation = (atomic_load_explicit(&pool->gate, memory_order_relaxed) >> GATE_GENERATION_SHIFT) + 1;
  /* Generation 0 is what a new worker has "seen". */
  const uint64_t next = (generation & UINT32_MAX) ? generation : 1;
  atomic_store(&pool->gate, next << GATE_GENERATION_SHIFT | GATE_OPEN);
  if (atomic_load(&pool->sleeper_count) > 0) {
    port_bell_lock(&pool->bell);
    port_bell_ring(&pool->bell);
    port_bell_unlock(&pool->bell);
  }
  run_ranges(pool);
  atomic_fetch_and_explicit(&pool->gate, ~GATE_OPEN, memory_order_relaxed);
  for (uint32_t spin_count = 1; atomic_load_explicit(&pool->gate, memory_order_acquire) & GATE_INSIDE; ++spin_count) {
    pause_core();
    if (spin_count % SPINS_BEFORE_YIELD == 0) port_yield();
  }
}

int pool_claim(mlc_pool *pool) { return atomic_exchange_explicit(&pool->is_claimed, 1, memory_order_acquire) == 0; }

void pool_release(mlc_pool *pool) { atomic_store_explicit(&pool->is_claimed, 0, memory_order_release); }

uint64_t mlc_pool_need(uint32_t thread_count) {
  if (thread_count == 0 || thread_count > MLC_THREADS_MAX) return 0;
  return sizeof(mlc_pool) + (uint64_t)(thread_count - 1) * sizeof(worker);
}

static void end_workers(mlc_pool *pool, uint32_t worker_count) {
  atomic_store(&pool->is_ending, 1);
  port_bell_lock(&pool->bell);
  port_bell_ring(&pool->bell);
  port_bell_unlock(&pool->bell);
  for (uint32_t index = 0; index < worker_count; ++index) port_thread_join(&pool->workers[index].thread);
  port_bell_close(&pool->bell);
}

mlc_status mlc_pool_init(void *memory, uint64_t size_bytes, uint32_t thread_count, mlc_pool **out_pool) {
  const uint64_t need_bytes = mlc_pool_need(thread_count);
  if (!memory || !out_pool || need_bytes == 0 || (uintptr_t)memory % CACHE_LINE_BYTES != 0) return MLC_BAD_ARGUMENT;
  if (size_bytes < need_bytes) return MLC_TOO_SMALL;
  mlc_pool *pool = (mlc_pool *)memory;
  memset(memory, 0, (size_t)need_bytes);
  pool->thread_count = thread_count;
  if (port_bell_init(&pool->bell) != 0) return MLC_SYSTEM;
  for (uint32_t index = 0; index + 1 < thread_count; ++index) {
    pool->workers[index].pool = pool;
    if (port_thread_start(&pool->workers[index].thread, work, &pool->workers[index]) == 0) continue;
    end_workers(pool, index);
    return MLC_SYSTEM;
  }
  *out_pool = pool;
  return MLC_OK;
}

void mlc_pool_close(mlc_pool *pool) {
  if (pool) end_workers(pool, pool->thread_count - 1);
}
