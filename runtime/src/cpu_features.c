/* cpu_features.c - what the CPU can do and the system lets programs use. */

#include "mlc_rt.h"
#include "port.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Register of a cpuid leaf. */
enum { LEAF1_ECX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX, LEAF7_1_EDX, EXTENDED_ECX, REGISTER_COUNT };
/* State that the system must save for the feature. */
enum { STATE_NONE, STATE_AVX, STATE_AVX512 };

typedef struct x86_feature {
  const char *name;
  uint8_t word;
  uint8_t bit;
  uint8_t state;
} x86_feature;

/* Append only: the index is the file's feature bit. Names: LLVM's. Bits: Intel SDM vol. 2A, CPUID. */
static const x86_feature X86_FEATURES[] = {
    {"sse3", LEAF1_ECX, 0, STATE_NONE},
    {"ssse3", LEAF1_ECX, 9, STATE_NONE},
    {"sse4.1", LEAF1_ECX, 19, STATE_NONE},
    {"sse4.2", LEAF1_ECX, 20, STATE_NONE},
    {"popcnt", LEAF1_ECX, 23, STATE_NONE},
    {"avx", LEAF1_ECX, 28, STATE_AVX},
    {"f16c", LEAF1_ECX, 29, STATE_AVX},
    {"fma", LEAF1_ECX, 12, STATE_AVX},
    {"movbe", LEAF1_ECX, 22, STATE_NONE},
    {"lzcnt", EXTENDED_ECX, 5, STATE_NONE},
    {"bmi", LEAF7_EBX, 3, STATE_NONE},
    {"bmi2", LEAF7_EBX, 8, STATE_NONE},
    {"avx2", LEAF7_EBX, 5, STATE_AVX},
    {"adx", LEAF7_EBX, 19, STATE_NONE},
    {"avx512f", LEAF7_EBX, 16, STATE_AVX512},
    {"avx512dq", LEAF7_EBX, 17, STATE_AVX512},
    {"avx512cd", LEAF7_EBX, 28, STATE_AVX512},
    {"avx512bw", LEAF7_EBX, 30, STATE_AVX512},
    {"avx512vl", LEAF7_EBX, 31, STATE_AVX512},
    {"avx512ifma", LEAF7_EBX, 21, STATE_AVX512},
    {"avx512vbmi", LEAF7_ECX, 1, STATE_AVX512},
    {"avx512vbmi2", LEAF7_ECX, 6, STATE_AVX512},
    {"avx512vnni", LEAF7_ECX, 11, STATE_AVX512},
    {"avx512bitalg", LEAF7_ECX, 12, STATE_AVX512},
    {"avx512vpopcntdq", LEAF7_ECX, 14, STATE_AVX512},
    {"avx512bf16", LEAF7_1_EAX, 5, STATE_AVX512},
    {"avx512fp16", LEAF7_EDX, 23, STATE_AVX512},
    {"avxvnni", LEAF7_1_EAX, 4, STATE_AVX},
    {"avxifma", LEAF7_1_EAX, 23, STATE_AVX},
    {"avxvnniint8", LEAF7_1_EDX, 4, STATE_AVX},
    {"avxvnniint16", LEAF7_1_EDX, 10, STATE_AVX},
    {"avxneconvert", LEAF7_1_EDX, 5, STATE_AVX},
    {"gfni", LEAF7_ECX, 8, STATE_NONE},
    {"vaes", LEAF7_ECX, 9, STATE_AVX},
    {"vpclmulqdq", LEAF7_ECX, 10, STATE_AVX},
    {"cx16", LEAF1_ECX, 13, STATE_NONE},
    {"sahf", EXTENDED_ECX, 0, STATE_NONE},
    {"prfchw", EXTENDED_ECX, 8, STATE_NONE},
};

typedef struct arm_feature {
  const char *name;
  uint8_t word; /* 0: AT_HWCAP, 1: AT_HWCAP2 */
  uint8_t bit;
} arm_feature;

