/* session.c - binds tensors, plans shapes and runs a model; all state is in one block of the caller's. */
#include "session.h"

#include <stdatomic.h>

#include "float_mode.h"
#include "memory.h"
#include "port.h"
#include "threads.h"

#define SESSION_ALIGN_BYTES 16

/* Compiled code has these as numbers. Here and not in a test, so that every build for every machine checks them. */
_Static_assert(sizeof(mlc_code_v1) == 32 && offsetof(mlc_code_v1, forward_offset) == 20, "mlc_code_v1 moved");
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(offsetof(mlc_env_v1, launch) == 16 && offsetof(mlc_env_v1, fail) == 24, "mlc_env_v1 moved");
_Static_assert(offsetof(mlc_call_v1, env) == 8 && offsetof(mlc_call_v1, weights) == 32, "mlc_call_v1 moved");
_Static_assert(offsetof(mlc_call_v1, input_dims) == 48 && offsetof(mlc_call_v1, symbols) == 64, "mlc_call_v1 moved");
_Static_assert(offsetof(mlc_call_v1, arena_bytes) == 72 && offsetof(mlc_call_v1, state) == 80, "mlc_call_v1 moved");
#endif

/* env->launch. */
static int32_t launch(const mlc_env_v1 *env, uint32_t kernel_index, mlc_kernel_v1 kernel, const void *args,
                      int64_t tile_count) {
  mlc_session *session = (mlc_session *)env->host;
  const int is_profiled = session->profile && kernel_index < session->model->code->kernel_count;
  const uint64_t start_ns = is_profiled ? port_time_ns() : 0;
  if (tile_count > 0) {
    if (session->claimed_pool) {
      pool_run(session->claimed_pool, kernel, args, tile_count);
    } else {
      kernel(args, 0, tile_count);
    }
  }
  if (is_profiled) {
    session->profile[kernel_index].time_ns += port_time_ns() - start_ns;
    session->profile[kernel_index].launch_count += 1;
  }
  return atomic_load_explicit(&session->failure, memory_order_relaxed);
}

static uint64_t round_up(uint64_t bytes) {
  return (bytes + SESSION_ALIGN_BYTES - 1) / SESSION_ALIGN_BYTES * SESSION_ALIGN_BYTES;
}

static uint64_t session_bytes(const mlc_model *model) {
  const uint64_t tensor_count = (uint64_t)model->input_count + model->output_count;
  const uint64_t dim_count = (uint64_t)model->input_dim_count + 2 * (uint64_t)model->output_dim_count + model->symbol_count;
  return round_up(sizeof(mlc_session)) + round_up(dim_count * sizeof(int64_t)) +
         round_up(tensor_count * sizeof(void *)) + round_up(tensor_count);
}

mlc_status mlc_model_need(const mlc_model *model, mlc_need *out_need) {
  if (!model || !out_need || out_need->struct_size != sizeof *out_need) return MLC_BAD_ARGUMENT;
  const int64_t arena_bytes = model->target->arena_bytes_max;
  out_need->session_align_bytes = SESSION_ALIGN_BYTES;
  out_need->session_bytes = session_bytes(model);
  out_need->arena_align_bytes = model->target->arena_align_bytes;
  out_need->io_align_bytes = model->target->io_align_bytes;
  out_need->arena_bytes_max = arena_bytes < 0 ? UINT64_MAX : (uint64_t)arena_bytes;
  out_need->state_bytes = model->state_bytes;
  return MLC_OK;
}

