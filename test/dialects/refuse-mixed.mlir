// Two operands of one type variable have one element type.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: mlc.add: b is f64, but a is f32 (loc(
func.func @forward(%x: tensor<4xf32>, %y: tensor<4xf64>) -> tensor<4xf32> {
  %0 = "mlc.add"(%x, %y) : (tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
