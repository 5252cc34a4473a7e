/* arm_runner.c - runs an artifact once: arm_runner MODEL.mlc INPUTS OUTPUTS
 *
 * INPUTS holds, for each input, its sizes as i64 and its elements; OUTPUTS gets, for each output, the same. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "mlc_rt.h"

#define TRY(call, words) do { const mlc_status status_ = (call); if (status_ != MLC_OK) \
  return fprintf(stderr, "arm_runner: %s: %s\n", mlc_status_text(status_), words), 1; } while (0)

/* Zeroed pages, aligned for any tensor or block of the runtime; the program's end frees them. */
static void *allocate(uint64_t size_bytes) {
  void *memory = mmap(NULL, (size_t)size_bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? exit(2), NULL : memory;
}

static void read_all(FILE *file, void *data, uint64_t size_bytes) {
  if (fread(data, 1, (size_t)size_bytes, file) != size_bytes) fprintf(stderr, "arm_runner: INPUTS is short\n"), exit(2);
}

static void write_all(FILE *file, const void *data, uint64_t size_bytes) {
  if (fwrite(data, 1, (size_t)size_bytes, file) != size_bytes) perror("arm_runner: OUTPUTS"), exit(2);
}

int main(int argc, char **argv) {
  const int model_file = argc == 4 ? open(argv[1], O_RDONLY) : -1;
  struct stat facts;
  if (model_file < 0 || fstat(model_file, &facts) != 0)
    return fprintf(stderr, "usage: arm_runner MODEL.mlc INPUTS OUTPUTS\n"), 2;
  const void *blob = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, model_file, 0);
  FILE *inputs_file = fopen(argv[2], "rb"), *outputs_file = fopen(argv[3], "wb");
  if (blob == MAP_FAILED || inputs_file == NULL || outputs_file == NULL) return perror("arm_runner"), 2;

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
      read_all(inputs_file, &input.shape[axis], sizeof input.shape[axis]);
      input.size_bytes *= (uint64_t)input.shape[axis];
    }
    input.data = allocate(input.size_bytes);
    read_all(inputs_file, input.data, input.size_bytes);
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
    write_all(outputs_file, outputs[index].shape, outputs[index].rank * sizeof outputs[index].shape[0]);
    write_all(outputs_file, outputs[index].data, outputs[index].size_bytes);
  }
  mlc_model_close(model);
  return fclose(outputs_file) == 0 ? 0 : 2;
}
