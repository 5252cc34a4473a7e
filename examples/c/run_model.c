/* run_model.c - maps an artifact, runs it once on inputs of ones and prints what comes out.
 *
 *   run_model model.mlc [size of every dynamic dim, 1 if not given] */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mlc_rt.h"

#define CHECK(call, words) do { const mlc_status status_ = (call); if (status_ != MLC_OK) { \
  fprintf(stderr, "run_model: %s (%s)\n", words, mlc_status_text(status_)); return 1; } } while (0)

/* Zeroed memory, aligned for any tensor or block of the runtime; the program's end frees it. */
static void *allocate(uint64_t size_bytes) {
  const size_t rounded_bytes = ((size_t)size_bytes + 4096) / 4096 * 4096;
  void *memory = aligned_alloc(4096, rounded_bytes);
  return memory ? memset(memory, 0, rounded_bytes) : (exit(2), NULL);
}

static double element(const mlc_tensor *tensor, uint64_t index) {
  if (tensor->dtype == MLC_DTYPE_F32) return ((const float *)tensor->data)[index];
  if (tensor->dtype == MLC_DTYPE_F64) return ((const double *)tensor->data)[index];
  if (tensor->dtype == MLC_DTYPE_I64) return (double)((const int64_t *)tensor->data)[index];
  return ((const uint8_t *)tensor->data)[index * mlc_dtype_bytes(tensor->dtype)];
}

static void fill_ones(const mlc_tensor *tensor, uint64_t element_count) {
  for (uint64_t index = 0; index < element_count; ++index) {
    if (tensor->dtype == MLC_DTYPE_F32) ((float *)tensor->data)[index] = 1;
    else if (tensor->dtype == MLC_DTYPE_F64) ((double *)tensor->data)[index] = 1;
    else if (tensor->dtype == MLC_DTYPE_I64) ((int64_t *)tensor->data)[index] = 1;
  }
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
  CHECK(mlc_model_view(blob, (uint64_t)facts.st_size, &options, &storage, &model), detail);
  mlc_need need = {.struct_size = sizeof need};
  CHECK(mlc_model_need(model, &need), "need");
  mlc_session *session;
  CHECK(mlc_session_init(model, allocate(need.session_bytes), need.session_bytes, &session), "session");

  for (uint32_t index = 0; index < mlc_model_input_count(model); ++index) {
    mlc_tensor_info info = {.struct_size = sizeof info};
    CHECK(mlc_model_input(model, index, &info), "input");
    mlc_tensor tensor = {.struct_size = sizeof tensor, .dtype = info.dtype, .rank = info.rank};
    uint64_t element_count = 1;
    for (uint32_t axis = 0; axis < info.rank; ++axis) {
      tensor.shape[axis] = info.dims[axis] >= 0 ? info.dims[axis] : dynamic_size;
      element_count *= (uint64_t)tensor.shape[axis];
    }
    tensor.size_bytes = element_count * mlc_dtype_bytes(info.dtype);
    tensor.data = allocate(tensor.size_bytes);
    fill_ones(&tensor, element_count);
    CHECK(mlc_session_bind_input(session, index, &tensor), mlc_session_detail(session));
  }

  uint64_t arena_bytes;
  CHECK(mlc_session_plan(session, &arena_bytes), mlc_session_detail(session));
  CHECK(mlc_session_bind_arena(session, allocate(arena_bytes), arena_bytes), mlc_session_detail(session));
  const uint32_t output_count = mlc_model_output_count(model);
  mlc_tensor *outputs = allocate(output_count * sizeof *outputs);
  for (uint32_t index = 0; index < output_count; ++index) {
    outputs[index].struct_size = sizeof outputs[index];
    CHECK(mlc_session_output_shape(session, index, &outputs[index]), "output");
    outputs[index].data = allocate(outputs[index].size_bytes);
    CHECK(mlc_session_bind_output(session, index, &outputs[index]), mlc_session_detail(session));
  }
  CHECK(mlc_session_run(session), mlc_session_detail(session));

  for (uint32_t index = 0; index < output_count; ++index) {
    mlc_tensor_info info = {.struct_size = sizeof info};
    CHECK(mlc_model_output(model, index, &info), "output");
    printf("%s %s [", info.name, mlc_dtype_name(info.dtype));
    for (uint32_t axis = 0; axis < info.rank; ++axis) printf("%s%" PRId64, axis ? ", " : "", outputs[index].shape[axis]);
    printf("]");
    const uint64_t element_count = outputs[index].size_bytes / mlc_dtype_bytes(info.dtype);
    for (uint64_t at = 0; at < element_count && at < 8; ++at) printf(" %g", element(&outputs[index], at));
    printf("%s\n", element_count > 8 ? " ..." : "");
  }
  mlc_model_close(model);
  return 0;
}
