/* run_files.c - runs an artifact on inputs from files and writes its outputs; counts what the process allocates meanwhile.
 *
 *   run_files MODEL.mlc THREADS OUT_FOLDER FILE:D0xD1... ...    one FILE an input, raw elements in the model's order
 *
 * Writes OUT_FOLDER/<index>.bin for each output and prints "output <index> <dtype> <sizes>", then "allocations <count>": calls
 * of malloc and mmap during three runs, after everything was bound. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mlc_rt.h"

static atomic_int allocation_count;

#if defined(__GLIBC__)
/* The program's own definitions come before the library's for everything linked into the process. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *malloc(size_t size_bytes) { return ++allocation_count, __libc_malloc(size_bytes); }
void *calloc(size_t count, size_t size_bytes) { return ++allocation_count, __libc_calloc(count, size_bytes); }
void *realloc(void *memory, size_t size_bytes) { return ++allocation_count, __libc_realloc(memory, size_bytes); }
#endif

#define TRY(call, words) do { const mlc_status status_ = (call); if (status_ != MLC_OK) \
  return fprintf(stderr, "run_files: %s: %s\n", mlc_status_name(status_), words), 1; } while (0)

static void *pages(uint64_t size_bytes) {
  void *memory = mmap(NULL, (size_t)size_bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? exit(2), NULL : memory;
}

static const void *map_file(const char *path, uint64_t *out_size_bytes) {
  const int file = open(path, O_RDONLY);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0) return perror(path), exit(2), NULL;
  *out_size_bytes = (uint64_t)facts.st_size;
  if (facts.st_size == 0) return pages(1);
  return mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
}

/* "FILE:2x3" as a bound tensor; "FILE:" is a scalar. */
static int bind_input(mlc_session *session, const mlc_model *model, uint32_t index, char *argument) {
  mlc_tensor_info info = {.struct_size = sizeof info};
  TRY(mlc_model_input(model, index, &info), "input");
  char *sizes = strrchr(argument, ':');
  if (sizes == NULL) return fprintf(stderr, "run_files: %s has no sizes\n", argument), 2;
  *sizes++ = '\0';
  mlc_tensor tensor = {.struct_size = sizeof tensor, .dtype = info.dtype};
  for (char *at = sizes; *at != '\0' && tensor.rank < MLC_RANK_MAX; at += *at == 'x')
    tensor.shape[tensor.rank++] = strtoll(at, &at, 10);
  tensor.data = (void *)(uintptr_t)map_file(argument, &tensor.size_bytes);
  TRY(mlc_session_bind_input(session, index, &tensor), mlc_session_detail(session));
  return 0;
}

static int write_output(const char *folder, const mlc_model *model, uint32_t index, const mlc_tensor *tensor) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%u.bin", folder, (unsigned)index);
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(tensor->data, 1, (size_t)tensor->size_bytes, file) != tensor->size_bytes) return perror(path), 2;
  fclose(file);
  mlc_tensor_info info = {.struct_size = sizeof info};
  TRY(mlc_model_output(model, index, &info), "output");
  printf("output %u %s", (unsigned)index, mlc_dtype_name(info.dtype));
  for (uint32_t axis = 0; axis < tensor->rank; ++axis) printf(" %lld", (long long)tensor->shape[axis]);
  printf("\n");
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 4) return fprintf(stderr, "usage: run_files MODEL.mlc THREADS OUT_FOLDER FILE:SIZES...\n"), 2;
  uint64_t size_bytes, arena_bytes;
  const void *blob = map_file(argv[1], &size_bytes);
  const uint32_t thread_count = (uint32_t)strtoul(argv[2], NULL, 10);
  char detail[512] = "";
  const mlc_view_options options = {.struct_size = sizeof options, .detail = detail, .detail_bytes = sizeof detail};
  mlc_model_storage storage;
  const mlc_model *model;
  TRY(mlc_model_view(blob, size_bytes, &options, &storage, &model), detail);
  mlc_need need = {.struct_size = sizeof need};
  TRY(mlc_model_need(model, &need), "need");
  mlc_session *session;
  TRY(mlc_session_init(model, pages(need.session_bytes), need.session_bytes, &session), "session");
  mlc_pool *pool = NULL;
  if (thread_count > 1) {
    const uint64_t pool_bytes = mlc_pool_need(thread_count);
    TRY(mlc_pool_init(pages(pool_bytes), pool_bytes, thread_count, &pool), "pool");
    TRY(mlc_session_use_pool(session, pool), mlc_session_detail(session));
  }
  const uint32_t input_count = mlc_model_input_count(model), output_count = mlc_model_output_count(model);
  if ((uint32_t)argc != 4 + input_count) return fprintf(stderr, "run_files: %u inputs\n", (unsigned)input_count), 2;
  for (uint32_t index = 0; index < input_count; ++index) {
    const int failed = bind_input(session, model, index, argv[4 + index]);
    if (failed) return failed;
  }
  TRY(mlc_session_plan(session, &arena_bytes), mlc_session_detail(session));
  TRY(mlc_session_bind_arena(session, pages(arena_bytes), arena_bytes), mlc_session_detail(session));
  mlc_tensor *outputs = pages(output_count * sizeof *outputs);
  for (uint32_t index = 0; index < output_count; ++index) {
    outputs[index].struct_size = sizeof outputs[index];
    TRY(mlc_session_output_shape(session, index, &outputs[index]), "output");
    outputs[index].data = pages(outputs[index].size_bytes);
    TRY(mlc_session_bind_output(session, index, &outputs[index]), mlc_session_detail(session));
  }
  const int before = allocation_count;
  for (int run = 0; run < 3; ++run) TRY(mlc_session_run(session), mlc_session_detail(session));
  const int during = allocation_count - before;
  for (uint32_t index = 0; index < output_count; ++index) {
    const int failed = write_output(argv[3], model, index, &outputs[index]);
    if (failed) return failed;
  }
  printf("allocations %d\n", during);
  if (pool != NULL) mlc_pool_close(pool);
  mlc_model_close(model);
  return 0;
}
