/* test_session.c - binding, planning, running and what each step refuses. */
#define _POSIX_C_SOURCE 200809L
#include "affine.h"

static void test_runs(const mlc_model *model) {
  affine self;
  mlc_tensor shape = {.struct_size = sizeof shape};
  int64_t value;
  mlc_profile_row rows[2] = {{9, 9}, {9, 9}};
  affine_open(&self, model);
  for (int64_t row_count = 1; row_count <= ROWS_MAX; row_count += 7) {
    affine_bind(&self, row_count);
    CHECK_STATUS(MLC_OK, mlc_session_output_shape(self.session, 0, &shape));
    CHECK(shape.rank == 2 && shape.shape[0] == row_count && shape.shape[1] == COLUMNS);
    CHECK(shape.size_bytes == (uint64_t)row_count * COLUMNS * 4 && shape.data == NULL);
    CHECK_STATUS(MLC_OK, mlc_session_symbol(self.session, 0, &value));
    CHECK(value == row_count);
    memset(self.y, 0xff, sizeof self.y);
    CHECK_STATUS(MLC_BAD_STATE, mlc_session_result_shape(self.session, 0, &shape));
    CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
    CHECK_STATUS(MLC_OK, mlc_session_result_shape(self.session, 0, &shape));
    CHECK(shape.rank == 2 && shape.shape[0] == row_count && shape.shape[1] == COLUMNS);
    affine_check(&self, row_count);
    CHECK_TEXT("", mlc_session_detail(self.session));
  }
  CHECK_STATUS(MLC_TOO_SMALL, mlc_session_profile(self.session, rows, 1));
  CHECK_STATUS(MLC_OK, mlc_session_profile(self.session, rows, 2));
  CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
  CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
  CHECK(rows[0].launch_count == 2 && rows[1].launch_count == 2);
  free(self.memory);
}

static void test_rebind(const mlc_model *model) {
  affine self;
  affine_open(&self, model);
  affine_bind(&self, 9);
  const void *const inputs[] = {self.x + 4 * COLUMNS, &self.row};
  void *const outputs[] = {self.y + 4 * COLUMNS};
  CHECK_STATUS(MLC_OK, mlc_session_rebind(self.session, inputs, outputs));
  CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
  memmove(self.x, self.x + 4 * COLUMNS, 9 * COLUMNS * sizeof(float));
  memmove(self.y, self.y + 4 * COLUMNS, 9 * COLUMNS * sizeof(float));
  affine_check(&self, 9);
  const void *const missing[] = {NULL, &self.row};
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_session_rebind(self.session, missing, outputs));
  CHECK_TEXT("input 'x': data is null or not aligned as the model needs", mlc_session_detail(self.session));
  free(self.memory);
}

static void test_arrays(const mlc_model *model) {
  affine self;
  affine_open(&self, model);
  const char *detail = mlc_session_detail(self.session);
  const intptr_t shape[] = {9, COLUMNS};
  mlc_array x = {2, 2, 'f', 4, 0x301, shape, NULL, self.x, NULL}, y = {2, 2, 'f', 4, 0x701, shape, NULL, self.y, NULL};
  const mlc_array row = {2, 0, 'i', 8, 0x301, NULL, NULL, &self.row, NULL};
  const mlc_array *const inputs[] = {&x, &row}, *const outputs[] = {&y};
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run_arrays(self.session, inputs, outputs));
  affine_bind(&self, 9);
  CHECK_STATUS(MLC_OK, mlc_session_run_arrays(self.session, inputs, outputs));
  affine_check(&self, 9);
  y.flags = 0x301;
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run_arrays(self.session, inputs, outputs));
  CHECK_TEXT("output 'y' is no array of the planned type, shape, layout and alignment", detail);
  y.flags = 0x701, x.kind = 'u';
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run_arrays(self.session, inputs, outputs));
  CHECK_TEXT("input 'x' is no array of the planned type, shape, layout and alignment", detail);
  x.kind = 'f', x.data = (uint8_t *)self.x + 4;
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run_arrays(self.session, inputs, outputs));
  free(self.memory);
}

