// A result of another type than the declaration gives is refused, with both types and the place.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: mlc.relu: result is f32[5], expected f32[4] (loc(
func.func @forward(%x: tensor<4xf32>) -> tensor<5xf32> {
  %0 = "mlc.relu"(%x) : (tensor<4xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}
