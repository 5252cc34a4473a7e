/* failure.c - the words for what goes wrong in a session. */
#include <stdatomic.h>

#include "session.h"

mlc_status failure_say(mlc_session *session, mlc_status status, const char *text) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, text);
  return status;
}

sentence failure_begin(mlc_session *session, const char *noun, const char *name) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, noun);
  sentence_text(&line, " ");
  sentence_name(&line, name);
  return line;
}

mlc_status failure_say_about(mlc_session *session, mlc_status status, const char *noun, const char *name,
                            const char *text) {
  sentence line = failure_begin(session, noun, name);
  sentence_text(&line, text);
  return status;
}

static void say_dim(sentence *line, uint32_t axis, int64_t got) {
  sentence_text(line, " dim ");
  sentence_number(line, axis);
  sentence_text(line, " is ");
  sentence_number(line, got);
}

static void say_range(sentence *line, const mlc_model *model, uint32_t symbol) {
  sentence_text(line, "; symbol ");
  sentence_text(line, model_symbol_name(model, symbol));
  sentence_text(line, " allows ");
  sentence_number(line, model->symbols[symbol].min);
  sentence_text(line, "..");
  sentence_number(line, model->symbols[symbol].max);
}

/* The input and axis of a flat index into input_dims. */
static int find_dim(const mlc_model *model, int64_t flat, uint32_t *out_input, uint32_t *out_axis) {
  for (uint32_t index = 0; index < model->input_count; ++index) {
    const int64_t axis = flat - model->tensors[index].dim_first;
    if (axis < 0 || axis >= model->tensors[index].rank) continue;
    *out_input = index;
    *out_axis = (uint32_t)axis;
    return 1;
  }
  return 0;
}

/* The first input dim that is plainly symbol `symbol`. */
static int find_symbol_dim(const mlc_model *model, uint32_t symbol, uint32_t *out_input, uint32_t *out_axis) {
  for (uint32_t flat = 0; flat < model->input_dim_count; ++flat)
    if (model->dims[flat] == -1 - (int64_t)symbol) return find_dim(model, flat, out_input, out_axis);
  return 0;
}

mlc_status failure_dim_range(mlc_session *session, uint32_t flat, int64_t got) {
  uint32_t input = 0, axis = 0;
  const mlc_model *model = session->model;
  (void)find_dim(model, flat, &input, &axis);
  sentence line = failure_begin(session, "input", model_tensor_name(model, input));
  say_dim(&line, axis, got);
  say_range(&line, model, (uint32_t)(-1 - model->dims[flat]));
  return MLC_OUT_OF_RANGE;
}

mlc_status failure_dim_clash(mlc_session *session, uint32_t flat, int64_t got) {
  uint32_t input = 0, axis = 0;
  const mlc_model *model = session->model;
  const uint32_t symbol = (uint32_t)(-1 - model->dims[flat]);
  (void)find_dim(model, flat, &input, &axis);
  sentence line = failure_begin(session, "input", model_tensor_name(model, input));
  say_dim(&line, axis, got);
  sentence_text(&line, "; symbol ");
  sentence_text(&line, model_symbol_name(model, symbol));
  sentence_text(&line, " is ");
  sentence_number(&line, session->symbols[symbol]);
  if (find_symbol_dim(model, symbol, &input, &axis)) {
    sentence_text(&line, " by input ");
    sentence_name(&line, model_tensor_name(model, input));
    sentence_text(&line, " dim ");
    sentence_number(&line, axis);
  }
  return MLC_BAD_SHAPE;
}

static mlc_status fail_range(mlc_session *session, uint32_t symbol, int64_t got) {
  uint32_t input, axis;
  const mlc_model *model = session->model;
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  if (find_symbol_dim(model, symbol, &input, &axis)) {
    line = failure_begin(session, "input", model_tensor_name(model, input));
    say_dim(&line, axis, got);
  } else {
    sentence_text(&line, "a size computed from the inputs is ");
    sentence_number(&line, got);
  }
  say_range(&line, model, symbol);
  return MLC_OUT_OF_RANGE;
}