mlc_status mlc_session_init(const mlc_model *model, void *memory, uint64_t size_bytes, mlc_session **out_session) {
  if (!model || !memory || !out_session || (uintptr_t)memory % SESSION_ALIGN_BYTES != 0) return MLC_BAD_ARGUMENT;
  if (!model->forward) return MLC_UNSUPPORTED_CPU;
  if (size_bytes < session_bytes(model)) return MLC_TOO_SMALL;
  memset(memory, 0, (size_t)session_bytes(model));
  mlc_session *session = (mlc_session *)memory;
  const uint32_t tensor_count = model->input_count + model->output_count;
  const uint64_t dim_count = (uint64_t)model->input_dim_count + 2 * (uint64_t)model->output_dim_count + model->symbol_count;
  uint8_t *cursor = (uint8_t *)memory + round_up(sizeof *session);
  session->input_dims = (int64_t *)(void *)cursor;
  session->output_dims = session->input_dims + model->input_dim_count;
  session->result_dims = session->output_dims + model->output_dim_count;
  session->symbols = session->result_dims + model->output_dim_count;
  cursor += round_up(dim_count * sizeof(int64_t));
  session->inputs = (const void **)(void *)cursor;
  session->outputs = (void **)(void *)cursor + model->input_count;
  cursor += round_up((uint64_t)tensor_count * sizeof(void *));
  session->is_input_bound = cursor;
  session->is_output_bound = cursor + model->input_count;

  session->model = model;
  session->env.struct_size = sizeof session->env;
  session->env.abi = MLC_CODE_ABI;
  session->env.host = session;
  session->env.launch = launch;
  session->env.fail = failure_note;
  session->call.struct_size = sizeof session->call;
  session->call.env = &session->env;
  session->call.inputs = session->inputs;
  session->call.outputs = session->outputs;
  session->call.weights = model->weights;
  session->call.input_dims = session->input_dims;
  session->call.output_dims = session->output_dims;
  session->call.symbols = session->symbols;
  *out_session = session;
  return MLC_OK;
}

mlc_status mlc_session_use_pool(mlc_session *session, mlc_pool *pool) {
  if (!session) return MLC_BAD_ARGUMENT;
  session->pool = pool;
  return MLC_OK;
}

mlc_status mlc_session_profile(mlc_session *session, mlc_profile_row *rows, uint32_t row_count) {
  if (!session) return MLC_BAD_ARGUMENT;
  session->profile = NULL;
  if (!rows) return MLC_OK;
  if (row_count < session->model->code->kernel_count)
    return failure_say(session, MLC_TOO_SMALL, "the profile has fewer rows than the model has kernels");
  memset(rows, 0, row_count * sizeof *rows);
  session->profile = rows;
  return MLC_OK;
}

const char *mlc_session_detail(const mlc_session *session) { return session->detail; }

static int is_data_aligned(const mlc_model *model, const void *data) {
  return (uintptr_t)data % model->target->io_align_bytes == 0;
}

/* What inputs and outputs share: struct, type, rank, size and alignment. `noun` is "input" or "output". */
static mlc_status check_tensor(mlc_session *session, const char *noun, uint32_t tensor_index,
                               const mlc_tensor *tensor) {
  const mlc_model *model = session->model;
  const format_tensor *described = &model->tensors[tensor_index];
  const char *name = model_tensor_name(model, tensor_index);
  uint64_t bytes;
  if (!tensor || tensor->struct_size != sizeof *tensor || tensor->reserved != 0)
    return failure_say_about(session, MLC_BAD_ARGUMENT, noun, name, ": the tensor is null or its struct_size is wrong");
  if (tensor->dtype != described->dtype) {
    const char *got = mlc_dtype_name(tensor->dtype);
    sentence line = failure_begin(session, noun, name);
    sentence_text(&line, " has type ");
    sentence_text(&line, got ? got : "unknown");
    sentence_text(&line, "; the model takes ");
    sentence_text(&line, mlc_dtype_name(described->dtype));
    return MLC_BAD_TYPE;
  }
  if (tensor->rank != described->rank) {
    sentence line = failure_begin(session, noun, name);
    sentence_text(&line, " has ");
    sentence_number(&line, tensor->rank);
    sentence_text(&line, " dims; the model takes ");
    sentence_number(&line, described->rank);
    return MLC_BAD_SHAPE;
  }
  if (model_tensor_bytes(tensor->dtype, tensor->shape, tensor->rank, &bytes) != 0)
    return failure_say_about(session, MLC_BAD_SHAPE, noun, name, ": a size is negative or the tensor too large");
  if (tensor->size_bytes < bytes)
    return failure_say_about(session, MLC_BAD_SHAPE, noun, name, ": size_bytes is less than its shape needs");
  if (bytes > 0 && (!tensor->data || !is_data_aligned(model, tensor->data)))
    return failure_say_about(session, MLC_BAD_ARGUMENT, noun, name, ": data is null or not aligned as the model needs");
  return MLC_OK;
}

