/* What LLVM may call on its own for loops that copy or clear memory. Compiled with -fno-builtin, so that the loops here do
 * not become calls of themselves. */
typedef __SIZE_TYPE__ size_type;

void *memset(void *target, int value, size_type count) {
  unsigned char *bytes = target;
  for (size_type i = 0; i < count; ++i) bytes[i] = (unsigned char)value;
  return target;
}

void *memcpy(void *restrict target, const void *restrict source, size_type count) {
  unsigned char *bytes = target;
  const unsigned char *from = source;
  for (size_type i = 0; i < count; ++i) bytes[i] = from[i];
  return target;
}

void *memmove(void *target, const void *source, size_type count) {
  unsigned char *bytes = target;
  const unsigned char *from = source;
  if (bytes < from) {
    for (size_type i = 0; i < count; ++i) bytes[i] = from[i];
  } else {
    for (size_type i = count; i > 0; --i) bytes[i - 1] = from[i - 1];
  }
  return target;
}
