// An op that nobody declared is refused.
// RUN: not mlc-opt %s 2>&1 | FileCheck %s

// CHECK: error: {{.*}}unregistered operation 'mlc.no_such_op'
func.func @forward(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "mlc.no_such_op"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
