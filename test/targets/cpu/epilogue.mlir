// A residual is added to the sums on the tile, and its lines are asked for some rows ahead.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse,pack-weights --emit llvm | FileCheck %s

// CHECK-LABEL: define hidden void @k0_matmul(ptr
// CHECK: call void @llvm.prefetch.p0(ptr %{{.*}}, i32 0, i32 2, i32 1)
// CHECK: load <8 x float>
// CHECK: fadd <8 x float>
// CHECK: store <8 x float>
// CHECK-NOT: define hidden void
func.func @forward(%x: tensor<32x48xf32>, %r: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [64, 48]} : () -> tensor<64x48xf32>
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = true} : (tensor<32x48xf32>, tensor<64x48xf32>) -> tensor<32x64xf32>
  %1 = "mlc.add"(%0, %r) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  return %1 : tensor<32x64xf32>
}
