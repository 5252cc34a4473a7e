// Probabilities that are an output too are computed, so the product stays.
// RUN: mlc-opt %s -p match-attention | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NOT: mlc.attention
// CHECK: mlc.softmax
func.func @forward(%q: tensor<1x2x5x64xf32>, %k: tensor<1x2x7x64xf32>, %v: tensor<1x2x7x64xf32>) -> (tensor<1x2x5x64xf32>, tensor<1x2x5x7xf32>) {
  %0 = "mlc.matmul"(%q, %k) {transpose_a = false, transpose_b = true} : (tensor<1x2x5x64xf32>, tensor<1x2x7x64xf32>) -> tensor<1x2x5x7xf32>
  %1 = "mlc.softmax"(%0) {axis = 3 : i64} : (tensor<1x2x5x7xf32>) -> tensor<1x2x5x7xf32>
  %2 = "mlc.matmul"(%1, %v) {transpose_a = false, transpose_b = false} : (tensor<1x2x5x7xf32>, tensor<1x2x7x64xf32>) -> tensor<1x2x5x64xf32>
  return %2, %1 : tensor<1x2x5x64xf32>, tensor<1x2x5x7xf32>
}
