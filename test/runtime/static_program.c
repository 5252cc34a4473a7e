/* static_program.c - a program with the test model linked in: no file but the weights blob, no operating system calls. */
#define _POSIX_C_SOURCE 200809L
#include "affine.h"

#include "affine_model.h"

int main(int argc, char **argv) {
  CHECK(argc > 1);
  const file_bytes weights = read_file(argv[1], "affine_model.weights");
  CHECK(weights.size_bytes == AFFINE_MODEL_WEIGHTS_BYTES);
  const mlc_static_model parts = affine_model_model(weights.bytes);
  mlc_model_storage storage;
  const mlc_model *model;
  affine self;
  CHECK_STATUS(MLC_OK, mlc_model_view_static(&parts, NULL, &storage, &model));
  affine_open(&self, model);
  affine_bind(&self, 7);
  CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
  affine_check(&self, 7);
  free(self.memory);
  mlc_model_close(model);
  free(weights.bytes);
  return 0;
}
