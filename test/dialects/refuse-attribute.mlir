// A missing attribute is named.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: {{.*}}'mlc.softmax' op attribute "axis" is expected but not provided
func.func @forward(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "mlc.softmax"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
