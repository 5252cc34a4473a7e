// x cos + rotate_half(x) sin: each half from slices, put side by side last.
// RUN: mlc-opt %s -p split-rotary,cse,fuse | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: call @k0_concat(%arg0, %arg1, %arg2)
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @k0_concat
// CHECK: %[[C:.*]] = "mlc.concat"(%{{.*}}, %{{.*}}) {{.*}} -> tensor<2x5x8xf32>
// CHECK-NEXT: return %[[C]]
func.func @forward(%x: tensor<2x5x8xf32>, %cos: tensor<5x8xf32>, %sin: tensor<5x8xf32>) -> tensor<2x5x8xf32> {
  %low = "mlc.slice"(%x) {limits = [2, 5, 4], starts = [0, 0, 0], steps = array<i64: 1, 1, 1>} : (tensor<2x5x8xf32>) -> tensor<2x5x4xf32>
  %high = "mlc.slice"(%x) {limits = [2, 5, 8], starts = [0, 0, 4], steps = array<i64: 1, 1, 1>} : (tensor<2x5x8xf32>) -> tensor<2x5x4xf32>
  %neg = "mlc.neg"(%high) : (tensor<2x5x4xf32>) -> tensor<2x5x4xf32>
  %turned = "mlc.concat"(%neg, %low) {axis = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4xf32>, tensor<2x5x4xf32>) -> tensor<2x5x8xf32>
  %0 = "mlc.mul"(%x, %cos) : (tensor<2x5x8xf32>, tensor<5x8xf32>) -> tensor<2x5x8xf32>
  %1 = "mlc.mul"(%turned, %sin) : (tensor<2x5x8xf32>, tensor<5x8xf32>) -> tensor<2x5x8xf32>
  %2 = "mlc.add"(%0, %1) : (tensor<2x5x8xf32>, tensor<2x5x8xf32>) -> tensor<2x5x8xf32>
  return %2 : tensor<2x5x8xf32>
}
