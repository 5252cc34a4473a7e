// A result larger than the last-level cache is stored past it, whole lines at a time, and ordered at the end; the
// program checks that memory begins with a line and has ordinary stores where it does not. GELU is f32 throughout.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse --emit asm | FileCheck %s

// CHECK-LABEL: k0_pointwise:
// CHECK: testb $63
// CHECK-NOT: vcvtps2pd
// CHECK: vmovups %ymm{{[0-9]+}}, {{.*}}(%r
// CHECK-NOT: vcvtps2pd
// CHECK: prefetcht0
// CHECK: vmovntps %ymm
// CHECK: vmovntps %ymm
// CHECK: lock
func.func @forward(%x: tensor<4194304xf32>) -> tensor<4194304xf32> {
  %0 = "mlc.gelu"(%x) {approximate = false} : (tensor<4194304xf32>) -> tensor<4194304xf32>
  return %0 : tensor<4194304xf32>
}
