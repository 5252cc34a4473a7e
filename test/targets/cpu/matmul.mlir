// A product's hot loop is vector multiply-adds on sums that stay in registers: from the first to the loop's end no access to the stack.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=V3
// RUN: mlc-opt %s --target x86-64-v3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=V3-TILE
// RUN: mlc-opt %s --target x86-64-v4 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=V4
// RUN: mlc-opt %s --target x86-64-v4 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=V4-TILE
// RUN: mlc-opt %s --target graviton3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=SVE
// RUN: mlc-opt %s --target graviton3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=SVE-TILE
// RUN: mlc-opt %s --target graviton2 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=NEON

// V3: vfmadd231ps {{.*}}%ymm
// V3-NOT: (%rsp
// V3: {{^[[:space:]]*}}j{{[a-z]+}}
// V3-TILE-COUNT-12: vfmadd231ps {{.*}}%ymm

// V4: vfmadd231ps {{.*}}%zmm
// V4-NOT: (%rsp
// V4: {{^[[:space:]]*}}j{{[a-z]+}}
// V4-TILE-COUNT-28: vfmadd231ps {{.*}}%zmm

// SVE: fmla {{z[0-9]+.s, p[0-9]+/m, z[0-9]+.s, z[0-9]+.s}}
// SVE-NOT: [sp
// SVE: {{^[[:space:]]*}}b.{{[a-z]+}}
// SVE-TILE-COUNT-24: fmla {{z[0-9]+.s, p[0-9]+/m}}

// NEON: fmla {{v[0-9]+.4s, v[0-9]+.4s, v[0-9]+}}
func.func @forward(%x: tensor<96x256xf32>) -> tensor<96x128xf32> {
  %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [256, 128]} : () -> tensor<256x128xf32>
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = false} : (tensor<96x256xf32>, tensor<256x128xf32>) -> tensor<96x128xf32>
  %1 = "mlc.relu"(%0) : (tensor<96x128xf32>) -> tensor<96x128xf32>
  return %1 : tensor<96x128xf32>
}