mlc_status mlc_session_bind_input(mlc_session *session, uint32_t index, const mlc_tensor *tensor) {
  if (!session) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  session->detail[0] = '\0';
  if (index >= model->input_count) return failure_say(session, MLC_BAD_ARGUMENT, "there is no input of that index");
  const mlc_status status = check_tensor(session, "input", index, tensor);
  if (status != MLC_OK) return status;
  const uint32_t first = model->tensors[index].dim_first;
  for (uint32_t axis = 0; axis < tensor->rank; ++axis) {
    const int64_t dim = model->dims[first + axis];
    if (dim >= 0 && tensor->shape[axis] != dim)
      return failure_input_dim(session, first + axis, tensor->shape[axis], dim);
    if (dim >= 0 || dim == MLC_DIM_COMPUTED) continue;
    const format_symbol *symbol = &model->symbols[-1 - dim];
    if (tensor->shape[axis] < symbol->min || tensor->shape[axis] > symbol->max)
      return failure_dim_range(session, first + axis, tensor->shape[axis]);
  }
  const size_t dim_bytes = tensor->rank * sizeof(int64_t);
  if (!session->is_input_bound[index] || memcmp(session->input_dims + first, tensor->shape, dim_bytes) != 0)
    session->is_planned = 0;
  memcpy(session->input_dims + first, tensor->shape, dim_bytes);
  session->inputs[index] = tensor->data;
  session->is_input_bound[index] = 1;
  return MLC_OK;
}

/* Reads the symbols that are plainly a dim of an input; ranges were checked when it was bound. */
static mlc_status read_symbols(mlc_session *session) {
  const mlc_model *model = session->model;
  for (uint32_t index = 0; index < model->symbol_count; ++index) session->symbols[index] = -1;
  for (uint32_t flat = 0; flat < model->input_dim_count; ++flat) {
    const int64_t dim = model->dims[flat];
    if (dim >= 0 || dim == MLC_DIM_COMPUTED) continue;
    const uint32_t symbol = (uint32_t)(-1 - dim);
    const int64_t got = session->input_dims[flat];
    if (session->symbols[symbol] < 0) {
      session->symbols[symbol] = got;
    } else if (session->symbols[symbol] != got) {
      return failure_dim_clash(session, flat, got);
    }
  }
  return MLC_OK;
}

/* Compiled code is trusted to compute, not to give sizes that the caller then allocates. */
static mlc_status check_plan(mlc_session *session) {
  const mlc_model *model = session->model;
  for (uint32_t index = 0; index < model->output_count; ++index) {
    const format_tensor *tensor = &model->tensors[model->input_count + index];
    const int64_t *described = model->dims + tensor->dim_first;
    const int64_t *planned = session->output_dims + (tensor->dim_first - model->input_dim_count);
    uint64_t bytes;
    int is_right = model_tensor_bytes(tensor->dtype, planned, tensor->rank, &bytes) == 0;
    for (uint32_t axis = 0; axis < tensor->rank; ++axis) {
      if (described[axis] == MLC_DIM_COMPUTED || described[axis] == MLC_DIM_DATA) continue;
      is_right &= planned[axis] == (described[axis] >= 0 ? described[axis] : session->symbols[-1 - described[axis]]);
    }
    if (!is_right)
      return failure_say_about(session, MLC_EXECUTION, "output", model_tensor_name(model, model->input_count + index),
                       ": the compiled plan gave a shape that the model description does not");
  }
  if (session->call.arena_bytes < 0)
    return failure_say(session, MLC_EXECUTION, "the compiled plan gave a negative arena size");
  return MLC_OK;
}