static mlc_status fail_clash(mlc_session *session, uint32_t symbol, int64_t got, int64_t want) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, "the inputs disagree on symbol ");
  sentence_text(&line, model_symbol_name(session->model, symbol));
  sentence_text(&line, ": one dim says ");
  sentence_number(&line, want);
  sentence_text(&line, ", another ");
  sentence_number(&line, got);
  return MLC_BAD_SHAPE;
}

mlc_status failure_input_dim(mlc_session *session, int64_t flat, int64_t got, int64_t want) {
  uint32_t input, axis;
  if (!find_dim(session->model, flat, &input, &axis))
    return failure_say(session, MLC_BAD_SHAPE, "an input has a wrong size");
  sentence line = failure_begin(session, "input", model_tensor_name(session->model, input));
  say_dim(&line, axis, got);
  sentence_text(&line, "; the model takes ");
  sentence_number(&line, want);
  return MLC_BAD_SHAPE;
}

static mlc_status fail_bounds(mlc_session *session, int64_t kernel, int64_t got, int64_t want) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, "kernel ");
  sentence_number(&line, kernel);
  sentence_text(&line, ": index ");
  sentence_number(&line, got);
  sentence_text(&line, " is out of bounds for size ");
  sentence_number(&line, want);
  return MLC_INDEX_BOUNDS;
}

static mlc_status fail_size(mlc_session *session, int64_t got) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, "these input sizes are too small or do not go together: a size inside the model would be ");
  sentence_number(&line, got);
  return MLC_BAD_SHAPE;
}

static mlc_status fail_data_size(mlc_session *session, int64_t got, int64_t want) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, "a size computed from the inputs' data is ");
  sentence_number(&line, got);
  sentence_text(&line, "; the model needs ");
  sentence_number(&line, want);
  return MLC_OUT_OF_RANGE;
}

mlc_status failure_other(mlc_session *session, int64_t kernel, int64_t got) {
  sentence line = sentence_begin(session->detail, DETAIL_BYTES);
  sentence_text(&line, "compiled code failed");
  if (kernel >= 0) {
    sentence_text(&line, " in kernel ");
    sentence_number(&line, kernel);
  }
  sentence_text(&line, ", value ");
  sentence_number(&line, got);
  return MLC_EXECUTION;
}

/* env->fail. Kernels may call it from several threads: the first one is told, the others only return. */
int32_t failure_note(const mlc_env_v1 *env, int32_t status, uint32_t what, int64_t index, int64_t got,
                            int64_t want) {
  mlc_session *session = (mlc_session *)env->host;
  int32_t expected = MLC_OK;
  const int has_symbol = index >= 0 && index < (int64_t)session->model->symbol_count;
  if (!atomic_compare_exchange_strong(&session->failure, &expected, MLC_EXECUTION)) return expected;
  mlc_status natural;
  if (what == MLC_FAIL_INPUT_DIM) {
    natural = failure_input_dim(session, index, got, want);
  } else if (what == MLC_FAIL_SYMBOL_RANGE && has_symbol) {
    natural = fail_range(session, (uint32_t)index, got);
  } else if (what == MLC_FAIL_SYMBOL_CLASH && has_symbol) {
    natural = fail_clash(session, (uint32_t)index, got, want);
  } else if (what == MLC_FAIL_BOUNDS) {
    natural = fail_bounds(session, index, got, want);
  } else if (what == MLC_FAIL_SIZE) {
    natural = fail_size(session, got);
  } else if (what == MLC_FAIL_DATA_SIZE) {
    natural = fail_data_size(session, got, want);
  } else {
    natural = failure_other(session, index, got);
  }
  if (status == MLC_OK) status = natural;
  atomic_store(&session->failure, status);
  return status;
}
