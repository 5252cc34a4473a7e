// A transpose that is materialised works on blocks in registers: whole vectors are read and stored, none is gathered.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse --emit asm | FileCheck %s
// RUN: mlc-opt %s --target x86-64-v4 -p fuse --emit asm | FileCheck %s --check-prefix=AVX512
// RUN: mlc-opt %s --target aarch64 -p fuse --emit asm | FileCheck %s --check-prefix=NEON

// CHECK-LABEL: k0_pointwise:
// CHECK-NOT: gather
// CHECK: vinsertf128 {{.*}}, %ymm
// CHECK: vunpcklps {{.*}}%ymm
// CHECK: vunpckhps {{.*}}%ymm
// CHECK: vmovups %ymm
// CHECK-NOT: gather

// AVX512-LABEL: k0_pointwise:
// AVX512-NOT: gather
// AVX512: vmovups %zmm
// AVX512-NOT: gather

// NEON-LABEL: k0_pointwise:
// NEON: zip{{[12]}} v
// NEON: st{{[rp]}} q
func.func @forward(%x: tensor<96x64xf32>) -> tensor<64x96xf32> {
  %0 = "mlc.transpose"(%x) {perm = array<i64: 1, 0>} : (tensor<96x64xf32>) -> tensor<64x96xf32>
  return %0 : tensor<64x96xf32>
}
