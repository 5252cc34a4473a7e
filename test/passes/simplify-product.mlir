// Rows flattened before a linear layer and restored after it: the reshapes meet and go, the bias stays with the product.
// RUN: mlc-opt %s -p simplify | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NEXT: %[[P:.*]] = "mlc.matmul"(%arg0, %arg1)
// CHECK-SAME: -> tensor<2x4x16xf32>
// CHECK-NEXT: %[[B:.*]] = "mlc.add"(%[[P]], %arg2)
// CHECK-NEXT: %[[R:.*]] = "mlc.relu"(%[[B]])
// CHECK-NEXT: return %[[R]]
func.func @forward(%x: tensor<2x4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> tensor<2x4x16xf32> {
  %0 = "mlc.reshape"(%x) {shape = [8, 8]} : (tensor<2x4x8xf32>) -> tensor<8x8xf32>
  %1 = "mlc.matmul"(%0, %w) {transpose_a = false, transpose_b = false} : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = "mlc.add"(%1, %b) : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %3 = "mlc.reshape"(%2) {shape = [2, 4, 16]} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %4 = "mlc.relu"(%3) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %4 : tensor<2x4x16xf32>
}