/* Append only, as above. Bits: Linux arch/arm64/include/uapi/asm/hwcap.h. */
static const arm_feature ARM_FEATURES[] = {
    {"fp-armv8", 0, 0}, {"neon", 0, 1},      {"crc", 0, 7},      {"lse", 0, 8},        {"fullfp16", 0, 10},
    {"rdm", 0, 12},     {"complxnum", 0, 14}, {"dotprod", 0, 20}, {"sve", 0, 22},       {"fp16fml", 0, 23},
    {"sve2", 1, 1},     {"i8mm", 1, 13},     {"bf16", 1, 14},    {"sve-i8mm", 1, 9},   {"sve-bf16", 1, 12},
    {"sme", 1, 23},     {"sve2p1", 1, 36},
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(COUNT_OF(X86_FEATURES) <= 64 && COUNT_OF(ARM_FEATURES) <= 64, "features fit one word");

const char *mlc_feature_name(uint32_t arch, uint32_t bit) {
  if (arch == MLC_ARCH_X86_64 && bit < COUNT_OF(X86_FEATURES)) return X86_FEATURES[bit].name;
  if (arch == MLC_ARCH_AARCH64 && bit < COUNT_OF(ARM_FEATURES)) return ARM_FEATURES[bit].name;
  return 0;
}

#if defined(__x86_64__)
static uint32_t enabled_states(uint32_t leaf1_ecx) {
  uint32_t low, high;
  if (!(leaf1_ecx >> 27 & 1)) return 1u << STATE_NONE; /* no OSXSAVE: xgetbv would fault */
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  uint32_t states = 1u << STATE_NONE;
  if ((low & 0x06) == 0x06) states |= 1u << STATE_AVX;
  if ((low & 0xe6) == 0xe6) states |= 1u << STATE_AVX512;
  return states;
}

static uint64_t query_features(uint32_t *out_sve_bits) {
  uint32_t words[REGISTER_COUNT] = {0};
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  *out_sve_bits = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) words[LEAF1_ECX] = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    const uint32_t subleaf_max = eax;
    words[LEAF7_EBX] = ebx, words[LEAF7_ECX] = ecx, words[LEAF7_EDX] = edx;
    if (subleaf_max >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
      words[LEAF7_1_EAX] = eax, words[LEAF7_1_EDX] = edx;
    }
  }
  if (__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx)) words[EXTENDED_ECX] = ecx;
  const uint32_t states = enabled_states(words[LEAF1_ECX]);
  uint64_t features = 0;
  for (uint32_t bit = 0; bit < COUNT_OF(X86_FEATURES); ++bit) {
    const x86_feature *feature = &X86_FEATURES[bit];
    if ((words[feature->word] >> feature->bit & 1) && (states >> feature->state & 1)) features |= UINT64_C(1) << bit;
  }
  return features;
}
#elif defined(__aarch64__)
static uint64_t query_features(uint32_t *out_sve_bits) {
  uint64_t hwcaps[2];
  uint64_t features = 0;
  port_arm_hwcaps(&hwcaps[0], &hwcaps[1], out_sve_bits);
  for (uint32_t bit = 0; bit < COUNT_OF(ARM_FEATURES); ++bit)
    if (hwcaps[ARM_FEATURES[bit].word] >> ARM_FEATURES[bit].bit & 1) features |= UINT64_C(1) << bit;
  return features;
}
#else
static uint64_t query_features(uint32_t *out_sve_bits) {
  *out_sve_bits = 0;
  return 0;
}
#endif

mlc_status mlc_cpu_query(mlc_cpu *out_cpu) {
  if (!out_cpu || out_cpu->struct_size != sizeof *out_cpu) return MLC_BAD_ARGUMENT;
  out_cpu->reserved = 0;
  out_cpu->features = query_features(&out_cpu->sve_bits);
#if defined(__x86_64__)
  out_cpu->arch = MLC_ARCH_X86_64;
#elif defined(__aarch64__)
  out_cpu->arch = MLC_ARCH_AARCH64;
#elif defined(__arm__) || defined(__thumb__)
  out_cpu->arch = MLC_ARCH_THUMB;
#elif defined(__riscv) && __riscv_xlen == 64
  out_cpu->arch = MLC_ARCH_RISCV64;
#else
  out_cpu->arch = 0;
#endif
  return MLC_OK;
}
