/* What this machine can do: float32 FMA rate, memory read and copy rates on a number of threads, as one line of JSON.
 * Usage: probe THREADS SECONDS. Built for one vector length (VECTOR_BYTES) and one instruction set at a time. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#if defined(__x86_64__)
#define IN_REGISTER "+v"
#else
#define IN_REGISTER "+w"
#endif
#if VECTOR_BYTES == 32
#define CHAINS 12 /* of 16 registers: two FMAs a cycle at a latency of four or five need eight to ten */
#else
#define CHAINS 24 /* of 32 registers */
#endif
#define LANES (VECTOR_BYTES / 4)
#define BUFFER_BYTES ((size_t)192 << 20) /* a thread's; well past any last-level cache */
#define THREADS_MAX 256

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));

static pthread_barrier_t barrier;
static double part_seconds;

typedef struct lane_result {
  double flops;
  double bytes;
  double copied;
} lane_result;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* FMAs a second, best of short stretches: a stretch is interrupted or it is not. */
static double fma_rate(void) {
  vec acc[CHAINS], factor, addend;
  for (int lane = 0; lane < LANES; ++lane) {
    factor[lane] = 0.999f;
    addend[lane] = 0.001f;
  }
  for (int i = 0; i < CHAINS; ++i) acc[i] = addend * (float)i;
  double best = 0, end = now() + part_seconds;
  while (now() < end) {
    const int64_t rounds = 200000;
    double start = now();
    for (int64_t round = 0; round < rounds; ++round) {
#pragma clang loop unroll(full)
      for (int i = 0; i < CHAINS; ++i) {
        acc[i] = __builtin_elementwise_fma(acc[i], factor, addend);
        __asm__ volatile("" : IN_REGISTER(acc[i])); /* keeps the chain in its register and in order */
      }
    }
    double rate = 2.0 * LANES * CHAINS * (double)rounds / (now() - start);
    if (rate > best) best = rate;
  }
  return best;
}

/* Bytes read a second from a buffer that no cache holds. */
static double read_rate(const vec *buffer) {
  const size_t count = BUFFER_BYTES / sizeof(vec);
  double best = 0, end = now() + part_seconds;
  do {
    vec sum[8] = {0};
    double start = now();
    for (size_t i = 0; i + 8 <= count; i += 8)
      for (int k = 0; k < 8; ++k) sum[k] += buffer[i + (size_t)k];
    double rate = (double)BUFFER_BYTES / (now() - start);
    for (int k = 0; k < 8; ++k) __asm__ volatile("" : IN_REGISTER(sum[k]));
    if (rate > best) best = rate;
  } while (now() < end);
  return best;
}

/* Bytes read plus bytes written a second, by stores that go past the caches where the compiler has them: what an
 * elementwise kernel over large tensors can reach at most. */
static double copy_rate(vec *buffer) {
  const size_t half = BUFFER_BYTES / 2, count = half / sizeof(vec);
  vec *target = buffer + count;
  double best = 0, end = now() + part_seconds;
  do {
    double start = now();
    for (size_t i = 0; i + 4 <= count; i += 4)
      for (size_t k = 0; k < 4; ++k) __builtin_nontemporal_store(buffer[i + k], target + i + k);
    double rate = 2.0 * (double)half / (now() - start);
    __asm__ volatile("" : : "r"(target) : "memory");
    if (rate > best) best = rate;
  } while (now() < end);
  return best;
}

static void *work(void *argument) {
  lane_result *result = argument;
  float *buffer = aligned_alloc(64, BUFFER_BYTES);
  if (!buffer) return NULL;
  for (size_t i = 0; i < BUFFER_BYTES / sizeof(float); ++i) buffer[i] = 1.0f;
  pthread_barrier_wait(&barrier);
  result->flops = fma_rate();
  pthread_barrier_wait(&barrier);
  result->bytes = read_rate((const vec *)buffer);
  pthread_barrier_wait(&barrier);
  result->copied = copy_rate((vec *)buffer);
  free(buffer);
  return result;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  part_seconds = argc > 2 ? atof(argv[2]) : 0.2;
  if (threads < 1 || threads > THREADS_MAX || pthread_barrier_init(&barrier, NULL, (unsigned)threads)) return 2;
  static pthread_t handles[THREADS_MAX];
  static lane_result results[THREADS_MAX];
  for (int i = 0; i < threads; ++i)
    if (pthread_create(&handles[i], NULL, work, &results[i])) return 2;
  double flops = 0, bytes = 0, copied = 0;
  for (int i = 0; i < threads; ++i) {
    void *done = NULL;
    pthread_join(handles[i], &done);
    if (!done) return 2;
    flops += results[i].flops;
    bytes += results[i].bytes;
    copied += results[i].copied;
  }
  printf("{\"gflops\": %.2f, \"gbytes\": %.2f, \"copy_gbytes\": %.2f, \"vector_bits\": %d}\n", flops * 1e-9, bytes * 1e-9,
         copied * 1e-9, VECTOR_BYTES * 8);
  return 0;
}
