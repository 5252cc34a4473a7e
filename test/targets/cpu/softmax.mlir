// A softmax calls no library: its exponential is arithmetic on vectors, in the loop.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse,expand-composites --emit asm | FileCheck %s
// RUN: mlc-opt %s --target graviton3 -p fuse,expand-composites --emit asm | FileCheck %s --check-prefix=SVE

// CHECK-LABEL: k0_softmax:
// CHECK: vmaxps {{.*}}%ymm
// CHECK-NOT: call
// CHECK: vfmadd{{[0-9]+p[sd]}} {{.*}}%ymm
// CHECK-NOT: call

// SVE-LABEL: k0_softmax:
// SVE-NOT: bl
// SVE: {{fmla|fmad}} z
// SVE-NOT: bl
func.func @forward(%x: tensor<64x197xf32>) -> tensor<64x197xf32> {
  %0 = "mlc.softmax"(%x) {axis = 1 : i64} : (tensor<64x197xf32>) -> tensor<64x197xf32>
  return %0 : tensor<64x197xf32>
}
