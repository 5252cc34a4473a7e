/* session.h - a session's state, and the sentences on its failures (failure.c). */
#ifndef MLC_SESSION_H
#define MLC_SESSION_H

#include "model.h"

#define DETAIL_BYTES 512

struct mlc_session {
  const mlc_model *model;
  mlc_env_v1 env;
  mlc_call_v1 call;
  const void **inputs;
  void **outputs;
  int64_t *input_dims;
  int64_t *output_dims;
  int64_t *result_dims; /* output_dims as the last run left them */
  int64_t *symbols;
  uint8_t *is_input_bound;
  uint8_t *is_output_bound;
  mlc_pool *pool;
  mlc_pool *claimed_pool; /* during a run: the pool if it was free */
  mlc_profile_row *profile;
  uint64_t arena_bytes; /* of the bound arena */
  int is_planned;
  int has_run; /* since the plan, without a failure */
  _Atomic int32_t failure; /* first status that compiled code reported in this call */
  char detail[DETAIL_BYTES];
};

/* Puts a sentence into the session's detail and returns `status`. */
mlc_status failure_say(mlc_session *session, mlc_status status, const char *text);
/* The same, starting with a noun and a name: input 'x'... */
mlc_status failure_say_about(mlc_session *session, mlc_status status, const char *noun, const char *name,
                             const char *text);
/* Starts such a sentence; the caller goes on. */
sentence failure_begin(mlc_session *session, const char *noun, const char *name);

/* Input dim `flat` (index into input_dims) has another size than the model's. */
mlc_status failure_input_dim(mlc_session *session, int64_t flat, int64_t got, int64_t want);
/* Input dim `flat` is outside the range of its symbol. */
mlc_status failure_dim_range(mlc_session *session, uint32_t flat, int64_t got);
/* Input dim `flat` is another value than an earlier dim gave its symbol. */
mlc_status failure_dim_clash(mlc_session *session, uint32_t flat, int64_t got);
/* Compiled code returned `got` without a word. */
mlc_status failure_other(mlc_session *session, int64_t kernel, int64_t got);
/* mlc_env_v1.fail. */
int32_t failure_note(const mlc_env_v1 *env, int32_t status, uint32_t what, int64_t index, int64_t got, int64_t want);

#endif
