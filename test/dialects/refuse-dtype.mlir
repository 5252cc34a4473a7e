// An element type outside the declared class is refused.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: mlc.exp: x is i32, which the op does not take (loc(
func.func @forward(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "mlc.exp"(%x) : (tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
