/* affine.h - one session of the test model y = (x * w + b) * w + b with its tensors. */
#ifndef MLC_TEST_AFFINE_H
#define MLC_TEST_AFFINE_H

#include "check.h"

enum { ROWS_MAX = 64, COLUMNS = 8 };

typedef struct affine {
  mlc_session *session;
  void *memory;
  uint64_t memory_bytes;
  _Alignas(64) uint8_t arena[ROWS_MAX * COLUMNS * 4];
  _Alignas(64) float x[ROWS_MAX * COLUMNS];
  _Alignas(64) float y[ROWS_MAX * COLUMNS];
  _Alignas(64) int64_t row;
} affine;

static inline mlc_tensor affine_x(affine *self, int64_t row_count) {
  const mlc_tensor tensor = {sizeof tensor, MLC_DTYPE_F32, 2, 0, self->x, sizeof self->x, {row_count, COLUMNS}};
  return tensor;
}

static inline mlc_tensor affine_y(affine *self, int64_t row_count) {
  mlc_tensor tensor = affine_x(self, row_count);
  tensor.data = self->y;
  return tensor;
}

static inline mlc_tensor affine_row(affine *self) {
  const mlc_tensor tensor = {sizeof tensor, MLC_DTYPE_I64, 0, 0, &self->row, sizeof self->row, {0}};
  return tensor;
}

static inline void affine_open(affine *self, const mlc_model *model) {
  mlc_need need = {.struct_size = sizeof need};
  memset(self, 0, sizeof *self);
  CHECK_STATUS(MLC_OK, mlc_model_need(model, &need));
  self->memory_bytes = need.session_bytes;
  self->memory = aligned_memory(need.session_bytes);
  CHECK_STATUS(MLC_OK, mlc_session_init(model, self->memory, need.session_bytes, &self->session));
  for (int index = 0; index < ROWS_MAX * COLUMNS; ++index) self->x[index] = (float)(index % 37) / 7 - 2;
}

static inline void affine_bind(affine *self, int64_t row_count) {
  const mlc_tensor x = affine_x(self, row_count), y = affine_y(self, row_count), row = affine_row(self);
  uint64_t arena_bytes = 0;
  CHECK_STATUS(MLC_OK, mlc_session_bind_input(self->session, 0, &x));
  CHECK_STATUS(MLC_OK, mlc_session_bind_input(self->session, 1, &row));
  CHECK_STATUS(MLC_OK, mlc_session_plan(self->session, &arena_bytes));
  CHECK(arena_bytes == (uint64_t)row_count * COLUMNS * 4);
  CHECK_STATUS(MLC_OK, mlc_session_bind_arena(self->session, self->arena, arena_bytes));
  CHECK_STATUS(MLC_OK, mlc_session_bind_output(self->session, 0, &y));
}

static inline void affine_check(const affine *self, int64_t row_count) {
  for (int64_t at = 0; at < row_count * COLUMNS; ++at) {
    const float scale = (float)(at % COLUMNS) / 4 + 1, offset = (float)(at % COLUMNS) - 3;
    const float want = (self->x[at] * scale + offset) * scale + offset, error = self->y[at] - want;
    CHECK(error > -1e-4f && error < 1e-4f);
  }
}

#endif
