/* threads.c - a pool of threads in the caller's memory that share out the tiles of one kernel at a time.
 *
 * One word, the job, holds how many ranges of tiles there are and how many were taken. A thread takes one by adding to
 * it, so that who comes late finds none left and touches nothing: the caller waits only for ranges that were taken,
 * never for a thread that the system has not scheduled. Two cache lines go back and forth for a kernel of few ranges:
 * this word and the count of what workers have done. */
#include "threads.h"

#include <stdatomic.h>

#include "float_mode.h"
#include "memory.h"
#include "port.h"

#define CACHE_LINE_BYTES 64
/* Between kernels of one run a worker finds work in 1 to 20 us; a wake-up costs 5 to 50. */
#define SPIN_NS UINT64_C(50000)
/* During a run, where a kernel that one thread computes alone may take long, a worker waits this long. */
#define SPIN_IN_RUN_NS UINT64_C(1000000)
/* From here on it lets other threads have the core between looks: there may be fewer cores than threads. */
#define SPIN_ALONE_NS UINT64_C(20000)
#define SPINS_A_CLOCK_READ 64
#define SPINS_BEFORE_YIELD 2048
/* Ranges come in rounds of one a thread, each round about a third of the last: large ones first, as taking one costs
 * a cache line's way between cores (100 to 200 ns), small ones last, which even out who was slower. */
#define ROUNDS 3

#define JOB_COUNT_SHIFT 32 /* below: ranges taken, and at most one try a thread beyond them */

typedef struct worker {
  port_thread thread;
  mlc_pool *pool;
} worker;

struct mlc_pool {
  _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t job;
  /* Of the job: written when no range of the last one is unfinished, read by who has taken a range. */
  mlc_kernel_v1 kernel;
  const void *args;
  int64_t tile_count;
  int64_t range_tiles[ROUNDS];
  _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t done_count; /* ranges that workers have computed */
  _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t sleeper_count;
  _Atomic uint32_t is_ending;
  _Atomic uint32_t is_claimed;
  uint32_t thread_count;
  port_bell bell;
  worker workers[];
};

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("isb"); /* `yield` is a no-op on most cores; isb waits about as long as x86's pause */
#endif
}

static void run_range(const mlc_pool *pool, uint64_t index) {
  int64_t begin = 0, place = (int64_t)index;
  uint32_t round = 0;
  for (; place >= pool->thread_count; place -= pool->thread_count, ++round)
    begin += pool->range_tiles[round] * pool->thread_count;
  begin += place * pool->range_tiles[round];
  const int64_t left = pool->tile_count - begin, tiles = pool->range_tiles[round];
  pool->kernel(pool->args, begin, begin + (tiles < left ? tiles : left));
}

static int is_left(uint64_t job) { return (uint32_t)job < job >> JOB_COUNT_SHIFT; }

/* Computes ranges while there are any; gives how many. */
static uint64_t run_ranges(mlc_pool *pool) {
  uint64_t count = 0;
  while (is_left(atomic_load_explicit(&pool->job, memory_order_relaxed))) {
    const uint64_t job = atomic_fetch_add_explicit(&pool->job, 1, memory_order_acquire);
    if (!is_left(job)) break;
    run_range(pool, (uint32_t)job);
    ++count;
  }
  return count;
}

static void sleep_until_job(mlc_pool *pool) {
  port_bell_lock(&pool->bell);
  /* Sequentially consistent against pool_run: either it sees the sleeper, or the sleeper sees the job. */
  atomic_fetch_add(&pool->sleeper_count, 1);
  while (!is_left(atomic_load(&pool->job)) && !atomic_load(&pool->is_ending)) port_bell_wait(&pool->bell);
  atomic_fetch_sub(&pool->sleeper_count, 1);
  port_bell_unlock(&pool->bell);
}

/* One look at the clock of a worker without work. */
static void wait_longer(mlc_pool *pool, uint64_t idle_ns) {
  const int is_running = atomic_load_explicit(&pool->is_claimed, memory_order_relaxed) != 0;
  if (idle_ns >= (is_running ? SPIN_IN_RUN_NS : SPIN_NS)) {
    sleep_until_job(pool);
  } else if (idle_ns >= SPIN_ALONE_NS) {
    port_yield();
  }
}

static void work(void *context) {
  mlc_pool *pool = ((worker *)context)->pool;
  uint64_t idle_since_ns = port_time_ns();
  float_mode_set(FLOAT_MODE_PLAIN);
  for (uint32_t spin_count = 1; !atomic_load_explicit(&pool->is_ending, memory_order_relaxed); ++spin_count) {
    const uint64_t count = run_ranges(pool);
    if (count > 0) {
      atomic_fetch_add_explicit(&pool->done_count, count, memory_order_release);
      idle_since_ns = port_time_ns();
    } else if (spin_count % SPINS_A_CLOCK_READ == 0) {
      wait_longer(pool, port_time_ns() - idle_since_ns);
    } else {
      pause_core();
    }
  }
}

/* Sets the sizes of ranges, and gives how many there are. */
static uint64_t share_out(mlc_pool *pool, int64_t tile_count) {
  const int64_t threads = pool->thread_count;
  int64_t left = tile_count;
  uint64_t count = 0;
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    const int64_t share = left / threads;
    int64_t tiles = round + 1 == ROUNDS ? share + (left % threads != 0) : share / 3 * 2 + share % 3 * 2 / 3;
    if (tiles == 0) tiles = 1;
    pool->range_tiles[round] = tiles;
    const int64_t ranges = (left - 1) / tiles + 1;
    if (left > 0) count += (uint64_t)(ranges < threads ? ranges : threads);
    left = left > tiles * threads ? left - tiles * threads : 0;
  }
  return count;
}

void pool_run(mlc_pool *pool, mlc_kernel_v1 kernel, const void *args, int64_t tile_count) {
  if (pool->thread_count == 1 || tile_count == 1) {
    kernel(args, 0, tile_count);
    return;
  }
  pool->kernel = kernel;
  pool->args = args;
  pool->tile_count = tile_count;
  const uint64_t count = share_out(pool, tile_count);
  atomic_store_explicit(&pool->done_count, 0, memory_order_relaxed);
  atomic_store(&pool->job, count << JOB_COUNT_SHIFT | 1); /* the first is the caller's */
  if (atomic_load(&pool->sleeper_count) > 0) {
    port_bell_lock(&pool->bell);
    port_bell_ring(&pool->bell);
    port_bell_unlock(&pool->bell);
  }
  run_range(pool, 0);
  const uint64_t others = count - 1 - run_ranges(pool);
  for (uint32_t spin_count = 1; atomic_load_explicit(&pool->done_count, memory_order_acquire) != others; ++spin_count) {
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
