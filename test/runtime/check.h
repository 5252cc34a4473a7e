/* check.h - what the runtime's tests share: a check that ends the program, and a file at an aligned address. */
#ifndef MLC_TEST_CHECK_H
#define MLC_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlc_rt.h"

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);       \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

#define CHECK_STATUS(expected, call)                                                                       \
  do {                                                                                                     \
    const mlc_status status_ = (call);                                                                     \
    if (status_ != (expected)) {                                                                           \
      fprintf(stderr, "%s:%d: %s gives %s, not %s\n", __FILE__, __LINE__, #call, mlc_status_name(status_), \
              mlc_status_name(expected));                                                                  \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)

#define CHECK_TEXT(expected, text)                                                                   \
  do {                                                                                               \
    if (strcmp(expected, text) != 0) {                                                               \
      fprintf(stderr, "%s:%d: \"%s\" is not \"%s\"\n", __FILE__, __LINE__, text, expected);          \
      exit(1);                                                                                       \
    }                                                                                                \
  } while (0)

typedef struct file_bytes {
  uint8_t *bytes;
  uint64_t size_bytes;
} file_bytes;

/* Memory at a multiple of 64 bytes whose end a sanitizer guards exactly. */
static inline void *aligned_memory(uint64_t size_bytes) {
  void *memory = NULL;
  CHECK(posix_memalign(&memory, 64, size_bytes ? (size_t)size_bytes : 1) == 0);
  return memory;
}

static inline file_bytes read_file(const char *folder, const char *name) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  CHECK(file != NULL);
  fseek(file, 0, SEEK_END);
  file_bytes contents = {NULL, (uint64_t)ftell(file)};
  contents.bytes = aligned_memory(contents.size_bytes);
  rewind(file);
  CHECK(fread(contents.bytes, 1, (size_t)contents.size_bytes, file) == contents.size_bytes);
  fclose(file);
  return contents;
}

#endif