static void test_inputs_refused(const mlc_model *model) {
  affine self;
  uint64_t arena_bytes = 77;
  affine_open(&self, model);
  const char *detail = mlc_session_detail(self.session);
  mlc_tensor x = affine_x(&self, 5), row = affine_row(&self);
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_plan(self.session, &arena_bytes));
  CHECK_TEXT("input 'x' is missing", detail);
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_session_bind_input(self.session, 2, &x));
  CHECK_STATUS(MLC_OK, mlc_session_bind_input(self.session, 0, &x));
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_plan(self.session, &arena_bytes));
  CHECK_TEXT("input 'row' is missing", detail);
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run(self.session));
  CHECK(arena_bytes == 77);

  x.dtype = MLC_DTYPE_F64;
  CHECK_STATUS(MLC_BAD_TYPE, mlc_session_bind_input(self.session, 0, &x));
  CHECK_TEXT("input 'x' has type f64; the model takes f32", detail);
  x = affine_x(&self, 65);
  x.size_bytes = 65 * COLUMNS * 4;
  CHECK_STATUS(MLC_OUT_OF_RANGE, mlc_session_bind_input(self.session, 0, &x));
  CHECK_TEXT("input 'x' dim 0 is 65; symbol B allows 1..64", detail);
  x = affine_x(&self, 5);
  x.shape[1] = 9;
  CHECK_STATUS(MLC_BAD_SHAPE, mlc_session_bind_input(self.session, 0, &x));
  CHECK_TEXT("input 'x' dim 1 is 9; the model takes 8", detail);
  x = affine_x(&self, 5);
  x.rank = 1;
  CHECK_STATUS(MLC_BAD_SHAPE, mlc_session_bind_input(self.session, 0, &x));
  CHECK_TEXT("input 'x' has 1 dims; the model takes 2", detail);
  x = affine_x(&self, 5);
  x.size_bytes = 5 * COLUMNS * 4 - 1;
  CHECK_STATUS(MLC_BAD_SHAPE, mlc_session_bind_input(self.session, 0, &x));
  x = affine_x(&self, 5);
  x.data = (uint8_t *)self.x + 4;
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_session_bind_input(self.session, 0, &x));
  row.data = NULL;
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_session_bind_input(self.session, 1, &row));
  x = affine_x(&self, INT64_MAX / 8);
  CHECK_STATUS(MLC_BAD_SHAPE, mlc_session_bind_input(self.session, 0, &x));
  x = affine_x(&self, -1);
  CHECK_STATUS(MLC_BAD_SHAPE, mlc_session_bind_input(self.session, 0, &x));
  free(self.memory);
}

static void test_runs_refused(const mlc_model *model) {
  affine self;
  affine_open(&self, model);
  const char *detail = mlc_session_detail(self.session);
  affine_bind(&self, 5);
  self.row = 5;
  CHECK_STATUS(MLC_INDEX_BOUNDS, mlc_session_run(self.session));
  CHECK_TEXT("kernel 1: index 5 is out of bounds for size 5", detail);
  self.row = -1;
  CHECK_STATUS(MLC_INDEX_BOUNDS, mlc_session_run(self.session));
  self.row = 4;
  CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
  CHECK_TEXT("", detail);

  CHECK_STATUS(MLC_OK, mlc_session_bind_arena(self.session, self.arena, 5 * COLUMNS * 4 - 1));
  CHECK_STATUS(MLC_TOO_SMALL, mlc_session_run(self.session));
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_session_bind_arena(self.session, self.arena + 1, 64));
  mlc_tensor y = affine_y(&self, 6);
  CHECK_STATUS(MLC_BAD_SHAPE, mlc_session_bind_output(self.session, 0, &y));
  CHECK_TEXT("output 'y' dim 0 is 6; the model gives 5", detail);
  const mlc_tensor x = affine_x(&self, 6);
  CHECK_STATUS(MLC_OK, mlc_session_bind_input(self.session, 0, &x));
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run(self.session));
  uint64_t arena_bytes;
  CHECK_STATUS(MLC_OK, mlc_session_plan(self.session, &arena_bytes));
  CHECK_STATUS(MLC_BAD_STATE, mlc_session_run(self.session));
  CHECK_TEXT("output 'y' is not bound", detail);
  mlc_session *second = NULL;
  CHECK_STATUS(MLC_TOO_SMALL, mlc_session_init(model, self.memory, self.memory_bytes - 1, &second));
  CHECK(second == NULL);
  free(self.memory);
}

int main(int argc, char **argv) {
  CHECK(argc > 1);
  const file_bytes file = read_file(argv[1], "mixed.mlc");
  mlc_model_storage storage;
  const mlc_model *model;
  CHECK_STATUS(MLC_OK, mlc_model_view(file.bytes, file.size_bytes, NULL, &storage, &model));
  CHECK(mlc_model_target_index(model) == 1);
  test_runs(model);
  test_rebind(model);
  test_arrays(model);
  test_inputs_refused(model);
  test_runs_refused(model);
  mlc_model_close(model);
  free(file.bytes);
  return 0;
}
