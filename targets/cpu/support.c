/* What LLVM may call on its own: for loops that copy or clear memory, and on x86-64 to round f64 to f16. Compiled with
 * -fno-builtin, so that the loops here do not become calls of themselves. */
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

#if defined(__x86_64__)
/* f64 to f16, nearest even, in integers: as a conversion it would be a call of itself. */
_Float16 __truncdfhf2(double value) {
  union { double number; unsigned long long bits; } wide = {.number = value};
  union { unsigned short bits; _Float16 number; } half = {.bits = (unsigned short)(wide.bits >> 48 & 0x8000)};
  const int exponent = (int)(wide.bits >> 52 & 0x7ff) - 1023;
  const unsigned long long mantissa = wide.bits & ((1ull << 52) - 1);
  if (exponent == 1024 && mantissa != 0) {
    half.bits |= (unsigned short)(0x7e00 | mantissa >> 42);
  } else if (exponent > 15) {
    half.bits |= 0x7c00;
  } else if (exponent >= -25) {
    /* Below 2**-14 the leading one is stored, and more of the rest is cut off. */
    const int is_denormal = exponent < -14;
    const unsigned long long digits = is_denormal ? mantissa | 1ull << 52 : mantissa;
    const int cut = is_denormal ? 28 - exponent : 42;
    const unsigned long long rest = digits & ((1ull << cut) - 1), middle = 1ull << (cut - 1);
    unsigned long long kept = digits >> cut;
    if (!is_denormal) kept |= (unsigned long long)(exponent + 15) << 10;
    kept += rest > middle || (rest == middle && (kept & 1) != 0);
    half.bits |= (unsigned short)kept;
  }
  return half.number;
}
#endif
