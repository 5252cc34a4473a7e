/* test_threads.c - the pool: every tile once, the same bits as on one thread, asleep and awake, shared and alone. */
#define _POSIX_C_SOURCE 200809L
#include "affine.h"

#include <pthread.h>
#include <time.h>

static void sleep_ms(long duration_ms) {
  const struct timespec duration = {0, duration_ms * 1000000};
  nanosleep(&duration, NULL);
}

static mlc_pool *open_pool(uint32_t thread_count, void **out_memory) {
  mlc_pool *pool = NULL;
  *out_memory = aligned_memory(mlc_pool_need(thread_count));
  CHECK_STATUS(MLC_TOO_SMALL, mlc_pool_init(*out_memory, mlc_pool_need(thread_count) - 1, thread_count, &pool));
  CHECK_STATUS(MLC_OK, mlc_pool_init(*out_memory, mlc_pool_need(thread_count), thread_count, &pool));
  return pool;
}

static void test_same_bits(const mlc_model *model) {
  static affine alone, shared;
  affine_open(&alone, model);
  affine_open(&shared, model);
  const uint32_t thread_counts[] = {1, 2, 3, 4, 7, 16};
  for (uint32_t at = 0; at < sizeof thread_counts / sizeof *thread_counts; ++at) {
    const uint32_t thread_count = thread_counts[at];
    void *memory;
    mlc_pool *pool = open_pool(thread_count, &memory);
    CHECK_STATUS(MLC_OK, mlc_session_use_pool(shared.session, pool));
    for (int round = 0; round < 300; ++round) {
      const int64_t row_count = 1 + round * 13 % ROWS_MAX;
      affine_bind(&alone, row_count);
      affine_bind(&shared, row_count);
      memset(shared.y, 0xff, sizeof shared.y);
      CHECK_STATUS(MLC_OK, mlc_session_run(alone.session));
      CHECK_STATUS(MLC_OK, mlc_session_run(shared.session));
      CHECK(memcmp(alone.y, shared.y, (size_t)row_count * COLUMNS * sizeof(float)) == 0);
      affine_check(&shared, row_count);
      if (round % 100 == 0) sleep_ms(1); /* long enough for the workers to fall asleep */
    }
    CHECK_STATUS(MLC_OK, mlc_session_use_pool(shared.session, NULL));
    mlc_pool_close(pool);
    free(memory);
  }
  free(alone.memory);
  free(shared.memory);
}

typedef struct caller {
  pthread_t thread;
  const mlc_model *model;
  mlc_pool *pool;
} caller;

static void *call_often(void *opaque) {
  const caller *self = (const caller *)opaque;
  affine *state = aligned_memory(sizeof *state);
  affine_open(state, self->model);
  CHECK_STATUS(MLC_OK, mlc_session_use_pool(state->session, self->pool));
  for (int round = 0; round < 500; ++round) {
    affine_bind(state, 1 + round % ROWS_MAX);
    CHECK_STATUS(MLC_OK, mlc_session_run(state->session));
    affine_check(state, 1 + round % ROWS_MAX);
  }
  free(state->memory);
  free(state);
  return NULL;
}

/* Two sessions in two threads share one model and one pool. */
static void test_shared_pool(const mlc_model *model) {
  void *memory;
  mlc_pool *pool = open_pool(3, &memory);
  caller callers[2];
  for (int index = 0; index < 2; ++index) {
    callers[index].model = model;
    callers[index].pool = pool;
    CHECK(pthread_create(&callers[index].thread, NULL, call_often, &callers[index]) == 0);
  }
  for (int index = 0; index < 2; ++index) pthread_join(callers[index].thread, NULL);
  mlc_pool_close(pool);
  free(memory);
}

int main(int argc, char **argv) {
  CHECK(argc > 1);
  const file_bytes file = read_file(argv[1], "affine.mlc");
  mlc_model_storage storage;
  const mlc_model *model;
  CHECK(mlc_pool_need(0) == 0 && mlc_pool_need(MLC_THREADS_MAX + 1) == 0);
  CHECK_STATUS(MLC_OK, mlc_model_view(file.bytes, file.size_bytes, NULL, &storage, &model));
  test_same_bits(model);
  test_shared_pool(model);
  mlc_model_close(model);
  free(file.bytes);
  return 0;
}
