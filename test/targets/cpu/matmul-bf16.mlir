// With factors of bf16 a step of the register tile is one dot product of pairs a register of sums, and the sums stay in registers
// RUN: mlc-opt %s --target zen5 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=ZEN5
// RUN: mlc-opt %s --target zen5 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=ZEN5-TILE
// RUN: mlc-opt %s --target graviton3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=SVE
// RUN: mlc-opt %s --target graviton3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=SVE-TILE
// RUN: mlc-opt %s --target x86-64-v3 -p fuse,pack-weights --emit asm | FileCheck %s --check-prefixes=V3

// ZEN5: vdpbf16ps {{.*}}%zmm
// ZEN5-NOT: (%rsp
// ZEN5: {{^[[:space:]]*}}j{{[a-z]+}}
// ZEN5-TILE-COUNT-28: vdpbf16ps {{.*}}%zmm

// SVE: bfdot {{z[0-9]+.s, z[0-9]+.h, z[0-9]+.h}}
// SVE-NOT: [sp
// SVE: {{^[[:space:]]*}}b.{{[a-z]+}}
// SVE-TILE-COUNT-24: bfdot

// Elsewhere panels of bf16 are widened on the way, eight columns by two instructions.
// V3: vpmovzxwd {{.*}}%ymm
// V3: vpslld $16, %ymm
// V3: vfmadd231ps {{.*}}%ymm
func.func @forward(%x: tensor<96x256xbf16>) -> tensor<96x128xf32> {
  %w = "mlc.weight"() {dtype = "bf16", name = "w", shape = [256, 128]} : () -> tensor<256x128xbf16>
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = false, wide = true} : (tensor<96x256xbf16>, tensor<256x128xbf16>) -> tensor<96x128xf32>
  %1 = "mlc.relu"(%0) : (tensor<96x128xf32>) -> tensor<96x128xf32>
  return %1 : tensor<96x128xf32>
}
