// Shapes that do not broadcast are refused.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: mlc.add: sizes 8 and 7 of dimension 1 do not broadcast (loc(
func.func @forward(%x: tensor<4x8xf32>, %y: tensor<7xf32>) -> tensor<4x8xf32> {
  %0 = "mlc.add"(%x, %y) : (tensor<4x8xf32>, tensor<7xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