/* Status of a call into compiled code that returned `returned`. */
static mlc_status end_call(mlc_session *session, int32_t returned) {
  const int32_t noted = atomic_load(&session->failure);
  if (noted != MLC_OK) return noted;
  if (returned == MLC_OK) return MLC_OK;
  return failure_other(session, -1, returned);
}

mlc_status mlc_session_plan(mlc_session *session, uint64_t *out_arena_bytes) {
  if (!session || !out_arena_bytes) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  session->detail[0] = '\0';
  for (uint32_t index = 0; index < model->input_count; ++index)
    if (!session->is_input_bound[index])
      return failure_say_about(session, MLC_BAD_STATE, "input", model_tensor_name(model, index), " is missing");
  session->is_planned = 0;
  session->has_run = 0;
  memset(session->is_output_bound, 0, model->output_count);
  mlc_status status = read_symbols(session);
  if (status != MLC_OK) return status;
  session->call.arena_bytes = 0;
  atomic_store(&session->failure, MLC_OK);
  status = end_call(session, model->plan(&session->call));
  if (status == MLC_OK) status = check_plan(session);
  if (status != MLC_OK) return status;
  session->is_planned = 1;
  *out_arena_bytes = (uint64_t)session->call.arena_bytes;
  return MLC_OK;
}

static mlc_status describe_output(const mlc_session *session, uint32_t index, const int64_t *dims,
                                  mlc_tensor *out_tensor) {
  const mlc_model *model = session->model;
  const format_tensor *tensor = &model->tensors[model->input_count + index];
  memset(out_tensor, 0, sizeof *out_tensor);
  out_tensor->struct_size = sizeof *out_tensor;
  out_tensor->dtype = tensor->dtype;
  out_tensor->rank = tensor->rank;
  memcpy(out_tensor->shape, dims + (tensor->dim_first - model->input_dim_count), tensor->rank * sizeof(int64_t));
  return model_tensor_bytes(tensor->dtype, out_tensor->shape, tensor->rank, &out_tensor->size_bytes) == 0
             ? MLC_OK
             : MLC_EXECUTION;
}

static mlc_status can_describe(const mlc_session *session, uint32_t index, const mlc_tensor *out_tensor) {
  if (!session || !out_tensor || out_tensor->struct_size != sizeof *out_tensor) return MLC_BAD_ARGUMENT;
  return index < session->model->output_count ? MLC_OK : MLC_BAD_ARGUMENT;
}

mlc_status mlc_session_output_shape(const mlc_session *session, uint32_t index, mlc_tensor *out_tensor) {
  const mlc_status status = can_describe(session, index, out_tensor);
  if (status != MLC_OK) return status;
  return session->is_planned ? describe_output(session, index, session->output_dims, out_tensor) : MLC_BAD_STATE;
}

mlc_status mlc_session_result_shape(const mlc_session *session, uint32_t index, mlc_tensor *out_tensor) {
  const mlc_status status = can_describe(session, index, out_tensor);
  if (status != MLC_OK) return status;
  return session->is_planned && session->has_run ? describe_output(session, index, session->result_dims, out_tensor)
                                                 : MLC_BAD_STATE;
}

mlc_status mlc_session_symbol(const mlc_session *session, uint32_t index, int64_t *out_value) {
  if (!session || !out_value || index >= session->model->symbol_count) return MLC_BAD_ARGUMENT;
  if (!session->is_planned) return MLC_BAD_STATE;
  *out_value = session->symbols[index];
  return MLC_OK;
}

