// An op that nobody reads goes, and with it what only it read.
// RUN: mlc-opt %s -p dce | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NOT: mlc.exp
// CHECK-NOT: mlc.neg
// CHECK: "mlc.abs"
// CHECK-NEXT: return
func.func @forward(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "mlc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "mlc.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "mlc.abs"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
