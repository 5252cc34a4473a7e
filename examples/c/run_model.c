/* run_model.c - maps an artifact, runs it once on inputs of zero bytes and prints what comes out.
 *
 *   run_model MODEL.mlc [SIZE]             SIZE: of every dynamic dim, 1 if not given */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "mlc_rt.h"

#define TRY(call, words) do { const mlc_status status_ = (call); if (status_ != MLC_OK) \
  return fprintf(stderr, "run_model: %s: %s\n", mlc_status_text(status_), words), 1; } while (0)

/* Zeroed pages, aligned for any tensor or block of the runtime; the program's end frees them. */
static void *allocate(uint64_t size_bytes) {
  void *memory = mmap(NULL, (size_t)size_bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? exit(2), NULL : memory;
}

static void print_tensor(const char *name, const mlc_tensor *tensor) {
  const uint64_t element_bytes = mlc_dtype_bytes(tensor->dtype), count = tensor->size_bytes / element_bytes;
  printf("%s %s [", name, mlc_dtype_name(tensor->dtype));
  for (uint32_t axis = 0; axis < tensor->rank; ++axis)
    printf("%s%lld", axis ? ", " : "", (long long)tensor->shape[axis]);
  printf("]");
  for (uint64_t at = 0; at < count && at < 8; ++at) {
    if (tensor->dtype == MLC_DTYPE_F32) printf(" %g", (double)((const float *)tensor->data)[at]);
    else for (uint64_t byte = element_bytes; byte > 0; --byte)
      printf(byte == element_bytes ? " %02x" : "%02x", ((const uint8_t *)tensor->data)[at * element_bytes + byte - 1]);
  }
  printf("%s\n", count > 8 ? " ..." : "");
}

int main(int argc, char **argv) {
  const int file = argc > 1 ? open(argv[1], O_RDONLY) : -1;
  const int64_t dynamic_size = argc > 2 ? strtoll(argv[2], NULL, 10) : 1;
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0) return fprintf(stderr, "usage: run_model MODEL.mlc [SIZE]\n"), 2;
  const void *blob = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (blob == MAP_FAILED) return perror(argv[1]), 2;

  char detail[256] = "";
  const mlc_view_options options = {.struct_size = sizeof options, .detail = detail, .detail_bytes = sizeof detail};
  mlc_model_storage storage;
  const mlc_model *model;
  TRY(mlc_model_view(blob, (uint64_t)facts.st_size, &options, &storage, &model), detail);
  mlc_need need = {.struct_size = sizeof need};
  TRY(mlc_model_need(model, &need), "need");
  mlc_session *session;
  TRY(mlc_session_init(model, allocate(need.session_bytes), need.session_bytes, &session), "session");

  for (uint32_t index = 0; index < mlc_model_input_count(model); ++index) {
    mlc_tensor_info info = {.struct_size = sizeof info};
    TRY(mlc_model_input(model, index, &info), "input");
    mlc_tensor input = {.struct_size = sizeof input, .dtype = info.dtype, .rank = info.rank};
    input.size_bytes = mlc_dtype_bytes(info.dtype);
    for (uint32_t axis = 0; axis < info.rank; ++axis) {
      input.shape[axis] = info.dims[axis] >= 0 ? info.dims[axis] : dynamic_size;
      input.size_bytes *= (uint64_t)input.shape[axis];
    }
    input.data = allocate(input.size_bytes);
    TRY(mlc_session_bind_input(session, index, &input), mlc_session_detail(session));
  }
  uint64_t arena_bytes;
  TRY(mlc_session_plan(session, &arena_bytes), mlc_session_detail(session));
  TRY(mlc_session_bind_arena(session, allocate(arena_bytes), arena_bytes), mlc_session_detail(session));
  const uint32_t output_count = mlc_model_output_count(model);
  mlc_tensor *outputs = allocate(output_count * sizeof *outputs);
  for (uint32_t index = 0; index < output_count; ++index) {
    outputs[index].struct_size = sizeof outputs[index];
    TRY(mlc_session_output_shape(session, index, &outputs[index]), "output");
    outputs[index].data = allocate(outputs[index].size_bytes);
    TRY(mlc_session_bind_output(session, index, &outputs[index]), mlc_session_detail(session));
  }
  TRY(mlc_session_run(session), mlc_session_detail(session));
  for (uint32_t index = 0; index < output_count; ++index) {
    mlc_tensor_info info = {.struct_size = sizeof info};
    void *data = outputs[index].data;
    TRY(mlc_model_output(model, index, &info), "output");
    TRY(mlc_session_result_shape(session, index, &outputs[index]), "output"); /* data may decide sizes */
    outputs[index].data = data;
    print_tensor(info.name, &outputs[index]);
  }
  mlc_model_close(model);
  return 0;
}