mlc_status mlc_session_bind_arena(mlc_session *session, void *memory, uint64_t size_bytes) {
  if (!session) return MLC_BAD_ARGUMENT;
  session->detail[0] = '\0';
  if ((!memory && size_bytes > 0) || (uintptr_t)memory % session->model->target->arena_align_bytes != 0)
    return failure_say(session, MLC_BAD_ARGUMENT, "the arena is null or not aligned as mlc_model_need says");
  session->call.arena = (uint8_t *)memory;
  session->arena_bytes = size_bytes;
  return MLC_OK;
}

mlc_status mlc_session_bind_state(mlc_session *session, void *memory, uint64_t size_bytes) {
  if (!session) return MLC_BAD_ARGUMENT;
  session->detail[0] = '\0';
  if ((!memory && size_bytes > 0) || (uintptr_t)memory % FORMAT_ALIGN_BYTES != 0)
    return failure_say(session, MLC_BAD_ARGUMENT, "the memory of the states is null or not aligned to 64 bytes");
  if (size_bytes < session->model->state_bytes)
    return failure_say(session, MLC_TOO_SMALL, "the memory of the states is smaller than mlc_model_need says");
  session->call.state = (uint8_t *)memory;
  return MLC_OK;
}

static mlc_status check_state(mlc_session *session) {
  if (session->model->state_count == 0 || session->call.state) return MLC_OK;
  return failure_say(session, MLC_BAD_STATE, "the model has states: mlc_session_bind_state comes first");
}

mlc_status mlc_session_reset(mlc_session *session) {
  if (!session) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  session->detail[0] = '\0';
  const mlc_status status = check_state(session);
  if (status != MLC_OK || model->state_bytes == 0) return status;
  const uint64_t begun_bytes = model->initial_state_bytes;
  if (begun_bytes > 0) memcpy(session->call.state, model->initial_state, (size_t)begun_bytes);
  memset(session->call.state + begun_bytes, 0, (size_t)(model->state_bytes - begun_bytes));
  return MLC_OK;
}

mlc_status mlc_session_state(mlc_session *session, uint32_t index, mlc_tensor *out_tensor) {
  if (!session || !out_tensor || out_tensor->struct_size != sizeof *out_tensor) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  session->detail[0] = '\0';
  if (index >= model->state_count) return failure_say(session, MLC_BAD_ARGUMENT, "there is no state of that index");
  const mlc_status status = check_state(session);
  if (status != MLC_OK) return status;
  const format_tensor *tensor = &model->tensors[model->input_count + model->output_count + index];
  uint64_t offset_bytes = 0;
  for (uint32_t before = 0; before < index; ++before) offset_bytes += model_state_room(model, before, NULL);
  memset(out_tensor, 0, sizeof *out_tensor);
  out_tensor->struct_size = sizeof *out_tensor;
  out_tensor->dtype = tensor->dtype;
  out_tensor->rank = tensor->rank;
  out_tensor->data = session->call.state + offset_bytes;
  (void)model_state_room(model, index, &out_tensor->size_bytes);
  memcpy(out_tensor->shape, model->dims + tensor->dim_first, tensor->rank * sizeof(int64_t));
  return MLC_OK;
}

mlc_status mlc_session_bind_output(mlc_session *session, uint32_t index, const mlc_tensor *tensor) {
  if (!session) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  session->detail[0] = '\0';
  if (index >= model->output_count) return failure_say(session, MLC_BAD_ARGUMENT, "there is no output of that index");
  if (!session->is_planned) return failure_say(session, MLC_BAD_STATE, "outputs are bound after mlc_session_plan");
  const uint32_t tensor_index = model->input_count + index;
  const mlc_status status = check_tensor(session, "output", tensor_index, tensor);
  if (status != MLC_OK) return status;
  const int64_t *planned = session->output_dims + (model->tensors[tensor_index].dim_first - model->input_dim_count);
  for (uint32_t axis = 0; axis < tensor->rank; ++axis) {
    if (tensor->shape[axis] == planned[axis]) continue;
    sentence line = failure_begin(session, "output", model_tensor_name(model, tensor_index));
    sentence_text(&line, " dim ");
    sentence_number(&line, axis);
    sentence_text(&line, " is ");
    sentence_number(&line, tensor->shape[axis]);
    sentence_text(&line, "; the model gives ");
    sentence_number(&line, planned[axis]);
    return MLC_BAD_SHAPE;
  }
  session->outputs[index] = tensor->data;
  session->is_output_bound[index] = 1;
  return MLC_OK;
}

