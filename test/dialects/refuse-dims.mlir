// Sizes that must be equal are named.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: mlc.matmul: a is f32[4, 8] with K=8, b is f32[7, 3] with K=7 (loc(
func.func @forward(%x: tensor<4x8xf32>, %w: tensor<7x3xf32>) -> tensor<4x3xf32> {
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = false} : (tensor<4x8xf32>, tensor<7x3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
