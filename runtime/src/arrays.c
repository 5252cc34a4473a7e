/* arrays.c - runs a session on arrays as Python's array interface describes them: one call, all checks. */
#include "session.h"

#define INTERFACE_VERSION 2
#define FLAGS_INPUT INT32_C(0x301)  /* C-contiguous, aligned to the item, native byte order */
#define FLAGS_OUTPUT INT32_C(0x701) /* and writable */

/* The interface's letter of a dtype; 0: it has none that says it, as 'V' is any bytes. */
static char kind_of(uint32_t dtype) {
  if (dtype <= MLC_DTYPE_F16) return 'f';
  if (dtype == MLC_DTYPE_BOOL) return 'b';
  if (dtype >= MLC_DTYPE_I64 && dtype <= MLC_DTYPE_I8) return 'i';
  return dtype >= MLC_DTYPE_U8 && dtype <= MLC_DTYPE_U64 ? 'u' : '\0';
}

static int fits(const mlc_session *session, uint32_t tensor_index, const mlc_array *array, int32_t flags) {
  const mlc_model *model = session->model;
  const format_tensor *tensor = &model->tensors[tensor_index];
  /* input_dims and output_dims lie one after another, as the description's dims do. */
  const int64_t *planned = session->input_dims + tensor->dim_first;
  if (!array || array->two != INTERFACE_VERSION || array->kind != kind_of(tensor->dtype) ||
      (uint32_t)array->item_bytes != mlc_dtype_bytes(tensor->dtype) || (array->flags & flags) != flags ||
      (uint32_t)array->rank != tensor->rank || !array->data ||
      (uintptr_t)array->data % model->target->io_align_bytes != 0)
    return 0;
  for (uint32_t axis = 0; axis < tensor->rank; ++axis)
    if (array->shape[axis] != planned[axis]) return 0;
  return 1;
}

mlc_status mlc_session_run_arrays(mlc_session *session, const mlc_array *const *inputs,
                                  const mlc_array *const *outputs) {
  if (!session || !inputs || !outputs) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  if (!session->is_planned)
    return failure_say(session, MLC_BAD_STATE, "mlc_session_plan comes before mlc_session_run_arrays");
  for (uint32_t index = 0; index < model->input_count; ++index)
    if (!fits(session, index, inputs[index], FLAGS_INPUT))
      return failure_say_about(session, MLC_BAD_STATE, "input", model_tensor_name(model, index),
                               " is no array of the planned type, shape, layout and alignment");
  for (uint32_t index = 0; index < model->output_count; ++index)
    if (!fits(session, model->input_count + index, outputs[index], FLAGS_OUTPUT))
      return failure_say_about(session, MLC_BAD_STATE, "output", model_tensor_name(model, model->input_count + index),
                               " is no array of the planned type, shape, layout and alignment");
  for (uint32_t index = 0; index < model->input_count; ++index) session->inputs[index] = inputs[index]->data;
  for (uint32_t index = 0; index < model->output_count; ++index) {
    session->outputs[index] = outputs[index]->data;
    session->is_output_bound[index] = 1;
  }
  return mlc_session_run(session);
}

void mlc_arrays_open(mlc_array_opener open, void *const *boxes, uint32_t count, const mlc_array **out_arrays) {
  for (uint32_t index = 0; index < count; ++index) out_arrays[index] = (const mlc_array *)open(boxes[index], 0);
}