static int has_elements(const int64_t *dims, uint32_t rank) {
  for (uint32_t axis = 0; axis < rank; ++axis)
    if (dims[axis] == 0) return 0;
  return 1;
}

mlc_status mlc_session_rebind(mlc_session *session, const void *const *inputs, void *const *outputs) {
  if (!session || !inputs || !outputs) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  const uint32_t tensor_count = model->input_count + model->output_count;
  session->detail[0] = '\0';
  if (!session->is_planned)
    return failure_say(session, MLC_BAD_STATE, "mlc_session_plan comes before mlc_session_rebind");
  for (uint32_t index = 0; index < tensor_count; ++index) {
    const int is_input = index < model->input_count;
    const void *data = is_input ? inputs[index] : outputs[index - model->input_count];
    const format_tensor *tensor = &model->tensors[index];
    /* input_dims and output_dims lie one after another, as the description's dims do. */
    if (!has_elements(session->input_dims + tensor->dim_first, tensor->rank)) continue;
    if (!data || !is_data_aligned(model, data))
      return failure_say_about(session, MLC_BAD_ARGUMENT, is_input ? "input" : "output",
                               model_tensor_name(model, index), ": data is null or not aligned as the model needs");
  }
  if (model->input_count > 0) memcpy(session->inputs, inputs, model->input_count * sizeof *inputs);
  if (model->output_count > 0) memcpy(session->outputs, outputs, model->output_count * sizeof *outputs);
  memset(session->is_output_bound, 1, model->output_count);
  return MLC_OK;
}

mlc_status mlc_session_run(mlc_session *session) {
  if (!session) return MLC_BAD_ARGUMENT;
  const mlc_model *model = session->model;
  session->detail[0] = '\0';
  if (!session->is_planned)
    return failure_say(session, MLC_BAD_STATE, "mlc_session_plan comes before mlc_session_run, also after new shapes");
  for (uint32_t index = 0; index < model->output_count; ++index)
    if (!session->is_output_bound[index])
      return failure_say_about(session, MLC_BAD_STATE, "output", model_tensor_name(model, model->input_count + index),
                       " is not bound");
  if ((uint64_t)session->call.arena_bytes > session->arena_bytes)
    return failure_say(session, MLC_TOO_SMALL, "the arena is smaller than mlc_session_plan said");
  const mlc_status state_status = check_state(session);
  if (state_status != MLC_OK) return state_status;

  const uint64_t caller_mode = float_mode_get();
  float_mode_set(FLOAT_MODE_PLAIN);
  session->claimed_pool = session->pool && pool_claim(session->pool) ? session->pool : NULL;
  atomic_store(&session->failure, MLC_OK);
  session->has_run = 0;
  if (model->output_dim_count > 0)
    memcpy(session->result_dims, session->output_dims, model->output_dim_count * sizeof *session->result_dims);
  session->call.output_dims = session->result_dims;
  const int32_t returned = model->forward(&session->call);
  session->call.output_dims = session->output_dims;
  if (session->claimed_pool) pool_release(session->claimed_pool);
  session->claimed_pool = NULL;
  float_mode_set(caller_mode);
  const mlc_status status = end_call(session, returned);
  if (status != MLC_OK) return status;
  for (uint32_t flat = 0; flat < model->output_dim_count; ++flat)
    if (session->result_dims[flat] < 0 || session->result_dims[flat] > session->output_dims[flat])
      return failure_say(session, MLC_EXECUTION, "compiled code gave an output a size that is not in its plan");
  session->has_run = 1;
  return MLC_OK;
}
